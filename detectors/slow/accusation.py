"""The verdict that names slow workers, in words."""

from collections.abc import Mapping, Sequence
from typing import Final

from detectors.diagnosis import Verdict
from detectors.parts.fleet_parts import FleetParts
from detectors.slow.placement import locate
from detectors.slow.slow_verdict import Reason, SlowDiagnosis, SlowLimits, Span, Suspect
from detectors.slow.together import JointChange
from detectors.slow.work_table import WorkTable
from detectors.wording import names_in_words

NAMES_TOLD_MAX: Final = 8  # in a headline
SPANS_TOLD_MAX: Final = 4
# These don't say what was slow; a rank that comes late to communication was slow before it.
WHOLE_STEPS: Final = frozenset({"mini-batch", "step", "arrival at communication"})


def accuse(
    table: WorkTable,
    suspects: tuple[Suspect, ...],
    changes: Sequence[JointChange],
    fleet: FleetParts,
    limits: SlowLimits,
) -> SlowDiagnosis:
    suspects = tuple(sorted(suspects, key=lambda suspect: -suspect.ratio))
    spans = _spans(suspects, changes, limits)
    culprits = tuple(table.workers[suspect.row] for suspect in suspects)
    worst = spans[0]
    found = locate(table.workers, [suspect.row for suspect in suspects], fleet)
    parts = tuple(f"{part.kind} {part.name}" for part in found if part.kind != "rank")
    lines = [_headline(table, span, parts if len(spans) == 1 else ()) for span in spans]
    where = f" All of {', '.join(parts)} is slow." if parts and len(spans) > 1 else ""
    more = (
        f" {len(lines) - SPANS_TOLD_MAX} more follow below." if len(lines) > SPANS_TOLD_MAX else ""
    )
    return SlowDiagnosis(
        verdict=Verdict.CULPRITS,
        reason=worst.reason,
        explanation=" ".join(lines[:SPANS_TOLD_MAX]) + where + more,
        class_name=_class_of(worst.suspects[0].kind),
        culprits=culprits,
        suspects=suspects,
        spans=spans,
        onset=table.steps[worst.first],
        end=None if worst.end >= len(table.steps) else table.steps[worst.end - 1],
        parts=parts,
        confidence=worst.suspects[0].confidence * 0.9 ** len(table.notes),
        evidence=(*(_line(table, suspect) for suspect in suspects[:16]), *table.notes),
    )


def _spans(
    suspects: Sequence[Suspect], changes: Sequence[JointChange], limits: SlowLimits
) -> tuple[Span, ...]:
    """Return the suspects by when they were slow; noise moves both ends of a span by a few steps."""
    peers_of = {one.row: change.peers for change in changes for one in change.suspects}
    spans: list[list[Suspect]] = []
    for suspect in suspects:
        for span in spans:
            if _is_same_span(span[0], suspect, peers_of, limits.steps_min):
                span.append(suspect)
                break
        else:
            spans.append([suspect])
    return tuple(
        Span(
            suspects=tuple(span),
            first=min(one.first for one in span),
            end=max(one.end for one in span),
            reason=span[0].reason,
            peers=peers_of.get(span[0].row),
        )
        for span in spans
    )


def _is_same_span(
    one: Suspect, other: Suspect, peers_of: Mapping[int, int], tolerance: int
) -> bool:
    return (
        one.reason is other.reason
        and peers_of.get(one.row) == peers_of.get(other.row)
        and abs(one.first - other.first) <= tolerance
        and abs(one.end - other.end) <= tolerance
    )


def _headline(table: WorkTable, span: Span, parts: Sequence[str]) -> str:
    workers = [table.workers[suspect.row] for suspect in span.suspects]
    names = names_in_words([worker.name() for worker in workers], NAMES_TOLD_MAX)
    goes_on = span.end >= len(table.steps)
    first, last = table.steps[span.first], table.steps[span.end - 1]
    if span.reason is Reason.SLOWER_TOGETHER:
        until = "" if goes_on else f", until step {last}"
        shared = ", ".join(parts) or "what they share"
        return (
            f"{len(workers)} of {span.peers} became slower at step {first}{until}: {names},"
            f" up to {span.ratio:.2f} times as slow as before. Look at {shared}."
        )
    since = f"since step {first}" if goes_on else f"from step {first} to step {last}"
    if span.reason is Reason.ALWAYS_SLOWER:
        since = "throughout the record"
    where = f" (all of {', '.join(parts)})" if parts else ""
    return f"{names}{where}: {span.ratio:.2f} times as slow as the peers, {since}."


def _class_of(kind: str) -> str:
    if kind in WHOLE_STEPS:
        return "slow_rank"
    if "communication" in kind:
        return "slow_communication"
    return "slow_io" if kind == "io" else "slow_compute"


def _line(table: WorkTable, suspect: Suspect) -> str:
    against = "its peers"
    if suspect.reason is not Reason.ALWAYS_SLOWER:
        against = "its peers and its own past"
    return (
        f"{table.workers[suspect.row].name()}: {suspect.kind} took {suspect.ratio:.2f} x {against}"
        f" in {suspect.held:.0%} of {suspect.end - suspect.first} recorded steps"
        f" ({table.steps[suspect.first]} to {table.steps[suspect.end - 1]})"
    )
