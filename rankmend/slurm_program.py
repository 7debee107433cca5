"""Runs one of Slurm's own programs: by argument vector, and never for longer than a timeout.

They wait for minutes where slurmctld is away. `timeout` of coreutils kills them then, even if who asked was killed
meanwhile: no command takes effect long after it was forgotten.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import SourceError

_MARGIN_S: Final = 2.0  # for `timeout` to kill, before we stop waiting for it
_PLACES: Final = "/usr/bin:/bin"  # of coreutils, whatever the PATH says
_KILLED: Final = frozenset({124, 137, -9})
_NOT_RUN: Final = frozenset({126, 127})


class SlurmSilentError(SourceError):
    """The program gave no answer in time: whether it took effect is unknown."""


@dataclass(frozen=True, slots=True)
class SlurmAnswer:
    code: int
    out: bytes
    errors: bytes

    @property
    def is_not_run(self) -> bool:
        """Return whether the program could not be started."""
        return self.code in _NOT_RUN


def run_slurm_program(
    words: Sequence[str], timeout_s: float, environment: Mapping[str, str]
) -> SlurmAnswer:
    """Return what a program answers within ``timeout_s``; raise SlurmSilentError, or OSError where nothing can be run."""
    timeout = shutil.which("timeout", path=f"{environment.get('PATH', '')}:{_PLACES}")
    bounded = [timeout or "timeout", "--signal=KILL", f"{timeout_s:g}", *words]
    silent = f"no answer after {timeout_s:.3g} s"
    try:
        done = subprocess.run(
            bounded,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s + _MARGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilentError(silent) from None
    if done.returncode in _KILLED:
        raise SlurmSilentError(silent)
    return SlurmAnswer(done.returncode, done.stdout, done.stderr)
