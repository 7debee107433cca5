"""How much of the controller's memory and disk one subject takes, so that one user can't use them up. Pure.

The controller keeps the newest report of each node of each job. A usual one has 3 to 30 kB; one with the last words of many ranks, or
with readings of hardware, has up to 8 MiB, and a launch token may name any nodes. Above `SLIM_BYTES` such a report loses its long texts,
and its job is looked after all the same; above `FULL_BYTES`, or `NODES_MAX` of them, no further node is taken in.

Journals stay on the disk for months. A launcher makes the controller write a record by each report that says something new, as of another
launcher on its node. A subject whose jobs have written more than its share begins nothing new, and its known nodes are listened to every few seconds.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from typing import Final

from detectors.failed.said_error import SaidAtEnd, SaidError
from recovery.messages.exchange import RankError, RankExit, RankReport, Report

USUAL_BYTES: Final = 64 * 1024  # 8 ranks take 3 to 30 kB, 72 ranks 250 kB with little else to say
SLIM_BYTES: Final = 32 * 1024 * 1024  # readings of hardware take 15 times that once decoded
FULL_BYTES: Final = 384 * 1024 * 1024  # 10,000 nodes of 30 kB
NODES_MAX: Final = (
    40_000  # twice what one job may have: nodes that were lost count until the job ends
)
# Of a record beside its body: number, times, boot id, kind, version, checksum and the index. SQLite and PostgreSQL take 100 to 150.
ROW_BYTES: Final = 128
DAY_S: Final = 86_400.0
OVER_REPORTS_PER_S: Final = 0.2  # of a node: twice within the 10 s after which it counts as silent
SUBJECTS_MAX: Final = 10_000  # that are counted before those with nothing to count are forgotten
_TEXT_MAX: Final = 1_000
_LINES_MAX: Final = 3
_LIST_MAX: Final = 32


class Room(Enum):
    ENOUGH = "enough"
    SLIM = "slim"  # for the report without its long texts
    NONE = "none"


class Retained:
    """For one thread."""

    def __init__(
        self,
        slim_bytes: int = SLIM_BYTES,
        full_bytes: int = FULL_BYTES,
        nodes_max: int = NODES_MAX,
    ) -> None:
        self._slim_bytes, self._full_bytes, self._nodes_max = slim_bytes, full_bytes, nodes_max
        self._sizes: dict[str, dict[str, int]] = {}  # job id -> node -> bytes
        self._owners: dict[str, str] = {}  # job id -> subject
        self._totals: dict[str, int] = {}  # subject -> bytes
        self._nodes: dict[str, int] = {}  # subject -> nodes of all its jobs

    def look(self, owner: str, job_id: str, node: str, size_bytes: int) -> Room:
        """Return whether there is room for a report in place of the node's last one."""
        known = self._sizes.get(job_id, {}).get(node)
        total = self._totals.get(owner, 0) - (known or 0) + size_bytes
        if size_bytes > USUAL_BYTES and total > self._slim_bytes:
            return Room.SLIM
        is_full = total > self._full_bytes or self._nodes.get(owner, 0) >= self._nodes_max
        return Room.NONE if known is None and is_full else Room.ENOUGH

    def is_known(self, job_id: str, node: str) -> bool:
        return node in self._sizes.get(job_id, {})

    def note(self, owner: str, job_id: str, node: str, size_bytes: int) -> None:
        """Count the node's newest report; 0 bytes: the node has left."""
        sizes = self._sizes.setdefault(job_id, {})
        before = sizes.pop(node, 0)
        if size_bytes:
            sizes[node] = size_bytes
        self._owners[job_id] = owner
        self._totals[owner] = self._totals.get(owner, 0) - before + size_bytes
        self._nodes[owner] = self._nodes.get(owner, 0) - bool(before) + bool(size_bytes)

    def keep(self, running: Collection[str]) -> None:
        """Forget the jobs that have ended."""
        for job_id in [size for size in self._sizes if size not in running]:
            owner = self._owners.pop(job_id)
            sizes = self._sizes.pop(job_id)
            self._totals[owner] -= sum(sizes.values())
            self._nodes[owner] -= len(sizes)
            if not self._totals[owner]:
                del self._totals[owner], self._nodes[owner]

    def total_bytes(self, owner: str) -> int:
        return self._totals.get(owner, 0)

    def nodes(self, owner: str) -> int:
        return self._nodes.get(owner, 0)


class JournalBytes:
    """What the jobs of each subject have written: a bucket for a day's share, which fills within a day.

    The deciding thread writes; any thread asks.
    """

    def __init__(self, per_day_bytes: float = math.inf) -> None:
        self._written: dict[str, tuple[float, float]] = {}  # subject -> bytes, as of when
        self.per_day_bytes = per_day_bytes

    def write(self, owner: str, size_bytes: int, now_s: float) -> None:
        left = self._left(owner, now_s) + size_bytes
        self._written[owner] = (left, now_s)
        if len(self._written) > SUBJECTS_MAX:
            self._written = {
                name: entry for name, entry in self._written.items() if self._left(name, now_s) > 0
            }

    def over_s(self, owner: str, now_s: float) -> float | None:
        """Return after which time the subject is within its share again; None: it is."""
        over = self._left(owner, now_s) - self.per_day_bytes
        return over * DAY_S / self.per_day_bytes if over > 0 else None

    def _left(self, owner: str, now_s: float) -> float:
        written, at_s = self._written.get(owner, (0.0, now_s))
        if math.isinf(self.per_day_bytes):
            return written
        return max(0.0, written - (now_s - at_s) * self.per_day_bytes / DAY_S)


def slim(report: Report) -> Report:
    """Return the report with all that decides, and of its texts the beginning."""
    collected = report.collected
    return replace(
        report,
        ranks=tuple(_slim_rank(rank) for rank in report.ranks),
        launch_error=_cut(report.launch_error),
        findings=tuple(
            replace(finding, summary=finding.summary[:_TEXT_MAX], evidence=())
            for finding in report.findings[:_LIST_MAX]
        ),
        collected=None if collected is None else replace(collected, ranks=(), notes=()),
        unreachable=report.unreachable[:_LIST_MAX],
        found=None
        if report.found is None
        else replace(report.found, checkpoints=report.found.checkpoints[:_LIST_MAX]),
        hardware=None,
    )


def _slim_rank(rank: RankReport) -> RankReport:
    return replace(
        rank,
        timings=(),
        numbers=(),
        progress_error=_cut(rank.progress_error),
        exit=None if rank.exit is None else _slim_exit(rank.exit),
    )


def _slim_exit(end: RankExit) -> RankExit:
    error = end.error
    if error is not None:
        texts = (error.message[:_TEXT_MAX], error.traceback[-_TEXT_MAX:])
        error = RankError(error.type_name[:_TEXT_MAX], *texts)
    lines = tuple(line[:_TEXT_MAX] for line in end.last_lines[-_LINES_MAX:])
    return replace(end, error=error, last_lines=lines, words=_slim_words(end.words))


def _slim_words(words: SaidAtEnd | None) -> SaidAtEnd | None:
    if words is None:
        return None
    beside = tuple(line[:_TEXT_MAX] for line in words.beside[:_LINES_MAX])
    return SaidAtEnd(
        _slim_error(words.error), _slim_error(words.device), beside, words.exit_text[:_TEXT_MAX]
    )


def _slim_error(said: SaidError | None) -> SaidError | None:
    if said is None:
        return None
    return replace(said, fingerprint=said.fingerprint[:_TEXT_MAX], line=said.line[:_TEXT_MAX])


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT_MAX]
