"""Which candidate a restart should begin from: the choice by evidence. Pure.

Time alone is no evidence: curves, predictions, a copy of the best model are written after the state that training
goes on from. So candidates are first put into families of what is alike, families are ordered by evidence, and only
within a family does the newest come first.

A family: names of one pattern (`step_#.pt`), and files that hold the same kind of thing in tensors of the same size
(`last.pt` beside `epoch_3.pt`). A model without an optimizer's state is never in one family with one that has it.

The order of families, each rule only where those before it don't decide:

1. a model with an optimizer's state, before everything without; then values and an optimizer alone last;
2. a series whose steps are known, by content or by two numbers in names, before one number, before none;
3. the kind that this job made progress from, where it has saved more of that kind since (`proven`);
4. a model, before unknown content, before values alone, before an optimizer alone;
5. names without a word such as `best`, `ema` or `metrics`;
6. of two that were written together, one named `checkpoint`, `last` or `model`, or the larger;
7. one that ranks of this job were seen writing: another job may save into the same folder;
8. the family with the youngest member.

Within a family a step from the content orders all candidates that have one, and so does an epoch where all others
have one. A number in a name only orders names of one pattern: `best_step_10.pt` says nothing about `last.pt`.
Everything else is ordered by time. A file that somebody copied has a new time, so within a pattern the number counts
more: a candidate is as young as the youngest one that it supersedes. A copy by its name (`best.pt`, `ema.pt`)
comes before another one only where it is younger by more than the time between two saves. The files of an older run, or
of one that was overwritten (`series.py`), come after all of the last one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final, TypeVar

from recovery.checkpoints.names import is_copy_name, is_picked_name, name_weight
from recovery.checkpoints.series import (
    NamePattern,
    count_of,
    find_slots,
    has_leading_numbers,
    last_run_begin,
    name_pattern,
    numbers_of,
    pattern_of_path,
)
from recovery.messages.candidates import (
    OVERWRITTEN_FOLDERS,
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Holds,
)

_Item = TypeVar("_Item")
# Formats of which a file or a folder can be anything: a model, its optimizer, curves.
_OPEN: Final = frozenset(
    {
        *(CheckpointFormat.TORCH, CheckpointFormat.NPZ, CheckpointFormat.SAFETENSORS),
        *(CheckpointFormat.PICKLE, CheckpointFormat.UNKNOWN),
    }
)
_ALIKE: Final = 0.02  # of the elements; a counter that is a tensor makes no other model
_SIZE_RATIO: Final = 2.0  # of files whose content isn't known
_SAVE_WEIGHT: Final = 2  # of `name_weight`: a word marks it as a save
_COMPARED_MAX: Final = 200  # families that are compared with each other, 40,000 pairs
_TOGETHER_S: Final = 60.0  # between two files of one save, where no series shows an interval

NONE_PROVEN: Final[Mapping[str, float]] = {}

_HOLDS_TEXT: Final = {
    Holds.UNKNOWN: "content not known",
    Holds.STATE: "model and optimizer",
    Holds.MODEL: "a model alone",
    Holds.OPTIMIZER: "an optimizer alone",
    Holds.VALUES: "values alone",
}

_HOLDS_WEIGHTS: Final = {
    Holds.STATE: 3,
    Holds.MODEL: 3,
    Holds.UNKNOWN: 2,
    Holds.VALUES: 1,
    Holds.OPTIMIZER: 0,
}


class StepSource(Enum):
    """How a candidate's step is known."""

    CONTENT = "content"
    SERIES = "series"  # its name, and others of the same pattern have other numbers
    COUNT = "count"  # the same, but nothing shows that the numbers are steps
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
    EARLIER_RUN = "earlier_run"
    LOWER_STEP = "lower_step"
    LOWER_EPOCH = "lower_epoch"
    OLDER = "older"


