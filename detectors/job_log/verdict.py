"""What a job's log says: what failed first, on which rank and node, whose fault, and whether to start again.

1. `lines`: the lines that may mean something, with rank and node.
2. `facts`: what they state, each with how much it can explain.
3. `watchdog`: whom a hung job waits for, by the judge of flight recorders.
4. Here: the first fact of the strongest tier is the cause, its equals on other ranks belong to it, and every
   other rank is a victim.
5. `decision`: whether to start again. Without any failure in the log that is `UNKNOWN`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from detectors.failed.error_classes import CLASSES, classify
from detectors.failed.said_error import FailureCause
from detectors.finding import Blame
from detectors.job_log.decision import decide
from detectors.job_log.facts import (
    LaunchersWord,
    LogFact,
    LogFacts,
    is_kernels_line,
    read_facts,
)
from detectors.job_log.kinds import KINDS, FactTier, LogClass, LogDecision, LogKind, next_step
from detectors.job_log.lines import LogLine, LogSource, SourceLines, read_sources
from detectors.job_log.stacks import judge_stacks
from detectors.job_log.watchdog import LogHang, judge_watchdogs
from detectors.wording import ranks_in_words
from rankmend.printable import printable

EVIDENCE_MAX: Final = 8
TEXT_CHARS_MAX: Final = 300
WORDS_CHARS_MAX: Final = 400  # in a report, a record and a line of `rankmend why`
MARKS_MIN: Final = 1  # forms that only a job's log has
_NODES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """One line of the log that shows it."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What a job's log says."""

    decision: LogDecision
    error_class: LogClass
    kind: LogKind
    culprit_ranks: tuple[int, ...]  # empty: no single rank, or the log doesn't tell
    culprit_nodes: tuple[str, ...]
    blame: Blame
    confidence: float  # 0 to 1, by rule and not by calibration
    evidence: tuple[LogEvidence, ...]
    victims: tuple[int, ...]
    reason: str  # what happened, one sentence
    decision_reason: str  # why that decision
    next_step: str
    is_training_log: bool = True


def log_page(verdict: LogVerdict, unread: Sequence[str]) -> dict[str, object]:
    """Return a verdict in the form that `rankmend diagnose log --json` prints."""
    return {
        "decision": verdict.decision.value,
        "class": verdict.error_class.value,
        "kind": verdict.kind.value,
        "culprit_ranks": list(verdict.culprit_ranks),
        "culprit_nodes": list(verdict.culprit_nodes),
        "blame": verdict.blame.value,
        "confidence": round(verdict.confidence, 3),
        "evidence": [
            {"file": line.file, "line": line.line, "text": line.text} for line in verdict.evidence
        ],
        "victims": list(verdict.victims),
        "reason": verdict.reason,
        "decision_reason": verdict.decision_reason,
        "next_step": verdict.next_step,
        "is_training_log": verdict.is_training_log,
        "unread": list(unread),
    }


def in_words(verdict: LogVerdict) -> str:
    """Return a verdict in one bounded line."""
    text = (
        f"{verdict.decision.value}: {verdict.reason} (class {verdict.error_class.value}; "
        f"blamed: {verdict.blame.value}; confidence {verdict.confidence:.2f})"
    )
    return printable(text)[:WORDS_CHARS_MAX]


# --- the entry ------------------------------------------------------------------------------------


def diagnose_log(sources: Sequence[LogSource]) -> LogVerdict:
    """Return what the log of a job says, whatever its size and form; never raises for its content."""
    read = read_sources(sources)
    job = read_facts(read)
    begin = _begin(job, read)
    hang = judge_watchdogs(read, job, begin)
    if not _is_training_log(read, job, hang):
        return _other_log()
    cause = None if _has_recovered(job, read) else _pick(job, hang)
    if cause is None:
        stacked = judge_stacks(read)
        return _no_failure(job) if stacked is None else _of_hang(stacked, None, read, job)
    if hang is not None and _is_of_hang(cause, hang):
        reason = _why_behind(hang, job)
        if reason is None:
            return _of_hang(hang, cause, read, job)
        cause = reason
    return _of_cause(cause, read, job)


