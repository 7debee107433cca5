"""Runs Slurm's own commands: by argument vector, and never for longer than a time-out.

They wait for minutes where slurmctld is away. `timeout` of coreutils kills them then, even if the
controller was killed meanwhile: no command takes effect long after it was forgotten.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError
from rankmend.printable import printable

PROGRAMS: Final = frozenset({"scontrol", "squeue", "sinfo", "sbatch", "scancel"})
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024  # 10,000 nodes on one line each take 10 MB
_TOLD_MAX: Final = 500
_MARGIN_S: Final = 2.0  # for `timeout` to kill, before we stop waiting for it
# What Slurm's programs say where slurmctld is away, is starting, or can't be told from one that is.
_AWAY: Final = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "zero bytes were transmitted",
    "slurm backup controller in standby mode",
    "transport endpoint is not connected",
    "protocol authentication error",
    "munge",
    "could not establish a configuration source",
    "resource temporarily unavailable",
)
_DENIED: Final = ("access/permission denied", "user not authorized", "operation not permitted")
_UNKNOWN: Final = ("invalid job id", "not found", "invalid node name", "no job found")


class SlurmError(RankmendError):
    """Slurm refused a command; the text names the command and the answer."""


class SlurmAwayError(SlurmError):
    """Slurm gave no answer: whether the command took effect is unknown until it answers again."""


class SlurmUnknownError(SlurmError):
    """Slurm knows no such job or node."""


class SlurmDeniedError(SlurmError):
    """We may not do this: it needs a Slurm operator."""


Run = Callable[[Sequence[str]], str]


class SlurmCommands:
    """Runs commands one at a time, each within ``timeout_s``."""

    def __init__(
        self, timeout_s: float, environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        """``folder``: where the programs are; None: on the PATH of ``environment``."""
        self.timeout_s = timeout_s
        self._folder = folder
        wanted = ("PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER", "TZ")
        self._environment = {
            **{name: environment[name] for name in wanted if name in environment},
            "LC_ALL": "C.UTF-8",
            "SLURM_TIME_FORMAT": "%s",
        }

    def __call__(self, words: Sequence[str]) -> str:
        """Return what the command prints, or raise SlurmError."""
        program, *rest = words
        assert program in PROGRAMS, program
        path = program if self._folder is None else str(Path(self._folder) / program)
        bounded = ["timeout", "--signal=KILL", f"{self.timeout_s:g}", path, *rest]
        try:
            done = subprocess.run(
                bounded,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.timeout_s + _MARGIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmAwayError(f"{_say(words)}: no answer after {self.timeout_s:g} s") from None
        except OSError as error:
            raise SlurmAwayError(f"{_say(words)}: cannot run {path}: {error.strerror}") from error
        if len(done.stdout) > ANSWER_BYTES_MAX:
            raise SlurmError(f"{_say(words)}: an answer of {len(done.stdout)} bytes is too long")
        out = done.stdout.decode("utf-8", "replace")
        if done.returncode == 0:
            return out
        told = done.stderr.decode("utf-8", "replace").strip() or out.strip()
        raise _error(words, done.returncode, told)


def _error(words: Sequence[str], code: int, told: str) -> SlurmError:
    if code in (124, 137, -9):
        return SlurmAwayError(f"{_say(words)}: no answer in time")
    if code in (126, 127):
        return SlurmAwayError(f"{_say(words)}: cannot be run: {printable(told[:_TOLD_MAX])}")
    text = f"{_say(words)}: exit code {code}: {printable(told[:_TOLD_MAX])}"
    lower = told.lower()
    if any(one in lower for one in _AWAY):
        return SlurmAwayError(text)
    if any(one in lower for one in _DENIED):
        return SlurmDeniedError(f"{text} (the controller must be a Slurm operator)")
    if any(one in lower for one in _UNKNOWN):
        return SlurmUnknownError(text)
    return SlurmError(text)


def _say(words: Sequence[str]) -> str:
    return printable(" ".join(words)[:_TOLD_MAX])
