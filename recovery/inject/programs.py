"""Runs the system's programs that faults need, from argument lists, each within a time."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

from rankmend.errors import NoSourceError, SourceError

TIMEOUT_S: Final = 15.0
_SAID_MAX: Final = 300


def run_program(argv: Sequence[str], data: bytes = b"") -> bytes:
    """Return what a program prints; raise NoSourceError where it is missing, SourceError where it fails."""
    need_program(argv[0])
    try:
        with tempfile.TemporaryFile() as file:  # `ip route restore` looks where it is in its input
            file.write(data)
            file.seek(0)
            done = subprocess.run(
                argv, stdin=file, capture_output=True, timeout=TIMEOUT_S, check=False
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[:_SAID_MAX]
        raise SourceError(f"{' '.join(argv)} failed: {said or f'exit code {done.returncode}'}")
    return done.stdout


def need_program(name: str) -> None:
    if shutil.which(name) is None:
        raise NoSourceError(f"the program {name} is not on this node")