def _has_recovered(job: LogFacts, read: Sequence[SourceLines]) -> bool:
    """Return whether the last of several attempts made steps after all that failed, and says nothing of its end."""
    if job.attempts < 2 or len(read) != 1 or not job.facts:
        return False
    return (read[0].last_progress or 0) > max(fact.line.number for fact in job.facts)


def _is_of_hang(cause: LogFact, hang: LogHang) -> bool:
    """Return whether the cause is a hang, or an error of ranks that waited in vain for those that the hang names."""
    if cause.kind in _HANGS:
        return cause.tier is FactTier.STALL or cause.kind is LogKind.HANG_MISMATCH
    waits = (LogKind.NEVER_JOINED, LogKind.PEER_LOST)
    return (
        bool(hang.ranks) and cause.kind in waits and cause.tier in (FactTier.STALL, FactTier.VICTIM)
    )


def _why_behind(hang: LogHang, job: LogFacts) -> LogFact | None:
    """Return the error of the rank that all others wait for, doubtful as it may be by itself."""
    errors = [
        msgspec.structs.replace(fact, tier=FactTier.OWN)
        for fact in job.facts
        if fact.error is not None
        and fact.tier is FactTier.WEAK
        and not fact.is_aside
        and fact.ranks
        and set(fact.ranks) <= set(hang.ranks)
    ]
    return _first(errors)


_HANGS: Final = frozenset(
    {
        LogKind.HANG,
        LogKind.HANG_HOST,
        LogKind.WATCHDOG_STUCK,
        LogKind.HANG_MISMATCH,
    }
)


def _begin(job: LogFacts, read: Sequence[SourceLines]) -> int:
    if job.attempts < 2 or len(read) != 1 or not job.facts or not job.earlier:
        return 0
    return 1 + max(fact.line.number for fact in job.earlier)


def _is_training_log(read: Sequence[SourceLines], job: LogFacts, hang: LogHang | None) -> bool:
    """Return whether these are lines of a job: a lone traceback may be any program's."""
    if hang is not None or any(source.first_progress is not None for source in read):
        return True
    marks, foreign = sum(s.marks for s in read), sum(s.foreign for s in read)
    if any(line.is_of_rank for source in read for line in source.lines[:200]):
        return True
    facts = [fact for fact in job.facts if fact.tier is not FactTier.WEAK]
    if foreign > marks:
        return False
    if any(fact.kind in _OF_GPUS or not is_kernels_line(fact.text) for fact in facts):
        return True
    # A line that names an error and stands alone: of no other program, so far as one can see.
    if not foreign and any(fact.kind in _TELLING for fact in job.facts):
        return True
    return marks >= MARKS_MIN + bool(facts)


_OF_GPUS: Final = frozenset({LogKind.GPU_HARDWARE, LogKind.DRIVER})
_TELLING: Final = frozenset(
    {
        LogKind.STORAGE_ERROR,
        LogKind.DISK_FULL,
        LogKind.DISK_QUOTA,
        LogKind.SERVICE_AWAY,
        LogKind.GPU_HARDWARE,
        LogKind.GPU_ABSENT,
        LogKind.DEVICE_MEMORY,
        LogKind.ILLEGAL_ACCESS,
        LogKind.LAUNCH_FAILURE,
        LogKind.CHECKPOINT_MISMATCH,
        LogKind.CHECKPOINT_DAMAGED,
    }
)


# --- which fact is the cause ----------------------------------------------------------------------


