"""What ranks told of their work and their steps, dated by the job's time. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from recovery.accounting.goodput.job_time import StepsTime, WorkTime
from recovery.journal.attempt_records import StepsSeen, WorkSeen, add_hidden


def work_of(record: WorkSeen, now_s: float) -> WorkTime:
    """Return the work of a record that was written at ``now_s`` of the job."""
    end_s = now_s - record.age_s
    return WorkTime(
        end_s - record.took_s,
        end_s,
        record.ranks,
        record.flops,
        record.tokens,
        record.samples,
        record.data_type,
        record.device,
    )


def steps_of(record: StepsSeen, now_s: float) -> StepsTime:
    """Return the steps of a record that was written at ``now_s`` of the job."""
    return StepsTime(
        now_s,
        record.attempt,
        record.ranks,
        record.steps,
        record.step_s,
        record.compute_s,
        record.communication_s,
        record.waited_s,
        record.io_s,
        record.checkpoint_s,
        record.hidden_communication,
        record.hidden_io,
    )


def condense_work(work: Sequence[WorkTime], kept: int) -> list[WorkTime]:
    """Return the newest ``kept`` and, of the others, one for each size, accelerator and data type."""
    old, new = work[:-kept], work[-kept:]
    sums: dict[tuple[int, str, str], WorkTime] = {}
    for one in old:
        key = (one.ranks, one.device, one.data_type)
        before = sums.get(key)
        sums[key] = (
            one
            if before is None
            else replace(
                before,
                end_s=before.end_s + one.end_s - one.begin_s,
                flops=before.flops + one.flops,
                tokens=before.tokens + one.tokens,
                samples=before.samples + one.samples,
            )
        )
    return [*sums.values(), *new]


def condense_steps(steps: Sequence[StepsTime], kept: int) -> list[StepsTime]:
    """Return the newest ``kept`` and, of the others, the sum."""
    old, new = steps[:-kept], steps[-kept:]
    if not old:
        return list(new)
    together = StepsTime(
        end_s=old[-1].end_s,
        attempt=old[-1].attempt,
        ranks=old[-1].ranks,
        steps=sum(one.steps for one in old),
        step_s=sum(one.step_s for one in old),
        compute_s=sum(one.compute_s for one in old),
        communication_s=sum(one.communication_s for one in old),
        waited_s=sum(one.waited_s for one in old),
        io_s=sum(one.io_s for one in old),
        checkpoint_s=sum(one.checkpoint_s for one in old),
        hidden_communication=add_hidden(one.hidden_communication for one in old),
        hidden_io=add_hidden(one.hidden_io for one in old),
    )
    return [together, *new]