_REASON_TEXT: Final = {
    PlaceReason.FIRST: "first",
    PlaceReason.UNPROVEN: "another kind was restored with success before",
    PlaceReason.NO_OPTIMIZER: "no optimizer's state is in it",
    PlaceReason.NO_STEP: "its step is not known",
    PlaceReason.NO_MODEL: "no model is known to be in it",
    PlaceReason.NAME: "its name says that it is something else",
    PlaceReason.SMALLER: "it was written beside another one, which is larger or named as a save",
    PlaceReason.UNSEEN: "no rank of this job was seen writing such a file",
    PlaceReason.OTHER_KIND: "older, and of another kind",
    PlaceReason.COPY: "a copy, by its name",
    PlaceReason.EARLIER_RUN: "older: a count begins anew after it",
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
        PlaceReason.EARLIER_RUN,
    }
)
"""Reasons that a person may judge otherwise."""


def say_reason(reason: PlaceReason) -> str:
    """Return why a candidate comes after the first one, in words."""
    return _REASON_TEXT[reason]


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


def say_evidence(evidence: CandidateEvidence) -> str:
    """Return what is known of a candidate, in words."""
    parts = [_HOLDS_TEXT[evidence.holds], _STEP_SOURCE_TEXT[evidence.step]]
    if evidence.alike > 1:
        parts.append(f"{evidence.alike} are alike")
    if evidence.is_copy:
        parts.append("named as a copy or a side file")
    if evidence.is_proven:
        parts.append("its kind was restored before")
    if evidence.by_ranks:
        parts.append("written by this job's ranks")
    return ", ".join(parts)


_STEP_SOURCE_TEXT: Final = {
    StepSource.CONTENT: "step from its content",
    StepSource.SERIES: "step from its name, one of a series",
    StepSource.COUNT: "numbered, one of a series",
    StepSource.NAME: "step from its name",
    StepSource.NONE: "no step",
}


@dataclass(slots=True)
class _Family:
    members: list[Candidate]
    is_proven: bool = False
    steps: StepSource = StepSource.NONE
    is_companion: bool = False
    begin_unix_s: float = float("-inf")  # of the last run

    @property
    def holds(self) -> Holds:
        known = [item for item in map(held_by, self.members) if item is not Holds.UNKNOWN]
        return known[0] if known else Holds.UNKNOWN

    @property
    def elements(self) -> int:
        return max(member.shape.elements for member in self.members)

    @property
    def youngest_unix_s(self) -> float:
        return max(member.written_unix_s for member in self.members)

    @property
    def name_weight(self) -> int:
        return max(name_weight(member.tag) for member in self.members)

    @property
    def interval_s(self) -> float:
        """Return the time between the two newest saves; 0 where there are not two."""
        times = sorted(
            member.written_unix_s for member in self.members if not is_copy_name(member.tag)
        )
        gaps = [after - before for before, after in pairwise(times) if after > before]
        return gaps[-1] if gaps else 0.0

    @property
    def may_be_model(self) -> bool:
        """Return whether it isn't known to be something else; arrays in an npz file have any name."""
        is_known = self.holds in {Holds.VALUES, Holds.OPTIMIZER} and not self.is_proven
        return not is_known or self.name_weight == _SAVE_WEIGHT

    @property
    def rank(self) -> tuple[int, int, int, int, int, int]:
        """Return the weight of the evidence alone; the more the better."""
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
        is_ours = any(member.by_ranks for member in self.members)
        return (self.rank, int(not self.is_companion), int(is_ours), self.youngest_unix_s)