def _pick(job: LogFacts, hang: LogHang | None) -> LogFact | None:
    """Return the fact that explains the others: the strongest tier's first, with what an order of time forbids."""
    facts = [fact for fact in job.facts if not _is_cleared(fact, job)]
    # An object that is cleared away, or a thread, ends no rank; and a link may go down and come again.
    if all(
        fact.is_aside or (fact.kind is LogKind.LINK_ERROR and is_kernels_line(fact.text))
        for fact in facts
    ):
        return None
    by_tier: dict[FactTier, list[LogFact]] = defaultdict(list)
    for fact in facts:
        by_tier[fact.tier].append(fact)
    hard = [fact for fact in by_tier[FactTier.FACT] if fact.kind not in _SCHEDULERS]
    if hard:
        return _first(hard)
    own, stalls, ends = by_tier[FactTier.OWN], by_tier[FactTier.STALL], by_tier[FactTier.END]
    first_stall = _first(stalls)
    # A signal that ended a rank before anybody waited for it is no consequence.
    early_ends = [fact for fact in ends if first_stall is None or not _is_before(first_stall, fact)]
    own = _own_causes(own, first_stall)
    first = _first(own)
    if first is None and early_ends:
        first = _first(early_ends)
    elif first is not None and early_ends and not stalls:
        signal = _first(early_ends)
        vague = first.kind in (LogKind.EXCEPTION, LogKind.PEER_LOST, LogKind.PROGRAM_ERROR)
        if signal is not None and vague and _is_before(signal, first):
            first = signal
    first = first or _named_stall(stalls, hang) or _first(ends)
    asked = [fact for fact in by_tier[FactTier.FACT] if fact.kind in _SCHEDULERS]
    # A scheduler that says why it ends a job says first that it does.
    requested = _first([fact for fact in asked if fact.kind is not LogKind.CANCELLED] or asked)
    if requested is not None and (first is None or _is_before(requested, first)):
        return requested
    if first is not None:
        return first
    return _of_victims(by_tier)


def _is_cleared(fact: LogFact, job: LogFacts) -> bool:
    """Return whether the run said after a fact that it has ended well: the program handled that."""
    ended = job.ended_well
    return (
        ended is not None and ended.source == fact.line.source and ended.number > fact.line.number
    )


_SCHEDULERS: Final = frozenset({LogKind.TIME_LIMIT, LogKind.PREEMPTED, LogKind.CANCELLED})


def _own_causes(own: Sequence[LogFact], stall: LogFact | None) -> list[LogFact]:
    """Return errors of ranks that aren't consequences of a stall before them."""
    if stall is None:
        return list(own)
    return [fact for fact in own if not (_is_before(stall, fact) and fact.kind in _AFTER_STALL)]


# What a process that its watchdog takes down prints as it goes.
_AFTER_STALL: Final = frozenset(
    {
        LogKind.LAUNCH_FAILURE,
        LogKind.EXCEPTION,
        LogKind.CRASHED,
        LogKind.LOADER_WORKER,
        LogKind.SEGFAULT,
    }
)


def _named_stall(stalls: Sequence[LogFact], hang: LogHang | None) -> LogFact | None:
    """Return the stall that tells most: a named rank, a broken link, a timeout."""
    if not stalls:
        return None
    links = [fact for fact in stalls if fact.kind is LogKind.LINK_ERROR]
    timeouts = [fact for fact in stalls if fact.kind in _HANGS]
    if hang is not None and hang.ranks and timeouts and not links:
        return _first(timeouts)
    mismatches = [fact for fact in stalls if fact.kind is LogKind.HANG_MISMATCH]
    return _first(mismatches) or _first(links) or _first(timeouts) or _first(stalls)


def _of_victims(by_tier: dict[FactTier, list[LogFact]]) -> LogFact | None:
    victims, weak = by_tier[FactTier.VICTIM], by_tier[FactTier.WEAK]
    lost = [fact for fact in victims if fact.kind is not LogKind.TERMINATED]
    if root := _sole_root([*victims, *weak]):
        return root
    stopped = _first([fact for fact in victims if fact.kind is LogKind.TERMINATED])
    first = _first(lost)
    errors = [fact for fact in weak if fact.error is not None or fact.kind is LogKind.NOT_FINITE]
    # In a log without ranks the others' output follows an error at once, so that it looks as if its process went on.
    before = [fact for fact in errors if first is not None and _is_just_before(fact, first)]
    if before:
        return _first(before)
    if first is None and errors:
        return _first(errors)
    codes = [fact for fact in weak if fact.kind is not LogKind.CANCELLED]
    # Launchers send SIGTERM to the rest once a rank has ended: an exit code says more then.
    if first is None and codes:
        return _first(codes)
    return first or stopped or _first(weak)


