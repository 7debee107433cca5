"""Builds the package of this distribution: dist/rankmend_VERSION_ARCH.deb, or the RPM.

    python3 deploy/packages/build.py deb|rpm [--output dist] [--wheels FOLDER] [--fast]

Run it with the distribution's own Python, on which the package will depend. Needs pip's registry or, with --wheels, a
folder with every wheel (`pip download`), and debhelper or rpmbuild. Standard library only.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from email.utils import formatdate
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = ROOT / "deploy" / "packages"
EXTRAS: Final = "agent,controller,report"
OPT: Final = Path("opt/rankmend")
PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
MAINTAINER: Final = "The rankmend developers <maintainers@rankmend.example>"
SUMMARY: Final = "reliability for GPU training clusters"
NOT_IN_SOURCE: Final = (".*", "build", "dist", "results", "*.egg-info", "__pycache__")
# (from the repository, to the package)
SHIPPED: Final = (
    ("deploy/agent.toml", "etc/rankmend/agent.toml"),
    ("deploy/controller.toml", "etc/rankmend/controller/controller.toml"),
    ("deploy/packages/setup.sh", "usr/lib/rankmend/setup"),
    ("deploy/sysusers.d/rankmend.conf", "usr/lib/sysusers.d/rankmend.conf"),
    ("deploy/tmpfiles.d/rankmend.conf", "usr/lib/tmpfiles.d/rankmend.conf"),
    ("deploy/systemd", "usr/lib/systemd/system"),
    ("deploy/slurm", "usr/share/rankmend/slurm"),
    ("deploy/prometheus", "usr/share/rankmend/prometheus"),
    ("deploy/alertmanager", "usr/share/rankmend/alertmanager"),
    ("deploy/grafana", "usr/share/rankmend/grafana"),
    ("deploy/policy.toml", "usr/share/doc/rankmend/examples/policy.toml"),
    ("CHANGELOG.md", "usr/share/doc/rankmend/NEWS.md"),
)
# Put by click into its own Python's folders; each shell looks for it in another place.
COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/rankmend",
    "zsh": "usr/share/zsh/{zsh}/_rankmend",
    "fish": "usr/share/fish/vendor_completions.d/rankmend.fish",
}
ZSH: Final = {"deb": "vendor-completions", "rpm": "site-functions"}
# Processes of the package take nothing from PYTHONPATH, which is meant for the ranks. Plugins of the site do belong here.
PATHS: Final = (
    'import os, sys; sys.path[:] = [p for p in sys.path if p not in [os.path.abspath(q) for q in '
    'os.environ.get("PYTHONPATH", "").split(os.pathsep) if q]]\n/opt/rankmend/plugins\n'
)  # fmt: skip


def run(*command: "str | Path", **settings: object) -> None:
    """Run a program with its output on stderr; end with its name and code where it fails."""
    done = subprocess.run(
        [str(word) for word in command], stdout=sys.stderr, check=False, **settings
    )  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with exit code {done.returncode}")


def read_version() -> str:
    found = re.search(
        r'RANKMEND_VERSION: Final = "([^"]+)"', (ROOT / "rankmend/version.py").read_text()
    )
    assert found is not None, "rankmend/version.py states the version"
    return found.group(1)


def package_version(version: str) -> str:
    """Return a Python version as packages order it: 1.0rc1 and 1.0.dev1 are older than 1.0."""
    return re.sub(r"\.?(dev|a|b|rc)(\d+)", r"~\1\2", version)


def source_date() -> int:
    """Return the time in unix seconds that everything in the package has."""
    if text := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(text)
    asked = ("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return (
        int(done.stdout) if done.returncode == 0 else int((ROOT / "CHANGELOG.md").stat().st_mtime)
    )


def install(environment: Path, source: Path, wheels: "Path | None") -> None:
    """Make an environment of this Python that holds rankmend and what it needs, and nothing else."""
    run(sys.executable, "-m", "venv", environment)
    pip = [environment / "bin/python3", "-m", "pip", "--disable-pip-version-check"]
    # The versions are the lock's, or those of the folder.
    locked = ("--constraint", source / "deploy/lock.txt")
    only = locked if wheels is None else ("--no-index", "--find-links", wheels)
    run(
        *pip,
        "install",
        "--quiet",
        "--no-compile",
        "--only-binary=:all:",
        *only,
        f"{source}[{EXTRAS}]",
    )
    run(*pip, "uninstall", "--quiet", "--yes", "pip", "setuptools", stderr=subprocess.DEVNULL)
    packages = environment / "lib" / PYTHON / "site-packages"
    for folder in (packages / "numpy").rglob("tests"):  # 20 MB
        shutil.rmtree(folder)
    for left in (
        *packages.glob("rankmend-*.dist-info/direct_url.json"),
        *packages.rglob("*.dist-info/REQUESTED"),
    ):
        left.unlink()
    for record in packages.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not _names_build_folder(line)))
    for path in (environment / "bin").iterdir():
        if path.name not in ("rankmend", "python3"):
            path.unlink()
    shutil.rmtree(environment / "include", ignore_errors=True)
    for cache in environment.rglob("__pycache__"):
        shutil.rmtree(cache)
    (packages / "rankmend-package.pth").write_text(PATHS)
    (
        environment / "rankmend-tool"
    ).touch()  # `rankmend run` then takes the user's Python for the ranks


def _names_build_folder(line: str) -> bool:
    """Return whether a line of RECORD has the digest of a file in which pip has written the folder of the build."""
    return line.startswith("../") or "/direct_url.json," in line


def settle(environment: Path, version: str) -> str:
    """Bind the environment to the folder from which it will run, compile it, and return that folder's name."""
    base = Path(sysconfig.get_config_var("BINDIR")) / PYTHON
    (environment / "bin/python3").unlink()
    (environment / "bin/python3").symlink_to(base)
    (environment / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
    )
    script = environment / "bin/rankmend"
    code = "import re\n" + script.read_text().partition("import re\n")[2]
    script.write_text(code)
    name = f"{version}-{digest_of(environment)}"
    final = Path("/", OPT, "versions", name)
    script.write_text(f"#!{final}/bin/python3\n{code}")
    script.chmod(0o755)
    (environment / "version-id").write_text(f"{name}\n")
    how = ("-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
    paths = ("-s", environment, "-p", final, environment / "lib")
    run(sys.executable, "-m", "compileall", *how, *paths)
    return name


def digest_of(folder: Path) -> str:
    """Return eight characters for what is in a folder: paths, links and bytes."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = (
            str(path.readlink()).encode()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b""
        )
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:8]


def add_files(tree: Path, kind: str, date: int) -> None:
    """Add what lies outside the environment."""
    for source, target in SHIPPED:
        path, wanted = ROOT / source, tree / target
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, wanted, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        else:
            shutil.copy(path, wanted)
    (tree / "usr/lib/rankmend/setup").chmod(0o755)
    for link, target in (
        (OPT / "bin/rankmend", "../current/bin/rankmend"),
        (
            Path("usr/bin/rankmend"),
            "/opt/rankmend/bin/rankmend" if kind == "deb" else "../../opt/rankmend/bin/rankmend",
        ),
    ):
        (tree / link).parent.mkdir(parents=True, exist_ok=True)
        (tree / link).symlink_to(target)
    (tree / OPT / "plugins").mkdir()
    environment = tree / OPT / "packaged"
    python = str(environment / "bin/python3")
    clean = {"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": str(date), "LC_ALL": "C.UTF-8"}
    pages = tree / "usr/share/man/man1"
    pages.mkdir(parents=True)
    run(python, "-B", HERE / "manual_pages.py", pages, env=clean)
    for shell, name in COMPLETIONS.items():
        target = tree / name.format(zsh=ZSH[kind])
        target.parent.mkdir(parents=True)
        command = [python, "-B", str(environment / "bin/rankmend"), "completion", shell]
        target.write_bytes(
            subprocess.run(command, env=clean, check=True, capture_output=True).stdout
        )
    document = tree / "usr/share/doc/rankmend"
    listing = subprocess.run(
        [python, "-B", str(HERE / "bundled.py")], env=clean, check=True, capture_output=True
    )
    (document / "bundled.txt").write_bytes(listing.stdout)
    shutil.copy(ROOT / "deploy/debian/copyright", document / "copyright")


def build_tree(work: Path, kind: str, wheels: "Path | None") -> Path:
    """Return a folder with the files of the package, as they will lie below /."""
    source, tree = work / "source", work / "tree"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_IN_SOURCE), symlinks=True)
    environment = tree / OPT / "packaged"
    environment.parent.mkdir(parents=True)
    install(environment, source, wheels)
    settle(environment, package_version(read_version()))
    add_files(tree, kind, source_date())
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0) & ~0o022)
    return tree


def build_deb(work: Path, tree: Path, output: Path, *, is_fast: bool) -> None:
    version, date = package_version(read_version()), source_date()
    folder = work / "debian-build"
    shutil.copytree(ROOT / "deploy/debian", folder / "debian")
    staged = folder / "debian/rankmend"
    tree.rename(staged)
    for unit in (
        staged / "usr/lib/systemd/system"
    ).iterdir():  # dh_installsystemd knows where this Debian has them
        unit.rename(folder / "debian" / f"rankmend.{unit.name}")
    (staged / "usr/lib/systemd/system").rmdir()
    (staged / "usr/lib/systemd").rmdir()
    (folder / "debian/changelog").write_text(
        f"rankmend ({version}) stable; urgency=medium\n\n  * /usr/share/doc/rankmend/NEWS.md.gz lists the changes.\n\n"
        f" -- {MAINTAINER}  {formatdate(date)}\n"
    )
    minor = sys.version_info.minor
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]
    settings = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(date),
        "RANKMEND_DEPENDS": f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}), libc6 (>= {libc}), libgcc-s1, libstdc++6, zlib1g",
        "RANKMEND_COMPRESSION": "-Zzstd -z1" if is_fast else "-Zxz",
        "RANKMEND_OUTPUT": str(output),
    }
    run("debian/rules", "binary", cwd=folder, env=settings)


def build_rpm(work: Path, tree: Path, output: Path, *, is_fast: bool) -> None:
    defines = {
        "_topdir": work / "rpm",
        "_rpmdir": output,
        "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        "rankmend_tree": tree,
        "rankmend_version": package_version(read_version()),
        "rankmend_python": PYTHON.removeprefix("python"),
        "_binary_payload": "w1.zstdio" if is_fast else "w9.xzdio",
    }
    words = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    settings = {**os.environ, "SOURCE_DATE_EPOCH": str(source_date())}
    run("rpmbuild", "-bb", "--quiet", *words, ROOT / "deploy/rpm/rankmend.spec", env=settings)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the package of this distribution.")
    parser.add_argument("kind", choices=("deb", "rpm"))
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for the package")
    parser.add_argument(
        "--wheels", type=Path, help="folder with all wheels, instead of pip's registry"
    )
    parser.add_argument("--fast", action="store_true", help="compress little, for tests")
    chosen = parser.parse_args()
    output = chosen.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankmend-package-") as name:
        work = Path(name)
        tree = build_tree(work, chosen.kind, chosen.wheels and chosen.wheels.absolute())
        {"deb": build_deb, "rpm": build_rpm}[chosen.kind](work, tree, output, is_fast=chosen.fast)
    sys.stdout.write(
        "".join(f"{path}\n" for path in sorted(output.glob(f"rankmend[-_]*.{chosen.kind}")))
    )


if __name__ == "__main__":
    main()
