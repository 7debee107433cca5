"""The time of watched jobs as the API tells it, and back. Pure."""

from recovery.accounting.goodput.job_time import JobTime, SlowTime, StallTime, StepsTime, WorkTime
from recovery.accounting.goodput.timeline import TimePart, TimeSpan
from recovery.api import wire
from recovery.journal.attempt_records import HiddenSeen


def view_time(time: JobTime) -> wire.WatchedTime:
    """Return the time of a watched job for the API."""
    return wire.WatchedTime(
        job_id=time.job_id,
        name=time.name,
        began_unix_s=time.began_unix_s,
        has_ended=time.has_ended,
        spans=[
            wire.WatchedSpan(
                span.begin_s,
                span.end_s,
                span.part.value,
                span.devices,
                span.incident_id,
                span.is_estimated,
            )
            for span in time.spans
        ],
        stalls=[
            wire.WatchedStall(
                stall.stall_id,
                stall.kind,
                list(stall.ranks),
                stall.node,
                stall.begin_s,
                stall.recovered_s,
            )
            for stall in time.stalls
        ],
        slow=[
            wire.WatchedSlow(
                item.rank, item.node, item.section, item.step_factor, item.begin_s, item.end_s
            )
            for item in time.slow
        ],
        work=[
            wire.WatchedWork(
                *(item.begin_s, item.end_s, item.ranks, item.flops, item.tokens, item.samples),
                *(item.data_type, item.device),
            )
            for item in time.work
        ],
        steps=[
            wire.WatchedSteps(
                *(step.end_s, step.ranks, step.steps, step.step_s, step.compute_s),
                *(step.communication_s, step.waited_s, step.io_s, step.checkpoint_s),
                _view_hidden(step.hidden_communication),
                _view_hidden(step.hidden_io),
            )
            for step in time.steps
        ],
    )


def _view_hidden(reported: HiddenSeen | None) -> wire.WatchedHidden | None:
    if reported is None:
        return None
    sources, gaps = list(reported.sources), list(reported.gaps)
    return wire.WatchedHidden(reported.steps, reported.least_s, reported.most_s, sources, gaps)


def _hidden_of_view(view: wire.WatchedHidden | None) -> HiddenSeen | None:
    if view is None:
        return None
    sources, gaps = tuple(view.sources), tuple(view.gaps)
    return HiddenSeen(view.steps, view.least_s, view.most_s, sources, gaps)


def time_of_view(view: wire.WatchedTime) -> JobTime:
    """Return the time that a view tells of; a part that this version doesn't know is unaccounted."""
    parts = {part.value: part for part in TimePart}
    return JobTime(
        view.job_id,
        view.name,
        view.began_unix_s,
        tuple(
            TimeSpan(
                span.begin_s,
                span.end_s,
                parts.get(span.part, TimePart.UNACCOUNTED),
                0,
                span.gpus,
                span.stall_id,
                span.is_estimated,
            )
            for span in view.spans
        ),
        attempts=(),
        incidents=(),
        slow=tuple(
            SlowTime(
                0, item.rank, item.node, item.section, item.step_factor, item.begin_s, item.end_s
            )
            for item in view.slow
        ),
        work=tuple(
            WorkTime(
                *(item.begin_s, item.end_s, item.ranks, item.flops, item.tokens, item.samples),
                *(item.data_type, item.device),
            )
            for item in view.work
        ),
        steps=tuple(
            StepsTime(
                *(step.end_s, 0, step.ranks, step.steps, step.step_s, step.compute_s),
                *(step.communication_s, step.waited_s, step.io_s, step.checkpoint_s),
                _hidden_of_view(step.hidden_communication),
                _hidden_of_view(step.hidden_io),
            )
            for step in view.steps
        ),
        is_watched=True,
        stalls=tuple(
            StallTime(
                stall.stall_id,
                stall.kind,
                tuple(stall.ranks),
                stall.node,
                stall.begin_s,
                stall.recovered_s,
            )
            for stall in view.stalls
        ),
        has_ended=view.has_ended,
    )