_JUST_BEFORE_LINES: Final = 200  # the tracebacks of some victims


def _is_just_before(error: LogFact, lost: LogFact) -> bool:
    """Return whether a whole traceback stands just before the first word of a rank that lost its peer."""
    return (
        not error.is_aside
        and error.error is not None
        and "\n" in error.error.traceback
        and _is_before(error, lost)
        and lost.line.number - error.line.number <= _JUST_BEFORE_LINES
    )


def _sole_root(facts: Sequence[LogFact]) -> LogFact | None:
    """Return the end that torchrun observed first, where it stopped all others and that rank lost no peer.

    Its table names a victim where several ranks have a code of their own: then it counts for nothing.
    """
    ends = [fact for fact in facts if fact.launchers_word is not None]
    roots = [fact for fact in ends if fact.launchers_word is LaunchersWord.FIRST]
    others = [fact for fact in ends if fact.launchers_word is LaunchersWord.ENDED]
    if len(roots) != 1 or any(fact.kind is not LogKind.TERMINATED for fact in others):
        return None
    hurt = {rank for fact in facts if fact not in ends for rank in fact.ranks}
    is_alone = not others and roots[0].kind is LogKind.EXIT_CODE
    return None if is_alone or hurt.intersection(roots[0].ranks) else roots[0]


def _first(facts: Sequence[LogFact]) -> LogFact | None:
    """Return the earliest fact; those of several files are ordered by what they tell."""
    if not facts:
        return None
    is_apart = len({fact.line.source for fact in facts}) > 1  # line numbers can't be compared
    return min(
        facts,
        key=lambda fact: (is_apart and fact.kind in _VAGUE, fact.line.number, fact.line.source),
    )


_VAGUE: Final = frozenset({LogKind.EXCEPTION, LogKind.ABORTED, LogKind.EXIT_CODE})


def _is_before(earlier: LogFact, later: LogFact) -> bool:
    """Return whether one fact stands before another; of two files nobody knows."""
    return earlier.line.source == later.line.source and earlier.line.number < later.line.number


# --- verdicts -------------------------------------------------------------------------------------


def _of_cause(cause: LogFact, read: Sequence[SourceLines], job: LogFacts) -> LogVerdict:
    alike = [cause] if cause.launchers_word is LaunchersWord.FIRST else _alike(cause, job)
    ranks = tuple(sorted({rank for fact in alike for rank in fact.ranks}))
    if not ranks:
        ranks = _rank_of_device(cause, job) or _rank_of_ends(cause, job)
    is_every = _is_every(ranks, job)
    nodes = _nodes(alike, ranks, job)
    decision, why = decide(cause, alike, ranks, job, is_every=is_every)
    blame = _blame(cause, is_every=is_every)
    named, named_nodes = ranks, nodes
    if cause.launchers_word is LaunchersWord.FIRST:
        pass  # the table's one end that is nobody's consequence
    elif (
        (is_every and blame in (Blame.PROGRAM, Blame.NOBODY))
        or cause.kind in _NAMELESS
        or (
            cause.tier is FactTier.VICTIM
            or (cause.tier is FactTier.WEAK and cause.kind is not LogKind.EXIT_CODE)
        )
    ):
        named, named_nodes = (), ()
    if cause.kind is LogKind.LINK_ERROR and cause.tier is not FactTier.FACT:
        is_kernels = is_kernels_line(cause.text)
        named, named_nodes = (), nodes[:1] if is_kernels else _linked(alike)
    if blame in (Blame.PROGRAM, Blame.NOBODY, Blame.USER):
        named_nodes = ()
    victims = _victims(job, named or ranks)
    return LogVerdict(
        decision=decision,
        error_class=_class_of(cause),
        kind=cause.kind,
        culprit_ranks=named,
        culprit_nodes=named_nodes[:_NODES_MAX],
        blame=blame,
        confidence=_confidence(cause, named),
        evidence=_evidence(alike, read, job),
        victims=() if is_every else victims,
        reason=_reason(cause, named, named_nodes, is_every=is_every),
        decision_reason=why,
        next_step=next_step(cause.kind, decision),
    )


