"""Runs Slurm's own commands (`rankmend.slurm_program`), and says what kind of a failure an answer is."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rankmend.errors import ManagerAwayError, ManagerDeniedError, ManagerError
from rankmend.printable import printable
from rankmend.slurm_program import SlurmSilentError, run_slurm_program
from recovery.schedulers.slurm.desk_lease import act_timeout_s

PROGRAMS: Final = frozenset({"scontrol", "squeue", "sinfo", "sbatch", "scancel"})
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024  # 10,000 nodes on one line each take 10 MB
_FAULT_CHARACTERS_MAX: Final = 500
_READERS: Final = frozenset({"squeue", "sinfo"})
_READS: Final = (["show"], ["write"])  # of scontrol
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

Run = Callable[[Sequence[str]], str]


class SlurmError(ManagerError):
    """Slurm refused a command; the text names the command and the answer."""


class SlurmAwayError(SlurmError, ManagerAwayError):
    """Slurm gave no answer: whether the command took effect is unknown until it answers again."""


class SlurmUnknownError(SlurmError):
    """Slurm knows no such job or node."""


class SlurmDeniedError(SlurmError, ManagerDeniedError):
    """We may not do this: it needs a Slurm operator."""


class SlurmCommands:
    """Runs commands one at a time, each within ``timeout_s``."""

    def __init__(
        self,
        timeout_s: float,
        environment: Mapping[str, str],
        folder: str | None = None,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``folder``: where the programs are; None: on the PATH of ``environment``. ``left_s``: of the lease under which we act."""
        self.timeout_s = timeout_s
        self._left_s = left_s
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
        timeout_s = self._timeout_of(words)
        path = program if self._folder is None else str(Path(self._folder) / program)
        try:
            done = run_slurm_program([path, *rest], timeout_s, self._environment)
        except SlurmSilentError as error:
            raise SlurmAwayError(f"{_fault_text(words)}: {error}") from None
        except OSError as error:
            raise SlurmAwayError(
                f"{_fault_text(words)}: cannot run {path}: {error.strerror}"
            ) from error
        if len(done.out) > ANSWER_BYTES_MAX:
            raise SlurmError(
                f"{_fault_text(words)}: an answer of {len(done.out)} bytes is too long"
            )
        out = done.out.decode("utf-8", "replace")
        if done.code == 0:
            return out
        reported = done.errors.decode("utf-8", "replace").strip() or out.strip()
        if done.is_not_run:
            raise SlurmAwayError(
                f"{_fault_text(words)}: cannot be run: {printable(reported[:_FAULT_CHARACTERS_MAX])}"
            )
        raise _error(words, done.code, reported)

    def _timeout_of(self, words: Sequence[str]) -> float:
        """Return the timeout of a command; one that changes something ends while the lease holds."""
        if is_reading(words):
            return self.timeout_s
        left_s = self._left_s()
        timeout_s = act_timeout_s(self.timeout_s, left_s)
        if timeout_s is None:
            raise SlurmAwayError(
                f"{_fault_text(words)}: not run: the lease has only {left_s:.1f} s left"
            )
        return timeout_s


def is_reading(words: Sequence[str]) -> bool:
    """Return whether a command changes nothing."""
    program, *rest = words
    return program in _READERS or (program == "scontrol" and rest[:1] in _READS)


def _error(words: Sequence[str], code: int, reported: str) -> SlurmError:
    text = f"{_fault_text(words)}: exit code {code}: {printable(reported[:_FAULT_CHARACTERS_MAX])}"
    lower = reported.lower()
    if any(item in lower for item in _AWAY):
        return SlurmAwayError(text)
    if any(item in lower for item in _DENIED):
        return SlurmDeniedError(f"{text} (the controller must be a Slurm operator)")
    if any(item in lower for item in _UNKNOWN):
        return SlurmUnknownError(text)
    return SlurmError(text)


def _fault_text(words: Sequence[str]) -> str:
    return printable(" ".join(words)[:_FAULT_CHARACTERS_MAX])
