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


def condense_work(work: Sequence[WorkTime], retained: int) -> list[WorkTime]:
    """Return the newest ``kept`` and, of the others, one for each size, accelerator and data type."""
    old, new = work[:-retained], work[-retained:]
    sums: dict[tuple[int, str, str], WorkTime] = {}
    for item in old:
        key = (item.ranks, item.device, item.data_type)
        before = sums.get(key)
        sums[key] = (
            item
            if before is None
            else replace(
                before,
                end_s=before.end_s + item.end_s - item.begin_s,
                flops=before.flops + item.flops,
                tokens=before.tokens + item.tokens,
                samples=before.samples + item.samples,
            )
        )
    return [*sums.values(), *new]


def condense_steps(steps: Sequence[StepsTime], retained: int) -> list[StepsTime]:
    """Return the newest ``kept`` and, of the others, the sum."""
    old, new = steps[:-retained], steps[-retained:]
    if not old:
        return list(new)
    together = StepsTime(
        end_s=old[-1].end_s,
        attempt=old[-1].attempt,
        ranks=old[-1].ranks,
        steps=sum(item.steps for item in old),
        step_s=sum(item.step_s for item in old),
        compute_s=sum(item.compute_s for item in old),
        communication_s=sum(item.communication_s for item in old),
        waited_s=sum(item.waited_s for item in old),
        io_s=sum(item.io_s for item in old),
        checkpoint_s=sum(item.checkpoint_s for item in old),
        hidden_communication=add_hidden(item.hidden_communication for item in old),
        hidden_io=add_hidden(item.hidden_io for item in old),
    )
    return [together, *new]
