"""The anatomy of a step: what ranks spend it on, by their sections. Pure.

    step = compute + communication + I/O - hidden communication - hidden I/O

A rank reports for how long it stood still for communication and I/O, or worked at it: the part that
is not hidden behind compute. So the parts here sum to the step. The hidden part stands beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recovery.accounting.goodput.job_time import JobTime, StepsTime
from recovery.journal.attempt_records import HiddenSeen, add_hidden


@dataclass(frozen=True, slots=True)
class HiddenTime:
    """Communication and reading behind a rank's own work: seconds of the mean step, and their share of
    all of that kind. None: not known.
    """

    least_s: float | None
    most_s: float | None
    least_ratio: float | None  # hidden / (hidden + not hidden), 0 to 1
    most_ratio: float | None
    sources: tuple[str, ...]  # values of `HiddenSource`, or those of a newer version
    gaps: tuple[str, ...]  # values of `HiddenGap`


def mean_hidden(
    reported: HiddenSeen | None, shown_s: float | None, own_s: float
) -> HiddenTime | None:
    """Return the mean of a step; ``shown_s``: what of the kind was not hidden, ``own_s``: the rank's own work."""
    if reported is None:
        return None
    if not reported.steps:
        return HiddenTime(None, None, None, None, reported.sources, reported.gaps)
    least_s = min(reported.least_s / reported.steps, own_s)
    most_s = None if reported.most_s is None else min(reported.most_s / reported.steps, own_s)
    return HiddenTime(
        least_s,
        most_s,
        _ratio(least_s, shown_s or 0.0),
        None if most_s is None else _ratio(most_s, shown_s or 0.0),
        reported.sources,
        reported.gaps,
    )


def _ratio(hidden_s: float, shown_s: float) -> float | None:
    return hidden_s / (hidden_s + shown_s) if hidden_s + shown_s > 0 else None


@dataclass(frozen=True, slots=True)
class StepAnatomy:
    """Seconds of the mean step of a rank. None: no rank has reported that. The parts but `waited_s` sum to `step_s`."""

    steps: int  # of all ranks together
    step_s: float
    compute_s: float  # in such sections, or what is left of the step where the script has none
    communication_s: float | None  # exposed: not hidden behind compute
    waited_s: float | None  # part of the communication: only waiting for other ranks
    io_s: float | None  # exposed
    checkpoint_s: float | None
    other_s: float | None  # outside of all sections; None: it counts as compute
    hidden_communication: HiddenTime | None = None  # None: nothing measures it
    hidden_io: HiddenTime | None = None

    @property
    def parts(self) -> dict[str, float]:
        """Return the parts that are known, and sum to the step."""
        named = {
            "compute": self.compute_s,
            "communication": self.communication_s,
            "io": self.io_s,
            "checkpoint": self.checkpoint_s,
            "other": self.other_s,
        }
        return {name: seconds for name, seconds in named.items() if seconds is not None}


def anatomy_of(jobs: Iterable[JobTime]) -> StepAnatomy | None:
    """Return what jobs spent the mean step on; None where their ranks have no sections."""
    return divide_steps([step for job in jobs for step in job.steps])


def newest_anatomy(job: JobTime) -> StepAnatomy | None:
    """Return what a job spends a step on now; None where its newest attempt has not reported that."""
    if not job.steps:
        return None
    newest = job.attempts[-1].attempt if job.attempts else None
    if not job.is_watched and job.steps[-1].attempt != newest:
        return None
    return divide_steps(job.steps[-1:])


def divide_steps(reported: Sequence[StepsTime]) -> StepAnatomy | None:
    """Return the mean step."""
    steps = sum(time.steps for time in reported)
    step_s = sum(time.step_s for time in reported)
    if steps <= 0 or step_s <= 0:
        return None
    compute_s = sum(time.compute_s for time in reported) / steps
    communication_s = _known(sum(time.communication_s for time in reported) / steps)
    io_s = _known(sum(time.io_s for time in reported) / steps)
    checkpoint_s = _known(sum(time.checkpoint_s for time in reported) / steps)
    mean_s = step_s / steps
    rest_s = mean_s - sum(part_s or 0.0 for part_s in (communication_s, io_s, checkpoint_s))
    sent = add_hidden(time.hidden_communication for time in reported)
    read = add_hidden(time.hidden_io for time in reported)
    return StepAnatomy(
        steps=steps,
        step_s=mean_s,
        compute_s=compute_s or max(0.0, rest_s),
        communication_s=communication_s,
        waited_s=_known(sum(time.waited_s for time in reported) / steps),
        io_s=io_s,
        checkpoint_s=checkpoint_s,
        other_s=max(0.0, rest_s - compute_s) if compute_s else None,
        hidden_communication=mean_hidden(sent, communication_s, max(0.0, rest_s)),
        hidden_io=mean_hidden(read, io_s, max(0.0, rest_s)),
    )


def _known(seconds: float) -> float | None:
    return seconds if seconds > 0 else None
