"""Which candidate a restart should begin from: the choice by evidence. Pure.

Time alone doesn't tell: curves, predictions, a copy of the best model are written after the state that training
goes on from. So candidates are first put into families of what is alike, families are ordered by evidence, and only
within a family does the newest come first.

A family: names of one pattern (`step_#.pt`), and files that hold the same kind of thing in tensors of the same size
(`last.pt` beside `epoch_3.pt`). A model without an optimizer's state is never in one family with one that has it.

The order of families, each rule only where those before it don't decide:

1. a model with an optimizer's state, before everything without; then values and an optimizer alone last;
2. a series whose steps are known, by content or by two numbers in names, before one number, before none;
3. the kind that this job made progress from, where it has saved more of that kind since (`proven`);
4. a model, before what can't be told, before values alone, before an optimizer alone;
5. names without a word such as `best`, `ema` or `metrics`;
6. of two that were written together, one named `checkpoint`, `last` or `model`, or the larger;
7. one that ranks of this job were seen writing: another job may save into the same folder;
8. the family with the youngest member.

Within a family a step from the content orders all candidates that have one, and so does an epoch where all others
have one. A number in a name only orders names of one pattern: `best_step_10.pt` says nothing about `last.pt`.
Everything else is ordered by time. A file that somebody copied has a new time, so within a pattern the number counts
more: a candidate is as young as the youngest one that it supersedes. A copy by its name (`best.pt`, `ema.pt`)
comes before another one only where it is younger by more than the time between two saves. Names that count anew after
all files of an older run (the next fold, stage or experiment in one folder) come before those of that run, and so
do those of a run that overwrites an older one's from its lower numbers on.

Two or three files or folders that a script overwrites in turn (`ckpt_0.pt`, `ckpt_1.pt`) have numbers, too,
which say nothing. Slots are told from a count by three things together: no word says that the number counts
steps, the numbers are 0 to 1 or 2 (or 1 to 2 or 3), and the times go round: each number is younger
than the one before it, but for one place. A series that has gone round once is one of slots for good.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final, TypeVar

from recovery.checkpoints.model import (
    OVERWRITTEN_FOLDERS,
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Holds,
)
from recovery.checkpoints.names import is_copy_name, name_weight, slot_of

_Item = TypeVar("_Item")
_DIGITS: Final = re.compile(r"[0-9]+")
_LAST_DIGITS: Final = re.compile(r"[0-9]+(?=[^0-9]*$)")
_DIGITS_MAX: Final = 18  # below 2**63
_DATE: Final = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}[-_+.]?[01][0-9][-_+.]?[0-3][0-9]")
SLOTS_MAX: Final = 3  # scripts keep two, rarely three; more look like a count
_COUNTING: Final = frozenset({CheckpointFormat.ACCELERATE})
# Formats of which a file or a folder can be anything: a model, its optimizer, curves.
_OPEN: Final = frozenset(
    {
        *(CheckpointFormat.TORCH, CheckpointFormat.NPZ, CheckpointFormat.SAFETENSORS),
        *(CheckpointFormat.PICKLE, CheckpointFormat.UNKNOWN),
    }
)
_ALIKE: Final = 0.02  # of the elements; a counter that is a tensor makes no other model
_SIZE_RATIO: Final = 2.0  # of files whose content isn't known
_AS_FAR: Final = 0.25  # of the usual time between two saves: some steps are quicker than others
_SAVE_WEIGHT: Final = 2  # of `name_weight`: a word says that it is a save
_COMPARED_MAX: Final = 200  # families that are compared with each other, 40,000 pairs
_TOGETHER_S: Final = 60.0  # between two files of one save, where no series shows an interval

NamePattern = tuple[str, str]
NONE_PROVEN: Final[Mapping[str, float]] = {}


class StepSource(Enum):
    """How a candidate's step is known."""

    CONTENT = "content"
    SERIES = "series"  # its name, and others of the same pattern have other numbers
    NAME = "name"
    NONE = "none"


class PlaceReason(Enum):
    """Why a candidate comes after the first one."""

    FIRST = "first"
    UNPROVEN = "unproven"
    NO_OPTIMIZER = "no_optimizer"
    NO_STEP = "no_step"
    NO_MODEL = "no_model"
    NAME = "name"
    SMALLER = "smaller"
    UNSEEN = "unseen"  # ranks of this job were seen writing the other kind
    OTHER_KIND = "other_kind"  # another kind, and older
    COPY = "copy"
    LOWER_STEP = "lower_step"
    LOWER_EPOCH = "lower_epoch"
    OLDER = "older"


