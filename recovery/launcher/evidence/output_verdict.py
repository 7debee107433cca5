"""What the ranks' output says of a failure: the verdict of `rankmend diagnose log` on a bounded tail of it.

A program in another language, in a container or under `--no-python` has no hook, and its error is none of Python's.
Its last lines are all that is known then. The verdict is evidence for people, beside what hook, guardian and
controller know: no decision reads it. A rank whose own error is known needs none.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from detectors.job_log.kinds import LogKind
from detectors.job_log.lines import LogSource
from detectors.job_log.verdict import LogVerdict, diagnose_log
from recovery.launcher.ranks.rank_logs import kept_by, read_tail

TAIL_BYTES_MAX: Final = 65_536  # of a file: 600 lines, of which a traceback takes 60
TAIL_BYTES_MIN: Final = 8_192  # a traceback's
# Of one node. Lines of errors alone cost up to 0.4 s of CPU, beside the launcher's loop.
OUTPUT_BYTES_MAX: Final = 1 << 20
FILES_MAX: Final = OUTPUT_BYTES_MAX // TAIL_BYTES_MIN  # standard output and error of 64 ranks

Lines = Mapping[int, tuple[Sequence[str], Sequence[str]]]  # stdout and stderr of each rank


def judge_output(
    lines: Lines,
    state: Path,
    attempt: int,
    read: Callable[[Path, int], bytes] = read_tail,
) -> LogVerdict | None:
    """Return what the ranks' output says, or None where it shows no failure.

    At most `OUTPUT_BYTES_MAX` bytes of all are read, the files of standard error first.

    ``state``: the job's state folder, which names the launcher's log files of the run, if it keeps any: their
    tails are longer than ``lines``.
    """
    texts: dict[str, list[bytes]] = {}
    logs = [log for log in kept_by(state).files() if log.attempt == attempt]
    logs.sort(key=lambda log: log.stream != "stderr")  # most errors are printed there
    logs = logs[:FILES_MAX]
    share = min(TAIL_BYTES_MAX, OUTPUT_BYTES_MAX // max(1, len(logs)))
    for log in logs:
        if tail := read(log.path, share):
            texts[_name_of(log.rank, log.stream)] = tail.split(b"\n")
    left = OUTPUT_BYTES_MAX - sum(len(line) + 1 for said in texts.values() for line in said)
    for stream in ("stderr", "stdout"):
        for rank, (out, err) in lines.items():
            name = _name_of(rank, stream)
            said = err if stream == "stderr" else out
            if name in texts or left <= 0 or not said:
                continue
            tail = "\n".join(said).encode("utf-8", "replace")[-min(left, TAIL_BYTES_MAX) :]
            texts[name] = tail.split(b"\n")
            left -= len(tail)
    named = sorted(texts.items(), key=lambda item: _order_of(item[0]))
    verdict = diagnose_log([LogSource(name, said) for name, said in named])
    return None if verdict.kind is LogKind.NO_FAILURE else verdict


def _order_of(name: str) -> tuple[int, bool]:
    rank, _slash, stream = name.removeprefix("rank_").partition("/")
    return int(rank), stream.startswith("stderr")


def _name_of(rank: int, stream: str) -> str:
    return f"rank_{rank}/{stream}.log"  # by which `detectors.job_log.lines` knows the rank


def judge_saved(folder: Path, state: Path, attempt: int) -> LogVerdict | None:
    """Return what the output says that was saved in an attempt's folder of evidence."""
    lines: dict[int, tuple[list[str], list[str]]] = {}
    for path in sorted(folder.glob("std*-rank-*.txt"))[:FILES_MAX]:
        stream, _dash, rank = path.stem.partition("-rank-")
        if not rank.isdecimal():
            continue
        said = read_tail(path, TAIL_BYTES_MAX).decode("utf-8", "replace").splitlines()
        lines.setdefault(int(rank), ([], []))[stream == "stderr"].extend(said)
    return judge_output(lines, state, attempt)
