"""Failed rank: which rank failed first and why, and which ranks are its victims.

One death takes down every other rank: they report communication errors, exit by themselves or are
stopped by the launcher. So the class of an end comes before its time: a rank with a cause of its
own outranks one that lost a peer. Among ranks with a cause, the earliest is the culprit, together
with all that failed at the same time; there can be several culprits. The same error on every rank
accuses no machine. Call it once the ends have settled: it sees only ranks that have ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.failed.error_classes import CLASSES
from detectors.failed.said_error import NOTHING_SAID, FailureCause, SaidAtEnd, SaidError
from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.wording import ranks_in_words

DO_NOT_RETRY: Final = 93  # exit code of a rank that a restart can't help
TOGETHER_S: Final = 0.25  # docs/reference/thresholds.md
EVIDENCE_MAX: Final = 16
_TEXT_CHARS_MAX: Final = 400
_BESIDE_MAX: Final = 3

# Linux, signal(7): the numbers on x86 and ARM
SIGNALS: Final = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
_SIGABRT: Final = 6
_SIGKILL: Final = 9
_SIGPIPE: Final = 13
CRASHES: Final = frozenset({4, 5, 6, 7, 8, 11, 31})  # caused by the process itself
_REQUESTS: Final = frozenset({1, 2, 3, 10, 12, 15})  # sent by people and schedulers
_PYTHON_BASE: Final = 256  # sys.exit(subprocess.call(...)) exits with -n, so 256 - n
_BY_PYTHON: Final = frozenset(
    _PYTHON_BASE - number for number in (4, 6, 7, 8, 9, 11, 15)
)  # no exit code of a script's own is near
_SHELL_BASE: Final = 128  # a shell exits with 128 + n after signal n killed its child

_SIGNAL_NOTES: Final = {
    "SIGBUS": "a full /dev/shm, a truncated mapped file or bad memory",
    "SIGKILL": "no out-of-memory kill was counted; the sender is not known",
}

_STRENGTH: Final = {cause: place for place, cause in enumerate(FailureCause)}  # breaks ties
# The vaguest causes: next to another cause at the same time, they are its consequence.
_VAGUE: Final = frozenset({FailureCause.EXIT, FailureCause.USER})


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one rank's process. Exactly one of exit code and signal is set."""

    rank: int
    age_s: float
    exit_code: int | None
    signal: int | None
    by_launcher: bool = False  # the launcher sent the signal
    oom_killed: bool = False  # an out-of-memory kill was counted in the same second
    words: SaidAtEnd = NOTHING_SAID
    step: int | None = None  # the newest one it finished


@dataclass(frozen=True, slots=True)
class _Death:
    """One rank's end and what it means."""

    end: RankEnd
    cause: FailureCause
    said: str  # "SIGKILL", "exit code 3", "ValueError: bad batch 7"
    detail: str = ""  # its symptom's
    alike: Symptom | None = None  # reported while it was being stopped; None: its own symptom
    is_doubtful: bool = False  # it crashed after it lost a peer, or its own connection broke
    source: str = "wait status"  # where ``said`` was read

    @property
    def symptom(self) -> Symptom:
        return self.alike or Symptom(SymptomKind(self.cause.value), self.detail)


def detect_failed(
    ends: Sequence[RankEnd],
    *,
    job_id: str,
    attempt: int,
    node: str,
    world_size: int,
    together_s: float = TOGETHER_S,
) -> Finding | None:
    """Return what failed first among the ranks that have ended, or None if none failed."""
    ended = sorted(ends, key=lambda end: (-end.age_s, end.rank))
    deaths = [_judge(end) for end in ended if not _is_success(end)]
    failed = [death for death in deaths if death.cause is not FailureCause.STOPPED]
    if not failed:
        return None
    culprits = _pick_culprits(failed, together_s)
    if culprits:
        named = min(culprits, key=lambda death: (_STRENGTH[death.cause], death.detail))
        alike = _alike(named, deaths)
        blame, ranks = _responsible(named.cause, culprits, alike, world_size)
        accused = culprits if ranks or blame is Blame.USER else alike
        symptom = named.symptom
        summary = _summary(named, ranks, accused, world_size, len(deaths) > len(accused))
    else:
        early = [end.rank for end in ended if _is_success(end) and end.age_s > failed[0].end.age_s]
        blame, ranks, accused = Blame.COMMUNICATION, (), []
        symptom = Symptom(SymptomKind.COMMUNICATION)
        summary = (
            f"{ranks_in_words(d.end.rank for d in failed)} lost a peer, and no rank reported why"
        )
        if early:
            blame, symptom = Blame.PROGRAM, replace(symptom, detail="early_end")
            summary = f"{ranks_in_words(early)} ended with exit code 0 while others still needed it"
    accused_ranks = {death.end.rank for death in accused}
    victims = [death for death in deaths if death.end.rank not in accused_ranks]
    return Finding(
        kind=Kind.RANK_FAILED,
        severity=Severity.WARNING if blame is Blame.USER else Severity.CRITICAL,
        blame=blame,
        summary=summary,
        job_id=job_id,
        attempt=attempt,
        node=node,
        ranks=ranks,
        victims=tuple(sorted(death.end.rank for death in victims)),
        since_age_s=max(death.end.age_s for death in accused or failed),
        symptom=symptom,
        evidence=_evidence(accused, victims),
    )


