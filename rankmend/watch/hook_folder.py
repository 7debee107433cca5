"""Makes the folder that goes onto the PYTHONPATH of jobs of other launchers.

    <folder>/sitecustomize.py            runs in each Python process, and looks at some variables
    <folder>/lib-rankmend/rankmend/      the hook: nothing that Python would import by itself

Copies, not links: so it can be mounted into a container, and an upgrade of rankmend changes no running job. It stands alone.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

import rankmend
from rankmend.errors import ConfigError
from rankmend.version import RANKMEND_VERSION

VERSION_FILE: Final = "rankmend-version"
_PACKAGE: Final = Path(rankmend.__file__).resolve().parent


def make_hook_folder(folder: Path) -> None:
    """Make the folder, or bring it up to this version. Raises ConfigError where something else is in the way."""
    if folder.exists() and not (folder / VERSION_FILE).is_file() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty, and no hook folder of rankmend")
    try:
        if _is_current(folder):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
            made = Path(name) / "hook"
            _copy_to(made)
            if folder.exists():
                folder.rename(Path(name) / "old")  # processes that are starting find one of the two
            made.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot make the hook folder {folder}: {error}") from error


def _is_current(folder: Path) -> bool:
    wanted = {path.relative_to(_PACKAGE): path.read_bytes() for path in _sources()}
    package = folder / "lib-rankmend" / "rankmend"
    return all(
        (package / name).is_file() and (package / name).read_bytes() == content
        for name, content in wanted.items()
    )


def _sources() -> list[Path]:
    return [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "hook").rglob("*.py"))]


def _copy_to(folder: Path) -> None:
    for path in _sources():
        target = folder / "lib-rankmend" / "rankmend" / path.relative_to(_PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(_PACKAGE / "hook/site/sitecustomize.py", folder / "sitecustomize.py")
    (folder / VERSION_FILE).write_text(RANKMEND_VERSION + "\n")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # for every user, whatever the umask