_STEP_WEIGHTS: Final = {
    StepSource.CONTENT: 2,
    StepSource.SERIES: 2,
    StepSource.COUNT: 2,
    StepSource.NAME: 1,
    StepSource.NONE: 0,
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
    """Return the items; a restart should begin from the first.

    ``slots``: patterns whose numbers mean nothing (`find_slots`). ``proven``: what the job made progress from, by path,
    and when that was saved.
    """
    by_path: dict[str, list[_Item]] = defaultdict(list)
    for item in items:
        by_path[candidate_of(item).path].append(item)
    candidates = [candidate_of(same[0]) for same in by_path.values()]
    ordered = [member for family in _ranked(candidates, slots, proven) for member in family.members]
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
        by_ranks = any(member.by_ranks for member in family.members)
        apart = None if family is families[0] else _apart(families[0], family)
        foreign = _foreign_series(family.members)
        for candidate in family.members:
            found[candidate.path] = CandidateEvidence(
                sources[candidate.path],
                held_by(candidate),
                len(family.members),
                is_copy_name(candidate.tag),
                family.is_proven,
                by_ranks,
                _reason(family, candidate, apart, foreign),
            )
    return found


def held_by(candidate: Candidate) -> Holds:
    """Return what a candidate holds; a framework's own folder is a state, unless its files prove otherwise."""
    if candidate.shape.holds is Holds.UNKNOWN and candidate.format not in _OPEN:
        return Holds.STATE
    return candidate.shape.holds


def _apart(first: _Family, family: _Family) -> PlaceReason:
    """Return why a family comes after the first one."""
    pairs = zip(_flat(first), _flat(family), strict=True)
    differing = (at for at, (pair, other) in enumerate(pairs) if pair != other)
    return _KEY_REASONS[next(differing, len(_KEY_REASONS) - 1)]


def _reason(
    family: _Family,
    candidate: Candidate,
    apart: PlaceReason | None,
    foreign: Collection[NamePattern],
) -> PlaceReason:
    """Return why a candidate comes after the first one. ``apart``: why its family does; None: it is the first."""
    if apart is PlaceReason.NO_OPTIMIZER and held_by(candidate) is Holds.UNKNOWN:
        return PlaceReason.NO_MODEL
    if apart is not None:
        return apart
    chosen = family.members[0]
    is_comparable = series_of(candidate) == series_of(chosen)
    epochs = (candidate.shape.epoch, chosen.shape.epoch)
    if candidate is chosen:
        reason = PlaceReason.FIRST
    elif chosen.by_ranks and name_pattern(candidate) in foreign:
        reason = PlaceReason.UNSEEN
    elif candidate.written_unix_s < family.begin_unix_s <= chosen.written_unix_s:
        reason = PlaceReason.EARLIER_RUN
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
    made_from = {pattern_of_path(path): at_unix_s for path, at_unix_s in proven.items()}
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
        family.begin_unix_s = last_run_begin(
            [member for member in family.members if name_pattern(member) not in slots]
        )
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
        (
            item,
            item.youngest_unix_s,
            item.interval_s or _TOGETHER_S,
            item.name_weight,
            item.elements,
        )
        for item in families
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
    for member in members:
        numbers[name_pattern(member)].add(count_of(member))
    found = {}
    for member in members:
        pattern = name_pattern(member)
        has_number = bool(count_of(member)) and pattern not in slots
        if member.is_step_exact:
            found[member.path] = StepSource.CONTENT
        elif has_number and len(numbers[pattern]) > 1:
            found[member.path] = StepSource.COUNT if member.step is None else StepSource.SERIES
        elif has_number and member.step is not None:
            found[member.path] = StepSource.NAME
        else:
            found[member.path] = StepSource.NONE
    return found


def _newest_of_family(family: _Family, slots: Collection[NamePattern]) -> list[Candidate]:
    """Return the members, newest first."""
    members = family.members
    has_epochs = all(
        member.shape.epoch is not None and not member.is_step_exact for member in members
    )
    series: dict[Hashable, list[Candidate]] = defaultdict(list)
    for candidate in members:
        series[series_of(candidate)].append(candidate)
    has_originals = not all(is_copy_name(member.tag) for member in members)
    holds = family.holds
    slack_s = family.interval_s if holds is Holds.STATE else 0.0
    foreign = _foreign_series(members)
    numbered = (
        member for member in members if not member.is_step_exact and not is_copy_name(member.tag)
    )
    highest = max((member.step for member in numbered if member.step is not None), default=None)
    dated: list[tuple[bool, bool, int, bool, float, bool, tuple[int, ...], int, Candidate]] = []
    for group in series.values():
        counts = count_of if name_pattern(group[0]) not in slots else _no_count
        if counts is count_of and has_leading_numbers(group):
            counts = numbers_of
        group.sort(key=lambda item: (counts(item), not is_copy_name(item.tag), item.written_unix_s))
        youngest_unix_s = float("-inf")
        for rank, candidate in enumerate(group):
            youngest_unix_s = max(youngest_unix_s, candidate.written_unix_s)
            is_copy = has_originals and _is_copy(candidate, holds, highest)
            at_unix_s = youngest_unix_s - (slack_s if is_copy else 0.0)
            epoch = (candidate.shape.epoch or 0) if has_epochs else 0
            is_last = is_copy and not slack_s
            is_of_run = candidate.written_unix_s >= family.begin_unix_s
            order = (epoch, not is_last, at_unix_s, not is_copy, counts(candidate), rank)
            is_foreign = name_pattern(candidate) in foreign
            dated.append((not is_foreign, is_of_run, *order, candidate))
    dated.sort(key=lambda entry: entry[:8], reverse=True)
    return [entry[8] for entry in dated]


def _is_copy(candidate: Candidate, holds: Holds, highest: int | None) -> bool:
    """Return whether it is a copy by its name; `final_step_1000.pt` is none where no other one has reached 1000.

    Weights of another kind, as in `ema_1000.pt`, may have steps of their own; with an optimizer's state they are a run's.
    """
    is_higher = highest is not None and candidate.step is not None and candidate.step > highest
    is_new = is_higher and (holds is Holds.STATE or is_picked_name(candidate.tag))
    return is_copy_name(candidate.tag) and not candidate.is_step_exact and not is_new


def _no_count(_candidate: Candidate) -> tuple[int, ...]:
    return ()


def _foreign_series(members: Sequence[Candidate]) -> set[NamePattern]:
    """Return the patterns of series that no rank of this job was seen writing, where one was seen writing another.

    Two jobs that train one model in one folder differ in nothing else. A single name such as `last.pt` is no series.
    """
    counts = Counter(map(name_pattern, members))
    ours = {name_pattern(member) for member in members if member.by_ranks}
    if not any(counts[pattern] > 1 for pattern in ours):
        return set()
    return {pattern for pattern, count in counts.items() if count > 1 and pattern not in ours}


def _slots_without_step(candidates: Iterable[Candidate]) -> set[NamePattern]:
    return find_slots(
        candidate
        for candidate in candidates
        if candidate.step is None
        and (not candidate.oldest_unix_s or candidate.format in OVERWRITTEN_FOLDERS)
    )


def newest_joined(verdicts: Iterable[CheckpointVerdict]) -> tuple[CheckpointVerdict, ...]:
    """Return the verdicts of several launchers on one list of checkpoints, newest first.

    Launchers find slots among files and plain folders, and report these without a step.
    """
    joined = list(verdicts)
    candidates = [verdict.candidate for verdict in joined]
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
    candidates = list({verdict.candidate.path: verdict.candidate for verdict in verdicts}.values())
    slots = _slots_without_step(candidates)
    first = {member.path for member in _ranked(candidates, slots, proven)[0].members}
    usual = {member.path for member in _ranked(candidates, slots, NONE_PROVEN)[0].members}
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
        (at for at, verdict in enumerate(verdicts) if verdict.candidate.path == chosen_path),
        len(verdicts),
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


def mark_written(candidates: Iterable[Candidate], paths: Iterable[str]) -> Iterator[Candidate]:
    """Yield the candidates, marked where one of their kind is among the paths that ranks write.

    A path may be that of a file in a folder, or have the name that a file has until it is whole: `.step_9.pt.tmp`.
    """
    written: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        while path.strip("/"):
            directory, tag = pattern_of_path(path)
            written[directory].add(tag.lstrip("."))
            path = directory  # noqa: PLW2901 - the folder that it is in
    for candidate in candidates:
        directory, tag = name_pattern(candidate)
        is_its = any(_names_one_of(tag, other) for other in written.get(directory, ()))
        yield replace(candidate, by_ranks=True) if is_its else candidate


def _names_one_of(tag: str, written: str) -> bool:
    return written == tag or (written.startswith(tag) and written[len(tag)] in "._-~")
