"""Switches PyTorch's flight recorder on, bounds it, and asks it for dumps.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorder.cpp (DebugInfoWriter) and
ProcessGroupNCCL.cpp (DumpPipe, HeartbeatMonitor), 2.2 to 2.13. Names with NCCL in them are the
older ones. Rank r of an NCCL job makes the pipe `<pipe file>r.pipe` and dumps into `<dump file>r`
soon after a byte arrives (its monitor looks once a second); gloo records, and dumps for nobody.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENTRIES: Final = 2000  # PyTorch's own default from 2.7 on; before that the recorder was off
_SIZE: Final = "TORCH_FR_BUFFER_SIZE"
_OLD_SIZE: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_DUMPS: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_ON_TIMEOUT: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"


@dataclass(frozen=True, slots=True)
class RecorderFiles:
    """The file that one rank dumps into, and the pipe that requests a dump."""

    dump: Path
    pipe: Path


def recorder_environment(
    base: Mapping[str, str], folder: Path, *, is_old: bool = False
) -> dict[str, str]:
    """Return the variables to add so that ranks record, and dump into ``folder`` on request.

    The user's own settings under either name stay. ``is_old``: this PyTorch has the recorder off by
    default and knows only the variables' older names, about which newer versions warn.
    """
    added = {}
    if _SIZE not in base and _OLD_SIZE not in base:
        added[_OLD_SIZE if is_old else _SIZE] = str(ENTRIES)
    if not any(name in base for name in _DUMPS):
        added.update(dict.fromkeys(_DUMPS, str(folder / "flight-")))
    added[_PIPE] = base.get(_PIPE, str(folder / "flight-pipe-"))
    added[_ON_TIMEOUT] = base.get(_ON_TIMEOUT, "1")
    return added


def recorder_files(environment: Mapping[str, str], rank: int, cwd: Path) -> RecorderFiles | None:
    """Return the files of a rank that was started with this environment, or None without any."""
    dump = next((environment[name] for name in _DUMPS if environment.get(name)), None)
    pipe = environment.get(_PIPE)
    if not dump or not pipe:
        return None
    return RecorderFiles(cwd / f"{dump}{rank}", cwd / f"{pipe}{rank}.pipe")


def ask_for_dump(files: RecorderFiles) -> bool:
    """Ask for a dump, and return whether a process listens at the rank's pipe."""
    try:
        pipe = os.open(files.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # no such pipe, or no reader
        return False
    try:
        os.write(pipe, b"\n")
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True
