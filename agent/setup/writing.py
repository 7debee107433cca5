"""Writes a new configuration of the agent; never over one that is there, unless told to."""

import tempfile
from pathlib import Path

from agent import config as configuration
from rankmend.errors import ConfigError, StorageError
from rankmend.files import create_file, replace_file


def write_config(path: Path, text: str, *, replaces: bool) -> Path | None:
    """Write the file (mode 0644: it names secrets' files and holds none); return where the old one is kept.

    Raises ConfigError for a text that the agent would refuse, before anything is written, and FileExistsError where
    ``replaces`` is not set.
    """
    check_text(text)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {path.parent}: {error.strerror}") from error
    if not replaces:
        create_file(path, text.encode(), StorageError, mode=0o644)
        return None
    if path.exists() and not path.is_file():
        raise StorageError(f"{path} is not a file")
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    retained = path.with_name(f"{path.name}.old")
    if old is not None:
        replace_file(retained, old, StorageError, mode=path.stat().st_mode & 0o777)
    replace_file(path, text.encode(), StorageError, mode=0o644)
    return retained if old is not None else None


def check_text(text: str) -> None:
    """Raise ConfigError for a configuration that the agent would refuse."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text[error.start : error.end]!r} in a value is not text") from error
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.toml"
        file.write_bytes(data)
        try:
            configuration.load(file)
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix(f"{file}: ")) from error
