"""Builds all that a release gives to others, and checks it: wheel, sdist, deb, RPM, SBOM and SHA256SUMS.

    python deploy/packages/release.py [--output dist] [--without deb] [--without rpm] [--python /usr/bin/python3]

Needs the extra `release`, and pip's registry for the packages that deb and RPM bring. lintian checks the deb where it is
installed. Uploads nothing.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from deploy.packages.build import read_version, run, source_date  # noqa: E402

LOCK: Final = ROOT / "deploy" / "lock.txt"
PACKAGES: Final = {"deb": "dh_builddeb", "rpm": "rpmbuild"}  # and what builds them
SBOM: Final = "rankmend.cdx.json"


def build_python(output: Path) -> None:
    """Build sdist and wheel, and check what an index would refuse or show wrongly."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", output, cwd=ROOT)  # fmt: skip
    files = [*output.glob("*.whl"), *output.glob("*.tar.gz")]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    # W002: the same empty file stands in many packages. W009: PyTorch imports rankmend_torchrun by its name.
    run(_program("check-wheel-contents"), "--ignore", "W002,W009", *output.glob("*.whl"))


def build_sbom(output: Path) -> None:
    """List every package that rankmend with all extras brings, in the locked versions, as CycloneDX."""
    with tempfile.TemporaryDirectory() as name:
        needed = Path(name, "needed.txt")
        run(_program("uv"), "pip", "compile", "--quiet", "--universal", "--python-version", "3.10", "--extra", "all",
            "--no-annotate", "--no-header", "-c", LOCK, ROOT / "pyproject.toml", "-o", needed)  # fmt: skip
        run(_program("cyclonedx-py"), "requirements", needed, "--pyproject", ROOT / "pyproject.toml", "--validate",
            "--output-reproducible", "-o", output / SBOM)  # fmt: skip
    # The tool knows no version that is computed.
    sbom = json.loads((output / SBOM).read_text())
    sbom["metadata"]["component"]["version"] = read_version()
    (output / SBOM).write_text(json.dumps(sbom, indent=2, sort_keys=True) + "\n")


def build_package(kind: str, python: Path, output: Path) -> None:
    run(python, ROOT / "deploy/packages/build.py", kind, "--output", output)
    if kind == "deb" and shutil.which("lintian"):
        run("lintian", "--fail-on", "error", *output.glob("*.deb"))


def write_sums(output: Path) -> None:
    """Write SHA256SUMS of all other files, as `sha256sum --check` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(output.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (output / "SHA256SUMS").write_text("".join(lines))


def missing_builders(kinds: "list[str]") -> "list[str]":
    return [f"{kind} needs {PACKAGES[kind]}" for kind in kinds if not shutil.which(PACKAGES[kind])]


def _program(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build and check the files of a release.")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="empty folder, or a former release's"
    )
    parser.add_argument(
        "--without", action="append", choices=PACKAGES, default=[], help="package to leave out"
    )
    parser.add_argument(
        "--python", type=Path, default=Path("/usr/bin/python3"), help="Python of deb and RPM"
    )
    chosen = parser.parse_args()
    kinds = [kind for kind in PACKAGES if kind not in chosen.without]
    if missing := missing_builders(kinds):
        sys.exit(
            f"{'; '.join(missing)}, which is not installed: install it, or leave the package out (--without)"
        )
    output = chosen.output.absolute()
    for old in (*output.glob("rankmend[-_.]*"), output / "SHA256SUMS"):
        old.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    if left := [path.name for path in output.iterdir()]:
        sys.exit(f"{output} holds other files, which SHA256SUMS would name: {', '.join(left)}")
    os.environ["SOURCE_DATE_EPOCH"] = str(source_date())
    build_python(output)
    build_sbom(output)
    for kind in kinds:
        build_package(kind, chosen.python, output)
    write_sums(output)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=output, check=True)
    sys.stdout.write("".join(f"{path}\n" for path in sorted(output.iterdir())))


if __name__ == "__main__":
    main()