_SAID: Final = {
    PlaceReason.FIRST: "first",
    PlaceReason.UNPROVEN: "another kind was restored with success before",
    PlaceReason.NO_OPTIMIZER: "no optimizer's state is in it",
    PlaceReason.NO_STEP: "nothing tells its step",
    PlaceReason.NO_MODEL: "no model is known to be in it",
    PlaceReason.NAME: "its name says that it is something else",
    PlaceReason.SMALLER: "it was written beside another one, which is larger or named as a save",
    PlaceReason.UNSEEN: "no rank of this job was seen writing such a file",
    PlaceReason.OTHER_KIND: "older, and of another kind",
    PlaceReason.COPY: "a copy, by its name",
    PlaceReason.LOWER_STEP: "of a lower step",
    PlaceReason.LOWER_EPOCH: "of an earlier epoch",
    PlaceReason.OLDER: "older",
}
BY_EVIDENCE: Final = frozenset(
    {
        *(
            PlaceReason.UNPROVEN,
            PlaceReason.NO_OPTIMIZER,
            PlaceReason.NO_STEP,
            PlaceReason.NO_MODEL,
            PlaceReason.NAME,
        ),
        *(PlaceReason.SMALLER, PlaceReason.UNSEEN, PlaceReason.OTHER_KIND, PlaceReason.COPY),
    }
)
"""Reasons that a person may judge otherwise."""


def say_reason(reason: PlaceReason) -> str:
    """Return why a candidate comes after the first one, in words."""
    return _SAID[reason]


@dataclass(frozen=True, slots=True)
class CandidateEvidence:
    """What speaks for a candidate and against it."""

    step: StepSource
    holds: Holds
    alike: int  # candidates of its family, with it
    is_copy: bool  # by its name
    is_proven: bool  # its kind was restored with success before
    by_ranks: bool  # ranks of the job were seen writing one of its kind
    reason: PlaceReason  # why it isn't the first


def say_evidence(one: CandidateEvidence) -> str:
    """Return what is known of a candidate, in words."""
    parts = [_HOLDS_SAID[one.holds], _STEPS_SAID[one.step]]
    if one.alike > 1:
        parts.append(f"{one.alike} are alike")
    if one.is_copy:
        parts.append("named as a copy")
    if one.is_proven:
        parts.append("its kind was restored before")
    if one.by_ranks:
        parts.append("written by this job's ranks")
    return ", ".join(parts)


_HOLDS_SAID: Final = {
    Holds.UNKNOWN: "content not known",
    Holds.STATE: "model and optimizer",
    Holds.MODEL: "a model alone",
    Holds.OPTIMIZER: "an optimizer alone",
    Holds.VALUES: "values alone",
}
_STEPS_SAID: Final = {
    StepSource.CONTENT: "step from its content",
    StepSource.SERIES: "step from its name, one of a series",
    StepSource.NAME: "step from its name",
    StepSource.NONE: "no step",
}


@dataclass(slots=True)
class _Family:
    members: list[Candidate]
    is_proven: bool = False
    steps: StepSource = StepSource.NONE
    is_companion: bool = False

    @property
    def holds(self) -> Holds:
        known = [one for one in map(held_by, self.members) if one is not Holds.UNKNOWN]
        return known[0] if known else Holds.UNKNOWN

    @property
    def elements(self) -> int:
        return max(one.shape.elements for one in self.members)

    @property
    def youngest_unix_s(self) -> float:
        return max(one.written_unix_s for one in self.members)

    @property
    def name_weight(self) -> int:
        return max(name_weight(one.tag) for one in self.members)

    @property
    def interval_s(self) -> float:
        """Return the time between the two newest saves; 0 where there are not two."""
        times = sorted(one.written_unix_s for one in self.members if not is_copy_name(one.tag))
        gaps = [after - before for before, after in pairwise(times) if after > before]
        return gaps[-1] if gaps else 0.0

    @property
    def may_be_model(self) -> bool:
        """Return whether it isn't known to be something else; arrays in an npz file have any name."""
        is_known = self.holds in {Holds.VALUES, Holds.OPTIMIZER} and not self.is_proven
        return not is_known or self.name_weight == _SAVE_WEIGHT

    @property
    def rank(self) -> tuple[int, int, int, int, int, int]:
        """Return what evidence alone says of it; the more the better."""
        return (
            int(self.holds is Holds.STATE),
            int(self.may_be_model),
            _STEP_WEIGHTS[self.steps],
            int(self.is_proven),
            _HOLDS_WEIGHTS[self.holds],
            min(self.name_weight, 1),
        )

    @property
    def key(self) -> tuple[tuple[int, int, int, int, int, int], int, int, float]:
        is_ours = any(one.by_ranks for one in self.members)
        return (self.rank, int(not self.is_companion), int(is_ours), self.youngest_unix_s)


