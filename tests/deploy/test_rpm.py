"""The RPM from the files of the Debian package: built, and installed into an empty root. Nothing proves it on a real Fedora."""

import gzip
import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import packages

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(packages.why_not()), reason=packages.why_not()),
    pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed"),
]


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", ROOT / "deploy/packages/build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build


def tree_of(deb: Path, folder: Path) -> Path:
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


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rpm_has_the_same_files_and_installs_into_an_empty_root(tmp_path: Path) -> None:
    tree = tree_of(packages.build_deb(tmp_path), tmp_path)
    wanted = {f"/{path.relative_to(tree)}" for path in tree.rglob("*") if not path.is_dir()}
    wanted = {f"{path}.gz" if path.startswith("/usr/share/man/") else path for path in wanted}
    load_build().build_rpm(tmp_path, tree, tmp_path / "made", is_fast=True)
    (rpm,) = (tmp_path / "made").glob("rankmend-*.rpm")

    root = tmp_path / "root"
    root.mkdir()
    run("rpm", "--root", root, "--initdb")
    run("rpm", "--root", root, "--nodeps", "--noscripts", "-i", rpm)

    listed = run("rpm", "-qlp", rpm).splitlines()
    assert wanted <= set(listed)
    assert {
        f"/{path.relative_to(root)}"
        for path in root.rglob("*")
        if path.is_file() or path.is_symlink()
    } >= wanted
    assert run("rpm", "-qcp", rpm).split() == ["/etc/rankmend/agent.toml"]
    assert "/usr/bin/python3." in run("rpm", "-qp", "--requires", rpm)
    scripts = run("rpm", "-qp", "--scripts", rpm)
    assert "setup activate" in scripts
    assert "setup deactivate" in scripts