def have_no_cause_of_their_own(ends: Sequence[RankEnd]) -> bool:
    """Return whether each rank that failed lost a peer, or ended by an exit code and said nothing."""
    deaths = [_judge(end) for end in ends if not _is_success(end)]
    failed = [death for death in deaths if death.cause is not FailureCause.STOPPED]
    return bool(failed) and all(
        death.cause is FailureCause.COMMUNICATION
        or (death.cause is FailureCause.EXIT and not death.end.words.exit_text)
        for death in failed
    )


def signal_name(number: int) -> str:
    """Return a signal's name, or its number if it has no name here."""
    return SIGNALS.get(number, f"signal {number}")


def _is_success(end: RankEnd) -> bool:
    return end.exit_code == 0 and end.signal is None


def _judge(end: RankEnd) -> _Death:
    """Return what one end means by itself."""
    assert (end.exit_code is None) != (end.signal is None), f"rank {end.rank} ended how?"
    error = end.words.error
    number, said = _signal_of(end)
    if end.exit_code == DO_NOT_RETRY:
        return _Death(end, FailureCause.DO_NOT_RETRY, _told(said, error))
    if end.by_launcher:
        # A rank that was failing with the same error as another shares its symptom.
        own = _by_error(end, error) if error else None
        return _Death(end, FailureCause.STOPPED, said, alike=own.symptom if own else None)
    if number is not None:
        return _by_signal(end, number, said, error)
    return _by_error(end, error) if error else _by_lines(end, said)


def _by_signal(end: RankEnd, number: int, said: str, error: SaidError | None) -> _Death:
    name = signal_name(number)
    if number == _SIGKILL and end.oom_killed:
        return _Death(end, FailureCause.OOM_KILLED, f"{said}, by the out-of-memory killer")
    if number in CRASHES:
        return _by_crash(end, number, said, error)
    if number == _SIGPIPE:
        # Whoever read its output or its socket is gone. If that was another rank, that rank has a cause.
        if error:
            return _by_error(end, error)
        return _Death(end, FailureCause.EXIT, said, name, is_doubtful=True)
    cause = FailureCause.USER if number in _REQUESTS else FailureCause.KILLED
    return _Death(end, cause, said, name)


def _by_crash(end: RankEnd, number: int, said: str, error: SaidError | None) -> _Death:
    if error and error.is_uncaught:
        death = _by_error(end, error)  # clean-up of the interpreter or of a library crashed, too
        return replace(death, said=f"{death.said}; then {said}")
    cause = error.cause if error else FailureCause.EXCEPTION
    if error and number == _SIGABRT and cause is not FailureCause.EXCEPTION:
        return _by_error(end, error)  # an uncaught C++ exception, the NCCL watchdog ...
    if number == _SIGABRT and (device := end.words.device):
        return _Death(end, device.cause, f"{said}: {device.line}", device.fingerprint)
    is_doubtful = cause is FailureCause.COMMUNICATION
    name = signal_name(number)
    return _Death(end, FailureCause.CRASHED, _told(said, error), name, is_doubtful=is_doubtful)


def _signal_of(end: RankEnd) -> tuple[int | None, str]:
    """Return the signal that ended the rank or its only child, and the end in words."""
    if end.signal is not None:
        return end.signal, signal_name(end.signal)
    text = f"exit code {end.exit_code}"
    code = end.exit_code or 0
    number = _PYTHON_BASE - code if code in _BY_PYTHON else code - _SHELL_BASE
    if number in SIGNALS:
        return number, f"{text} ({SIGNALS[number]} of its child)"
    return None, text


def _by_error(end: RankEnd, error: SaidError) -> _Death:
    if end.oom_killed and error.cause in (FailureCause.HOST_MEMORY, FailureCause.KILLED):
        counted = f"{error.line} (out-of-memory kill counted)"
        return _Death(end, FailureCause.OOM_KILLED, counted, source="stderr")
    # A connection of the program's own broke. If it led to another rank, that rank has a cause.
    is_doubtful = error.cause is FailureCause.EXCEPTION and error.may_be_peer
    return _Death(
        end, error.cause, error.line, error.fingerprint, is_doubtful=is_doubtful, source="stderr"
    )


def _by_lines(end: RankEnd, said: str) -> _Death:
    """Judge an exit code without an error."""
    if end.oom_killed:
        return _Death(end, FailureCause.OOM_KILLED, f"{said} (out-of-memory kill counted)")
    if device := end.words.device:
        return _Death(end, device.cause, f"{said}: {device.line}", device.fingerprint)
    text = end.words.exit_text
    return _Death(end, FailureCause.EXIT, f"{said}: {text}" if text else said, str(end.exit_code))


