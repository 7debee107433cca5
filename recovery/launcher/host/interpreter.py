"""Asks the ranks' own Python one question, in a separate process, so that the launcher need not import torch."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import LaunchError

IMPORT_S_MAX: Final = 300.0  # with `import torch` from a cold network file system


@dataclass(frozen=True, slots=True)
class InterpreterAnswer:
    exit_code: int
    line: str  # the last line of its output: a user's sitecustomize may print, too
    error: str  # its stderr

    @property
    def words(self) -> list[str]:
        return self.line.split()


def ask_interpreter(
    python: str,
    script: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
) -> InterpreterAnswer:
    """Return the output of ``python`` running ``script``; raise LaunchError if it fails or takes too long."""
    try:
        done = subprocess.run(
            [python, "-c", script, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(str(error)) from error
    line = done.stdout.strip().rpartition("\n")[2]
    return InterpreterAnswer(done.returncode, line, done.stderr.strip())
