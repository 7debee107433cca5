"""The Debian package for the tests: built once, and the same with another version."""

import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

from tests.support.wheelhouse import fill_wheelhouse

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3")
_EXTRAS = ("agent", "controller", "report")


def why_not() -> str:
    """Return why no package can be built here; empty when one can."""
    for tool in ("dpkg-deb", "dh_builddeb"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    owned = subprocess.run(["dpkg", "-S", str(SYSTEM_PYTHON)], capture_output=True, check=False)
    return "" if owned.returncode == 0 else f"{SYSTEM_PYTHON} is not Debian's"


def build_deb(folder: Path) -> Path:
    """Return the package of this source. RANKMEND_TESTS_DEB names one that is there already."""
    if made := os.environ.get("RANKMEND_TESTS_DEB"):
        return Path(made)
    wheels = folder / "wheels"
    wheels.mkdir()
    fill_wheelhouse(wheels, ROOT / "pyproject.toml", _EXTRAS)
    done = subprocess.run(
        [
            *(str(SYSTEM_PYTHON), str(ROOT / "deploy/packages/build.py"), "deb", "--fast"),
            *("--wheels", str(wheels), "--output", str(folder)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(done.stdout.split()[-1])


def load_build() -> ModuleType:
    """Return the program that builds packages, as a module."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "deploy/packages/build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build


def rpm_tree_of(deb: Path, folder: Path) -> Path:
    """Return the files of the Debian package where an RPM has them, as `build_tree` would make them."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-x", str(deb), str(tree)], check=True)
    if (tree / "lib").is_dir():
        (tree / "lib/systemd").rename(tree / "usr/lib/systemd")
        (tree / "lib").rmdir()
    (tree / "usr/share/zsh/vendor-completions").rename(tree / "usr/share/zsh/site-functions")
    for page in (tree / "usr/share/man/man1").glob("*.gz"):
        page.with_suffix("").write_bytes(gzip.decompress(page.read_bytes()))
        page.unlink()
    shutil.rmtree(tree / "usr/share/lintian")
    return tree


def with_version(deb: Path, version: str) -> Path:
    """Return the package as a build of another version would make it; its configuration files end with one more line."""
    tree = deb.parent / f"tree-{version}"
    subprocess.run(["dpkg-deb", "-R", str(deb), str(tree)], check=True)
    environment = tree / "opt/rankmend/packaged"
    former = (environment / "version-id").read_text().strip()
    name = f"{version}-test0000"
    changed = [environment / "version-id", environment / "bin/rankmend"]
    for path in changed:
        path.write_text(path.read_text().replace(former, name))
    (module,) = environment.glob("lib/python3*/site-packages/rankmend/version.py")
    module.write_text(re.sub('Final = "[^"]+"', f'Final = "{version}"', module.read_text()))
    compiled = list((module.parent / "__pycache__").glob("version.*.pyc"))
    for path in compiled:
        path.unlink()
    _update_sums(tree, [*changed, module], compiled)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("(?m)^Version: .*$", f"Version: {version}", control.read_text()))
    for name in ("agent.toml", "controller/controller.toml"):
        with (tree / "etc/rankmend" / name).open("a") as config:
            config.write(f"# as of version {version}\n")
    made = deb.parent / f"rankmend_{version}_test.deb"
    packing = ("dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "-b", str(tree), str(made))
    subprocess.run(packing, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return made


def _update_sums(tree: Path, changed: list[Path], removed: list[Path]) -> None:
    sums = tree / "DEBIAN/md5sums"
    lines = dict(line.split("  ", 1)[::-1] for line in sums.read_text().splitlines())
    for path in changed:
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        lines[str(path.relative_to(tree))] = digest
    for path in removed:
        lines.pop(str(path.relative_to(tree)))
    sums.write_text("".join(f"{digest}  {name}\n" for name, digest in lines.items()))