_STEP_WEIGHTS: Final = {
    StepSource.CONTENT: 2,
    StepSource.SERIES: 2,
    StepSource.NAME: 1,
    StepSource.NONE: 0,
}
_HOLDS_WEIGHTS: Final = {
    Holds.STATE: 3,
    Holds.MODEL: 3,
    Holds.UNKNOWN: 2,
    Holds.VALUES: 1,
    Holds.OPTIMIZER: 0,
}
_KEY_REASONS: Final = (
    PlaceReason.NO_OPTIMIZER,
    PlaceReason.NO_MODEL,
    PlaceReason.NO_STEP,
    PlaceReason.UNPROVEN,
    PlaceReason.NO_MODEL,
    PlaceReason.NAME,
    PlaceReason.SMALLER,
    PlaceReason.UNSEEN,
    PlaceReason.OTHER_KIND,
)


def newest_first(
    items: Iterable[_Item],
    candidate_of: Callable[[_Item], Candidate],
    slots: Collection[NamePattern] = (),
    proven: Mapping[str, float] = NONE_PROVEN,
) -> list[_Item]:
    """Return the items, the one that a restart should begin from first.

    ``slots``: patterns whose numbers say nothing (`find_slots`). ``proven``: what the job made progress from, by path,
    and when that was saved.
    """
    by_path: dict[str, list[_Item]] = defaultdict(list)
    for item in items:
        by_path[candidate_of(item).path].append(item)
    candidates = [candidate_of(same[0]) for same in by_path.values()]
    ordered = [one for family in _ranked(candidates, slots, proven) for one in family.members]
    return [item for candidate in ordered for item in by_path[candidate.path]]


def evidence_of(
    candidates: Sequence[Candidate],
    slots: Collection[NamePattern] = (),
    proven: Mapping[str, float] = NONE_PROVEN,
) -> dict[str, CandidateEvidence]:
    """Return by path what speaks for and against each candidate; the reasons compare with the first one."""
    families = _ranked(candidates, slots, proven)
    found: dict[str, CandidateEvidence] = {}
    for family in families:
        sources = _step_sources(family.members, slots)
        for candidate in family.members:
            found[candidate.path] = CandidateEvidence(
                sources[candidate.path],
                held_by(candidate),
                len(family.members),
                is_copy_name(candidate.tag),
                family.is_proven,
                any(one.by_ranks for one in family.members),
                _reason(families[0], family, candidate),
            )
    return found


def held_by(candidate: Candidate) -> Holds:
    """Return what a candidate holds; a framework's own folder is a state, unless its files say otherwise."""
    if candidate.shape.holds is Holds.UNKNOWN and candidate.format not in _OPEN:
        return Holds.STATE
    return candidate.shape.holds


def _reason(first: _Family, family: _Family, candidate: Candidate) -> PlaceReason:
    if family is not first:
        pairs = zip(_flat(first), _flat(family), strict=True)
        differing = (at for at, (one, other) in enumerate(pairs) if one != other)
        return _KEY_REASONS[next(differing, len(_KEY_REASONS) - 1)]
    chosen = first.members[0]
    is_comparable = series_of(candidate) == series_of(chosen)
    epochs = (candidate.shape.epoch, chosen.shape.epoch)
    if candidate is chosen:
        reason = PlaceReason.FIRST
    elif chosen.by_ranks and name_pattern(candidate) in _foreign_series(family.members):
        reason = PlaceReason.UNSEEN
    elif is_comparable and candidate.step != chosen.step:
        reason = PlaceReason.LOWER_STEP
    elif None not in epochs and epochs[0] != epochs[1]:
        reason = PlaceReason.LOWER_EPOCH
    elif is_copy_name(candidate.tag):
        reason = PlaceReason.COPY
    else:
        is_younger = candidate.written_unix_s > chosen.written_unix_s
        reason = PlaceReason.LOWER_STEP if is_younger else PlaceReason.OLDER
    return reason


