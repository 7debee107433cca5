"""How much of the controller's memory the newest reports of one subject take, so that one user can't use it up. Pure.

The controller keeps the newest report of each node of each job. A usual one has 3 to 30 kB; one with the last words of many ranks, or
with readings of hardware, has up to 8 MiB, and a launch token may name any nodes. Above `SLIM_BYTES` such a report loses its long texts,
and its job is looked after all the same; above `FULL_BYTES` no further node is taken in.
"""

from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from typing import Final

from detectors.failed.said_error import SaidAtEnd, SaidError
from recovery.messages.exchange import RankError, RankExit, RankReport, Report

USUAL_BYTES: Final = 64 * 1024  # 8 ranks take 3 to 30 kB, 72 ranks 250 kB with little else to say
SLIM_BYTES: Final = 32 * 1024 * 1024  # readings of hardware take 15 times that once decoded
FULL_BYTES: Final = 384 * 1024 * 1024  # 10,000 nodes of 30 kB
_TEXT_MAX: Final = 1_000
_LINES_MAX: Final = 3
_LIST_MAX: Final = 32


class Room(Enum):
    ENOUGH = "enough"
    SLIM = "slim"  # for the report without its long texts
    NONE = "none"


class Retained:
    """For one thread."""

    def __init__(self, slim_bytes: int = SLIM_BYTES, full_bytes: int = FULL_BYTES) -> None:
        self._slim_bytes, self._full_bytes = slim_bytes, full_bytes
        self._sizes: dict[str, dict[str, int]] = {}  # job id -> node -> bytes
        self._owners: dict[str, str] = {}  # job id -> subject
        self._totals: dict[str, int] = {}  # subject -> bytes

    def look(self, owner: str, job_id: str, node: str, size_bytes: int) -> Room:
        """Return whether there is room for a report in place of the node's last one."""
        known = self._sizes.get(job_id, {}).get(node)
        total = self._totals.get(owner, 0) - (known or 0) + size_bytes
        if size_bytes > USUAL_BYTES and total > self._slim_bytes:
            return Room.SLIM
        return Room.NONE if known is None and total > self._full_bytes else Room.ENOUGH

    def note(self, owner: str, job_id: str, node: str, size_bytes: int) -> None:
        """Count the node's newest report; 0 bytes: the node has left."""
        sizes = self._sizes.setdefault(job_id, {})
        before = sizes.pop(node, 0)
        if size_bytes:
            sizes[node] = size_bytes
        self._owners[job_id] = owner
        self._totals[owner] = self._totals.get(owner, 0) - before + size_bytes

    def keep(self, running: Collection[str]) -> None:
        """Forget the jobs that have ended."""
        for job_id in [one for one in self._sizes if one not in running]:
            owner = self._owners.pop(job_id)
            self._totals[owner] -= sum(self._sizes.pop(job_id).values())
            if not self._totals[owner]:
                del self._totals[owner]

    def total_bytes(self, owner: str) -> int:
        return self._totals.get(owner, 0)


def slim(report: Report) -> Report:
    """Return the report with all that decides, and of its texts the beginning."""
    collected = report.collected
    return replace(
        report,
        ranks=tuple(_slim_rank(rank) for rank in report.ranks),
        launch_error=_cut(report.launch_error),
        findings=tuple(
            replace(one, summary=one.summary[:_TEXT_MAX], evidence=())
            for one in report.findings[:_LIST_MAX]
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
        _slim_said(words.error), _slim_said(words.device), beside, words.exit_text[:_TEXT_MAX]
    )


def _slim_said(said: SaidError | None) -> SaidError | None:
    if said is None:
        return None
    return replace(said, fingerprint=said.fingerprint[:_TEXT_MAX], line=said.line[:_TEXT_MAX])


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT_MAX]
