"""The answer of a collector, with the revision at which each of its samples last changed.

Of a node's 2,600 series some 300 change from one second to the next. Readers of answers (the page,
the findings) keep the revision that they have seen and skip everything that is not newer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NewType

from agent.metrics import Metric

Revision = NewType("Revision", int)
"""Numbers the changes of one collector's answers. It only grows while the agent runs."""

NEVER: Final = Revision(0)  # before the first answer


@dataclass(frozen=True, slots=True)
class CollectorAnswer:
    """The newest samples of one collector. Equal revisions of one collector mean equal samples."""

    metrics: tuple[Metric, ...] = ()
    revision: Revision = NEVER  # when a sample last changed
    layout: Revision = NEVER  # when the names, the labels or the order of the samples last changed
    changed_at: Sequence[Revision] = field(default=(), repr=False)  # one revision per sample


NO_ANSWER: Final = CollectorAnswer()


def revise(
    before: CollectorAnswer, metrics: tuple[Metric, ...], revision: Revision
) -> CollectorAnswer:
    """Return the answer with these samples; ``before`` itself where none differs.

    ``revision`` is newer than every one of ``before``. Unchanged samples are kept as objects, so that
    nobody holds copies of them.
    """
    old = before.metrics
    if len(metrics) != len(old):
        return _new_layout(metrics, revision)
    changed = [
        place
        for place, (new, was) in enumerate(zip(metrics, old, strict=True))
        if new is not was and new != was  # most are the same objects
    ]
    if not changed:
        return before
    for place in changed:
        new, was = metrics[place], old[place]
        if new.name != was.name or new.labels != was.labels:
            return _new_layout(metrics, revision)
    kept, changed_at = list(old), list(before.changed_at)
    for place in changed:
        kept[place], changed_at[place] = metrics[place], revision
    return CollectorAnswer(tuple(kept), revision, before.layout, changed_at)


def _new_layout(metrics: tuple[Metric, ...], revision: Revision) -> CollectorAnswer:
    return CollectorAnswer(metrics, revision, revision, [revision] * len(metrics))
