"""What the ranks of a hung watched job did when their agents looked, and what that adds to the verdict.

Agents are queried while the job hangs: each node until it has answered, `ASKED_MAX` times at most. The judge is that of our own
jobs (`detectors.hang.evidence`).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from detectors.finding import Blame, Evidence, Finding
from detectors.hang.evidence import judge_evidence
from detectors.hang.flight_dump import FlightDump
from detectors.hang.python_stack import Frame
from rankmend.printable import printable
from rankmend.watched_report import LOG_LINES_MAX, RAS_LINES_MAX, ReportedEvidence

log = logging.getLogger(__name__)

ASKED_MAX: Final = 24  # reports: two minutes
SHOWN_MAX: Final = 4  # ranks whose stacks are shown beside those that are blamed
BLAMED_MAX: Final = 8
_FRAMES_SHOWN: Final = 4
_RANKS_MAX: Final = 4096  # of one job: some 10 kB each


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank's evidence."""

    frames: tuple[Frame, ...]
    kernel: tuple[str, ...]
    notes: tuple[str, ...]
    dump: FlightDump | None
    ras: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


def parse(reported: ReportedEvidence) -> Seen:
    """Return the evidence; a dump that can't be read is left out, with a note."""
    notes = [printable(note) for note in reported.notes]
    dump = None
    try:
        if reported.dump:
            dump = msgspec.json.decode(reported.dump, type=FlightDump)
    except (msgspec.MsgspecError, RecursionError):
        notes.append("its flight-recorder dump can't be read")
    frames = (
        Frame(printable(frame.file), frame.line, printable(frame.function))
        for frame in reported.frames
    )
    kernel, ras, log_lines = (
        tuple(map(printable, lines)) for lines in (reported.kernel, reported.ras, reported.log)
    )
    return Seen(tuple(frames), kernel, tuple(notes), dump, ras, log_lines)


class HangEvidence:
    """The evidence of one hang of one job."""

    def __init__(self) -> None:
        self._ranks: dict[int, Seen] = {}
        self._answered: set[str] = set()  # nodes
        self._asked: Counter[str] = Counter()
        self._judged: tuple[Finding, Finding] | None = None  # what was judged last, and the answer

    def wants(self, node: str) -> bool:
        """Return whether to query this node, and count that."""
        if node in self._answered or self._asked[node] >= ASKED_MAX:
            return False
        self._asked[node] += 1
        return True

    def take(self, node: str, reported: Iterable[tuple[int, ReportedEvidence | None]]) -> None:
        """Take in what a report has of its ranks; only what was requested counts."""
        if not self._asked[node]:
            return
        for rank, evidence in reported:
            if evidence is not None and (rank in self._ranks or len(self._ranks) < _RANKS_MAX):
                self._answered.add(node)
                self._ranks[rank] = parse(evidence)
                self._judged = None

    def judge(self, finding: Finding) -> Finding:
        """Return the finding with what stacks and dumps add to it."""
        if not self._ranks:
            return finding
        if self._judged is None or not _is_alike(self._judged[0], finding):
            self._judged = finding, self._judge(finding)
        return replace(self._judged[1], since_age_s=finding.since_age_s)

    def _judge(self, finding: Finding) -> Finding:
        dumps = {rank: item.dump for rank, item in self._ranks.items() if item.dump is not None}
        stacks = {rank: item.frames for rank, item in self._ranks.items() if item.frames}
        alive = frozenset({*finding.ranks, *finding.victims})
        try:
            judged = judge_evidence(finding, dumps, stacks, alive).finding
        except Exception:  # the verdict stands without what comes from the job
            log.exception("evidence of a watched job can't be judged")
            judged = finding
        return replace(judged, evidence=(*judged.evidence, *self._lines(judged)))

    def _lines(self, finding: Finding) -> Iterator[Evidence]:
        blamed = set(finding.ranks) if finding.blame is Blame.RANK else set()
        first = sorted(blamed & set(self._ranks))[:BLAMED_MAX]
        others = sorted(set(self._ranks) - blamed)[:SHOWN_MAX]
        # Each node reports the ranks that are missing.
        reported = dict.fromkeys(
            line for _rank, item in sorted(self._ranks.items()) for line in item.ras
        )
        yield from (Evidence("NCCL RAS", line) for line in list(reported)[:RAS_LINES_MAX])
        reported = dict.fromkeys(
            line for _rank, item in sorted(self._ranks.items()) for line in item.log
        )
        yield from (Evidence("log files", line) for line in list(reported)[:LOG_LINES_MAX])
        for rank in (*first, *others):
            seen = self._ranks[rank]
            if seen.frames:
                text = " < ".join(frame.text for frame in seen.frames[:_FRAMES_SHOWN])
                yield Evidence(f"Python stack of rank {rank}", text)
            for line in seen.kernel:
                yield Evidence(f"kernel, main thread of rank {rank}", line)
            for note in seen.notes:
                yield Evidence(f"rank {rank}", note)


def _is_alike(before: Finding, now: Finding) -> bool:
    """Return whether two findings blame alike; how long the job stands still makes no difference."""
    return (before.ranks, before.blame, before.symptom) == (now.ranks, now.blame, now.symptom)