_NAMELESS: Final = frozenset(
    {
        LogKind.TIME_LIMIT,
        LogKind.PREEMPTED,
        LogKind.CANCELLED,
        LogKind.INTERRUPTED,
        LogKind.TERMINATED,
        LogKind.PORT_IN_USE,
        LogKind.NEVER_JOINED,
        LogKind.PEER_LOST,
        LogKind.NCCL_SYSTEM,
        LogKind.NCCL_VERSIONS,
        LogKind.SERVICE_AWAY,
        LogKind.WATCHDOG_STUCK,
        LogKind.HANG,
        LogKind.HANG_MISMATCH,
    }
)


def _blame(cause: LogFact, *, is_every: bool) -> Blame:
    """Return whom a cause blames; what all ranks have at once is no single rank's fault."""
    blame = KINDS[cause.kind].blame
    if is_every and blame is Blame.RANK:
        error_class = _class_of(cause)
        return CLASSES[error_class].every if isinstance(error_class, FailureCause) else blame
    return blame


def _class_of(cause: LogFact) -> LogClass:
    """Return the class of the error itself where a rank printed one, else that of its kind."""
    if cause.error is not None and cause.kind not in _BY_KIND:
        return classify(cause.error)
    return KINDS[cause.kind].log_class


_BY_KIND: Final = frozenset(
    {
        LogKind.NOT_FINITE,
        LogKind.SEGFAULT,
        LogKind.BUS_ERROR,
        LogKind.ABORTED,
        LogKind.CRASHED,
        LogKind.DRIVER,
        LogKind.GPU_ABSENT,
        LogKind.GPU_HARDWARE,
        LogKind.DEVICE_MEMORY,
        LogKind.LAUNCH_FAILURE,
        LogKind.NCCL_SYSTEM,
        LogKind.PEER_LOST,
        LogKind.PORT_IN_USE,
        LogKind.NEVER_JOINED,
        *_HANGS,
    }
)


def _alike(cause: LogFact, job: LogFacts) -> list[LogFact]:
    """Return the facts that state the same, the cause first."""
    same = [
        fact
        for fact in job.facts
        if fact is not cause
        and fact.kind is cause.kind
        and (fact.print_ == cause.print_ or cause.kind in _ONE_PER_RANK)
    ]
    return [cause, *same]


_ONE_PER_RANK: Final = frozenset(
    {
        LogKind.DEVICE_MEMORY,
        LogKind.GPU_HARDWARE,
        LogKind.OOM_KILLED,
        LogKind.ILLEGAL_ACCESS,
        LogKind.DISK_FULL,
        LogKind.DISK_QUOTA,
        LogKind.LINK_ERROR,
    }
)


def _rank_of_device(cause: LogFact, job: LogFacts) -> tuple[int, ...]:
    """Return the one rank whose own error is of its device, for a kernel's line of a device without a rank."""
    if cause.kind is not LogKind.GPU_HARDWARE or cause.tier is not FactTier.FACT:
        return ()
    found = {
        rank
        for fact in job.facts
        if fact.kind in _OF_DEVICE and fact.tier is FactTier.OWN
        for rank in fact.ranks
    }
    return tuple(found) if len(found) == 1 else ()


_OF_DEVICE: Final = frozenset(
    {LogKind.GPU_HARDWARE, LogKind.GPU_ABSENT, LogKind.LAUNCH_FAILURE, LogKind.ILLEGAL_ACCESS}
)


