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
                one.begin_s,
                one.end_s,
                one.part.value,
                one.devices,
                one.incident_id,
                one.is_estimated,
            )
            for one in time.spans
        ],
        stalls=[
            wire.WatchedStall(
                one.stall_id, one.kind, list(one.ranks), one.node, one.begin_s, one.recovered_s
            )
            for one in time.stalls
        ],
        slow=[
            wire.WatchedSlow(
                one.rank, one.node, one.section, one.step_factor, one.begin_s, one.end_s
            )
            for one in time.slow
        ],
        work=[
            wire.WatchedWork(
                *(one.begin_s, one.end_s, one.ranks, one.flops, one.tokens, one.samples),
                *(one.data_type, one.device),
            )
            for one in time.work
        ],
        steps=[
            wire.WatchedSteps(
                *(one.end_s, one.ranks, one.steps, one.step_s, one.compute_s),
                *(one.communication_s, one.waited_s, one.io_s, one.checkpoint_s),
                _view_hidden(one.hidden_communication),
                _view_hidden(one.hidden_io),
            )
            for one in time.steps
        ],
    )


def _view_hidden(told: HiddenSeen | None) -> wire.WatchedHidden | None:
    if told is None:
        return None
    sources, gaps = list(told.sources), list(told.gaps)
    return wire.WatchedHidden(told.steps, told.least_s, told.most_s, sources, gaps)


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
                one.begin_s,
                one.end_s,
                parts.get(one.part, TimePart.UNACCOUNTED),
                0,
                one.gpus,
                one.stall_id,
                one.is_estimated,
            )
            for one in view.spans
        ),
        attempts=(),
        incidents=(),
        slow=tuple(
            SlowTime(0, one.rank, one.node, one.section, one.step_factor, one.begin_s, one.end_s)
            for one in view.slow
        ),
        work=tuple(
            WorkTime(
                *(one.begin_s, one.end_s, one.ranks, one.flops, one.tokens, one.samples),
                *(one.data_type, one.device),
            )
            for one in view.work
        ),
        steps=tuple(
            StepsTime(
                *(one.end_s, 0, one.ranks, one.steps, one.step_s, one.compute_s),
                *(one.communication_s, one.waited_s, one.io_s, one.checkpoint_s),
                _hidden_of_view(one.hidden_communication),
                _hidden_of_view(one.hidden_io),
            )
            for one in view.steps
        ),
        is_watched=True,
        stalls=tuple(
            StallTime(
                one.stall_id, one.kind, tuple(one.ranks), one.node, one.begin_s, one.recovered_s
            )
            for one in view.stalls
        ),
        has_ended=view.has_ended,
    )
