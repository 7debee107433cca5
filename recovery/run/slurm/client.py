"""Asks Slurm's own commands, which may hang for minutes while its controller is away."""

import subprocess
from typing import Final

from rankmend.errors import LaunchError

ASK_S_MAX: Final = 20.0
_SAID_MAX: Final = 300


def ask_slurm(program: str, *words: str, timeout_s: float = ASK_S_MAX) -> str:
    """Return what a command of Slurm prints; raise LaunchError where it fails or takes too long."""
    line = " ".join((program, *words))
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{line}: no answer from Slurm within {timeout_s:.0f} s") from error
    except OSError as error:
        raise LaunchError(f"{line}: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip()[:_SAID_MAX] or f"exit code {done.returncode}"
        raise LaunchError(f"{line}: {said}")
    return done.stdout
