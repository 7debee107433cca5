"""Who a hung job waits for, from stacks that somebody took of its ranks with py-spy and left in the log. Pure.

    Thread 4203 (idle): "MainThread"
        _poll (selectors.py:416)
        main (train.py:171)

Only main threads of lines whose rank is known count; the newest one of each rank. `detectors.hang.from_stacks` judges them.
"""

import re
from collections.abc import Sequence
from typing import Final

from detectors.hang.from_stacks import FRAMEWORKS, diagnose_stacks
from detectors.hang.python_stack import Frame
from detectors.job_log.kinds import LogKind
from detectors.job_log.lines import LogLine, SourceLines, streams_of
from detectors.job_log.watchdog import LogHang

FRAMES_MAX: Final = 64
# Modules of the standard library in which a call of a library may wait.
_WAITERS: Final = frozenset(
    {
        *("asyncio", "concurrent", "contextlib", "functools", "http", "multiprocessing", "queue"),
        *("runpy", "selectors", "socket", "ssl", "subprocess", "threading", "urllib"),
    }
)
_MAIN: Final = re.compile(r'^Thread (?:0x)?[\da-fA-F]{1,16} \([^)]{1,40}\): "MainThread"$')
_FRAME: Final = re.compile(r"^ {4}(\S.{0,200}?) \(([^()\s]{1,400}):(\d{1,7})\)$")


def judge_stacks(sources: Sequence[SourceLines]) -> LogHang | None:
    """Return whom the ranks wait for by where their main threads stand; None where that doesn't show."""
    heads: dict[int, LogLine] = {}
    stacks: dict[int, tuple[Frame, ...]] = {}
    for source in sources:
        for rank, lines in streams_of(source):
            for place, line in enumerate(lines if rank is not None else ()):
                if rank is not None and _MAIN.match(line.text.strip()):
                    heads[rank] = line
                    stacks[rank] = _frames(lines[place + 1 : place + 1 + FRAMES_MAX])
    diagnosis = diagnose_stacks(stacks)
    if diagnosis is None:
        return None
    ranks = tuple(culprit.rank for culprit in diagnosis.culprits if culprit.rank is not None)
    return LogHang(
        LogKind.HANG_HOST,
        ranks,
        diagnosis.reason,
        diagnosis.confidence,
        tuple(heads[rank] for rank in ranks),
        frozenset(heads),
    )


def _frames(lines: Sequence[LogLine]) -> tuple[Frame, ...]:
    frames = []
    for line in lines:
        if not line.text.startswith("    "):
            break
        if match := _FRAME.match(line.text):  # those of C and the values of variables are left out
            frames.append(Frame(_whole_path(match[2]), int(match[3]), match[1]))
    return tuple(frames)


def _whole_path(path: str) -> str:
    """Return a path with the folder that py-spy leaves out, where it is a library's."""
    top = path.partition("/")[0]
    if top in FRAMEWORKS:
        return f"site-packages/{path}"
    return f"python3.0/{path}" if top.removesuffix(".py") in _WAITERS else path