def _told(said: str, error: SaidError | None) -> str:
    return f"{said}; last error: {error.line}" if error else said


def _pick_culprits(failed: list[_Death], together_s: float) -> list[_Death]:
    """Return the first ranks of the strongest class; none if all of them only lost a peer.

    ``failed`` is sorted, earliest first.
    """
    reported = [death for death in failed if death.cause is FailureCause.DO_NOT_RETRY]
    if reported:
        return reported
    own = [death for death in failed if death.cause is not FailureCause.COMMUNICATION]
    first = [death for death in own if not death.is_doubtful] or own
    together = [death for death in first if first[0].end.age_s - death.end.age_s <= together_s]
    return [death for death in together if death.cause not in _VAGUE] or together


def _alike(named: _Death, deaths: list[_Death]) -> list[_Death]:
    """Return all ranks with the same cause, including those stopped after they reported it."""
    return [death for death in deaths if death.symptom == named.symptom]


def _responsible(
    cause: FailureCause, culprits: list[_Death], alike: list[_Death], world_size: int
) -> tuple[Blame, tuple[int, ...]]:
    some, every = CLASSES[cause].some, CLASSES[cause].every
    ranks = tuple(sorted(death.end.rank for death in culprits))
    has_no_peer = world_size == 1 and cause in (FailureCause.EXCEPTION, FailureCause.EXIT)
    if len(alike) < world_size or (world_size == 1 and not has_no_peer):
        return some, ranks
    return every, () if every in (Blame.PROGRAM, Blame.NOBODY) else ranks


def _summary(
    named: _Death,
    ranks: tuple[int, ...],
    accused: list[_Death],
    world_size: int,
    has_victims: bool,
) -> str:
    step = max((d.end.step for d in accused if d.end.step is not None), default=None)
    at = "" if step is None else f" after step {step}"
    said = named.said[:_TEXT_CHARS_MAX]
    if not ranks and world_size > 1:
        who = "both ranks" if world_size == 2 else f"all {world_size} ranks"
        return f"{who} ended alike{at}: {said}"
    who = ranks_in_words(death.end.rank for death in accused)
    if named.cause is FailureCause.DO_NOT_RETRY:
        return f"{who} asked not to be restarted{at}: {said}"
    return f"{who} failed{' first' if has_victims else ''}{at}: {said}"


def _evidence(accused: list[_Death], victims: list[_Death]) -> tuple[Evidence, ...]:
    lines: list[Evidence] = []
    for said, group in _grouped(accused):
        note = _SIGNAL_NOTES.get(said, "")
        text = f"{ranks_in_words(d.end.rank for d in group)}: {said}{note and f' ({note})'}, {_ages(group)}"
        lines.append(Evidence(group[0].source, text))
        lines += [Evidence("stderr", line) for line in _beside(group)]
    for said, group in _grouped(victims):
        who, death = ranks_in_words(d.end.rank for d in group), group[0]
        if death.cause is FailureCause.STOPPED:
            lines.append(Evidence("launcher", f"{who}: stopped by rankmend ({said})"))
        elif death.cause is FailureCause.COMMUNICATION:
            lines.append(Evidence(death.source, f"{who}: lost a peer: {said}"))
        else:
            lines.append(Evidence(death.source, f"{who}: failed later: {said}"))
    if len(lines) > EVIDENCE_MAX:
        left_out = len(lines) - EVIDENCE_MAX + 1
        lines[EVIDENCE_MAX - 1 :] = [Evidence("rankmend", f"{left_out} more lines are not shown")]
    return tuple(lines)


def _beside(group: list[_Death]) -> list[str]:
    """Return what threads, exit handlers and other processes of these ranks printed: none of it is the error."""
    ranks: dict[str, list[int]] = {}
    for death in group:
        for line in death.end.words.beside:
            ranks.setdefault(line[:_TEXT_CHARS_MAX], []).append(death.end.rank)
    return [
        f"{ranks_in_words(found)}, beside it: {line}"
        for line, found in list(ranks.items())[:_BESIDE_MAX]
    ]


def _grouped(deaths: list[_Death]) -> list[tuple[str, list[_Death]]]:
    """Return the deaths by what they say, so that a thousand victims are one line."""
    groups: dict[tuple[FailureCause, Symptom], list[_Death]] = {}
    for death in deaths:
        groups.setdefault((death.cause, death.symptom), []).append(death)
    return [(group[0].said[:_TEXT_CHARS_MAX], group) for group in groups.values()]


def _ages(group: list[_Death]) -> str:
    """Return how long before the finding they ended: people read it long after."""
    ages = [death.end.age_s for death in group]
    if max(ages) - min(ages) < 0.005:
        return f"{max(ages):.2f} s earlier"
    return f"{min(ages):.2f} to {max(ages):.2f} s earlier"
