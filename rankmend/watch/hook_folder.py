"""Makes the folder that goes onto the PYTHONPATH of jobs of other launchers.

    <folder>/sitecustomize.py                       runs in each Python process, and looks at some variables
    <folder>/rankmend-site.py                       runs the sitecustomize of a site that has one
    <folder>/lib-rankmend/<digest>/rankmend/        the hook: nothing that Python would import by itself
    <folder>/lib-rankmend/current                   a link to the one that processes take that start now

Copies, not links: so it can be mounted into a container, and stands alone. The folder may be shared by many nodes (NFS) and brought
up to date while jobs run and start: each change is one rename, and jobs keep what they started with for 30 days. No process, of
root or of another user, leaves compiled code for the others: files take the place of Python's `__pycache__` folders. Where every
process comes by, such a folder has the code for the Python that runs rankmend, or more of them, and empty folders in the place of other files.
"""

import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

import rankmend
from rankmend.errors import ConfigError
from rankmend.version import RANKMEND_VERSION
from rankmend.watch.compiling import LEVELS, compile_for_this, name_of

VERSION_FILE: Final = "rankmend-version"
KEPT_S: Final = 30 * 86400.0  # for jobs that began with it: few clusters let a job run for longer
_PACKAGE: Final = Path(rankmend.__file__).resolve().parent
_SITE: Final = _PACKAGE / "hook/site/sitecustomize.py"
_WATCH_STUB: Final = _PACKAGE / "hook/site/watch_stub.py"
_NO_CACHE_OF_2_7: Final = ("sitecustomize.pyc", "sitecustomize.pyo")  # folders
_NO_CACHE: Final = "Keeps Python from leaving compiled files here.\n"
_COMPILED: Final = ("sitecustomize.py", "{package}/hook/awaiting.py", "{package}/hook/on_import.py")
_COMPILING: Final = _PACKAGE / "watch/compiling.py"
COMPILE_S_MAX: Final = 30.0
_TAGS: Final = (
    *(f"cpython-3{minor}" for minor in range(4, 20)),
    *(f"pypy3{minor}" for minor in range(6, 16)),
)


def make_hook_folder(folder: Path, pythons: Sequence[Path] = ()) -> None:
    """Make the folder, or bring it up to this version. Raises ConfigError where something else is in the way.

    ``pythons``: others than this one that shall start as quickly.
    """
    try:
        if folder.exists() and not (folder / VERSION_FILE).is_file() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty, and no hook folder of rankmend")
        packages = folder / "lib-rankmend"
        packages.mkdir(parents=True, exist_ok=True)
        _replace(
            folder / VERSION_FILE, RANKMEND_VERSION + "\n"
        )  # first: whatever stops us, the folder is known as ours
        for name in _NO_CACHE_OF_2_7:
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o755)
        digest = _digest()
        _make_package(packages, digest)
        _link(packages / "current", digest)
        _replace(folder / "rankmend-site.py", _SITE.read_text(encoding="utf-8"))
        _replace(folder / "sitecustomize.py", _WATCH_STUB.read_text(encoding="utf-8"))
        package = packages / digest / "rankmend"
        _compile([folder / name.format(package=package) for name in _COMPILED], pythons)
        for path in (folder, packages):
            path.chmod(0o755)  # for every user, whatever the umask
        _remove_old(packages, digest)
    except OSError as error:
        raise ConfigError(f"cannot make the hook folder {folder}: {error}") from error


def _compile(sources: Sequence[Path], pythons: Sequence[Path]) -> None:
    """Put the code of these files there for this Python and others, and obstacles in the way of all the rest."""
    for source in sources:
        cache = source.parent / "__pycache__"
        if not cache.is_dir():
            cache.unlink(missing_ok=True)
            cache.mkdir(exist_ok=True)
            cache.chmod(0o755)
    for source, tag, level in product(sources, _TAGS, LEVELS):
        path = source.parent / "__pycache__" / name_of(source.stem, tag, level)
        if path.is_file() and tag != sys.implementation.cache_tag:
            path.unlink()
        if not path.is_file():
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
    try:
        compile_for_this(list(sources))
    except py_compile.PyCompileError as error:
        raise ConfigError(f"cannot compile the hook: {error}") from error
    for python in pythons:
        _compile_by(python, [str(source) for source in sources])


def _compile_by(python: Path, names: Sequence[str]) -> None:
    command = [str(python), "-I", str(_COMPILING), *names]
    failed = f"cannot compile the hook for {python}"
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=COMPILE_S_MAX, check=False, env={}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{failed}: {error}") from error
    if done.returncode:
        reported = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ConfigError(
            f"{failed}: {''.join(reported) or done.returncode}; it must be 3.8 or later"
        )


def _sources() -> list[Path]:
    return [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "hook").rglob("*.py"))]


def copy_site(folder: Path) -> None:
    """Fill the folder that `rankmend run` puts onto its ranks' PYTHONPATH with copies in place of links."""
    package = folder / "rankmend"
    if package.is_symlink():
        package.unlink()
    for path in _sources():
        target = package / path.relative_to(_PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, path.read_text(encoding="utf-8"))
    site = folder / "sitecustomize.py"
    if site.is_symlink():
        site.unlink()
    _replace(site, _SITE.read_text(encoding="utf-8"))


def _digest() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _make_package(packages: Path, digest: str) -> None:
    """Make the package of this digest, unless it is there as it was made."""
    target = packages / digest
    if target.is_dir():
        if _is_whole(target):
            return
        target.rename(tempfile.mkdtemp(prefix=".broken-", dir=packages))
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=packages))
    try:
        for path in _sources():
            copy = made / "rankmend" / path.relative_to(_PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        for path in (made, *made.rglob("*")):
            if path.is_dir():
                (path / "__pycache__").write_text(_NO_CACHE)
        for path in (made, *made.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            made.rename(target)
        except OSError:
            if not _is_whole(target):  # else another node has made the same one just now
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_whole(target: Path) -> bool:
    package = target / "rankmend"
    wanted = {str(path.relative_to(_PACKAGE)): path.read_bytes() for path in _sources()}
    found = {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*.py")}
    return wanted == found


def _replace(path: Path, text: str) -> None:
    """Give a file this text, by one rename, unless it has it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # compiled files of an earlier version
    elif path.is_file() and path.read_bytes() == text.encode():
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _link(link: Path, target: str) -> None:
    if link.is_symlink() and str(link.readlink()) == target:
        return
    before = link.resolve() if link.is_symlink() else None
    if before is None and link.is_dir():
        shutil.rmtree(link)  # of a copy that has followed the link
    with tempfile.TemporaryDirectory(prefix=".link-", dir=link.parent) as name:
        made = Path(name) / "link"
        made.symlink_to(target)
        made.rename(link)
    if before is not None and before.is_dir():
        os.utime(before)  # from now on it is old


def _remove_old(packages: Path, digest: str) -> None:
    """Remove what no job can use any more, and what an update that was killed has left."""
    for path in packages.iterdir():
        is_old = time.time() - path.lstat().st_mtime > KEPT_S
        if is_old and path.is_dir() and not path.is_symlink() and path.name != digest:
            shutil.rmtree(path, ignore_errors=True)