def _rank_of_ends(cause: LogFact, job: LogFacts) -> tuple[int, ...]:
    """Return the rank that a launcher's table names, for an error without a rank: one alone ended by itself.

    The table's "first observed" is the launcher's word, so it counts only where no other rank has a code like it.
    """
    if cause.kind in _NAMELESS or cause.kind in _SHARED or cause.tier is FactTier.VICTIM:
        return ()
    table = [fact for fact in job.facts if fact.ranks and fact.launchers_word is not None]
    first = [fact for fact in table if fact.launchers_word is LaunchersWord.FIRST]
    codes = [fact for fact in table if fact.kind not in (LogKind.TERMINATED, LogKind.INTERRUPTED)]
    chosen = codes if len(codes) == 1 else first
    if len(codes) > 1 and cause.error is not None:
        return (
            tuple(sorted({rank for fact in codes for rank in fact.ranks}))
            if len(codes) > 2
            else chosen[0].ranks
            if chosen
            else ()
        )
    if chosen:
        return chosen[0].ranks
    local = {
        fact.local_rank
        for fact in job.facts
        if fact.local_rank is not None and fact.kind in (cause.kind, LogKind.EXIT_CODE)
    }
    nodes = set(job.node_of.values())
    return tuple(sorted(local)) if len(local) == 1 and len(nodes) < 2 else ()


# Every rank has these, whichever ended first: a launcher's table names one of them by chance.
_SHARED: Final = frozenset(
    {
        LogKind.SYNTAX_ERROR,
        LogKind.NAME_ERROR,
        LogKind.USAGE,
        LogKind.IMPORT_ERROR,
        LogKind.SCRIPT_MISSING,
        LogKind.NOT_AUTHORIZED,
        LogKind.CONFIGURATION,
        LogKind.CHECKPOINT_MISMATCH,
    }
)


def _is_every(ranks: Sequence[int], job: LogFacts) -> bool:
    """Return whether all ranks that the log knows have it."""
    known = job.ranks | set(ranks)
    world = job.world or len(known)
    return len(ranks) >= 2 and len(ranks) >= max(world if world <= 4096 else 0, len(known))


def _nodes(alike: Sequence[LogFact], ranks: Sequence[int], job: LogFacts) -> tuple[str, ...]:
    """Return the nodes that the facts name, else those of their ranks, else a job's only node for a kernel's line."""
    found: list[str] = []
    for fact in alike:
        if fact.node:
            found.append(fact.node)
        else:
            found += [job.node_of[rank] for rank in fact.ranks if rank in job.node_of]
    found = found or [job.node_of[rank] for rank in ranks if rank in job.node_of]
    nodes = set(job.node_of.values())
    if not found and len(nodes) == 1 and any(is_kernels_line(fact.text) for fact in alike):
        return tuple(nodes)
    return tuple(dict.fromkeys(found))


def _linked(alike: Sequence[LogFact]) -> tuple[str, ...]:
    """Return the node that all broken links have in common, if one has: it is at an end of each."""
    ends = [{end for end in (fact.node, fact.peer) if end} for fact in alike if fact.peer]
    if len({frozenset(pair) for pair in ends}) < 2:
        return ()
    shared = set.intersection(*ends)
    return tuple(shared) if len(shared) == 1 else ()


def _victims(job: LogFacts, culprits: Sequence[int]) -> tuple[int, ...]:
    hurt = {rank for fact in job.facts for rank in fact.ranks}
    return tuple(sorted(hurt - set(culprits)))


def _confidence(cause: LogFact, named: Sequence[int]) -> float:
    base = {
        FactTier.FACT: 0.95,
        FactTier.OWN: 0.9,
        FactTier.STALL: 0.6,
        FactTier.END: 0.75,
        FactTier.VICTIM: 0.4,
        FactTier.WEAK: 0.3,
    }[cause.tier]
    return (
        base
        if named or cause.tier in (FactTier.FACT, FactTier.VICTIM, FactTier.WEAK)
        else round(base - 0.1, 2)
    )


