"""What the numbers in names count: saves of one series, slots that are overwritten in turn, runs that begin anew. Pure.

A value of a metric (`loss0.31`, `acc_74.5`) counts nothing: it falls or rises as it likes.

Names that count anew after all files of an older run (the next fold, stage or experiment in one folder) are of the last
run. So are those of a run that overwrites an older one's from its lower numbers on, those in a `version_N` that are all
younger than what lies in the folder of a lower number, and those that are all younger than what a person set aside
(`old_step_900.pt`).

Two or three files or folders that a script overwrites in turn (`ckpt_0.pt`, `ckpt_1.pt`) have numbers, too,
which say nothing. Slots are told from a count by three things together: no word says that the number counts
steps, the numbers are 0 to 1 or 2 (or 1 to 2 or 3), and the times go round: each number is younger
than the one before it, but for one place. A series that has gone round once is one of slots for good.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from recovery.checkpoints.names import is_copy_name, is_set_aside, slot_of, step_of, without_values
from recovery.messages.candidates import Candidate, CheckpointFormat

_DIGITS: Final = re.compile(r"[0-9]+")
_DIGITS_MAX: Final = 18  # below 2**63
_DATE: Final = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}[-_+.]?[01][0-9][-_+.]?[0-3][0-9]")
_VERSION: Final = re.compile(r"/version_([0-9]+)(?=/|$)")
SLOTS_MAX: Final = 3  # scripts keep two, rarely three; more look like a count
_COUNTING: Final = frozenset({CheckpointFormat.ACCELERATE})
_AS_FAR: Final = 0.25  # of the usual time between two saves: some steps are quicker than others
_FEW: Final = 2  # of two files one may be a copy
_PLACES_MAX: Final = 3  # numbers in a name that may count
_COMPARED_MAX: Final = 200  # runs that are compared with each other

NamePattern = tuple[str, str]


def name_pattern(candidate: Candidate) -> NamePattern:
    """Return what the names of one series have in common: their folder, and all but the digits."""
    return (candidate.directory, _shape_of(candidate.tag))


def pattern_of_path(path: str) -> NamePattern:
    directory, _separator, tag = path.rpartition("/")
    return (directory or "/", _shape_of(tag))


def _shape_of(tag: str) -> str:
    return _DIGITS.sub("#", without_values(tag))


def in_series(members: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates of one pattern, the oldest first.

    By what their names count where the content of one does not tell its step: `epoch3` is torn, `epoch2` tells step 200.
    """
    listed = list(members)
    is_exact = all(member.is_step_exact for member in listed)
    count = count_of if is_exact else _count_in_name
    return sorted(listed, key=lambda member: (count(member), member.written_unix_s))


def _count_in_name(candidate: Candidate) -> tuple[int, ...]:
    return count_of(replace(candidate, step=step_of(candidate.tag)))


def count_of(candidate: Candidate) -> tuple[int, ...]:
    """Return the step, or what a name says that counts something else, such as saves, or a time of day."""
    if candidate.step is not None:
        return (candidate.step,)
    numbers = _numbers(candidate.tag)
    return numbers if _DATE.search(candidate.tag) else numbers[-1:]


def has_leading_numbers(members: Sequence[Candidate]) -> bool:
    """Return whether all numbers of the names of one pattern order its files, and not the last one alone.

    `d0_12_4800` after `d0_11_8800` are epochs and iterations, of which there are fewer after another batch size. Three files or more
    show it, if all numbers together grow with time and what usually counts does not.
    """
    if len(members) <= _FEW or any(member.is_step_exact for member in members):
        return False
    by_time = sorted(members, key=lambda member: member.written_unix_s)
    times = [member.written_unix_s for member in by_time]
    numbers = [_numbers(member.tag) for member in by_time]
    counts = [count_of(member) for member in by_time]
    return _grow(times) and _grow(numbers) and not _grow(counts)


def _grow(values: Sequence[float] | Sequence[tuple[int, ...]]) -> bool:
    return all(before < after for before, after in pairwise(values))  # type: ignore[operator]


def numbers_of(candidate: Candidate) -> tuple[int, ...]:
    """Return all numbers in the name, but for the values of metrics."""
    return _numbers(candidate.tag)


def _numbers(tag: str) -> tuple[int, ...]:
    return tuple(int(digits[:_DIGITS_MAX]) for digits in _DIGITS.findall(without_values(tag)))


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


@dataclass(frozen=True, slots=True)
class _Run:
    """Files whose names differ in one number alone, which grows with time."""

    pattern: NamePattern
    place: int  # of the number that counts
    numbers: tuple[int, ...]  # in the names, but for the one that counts
    begin_unix_s: float
    end_unix_s: float
    first: int  # the number of its oldest file
    last: int
    length: int

    def counts_anew_after(self, other: "_Run") -> bool:
        """Return whether all of it is younger, and its numbers haven't passed those of the other.

        A single file may be a copy of an old one, unless a number such as a fold's has grown.
        """
        is_same = self.pattern == other.pattern
        if is_same and self.place != other.place:
            return False
        is_next = is_same and self.numbers > other.numbers
        is_younger = other.end_unix_s < self.begin_unix_s and self.first <= other.last
        return is_younger and other.length > 1 and (self.length > 1 or is_next)