def _flat(family: _Family) -> tuple[float, ...]:
    return (*family.rank, *family.key[1:])


# Families


def _ranked(
    candidates: Sequence[Candidate], slots: Collection[NamePattern], proven: Mapping[str, float]
) -> list[_Family]:
    """Return the families, the best one first, the members of each newest first."""
    families = [_Family(members) for members in _families(candidates)]
    made_from = {_pattern_of_path(path): at_unix_s for path, at_unix_s in proven.items()}
    for family in families:
        family.is_proven = _is_proven(family, made_from)
        sources = set(_step_sources(family.members, slots).values())
        family.steps = max(sources, key=_STEP_WEIGHTS.__getitem__)
    equals: dict[tuple[int, ...], list[_Family]] = defaultdict(list)
    for family in families:
        equals[family.rank].append(family)
    for group in equals.values():
        _mark_companions(group[:_COMPARED_MAX])
    families.sort(key=lambda family: family.key, reverse=True)
    for family in families:
        family.members = _newest_of_family(family, slots)
    return families


def _is_proven(family: _Family, made_from: Mapping[NamePattern, float]) -> bool:
    """Return whether the job made progress from one of this kind, and has saved another since.

    Pretrained weights that the first attempt began from are none: the job has saved no more of them.
    """
    times = [made_from[name] for name in map(name_pattern, family.members) if name in made_from]
    return bool(times) and family.youngest_unix_s > max(times)


def _mark_companions(families: Sequence[_Family]) -> None:
    """Mark each family that was written together with another, by whose names or size that is the main one."""
    facts = [
        (one, one.youngest_unix_s, one.interval_s or _TOGETHER_S, one.name_weight, one.elements)
        for one in families
    ]
    for family, at_unix_s, _interval_s, weight, elements in facts:
        family.is_companion = any(
            abs(other_unix_s - at_unix_s) < interval_s
            and (
                weight < other_weight or (weight == other_weight and 0 < elements < other_elements)
            )
            for _other, other_unix_s, interval_s, other_weight, other_elements in facts
        )


