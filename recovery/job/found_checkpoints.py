"""Checkpoints as a launcher reports them, turned back into verdicts. Pure."""

from collections.abc import Iterable
from typing import Final

from recovery.checkpoints.model import (
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Hindrance,
    Holds,
    Shape,
)
from recovery.messages.exchange import FoundCheckpoint

_FORMATS: Final = {one.value: one for one in CheckpointFormat}
_HOLDS: Final = {one.value: one for one in Holds}
_HINDRANCES: Final = {one.value: one for one in Hindrance}


def verdicts_of(found: Iterable[FoundCheckpoint]) -> tuple[CheckpointVerdict, ...]:
    """Return the verdicts; what a newer launcher calls by another name is of an unknown format."""
    return tuple(
        CheckpointVerdict(
            _candidate(one),
            one.is_valid,
            one.reason,
            _HINDRANCES.get(one.hindrance),
            one.share,
            one.parts,
            one.unchecked_bytes,
            one.has_wrong_sum,
        )
        for one in found
    )


def _candidate(found: FoundCheckpoint) -> Candidate:
    return Candidate(
        found.path,
        found.step,
        _FORMATS.get(found.kind, CheckpointFormat.UNKNOWN),
        found.size_bytes,
        found.modified_unix_s,
        found.is_step_exact,
        oldest_unix_s=found.oldest_unix_s,
        shape=Shape(
            _HOLDS.get(found.holds, Holds.UNKNOWN), found.tensors, found.elements, found.epoch
        ),
    )
