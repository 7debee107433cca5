"""The secrets of rankmend that this user may read here, so that a bundle can leave them out by their value.

Their shape (`rm_ID_SECRET`) is known to `recovery.report.scrub`; a site's own token file holds any text, and a job's secret is 64 digits
like any hash. Whatever can't be read is no error: what this user can't read is in none of his files either.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from recovery.checkpoints.marks import BESIDE
from recovery.service.meeting_secret import Identity

_BYTES_MAX: Final = 64 * 1024
_FILES_MAX: Final = 256
_SITE: Final = Path("/etc/rankmend/controller")
_TOKEN_OPTIONS: Final = ("--token-file", "--token_file")
_FOLDER_OPTIONS: Final = ("--checkpoint-dir", "--checkpoint_dir")


def find_secrets(
    folder: Path,
    environments: Sequence[Mapping[str, str]],
    command_line: Sequence[str],
    site: Path = _SITE,
) -> tuple[str, ...]:
    """Return what token files and notes hold; ``command_line`` is the launcher's, ``folder`` the job's state folder."""
    found: list[str] = []
    for path in _token_files(environments, command_line, site):
        found += _read(path).split()
    for option in _FOLDER_OPTIONS:
        for name in _values(command_line, option):
            found += _secrets_in(Path(name) / BESIDE / "host.json")
    found += _secrets_in(folder / "service.json")
    return tuple(dict.fromkeys(found))


def _token_files(
    environments: Sequence[Mapping[str, str]], command_line: Sequence[str], site: Path
) -> Iterator[Path]:
    for environment in environments:
        if name := environment.get("RANKMEND_TOKEN_FILE"):
            yield Path(name)
    for option in _TOKEN_OPTIONS:
        yield from map(Path, _values(command_line, option))
    with contextlib.suppress(OSError):
        yield from sorted([*site.glob("*.token"), *site.glob("*.secret")])[:_FILES_MAX]


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option and equals:
            yield value
        elif word == option and place + 1 < len(words):
            yield words[place + 1]


def _secrets_in(path: Path) -> Iterator[str]:
    """Yield the secret of a note or of a job that a service keeps, and the token that follows from it."""
    try:
        told = json.loads(_read(path))
    except ValueError:
        return
    secret = told.get("secret") if isinstance(told, dict) else None
    if isinstance(secret, str) and secret:
        yield secret
        yield Identity(secret).token


def _read(path: Path) -> str:
    """Return the text of a small plain file, or nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