def _reason(cause: LogFact, ranks: Sequence[int], nodes: Sequence[str], *, is_every: bool) -> str:
    who = "all ranks" if is_every else ranks_in_words(ranks) if ranks else ""
    where = f" on {', '.join(nodes[:3])}" if nodes else ""
    words = cause.kind.value.replace("_", " ")
    if who or where:
        return f"{who or 'a rank'}{where}: {words}: {cause.text[:200]}"
    return f"{words}: {cause.text[:200]}"


def _of_hang(
    hang: LogHang, cause: LogFact | None, read: Sequence[SourceLines], job: LogFacts
) -> LogVerdict:
    is_mismatch = cause is not None and cause.kind is LogKind.HANG_MISMATCH
    kind = LogKind.HANG_MISMATCH if is_mismatch else hang.kind
    row = KINDS[kind]
    ranks = hang.ranks if kind in _NAMED_HANGS else ()
    nodes = tuple(dict.fromkeys(job.node_of[rank] for rank in ranks if rank in job.node_of))
    hurt = set(hang.reporters) | {rank for fact in job.facts for rank in fact.ranks}
    lines = hang.lines or ((cause.line,) if cause is not None else ())
    return LogVerdict(
        decision=LogDecision.RESTART,
        error_class=row.log_class,
        kind=kind,
        culprit_ranks=ranks,
        culprit_nodes=nodes[:_NODES_MAX],
        blame=row.blame,
        confidence=hang.confidence,
        evidence=tuple(_quote(line, read) for line in lines[:EVIDENCE_MAX]),
        victims=tuple(sorted(hurt - set(ranks))),
        reason=f"the job hung: {hang.reason}",
        decision_reason="a hang seldom comes again at the same place; the number of tries is the policy's",
        next_step=next_step(kind, LogDecision.RESTART),
    )


_NAMED_HANGS: Final = frozenset(
    {LogKind.HANG_HOST, LogKind.HANG_DEVICE, LogKind.HANG_GONE, LogKind.HANG_MISMATCH}
)


def _no_failure(job: LogFacts) -> LogVerdict:
    row = KINDS[LogKind.NO_FAILURE]
    steps = "training steps and " if job.has_progress else ""
    return LogVerdict(
        LogDecision.UNKNOWN,
        KINDS[LogKind.NO_FAILURE].log_class,
        LogKind.NO_FAILURE,
        (),
        (),
        Blame.NOBODY,
        0.5,
        (),
        (),
        f"the log has {steps}no failure that rankmend knows",
        "nothing in the log says why the job ended, or whether it did",
        row.next_step,
    )


def _other_log() -> LogVerdict:
    verdict = _no_failure(LogFacts())
    return replace(
        verdict,
        confidence=0.8,
        reason="this is no training log: nothing in it is of PyTorch, NCCL, a launcher or a training loop",
        decision_reason="nothing was judged",
        next_step="give the output of the job; for a kernel log use: rankmend check log FILE",
        is_training_log=False,
    )


# --- evidence -------------------------------------------------------------------------------------


def _evidence(
    alike: Sequence[LogFact], read: Sequence[SourceLines], job: LogFacts
) -> tuple[LogEvidence, ...]:
    shown: list[LogLine] = [fact.line for fact in alike[: EVIDENCE_MAX // 2]]
    own = set(alike_ids := [id(fact) for fact in alike])
    assert alike_ids
    for tier in (FactTier.FACT, FactTier.OWN, FactTier.STALL, FactTier.END, FactTier.VICTIM):
        others = [fact for fact in job.facts if fact.tier is tier and id(fact) not in own]
        shown += [fact.line for fact in others[:2]]
    unique = list({(line.source, line.number): line for line in shown}.values())
    return tuple(_quote(line, read) for line in unique[:EVIDENCE_MAX])


def _quote(line: LogLine, read: Sequence[SourceLines]) -> LogEvidence:
    rank = f"[rank {line.rank}] " if line.rank is not None else ""
    return LogEvidence(
        read[line.source].name, line.number, f"{rank}{line.text.strip()}"[:TEXT_CHARS_MAX]
    )