def last_run_begin(members: Sequence[Candidate]) -> float:
    """Return when a run began that counts anew beside an older one's files; minus infinity where none does.

    So the next fold does: `fold1_epoch1.pt` after `fold0_epoch5.pt`.
    """
    begins = [*_next_versions(members), *_after_what_was_set_aside(members)]
    runs: list[_Run] = []
    for at, files in _counted(members):
        files.sort(key=lambda file: _numbers(file.tag)[at])
        times = [file.written_unix_s for file in files]
        is_last = at == len(_numbers(files[0].tag)) - 1
        if all(before < after for before, after in pairwise(times)):
            runs.append(_run_of(files, at))
            begins += _falls(files) if is_last else ()
        elif is_last and not _was_copied(files):
            begins += _overwriting_since(times)
    runs = runs[:_COMPARED_MAX]
    begins += (run.begin_unix_s for run in runs if any(map(run.counts_anew_after, runs)))
    return max(begins, default=float("-inf"))


def _counted(members: Sequence[Candidate]) -> Iterator[tuple[int, list[Candidate]]]:
    """Yield the files whose names differ in one number alone, and the place of that among the numbers.

    It is mostly the last one; `epoch3_run2.pt` counts before the number of its run.
    """
    named: dict[tuple[int, NamePattern], list[Candidate]] = defaultdict(list)
    for member in members:
        tag = without_values(member.tag)
        if is_copy_name(member.tag) or _DATE.search(tag):
            continue
        for at, found in enumerate(list(_DIGITS.finditer(tag))[-_PLACES_MAX:]):
            other = f"{tag[: found.start()]}#{tag[found.end() :]}"
            named[at, (member.directory, other)].append(member)
    for (at, _name), files in named.items():
        yield max(len(_numbers(files[0].tag)) - _PLACES_MAX, 0) + at, files


def _run_of(files: Sequence[Candidate], at: int) -> _Run:
    """Return the run of these files, whose names differ in the number at this place."""
    numbers = [_numbers(item.tag) for item in (files[0], files[-1])]
    retained = (*numbers[0][:at], *numbers[0][at + 1 :])
    times = (files[0].written_unix_s, files[-1].written_unix_s)
    spans = (numbers[0][at], numbers[1][at])
    return _Run(name_pattern(files[0]), at, retained, *times, *spans, len(files))


def _falls(files: Sequence[Candidate]) -> list[float]:
    """Return when files whose numbers grow with time began to tell less progress: `fold1.pt` after `fold0.pt`."""
    found = []
    for before, after in pairwise(files):
        is_step = before.is_step_exact and after.is_step_exact
        was = before.step if is_step else before.shape.epoch
        now = after.step if is_step else after.shape.epoch
        if was is not None and now is not None and now < was:
            found.append(after.written_unix_s)
    return found


def _next_versions(members: Sequence[Candidate]) -> list[float]:
    """Return when the last `version_N` began, if all of it is younger than what lies in those before it.

    Lightning makes one for each call of `fit`. Source: pytorch_lightning, loggers/tensorboard.py `_get_next_version`.
    """
    versions: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        if found := _VERSION.search(member.path):
            number = int(found[1][:_DIGITS_MAX])
            versions[member.path[: found.start()]][number].append(member.written_unix_s)
    begins = []
    for times in versions.values():
        begin_unix_s = min(times.pop(max(times)))
        if times and max(map(max, times.values())) < begin_unix_s:
            begins.append(begin_unix_s)
    return begins


def _after_what_was_set_aside(members: Sequence[Candidate]) -> list[float]:
    """Return when the run began of which all files are younger than those that a person set aside by `old` or `backup`."""
    aside = [member.written_unix_s for member in members if is_set_aside(member.tag)]
    others = [member.written_unix_s for member in members if not is_set_aside(member.tag)]
    return [min(others)] if aside and others and max(aside) < min(others) else []


def _was_copied(files: Sequence[Candidate]) -> bool:
    """Return whether the files were written in the order of their names as texts: 1, 10, 2."""
    by_time = sorted(files, key=lambda file: (file.written_unix_s, file.tag))
    return [file.tag for file in by_time] == sorted(file.tag for file in files)


def _overwriting_since(times_unix_s: Sequence[float]) -> list[float]:
    """Return when a run began to overwrite the files of an older one, whose higher numbers are still there.

    ``times_unix_s``: in the order of the numbers. Two files or more, neighbours, are younger than all others, each
    younger than the one before it, and as far apart as files of this series are, which have grown in order, too: files
    that somebody copied are not.
    """
    newest = max(range(len(times_unix_s)), key=times_unix_s.__getitem__)
    after = times_unix_s[newest + 1 :]
    if not after:
        return []
    oldest_unix_s = max(after)
    first = newest
    while first > 0 and oldest_unix_s < times_unix_s[first - 1] < times_unix_s[first]:
        first -= 1
    run = times_unix_s[first : newest + 1]
    if len(run) < 2 or any(at >= run[0] for at in times_unix_s[:first]):
        return []
    others = [*times_unix_s[:first], *after]
    gaps = sorted(item - other for other, item in pairwise(others))
    usual_s = gaps[len(gaps) // 2] if gaps else 0.0
    is_as_far = min(gaps, default=1.0) > 0 and all(
        item - other >= usual_s * _AS_FAR for other, item in pairwise(run)
    )
    return [run[0]] if is_as_far else []
