"""Which candidate is the newest. Pure.

A step from the content orders all candidates that have one. A number in a name only orders names
of one pattern: `best_step_10.pt` says nothing about `last.pt`. Everything else is ordered by time.
A file that somebody copied has a new time, so within a pattern the number counts more: a candidate
is as young as the youngest one that it supersedes.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from recovery.checkpoints.model import Candidate, CheckpointVerdict

_Item = TypeVar("_Item")
_DIGITS: Final = re.compile(r"[0-9]+")
_DIGITS_MAX: Final = 18  # below 2**63


def newest_first(items: Iterable[_Item], candidate_of: Callable[[_Item], Candidate]) -> list[_Item]:
    """Return the items, the one with the newest candidate first."""
    series: dict[Hashable, list[tuple[Candidate, _Item]]] = defaultdict(list)
    for item in items:
        candidate = candidate_of(item)
        series[series_of(candidate)].append((candidate, item))
    dated: list[tuple[float, int, int, _Item]] = []
    for members in series.values():
        members.sort(key=lambda member: (_step(member[0]), member[0].modified_unix_s))
        youngest_unix_s = float("-inf")
        for rank, (candidate, item) in enumerate(members):
            youngest_unix_s = max(youngest_unix_s, candidate.modified_unix_s)
            dated.append((youngest_unix_s, _step(candidate), rank, item))
    dated.sort(key=lambda entry: entry[:3], reverse=True)
    return [entry[3] for entry in dated]


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


def name_pattern(candidate: Candidate) -> tuple[str, str]:
    """Return what the names of one series have in common: their folder, and all but the digits."""
    return (candidate.directory, _DIGITS.sub("#", candidate.tag))


def _step(candidate: Candidate) -> int:
    """Return the step, or the number in a name that counts something else, such as saves."""
    if candidate.step is not None:
        return candidate.step
    numbers = _DIGITS.findall(candidate.tag)
    return int(numbers[-1][:_DIGITS_MAX]) if numbers else -1
