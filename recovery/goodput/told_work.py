"""What ranks told of their work and their steps, dated by the job's time. Pure."""

from recovery.goodput.job_time import StepsTime, WorkTime
from recovery.journal.attempt_records import StepsSeen, WorkSeen


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
