"""Which rank a hung job waits for, from the flight-recorder dumps of its ranks.

1. `positions`: how far each rank has come in each group.
2. `mismatch`: ranks at the same collective with different operations; the program is at fault.
   What the rings still hold of the past is compared, too, before a rank or the network is blamed:
   ranks that have come apart wait for each other later, at a collective that looks alike.
3. `wait_graph`: each rank leads from its first unfinished collective to the members that keep it
   from finishing: those that have not launched it, and those with an older one outstanding.
4. `wait_verdict`: a rank that others wait for and that waits for nobody is to blame.
5. `dump_diagnosis`: the answer in words.

Only a rank's first outstanding operation counts: it has not reached what it launched after that.
What a rank launched last proves nothing, because the host of a stuck device keeps launching.
Time stamps are not used.

The diagnosis from the dumps of a hung job, with its evidence, as text.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from detectors.diagnosis import Culprit, Diagnosis, Onset, Verdict
from detectors.finding import Evidence
from detectors.hang.flight_dump import OperationState
from detectors.hang.mismatch import Mismatch, find_mismatch, find_past_mismatch
from detectors.hang.positions import BEHIND_RATIO_MAX, JobPositions, positions_of
from detectors.hang.standings import JobStandings
from detectors.hang.wait_graph import (
    Accusation,
    NoDump,
    NotBegun,
    NotLaunched,
    Wait,
    WaitGraph,
    draw_waits,
)
from detectors.hang.wait_verdict import HangClass, WaitVerdict, judge_transfers, judge_waits
from detectors.parallel_groups import places_of
from detectors.wording import ranks_in_words

EVIDENCE_MAX: Final = 32
# How far each kind of answer can be trusted. They rank the answers and are no frequencies: two
# recorded hangs and the synthetic ones of tests/detectors/hang/test_from_dumps.py are too few to
# calibrate.
_SURE: Final = 0.95
_BEHIND_SURE: Final = 0.8  # behind in an operation that can end earlier for some
_GONE_SURE: Final = 0.8
_TRANSFERS_SURE: Final = 0.4
_EQUAL_SURE: Final = 0.7
_DOUBT: Final = 0.85  # factor for each kind of missing or doubtful input
_DOUBTS_MAX: Final = 5
_DOUBT_LINES_MAX: Final = 8
_CULPRIT_LINES_MAX: Final = 2  # per culprit
_TITLES_MAX: Final = 4

_WORDS: Final = {
    HangClass.HOST_STUCK: "host stopped before launching the next collective",
    HangClass.DEVICE_STUCK: "device doesn't finish what its peers have finished",
    HangClass.PROCESS_GONE: "wrote no dump, so the process is gone",
}


def of_mismatch(positions: JobPositions, mismatch: Mismatch) -> Diagnosis:
    """Return the answer where ranks stand at one collective with different operations."""
    evidence = []
    for operation, ranks in mismatch.operations:
        shape = operation.shape
        text = f"{operation.kind} of {shape.input_sizes} to {shape.output_sizes}, {', '.join(shape.dtypes)}"
        evidence.append(Evidence(f"flight recorder of {ranks_in_words(ranks)}", text))
    verb = "ran" if mismatch.is_past else "run"
    reason = (
        f"the ranks of {mismatch.group.title} {verb} different operations at collective "
        f"{mismatch.sequence}: the program is at fault, not a machine"
    )
    return _answer(positions, Verdict.NOBODY, HangClass.PROGRAM, reason, _SURE, evidence)


def of_culprits(graph: WaitGraph, causes: Mapping[int, HangClass]) -> Diagnosis:
    """Return the answer that names the ranks to blame, unless there are too many of them."""
    positions = graph.positions
    shown = sorted(causes)[:EVIDENCE_MAX]
    if len(causes) > BEHIND_RATIO_MAX * positions.known:
        reason = (
            f"the job waits for {len(causes)} of {positions.known} ranks: more likely for something "
            "that they share, such as storage or the program, than for their machines"
        )
        lines = [line for rank in shown for line in _evidence_of(graph, rank, 1)]
        return _answer(
            positions,
            Verdict.UNKNOWN,
            None,
            reason,
            _TRANSFERS_SURE,
            lines,
            gone=graph.gone,
            ranks_counted=positions.known,
        )
    by_cause = defaultdict(list)
    for rank, cause in causes.items():
        by_cause[cause].append(rank)
    text = "; ".join(
        f"{ranks_in_words(ranks)}: {_WORDS[cause]}" for cause, ranks in by_cause.items()
    )
    return _answer(
        positions,
        Verdict.CULPRITS,
        _one_class(causes),
        f"the job waits for {text}",
        min(_trust(graph, rank, cause) for rank, cause in causes.items()),
        [line for rank in shown for line in _evidence_of(graph, rank, _CULPRIT_LINES_MAX)],
        _culprits(positions, causes),
        gone=graph.gone,
    )


def of_deadlock(graph: WaitGraph, circle: Sequence[int]) -> Diagnosis:
    """Return the answer where ranks wait for each other in a circle."""
    positions = graph.positions
    titles = {group.name: group.title for group in positions.job.groups}
    evidence = []
    for rank in circle[: EVIDENCE_MAX // 2]:
        blocking = positions.blocking[rank]
        if blocking is not None:
            text = f"waits in collective {blocking.completed + 1} of {titles[blocking.group]}"
            evidence.append(Evidence(f"flight recorder of rank {rank}", text))
    reason = (
        f"{ranks_in_words(circle)} wait for each other in a circle: the program launches "
        "collectives in different orders; no machine is at fault"
    )
    return _answer(
        positions,
        Verdict.NOBODY,
        HangClass.DEADLOCK,
        reason,
        _BEHIND_SURE,
        evidence,
        gone=graph.gone,
        ranks_counted=len(circle),
    )


def of_equal_positions(graph: WaitGraph, waits: Sequence[Wait]) -> Diagnosis:
    """Return the answer where all members of a group have launched the same collective."""
    evidence = []
    is_begun = True
    for wait in waits:
        name, level = wait.at.group.name, wait.level
        firsts = [graph.positions.first(rank, name) for rank in level.waiting]
        states = Counter(first.state.value for first in firsts if first is not None)
        is_begun = is_begun and set(states) == {OperationState.STARTED.value}
        kind = firsts[0].kind if firsts[0] else "collective"
        words = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        text = f"all {len(level.waiting)} members are in {kind} {level.sequence}: {words}"
        evidence.append(Evidence(f"flight recorder of {wait.at.group.title}", text))
    titles = ", ".join(sorted({wait.at.group.title for wait in waits})[:_TITLES_MAX])
    if is_begun:
        verdict, cause, sure = Verdict.NOBODY, HangClass.NETWORK, _EQUAL_SURE
        reason = (
            f"all members of {titles} have begun the same collective and it doesn't end: the "
            "network between them"
        )
    else:
        verdict, cause, sure = Verdict.UNKNOWN, None, _TRANSFERS_SURE
        reason = (
            f"all members of {titles} have launched the same collective, and the dumps don't show "
            "which device or link holds it up (TORCH_NCCL_ENABLE_TIMING=1 would record which "
            "devices have begun it)"
        )
    return _answer(graph.positions, verdict, cause, reason, sure, evidence, gone=graph.gone)


def of_transfers(graph: WaitGraph, causes: Mapping[int, HangClass]) -> Diagnosis:
    """Return the answer that rests on sends and receives alone."""
    evidence = [
        Evidence(
            f"flight recorder of rank {rank}",
            "peers send to it or receive from it, and it does neither",
        )
        for rank in causes
    ]
    return _answer(
        graph.positions,
        Verdict.CULPRITS,
        _one_class(causes),
        f"the job waits for {ranks_in_words(causes)}, judging by sends and receives alone",
        _TRANSFERS_SURE,
        evidence,
        _culprits(graph.positions, causes),
        gone=graph.gone | graph.positions.missing.intersection(causes),
    )


def of_nobody(graph: WaitGraph, pairs: Collection[int]) -> Diagnosis:
    """Return the answer that names no rank, and why."""
    positions = graph.positions
    verdict, sure = Verdict.UNKNOWN, _TRANSFERS_SURE
    if not positions.ranks:
        reason = "no rank wrote a dump that can be used"
    elif len(positions.ranks) == 1:
        reason = (
            "only one rank wrote a dump that can be used, and there is nothing to compare it with"
        )
    elif pairs:
        reason = (
            f"a transfer between {ranks_in_words(pairs)} doesn't end, although both sides have "
            "launched it: one of the devices or the link between them; the dumps don't show which"
        )
    elif positions.groups or any(map(graph.is_before_transfer, positions.ranks)):
        reason = "ranks wait, and the dumps don't show for whom"
    else:
        verdict, sure = Verdict.NOBODY, _EQUAL_SURE
        reason = "no rank has an unfinished collective, so none waits for another in communication"
    return _answer(
        positions, verdict, None, reason, sure, [], gone=graph.gone, ranks_counted=len(pairs)
    )


def _answer(
    positions: JobPositions,
    verdict: Verdict,
    cause: HangClass | None,
    reason: str,
    confidence: float,
    evidence: list[Evidence],
    culprits: tuple[Culprit, ...] = (),
    gone: Collection[int] = (),
    ranks_counted: int = 0,
) -> Diagnosis:
    factor, doubts = _doubts(positions, gone)
    doubts = doubts[:_DOUBT_LINES_MAX]
    return Diagnosis(
        verdict=verdict,
        culprits=culprits,
        cause=cause.value if cause else "",
        reason=reason,
        onset=_onset(positions),
        confidence=confidence * factor,
        evidence=(*evidence[: EVIDENCE_MAX - len(doubts)], *doubts),
        ranks_counted=ranks_counted,
    )


def _doubts(positions: JobPositions, gone: Collection[int]) -> tuple[float, list[Evidence]]:
    """Return the factor for missing or doubtful dumps, and what is wrong with them."""
    lines = [Evidence("dumps", text) for text in positions.job.warnings]
    if others := positions.missing.difference(gone):
        lines.append(Evidence("dumps", f"no dump from {ranks_in_words(others)}"))
    if positions.job.unread:
        text = f"the dumps of {ranks_in_words(positions.job.unread)} can't be used"
        lines.append(Evidence("dumps", text))
    return _DOUBT ** min(len(lines), _DOUBTS_MAX), lines


def _onset(positions: JobPositions) -> Onset | None:
    """Return when the oldest unfinished collective was launched."""
    times_s = [
        standing.first.enter_s
        for standing in positions.blocking.values()
        if standing and standing.first and standing.first.enter_s is not None
    ]
    return Onset(unix_s=min(times_s)) if times_s else None


def _one_class(causes: Mapping[int, HangClass]) -> HangClass:
    kinds = set(causes.values())
    return kinds.pop() if len(kinds) == 1 else HangClass.MIXED


def _trust(graph: WaitGraph, rank: int, cause: HangClass) -> float:
    if cause is HangClass.PROCESS_GONE:
        return _GONE_SURE
    if cause is HangClass.DEVICE_STUCK and rank not in graph.overtaken:
        return _BEHIND_SURE
    return _SURE


def _culprits(positions: JobPositions, causes: Mapping[int, HangClass]) -> tuple[Culprit, ...]:
    places = places_of(positions.job.groups, causes)
    return tuple(
        Culprit(
            rank, stage=places[rank].stage, dp_rank=places[rank].dp_rank, cause=causes[rank].value
        )
        for rank in sorted(causes)
    )


def _evidence_of(graph: WaitGraph, rank: int, lines_max: int) -> list[Evidence]:
    return [
        Evidence(_source(rank, accusation), _text(accusation))
        for accusation in graph.accusations.get(rank, ())[:lines_max]
    ]


def _source(rank: int, accusation: Accusation) -> str:
    if isinstance(accusation, NoDump):
        return f"dump of rank {rank}"
    return f"flight recorder of rank {rank}"


def _text(accusation: Accusation) -> str:
    title, sequence = accusation.group.title, accusation.sequence
    if isinstance(accusation, NotLaunched):
        return (
            f"has not launched collective {sequence} of {title}, "
            f"in which {accusation.waiting} of {len(accusation.group.ranks)} members wait"
        )
    if isinstance(accusation, NotBegun):
        return (
            f"{ranks_in_words(accusation.begun)} began collective {sequence} of {title}; its host "
            "launched it, and its device did not begin it"
        )
    if isinstance(accusation, NoDump):
        return (
            f"wrote no dump; {ranks_in_words(accusation.waiting)} wait for it in collective "
            f"{sequence} of {title}"
        )
    return (
        f"has not finished {accusation.kind} {sequence} of {title}; "
        f"other members have finished up to {accusation.finished}"
    )


def diagnose_hang(job: JobStandings) -> Diagnosis:
    """Return the ranks that a hung job waits for, or why none can be named."""
    positions = positions_of(job)
    graph = draw_waits(positions)
    verdict = judge_waits(graph)
    mismatch = find_mismatch(positions)
    mismatch = mismatch or find_past_mismatch(positions, _groups_at_issue(graph, verdict))
    if mismatch is not None:
        return of_mismatch(positions, mismatch)
    if verdict.culprits:
        return of_culprits(graph, verdict.culprits)
    if verdict.circles:
        return of_deadlock(graph, verdict.circles[0])
    if verdict.equal:
        return of_equal_positions(graph, verdict.equal)
    if not verdict.pairs and (culprits := judge_transfers(graph)):
        return of_transfers(graph, culprits)
    return of_nobody(graph, verdict.pairs)


def _groups_at_issue(graph: WaitGraph, verdict: WaitVerdict) -> list[str]:
    """Return the groups whose past may explain the hang instead, in the order of their names.

    Of culprits only those in which others wait for them: a difference in another group says nothing of
    these ranks. That a process has ended is a fact, whatever came before.
    """
    if not verdict.culprits:
        return sorted(group.group.name for group in graph.positions.groups)
    return sorted(
        {
            accusation.group.name
            for rank in verdict.culprits
            for accusation in graph.accusations.get(rank, ())
            if not isinstance(accusation, NoDump)
        }
    )
