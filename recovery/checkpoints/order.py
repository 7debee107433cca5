"""Which candidate is the newest. Pure.

A step from the content orders all candidates that have one. A number in a name only orders names
of one pattern: `best_step_10.pt` says nothing about `last.pt`. Everything else is ordered by time.
A file that somebody copied has a new time, so within a pattern the number counts more: a candidate
is as young as the youngest one that it supersedes.

Two or three files or folders that a script overwrites in turn (`ckpt_0.pt`, `ckpt_1.pt`) have numbers, too,
which say nothing. Slots are told from a count by three things together: no word says that the number counts
steps, the numbers are 0 to 1 or 2 (or 1 to 2 or 3), and the times go round: each number is younger
than the one before it, but for one place. A series that has gone round once is one of slots for good.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from recovery.checkpoints.model import (
    OVERWRITTEN_FOLDERS,
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
)
from recovery.checkpoints.names import slot_of

_Item = TypeVar("_Item")
_DIGITS: Final = re.compile(r"[0-9]+")
_DIGITS_MAX: Final = 18  # below 2**63
SLOTS_MAX: Final = 3  # scripts keep two, rarely three; more look like a count
_COUNTING: Final = frozenset({CheckpointFormat.ACCELERATE})

NamePattern = tuple[str, str]


def newest_first(
    items: Iterable[_Item],
    candidate_of: Callable[[_Item], Candidate],
    slots: Collection[NamePattern] = (),
) -> list[_Item]:
    """Return the items, the one with the newest candidate first.

    ``slots``: patterns whose numbers say nothing (`find_slots`).
    """
    series: dict[Hashable, list[tuple[Candidate, _Item]]] = defaultdict(list)
    for item in items:
        candidate = candidate_of(item)
        series[series_of(candidate)].append((candidate, item))
    dated: list[tuple[float, int, int, _Item]] = []
    for members in series.values():
        counts = _step if name_pattern(members[0][0]) not in slots else _no_step
        members.sort(key=lambda member: (counts(member[0]), member[0].written_unix_s))
        youngest_unix_s = float("-inf")
        for rank, (candidate, item) in enumerate(members):
            youngest_unix_s = max(youngest_unix_s, candidate.written_unix_s)
            dated.append((youngest_unix_s, counts(candidate), rank, item))
    dated.sort(key=lambda entry: entry[:3], reverse=True)
    return [entry[3] for entry in dated]


def newest_joined(verdicts: Iterable[CheckpointVerdict]) -> tuple[CheckpointVerdict, ...]:
    """Return the verdicts of several launchers on one list of checkpoints, newest first.

    Launchers find slots among files and plain folders, and report these without a step.
    """
    joined = list(verdicts)
    candidates = [one.candidate for one in joined]
    slots = find_slots(
        one
        for one in candidates
        if one.step is None and (not one.oldest_unix_s or one.format in OVERWRITTEN_FOLDERS)
    )
    return tuple(newest_first(joined, lambda verdict: verdict.candidate, slots))


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


def _no_step(_candidate: Candidate) -> int:
    return -1


def _step(candidate: Candidate) -> int:
    """Return the step, or the number in a name that counts something else, such as saves."""
    if candidate.step is not None:
        return candidate.step
    numbers = _DIGITS.findall(candidate.tag)
    return int(numbers[-1][:_DIGITS_MAX]) if numbers else -1