def _families(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the candidates that are alike, together."""
    parents = list(range(len(candidates)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    def join(first: int, second: int) -> None:
        parents[root(second)] = root(first)

    patterns: dict[tuple[NamePattern, Holds], int] = {}
    unknown: list[int] = []
    for at, candidate in enumerate(candidates):
        holds = held_by(candidate)
        if holds is Holds.UNKNOWN:
            unknown.append(at)
            continue
        join(patterns.setdefault((name_pattern(candidate), holds), at), at)
    known = [at for at in range(len(candidates)) if held_by(candidates[at]) is not Holds.UNKNOWN]
    known.sort(key=lambda at: (held_by(candidates[at]).value, candidates[at].shape.elements))
    for before, after in pairwise(known):
        if _are_alike(candidates[before], candidates[after]):
            join(before, after)
    # What can't be read belongs to those of its name, else to those of its size.
    for at in unknown:
        pattern = name_pattern(candidates[at])
        named = [
            other
            for holds in (Holds.STATE, Holds.MODEL, Holds.VALUES, Holds.OPTIMIZER)
            if (other := patterns.get((pattern, holds))) is not None
        ]
        join(named[0] if named else patterns.setdefault((pattern, Holds.UNKNOWN), at), at)
    by_size = sorted(unknown, key=lambda at: candidates[at].size_bytes)
    for before, after in pairwise(by_size):
        sizes = (candidates[before].size_bytes, candidates[after].size_bytes)
        if sizes[1] <= sizes[0] * _SIZE_RATIO and not _has_known_name(
            candidates, patterns, before, after
        ):
            join(before, after)
    groups: dict[int, list[Candidate]] = defaultdict(list)
    for at, candidate in enumerate(candidates):
        groups[root(at)].append(candidate)
    return list(groups.values())


def _has_known_name(
    candidates: Sequence[Candidate],
    patterns: Mapping[tuple[NamePattern, Holds], int],
    *places: int,
) -> bool:
    """Return whether one of these has a name like that of a candidate whose content is known."""
    return any(
        (name_pattern(candidates[at]), holds) in patterns
        for at in places
        for holds in Holds
        if holds is not Holds.UNKNOWN
    )


def _are_alike(smaller: Candidate, larger: Candidate) -> bool:
    if held_by(smaller) is not held_by(larger):
        return False
    return larger.shape.elements <= smaller.shape.elements * (1 + _ALIKE)


def _step_sources(
    members: Sequence[Candidate], slots: Collection[NamePattern]
) -> dict[str, StepSource]:
    """Return by path how the step of each is known."""
    numbers: dict[NamePattern, set[tuple[int, ...]]] = defaultdict(set)
    for one in members:
        numbers[name_pattern(one)].add(_count(one))
    found = {}
    for one in members:
        pattern = name_pattern(one)
        has_number = bool(_count(one)) and pattern not in slots
        if one.is_step_exact:
            found[one.path] = StepSource.CONTENT
        elif has_number and len(numbers[pattern]) > 1:
            found[one.path] = StepSource.SERIES
        elif has_number and one.step is not None:
            found[one.path] = StepSource.NAME
        else:
            found[one.path] = StepSource.NONE
    return found


def _newest_of_family(family: _Family, slots: Collection[NamePattern]) -> list[Candidate]:
    """Return the members, newest first."""
    members = family.members
    has_epochs = all(one.shape.epoch is not None and not one.is_step_exact for one in members)
    series: dict[Hashable, list[Candidate]] = defaultdict(list)
    for candidate in members:
        series[series_of(candidate)].append(candidate)
    has_originals = not all(is_copy_name(one.tag) for one in members)
    slack_s = family.interval_s if family.holds is Holds.STATE else 0.0
    begin_unix_s = _last_run_begin(members)
    foreign = _foreign_series(members)
    dated: list[tuple[bool, bool, int, bool, float, bool, tuple[int, ...], int, Candidate]] = []
    for group in series.values():
        counts = _count if name_pattern(group[0]) not in slots else _no_count
        group.sort(key=lambda one: (counts(one), not is_copy_name(one.tag), one.written_unix_s))
        youngest_unix_s = float("-inf")
        for rank, candidate in enumerate(group):
            youngest_unix_s = max(youngest_unix_s, candidate.written_unix_s)
            is_copy = has_originals and is_copy_name(candidate.tag) and not candidate.is_step_exact
            at_unix_s = youngest_unix_s - (slack_s if is_copy else 0.0)
            epoch = (candidate.shape.epoch or 0) if has_epochs else 0
            is_last = is_copy and not slack_s
            is_of_run = candidate.written_unix_s >= begin_unix_s
            order = (epoch, not is_last, at_unix_s, not is_copy, counts(candidate), rank)
            is_foreign = name_pattern(candidate) in foreign
            dated.append((not is_foreign, is_of_run, *order, candidate))
    dated.sort(key=lambda entry: entry[:8], reverse=True)
    return [entry[8] for entry in dated]


def _foreign_series(members: Sequence[Candidate]) -> set[NamePattern]:
    """Return the patterns of series that no rank of this job was seen writing, where one was seen writing another.

    Two jobs that train one model in one folder differ in nothing else. A single name such as `last.pt` is no series.
    """
    counts = Counter(map(name_pattern, members))
    ours = {name_pattern(one) for one in members if one.by_ranks}
    if not any(counts[pattern] > 1 for pattern in ours):
        return set()
    return {pattern for pattern, count in counts.items() if count > 1 and pattern not in ours}


@dataclass(frozen=True, slots=True)
class _Run:
    """Files whose names differ in their last number alone, which grows with time."""

    pattern: NamePattern
    numbers: tuple[int, ...]  # in the names, but for the last one
    begin_unix_s: float
    end_unix_s: float
    first: int  # the last number of its oldest file
    last: int
    length: int

    def counts_anew_after(self, other: "_Run") -> bool:
        """Return whether all of it is younger, and its numbers haven't passed those of the other.

        A single file may be a copy of an old one, unless a number such as a fold's has grown.
        """
        is_next = self.pattern == other.pattern and self.numbers > other.numbers
        is_younger = other.end_unix_s < self.begin_unix_s and self.first <= other.last
        return is_younger and other.length > 1 and (self.length > 1 or is_next)


def _last_run_begin(members: Sequence[Candidate]) -> float:
    """Return when a run began that counts anew beside an older one's files; minus infinity where none does.

    So the next fold does: `fold1_epoch1.pt` after `fold0_epoch5.pt`.
    """
    named: dict[NamePattern, list[Candidate]] = defaultdict(list)
    for one in members:
        if _DIGITS.search(one.tag) and not is_copy_name(one.tag) and not _DATE.search(one.tag):
            named[one.directory, _LAST_DIGITS.sub("#", one.tag)].append(one)
    runs = []
    overwriting: list[float] = []
    for files in named.values():
        files.sort(key=lambda one: _numbers(one)[-1])
        times = [one.written_unix_s for one in files]
        if all(before < after for before, after in pairwise(times)):
            numbers = [_numbers(one) for one in (files[0], files[-1])]
            kept, spans = numbers[0][:-1], (numbers[0][-1], numbers[1][-1])
            runs.append(_Run(name_pattern(files[0]), kept, times[0], times[-1], *spans, len(files)))
        elif not _was_copied(files) and (begin_unix_s := _overwriting_since(times)) is not None:
            overwriting.append(begin_unix_s)
    runs = runs[:_COMPARED_MAX]
    begins = (one.begin_unix_s for one in runs if any(map(one.counts_anew_after, runs)))
    return max((*begins, *overwriting), default=float("-inf"))


def _was_copied(files: Sequence[Candidate]) -> bool:
    """Return whether the files were written in the order of their names as texts: 1, 10, 2."""
    by_time = sorted(files, key=lambda one: (one.written_unix_s, one.tag))
    return [one.tag for one in by_time] == sorted(one.tag for one in files)


def _overwriting_since(times_unix_s: Sequence[float]) -> float | None:
    """Return when a run began to overwrite the files of an older one, whose higher numbers are still there.

    ``times_unix_s``: in the order of the numbers. Two files or more, neighbours, are younger than all others, each
    younger than the one before it, and as far apart as files of this series are, which have grown in order, too: files
    that somebody copied are not.
    """
    newest = max(range(len(times_unix_s)), key=times_unix_s.__getitem__)
    after = times_unix_s[newest + 1 :]
    if not after:
        return None
    oldest_unix_s = max(after)
    first = newest
    while first > 0 and oldest_unix_s < times_unix_s[first - 1] < times_unix_s[first]:
        first -= 1
    run = times_unix_s[first : newest + 1]
    if len(run) < 2 or any(at >= run[0] for at in times_unix_s[:first]):
        return None
    others = [*times_unix_s[:first], *after]
    gaps = sorted(one - other for other, one in pairwise(others))
    usual_s = gaps[len(gaps) // 2] if gaps else 0.0
    is_as_far = min(gaps, default=1.0) > 0 and all(
        one - other >= usual_s * _AS_FAR for other, one in pairwise(run)
    )
    return run[0] if is_as_far else None


def _numbers(candidate: Candidate) -> tuple[int, ...]:
    return tuple(int(digits[:_DIGITS_MAX]) for digits in _DIGITS.findall(candidate.tag))


def _slots_without_step(candidates: Iterable[Candidate]) -> set[NamePattern]:
    return find_slots(
        one
        for one in candidates
        if one.step is None and (not one.oldest_unix_s or one.format in OVERWRITTEN_FOLDERS)
    )


def newest_joined(verdicts: Iterable[CheckpointVerdict]) -> tuple[CheckpointVerdict, ...]:
    """Return the verdicts of several launchers on one list of checkpoints, newest first.

    Launchers find slots among files and plain folders, and report these without a step.
    """
    joined = list(verdicts)
    candidates = [one.candidate for one in joined]
    slots = _slots_without_step(candidates)
    return tuple(newest_first(joined, lambda verdict: verdict.candidate, slots))


def proven_first(
    verdicts: Sequence[CheckpointVerdict], proven: Mapping[str, float]
) -> Sequence[CheckpointVerdict]:
    """Return the verdicts of a list in order, first those of the kind that the job made progress from.

    Only where nothing but that decides: launchers, who list them, don't know the journal.
    """
    if not proven or not verdicts:
        return verdicts
    candidates = list({one.candidate.path: one.candidate for one in verdicts}.values())
    slots = _slots_without_step(candidates)
    first = {one.path for one in _ranked(candidates, slots, proven)[0].members}
    usual = {one.path for one in _ranked(candidates, slots, NONE_PROVEN)[0].members}
    if first == usual:
        return verdicts
    return sorted(verdicts, key=lambda verdict: verdict.candidate.path not in first)


def passed_over(
    verdicts: Sequence[CheckpointVerdict], chosen_path: str
) -> tuple[CheckpointVerdict, ...]:
    """Return what a person may have expected instead of the chosen one, newest first.

    These are the candidates before it in the list and those that were written later.
    """
    place = next(
        (at for at, one in enumerate(verdicts) if one.candidate.path == chosen_path), len(verdicts)
    )
    written_unix_s = (
        verdicts[place].candidate.modified_unix_s if place < len(verdicts) else float("inf")
    )
    return tuple(
        verdict
        for at, verdict in enumerate(verdicts)
        if verdict.looks_like_checkpoint
        and (at < place or (at > place and verdict.candidate.modified_unix_s > written_unix_s))
    )


def series_of(candidate: Candidate) -> Hashable:
    """Return a key that is equal for candidates whose steps or numbers can be compared."""
    if candidate.is_step_exact:
        return True
    return (candidate.step is None, name_pattern(candidate))


def find_slots(candidates: Iterable[Candidate]) -> set[NamePattern]:
    """Return the patterns of names whose files or folders are written in turn."""
    found: dict[NamePattern, dict[int, float]] = defaultdict(dict)
    counts: set[NamePattern] = set()
    for candidate in candidates:
        slot = slot_of(candidate.tag)
        # Accelerate's automatic names count its saves.
        if slot is None or candidate.is_step_exact or candidate.format in _COUNTING:
            counts.add(name_pattern(candidate))
        else:
            found[name_pattern(candidate)][slot] = (
                candidate.oldest_unix_s or candidate.modified_unix_s
            )
    return {name for name, times in found.items() if name not in counts and _go_round(times)}


def _go_round(times_unix_s: Mapping[int, float]) -> bool:
    """Return whether these are slots, by number, that were overwritten in turn more than once."""
    slots = sorted(times_unix_s)
    is_small = 2 <= len(slots) <= SLOTS_MAX and slots[0] in {0, 1}
    if not is_small or slots[-1] - slots[0] != len(slots) - 1:
        return False
    times = [times_unix_s[slot] for slot in slots]
    drops = sum(after < before for before, after in pairwise(times))
    return drops == 1 and times[-1] < times[0]


def name_pattern(candidate: Candidate) -> NamePattern:
    """Return what the names of one series have in common: their folder, and all but the digits."""
    return (candidate.directory, _DIGITS.sub("#", candidate.tag))


def _pattern_of_path(path: str) -> NamePattern:
    directory, _separator, tag = path.rpartition("/")
    return (directory or "/", _DIGITS.sub("#", tag))


def mark_written(candidates: Iterable[Candidate], paths: Iterable[str]) -> Iterator[Candidate]:
    """Yield the candidates, marked where one of their kind is among the paths that ranks write.

    A path may be that of a file in a folder, or have the name that a file has until it is whole: `.step_9.pt.tmp`.
    """
    written: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        while path.strip("/"):
            directory, tag = _pattern_of_path(path)
            written[directory].add(tag.lstrip("."))
            path = directory  # noqa: PLW2901 - the folder that it is in
    for one in candidates:
        directory, tag = name_pattern(one)
        is_its = any(_names_one_of(tag, other) for other in written.get(directory, ()))
        yield replace(one, by_ranks=True) if is_its else one


def _names_one_of(tag: str, written: str) -> bool:
    return written == tag or (written.startswith(tag) and written[len(tag)] in "._-~")


def in_series(candidate: Candidate) -> tuple[tuple[int, ...], float]:
    """Return a key that sorts the candidates of one pattern, the oldest first."""
    return _count(candidate), candidate.written_unix_s


def _no_count(_candidate: Candidate) -> tuple[int, ...]:
    return ()


def _count(candidate: Candidate) -> tuple[int, ...]:
    """Return the step, or what a name says that counts something else, such as saves, or a time of day."""
    if candidate.step is not None:
        return (candidate.step,)
    numbers = [int(digits[:_DIGITS_MAX]) for digits in _DIGITS.findall(candidate.tag)]
    if _DATE.search(candidate.tag):
        return tuple(numbers)
    return tuple(numbers[-1:])
