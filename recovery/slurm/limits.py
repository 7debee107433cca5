"""How much the controller may do to Slurm. Off by default: then it only tells what it would do."""

from typing import Annotated, Final

import msgspec

from recovery.slurm.requests import SchedulerAction

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
MIN_TIMEOUT_S: Final = 1.0

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=30 * DAY_S)]


class SlurmLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table [slurm] of the controller's configuration."""

    enabled: bool = False  # ask Slurm at all
    # Without it everything is dry: journaled and shown, not done.
    act: bool = False
    # What it may do then. To undo our own drain goes with `drain`.
    drain: bool = True
    requeue: bool = True
    reboot: bool = False
    cancel: bool = False

    # Ours at one time; both must hold. The same numbers as rankmend's own quarantine has.
    nodes_drained_max: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    nodes_drained_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 10.0
    # A cluster of 16,384 GPUs has 8 interruptions a day (Llama 3): more nodes in an hour is the network, or a rule.
    drains_per_hour_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 6
    requeues_per_hour_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 6
    requeues_per_job_day_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 4

    folder: str | None = None  # of scontrol, squeue, sinfo, sbatch; None: on the PATH
    timeout_s: Annotated[float, msgspec.Meta(ge=MIN_TIMEOUT_S, le=300)] = 20.0  # of one command
    # Between PENDING and the new start. At once Slurm lost one of four jobs ("Job credential revoked"), after 2 or
    # 3 s none of eight; the revocation has a grain of one second.
    pause_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 3.0
    # A requeued job counts as started once it has run this long, or has written to its output.
    started_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 10.0
    # For how long a job is held back whose old nodes Slurm does not hear: its ranks may still run there. 0: until
    # they are proved gone.
    lost_node_wait_s: _Seconds = 0.0

    def allows(self, action: SchedulerAction) -> bool:
        """Return whether this is done, rather than only told."""
        switches = {
            SchedulerAction.DRAIN: self.drain,
            SchedulerAction.RESUME: self.drain,
            SchedulerAction.REBOOT: self.reboot,
            SchedulerAction.CANCEL: self.cancel,
            SchedulerAction.REQUEUE: self.requeue,
        }
        return self.enabled and self.act and switches[action]
