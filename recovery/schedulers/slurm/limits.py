"""How much the controller may do to nodes through their manager, and to Slurm. Off by default: then it only tells what it would do."""

from typing import Annotated, ClassVar, Final

import msgspec

from recovery.schedulers.slurm.requests import SchedulerAction

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
MIN_TIMEOUT_S: Final = 1.0

_Command = Annotated[tuple[str, ...], msgspec.Meta(max_length=100)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=30 * DAY_S)]


class NodeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What holds for every manager of nodes: a table of the controller's configuration has these keys and its own."""

    table: ClassVar[str] = ""  # of the configuration
    manager: ClassVar[str] = ""  # its name, for people

    enabled: bool = False  # ask the manager at all
    # Without it everything is dry: journaled and shown, not done.
    act: bool = False
    # What it may do then. To undo our own drain goes with `drain`.
    drain: bool = True

    # Ours at one time; both must hold. The same numbers as rankmend's own quarantine has.
    nodes_drained_max: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    nodes_drained_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 10.0
    # A cluster of 16,384 GPUs has 8 interruptions a day (Llama 3): more nodes in an hour is the network, or a rule.
    drains_per_hour_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 6

    timeout_s: Annotated[float, msgspec.Meta(ge=MIN_TIMEOUT_S, le=300)] = 20.0  # of one command

    # Return to service. Argument vectors; {node} stands for the node. Empty: a person returns it.
    return_check: _Command = ()
    burn_in: _Command = ()  # after the check has passed
    return_check_timeout_s: Annotated[float, msgspec.Meta(ge=MIN_TIMEOUT_S, le=HOUR_S)] = 120.0
    burn_in_timeout_s: Annotated[float, msgspec.Meta(ge=MIN_TIMEOUT_S, le=DAY_S)] = HOUR_S
    return_after_s: _Seconds = 300.0  # from drained and empty to the first check
    return_pause_s: _Seconds = 900.0  # to the next one; doubles each time, up to a day
    return_checks_max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 4  # at once
    # Drained so often within these days, it stays out until a person says otherwise. 0: no limit.
    offences_max: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3
    offence_days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0

    def __post_init__(self) -> None:
        for name, command in (("return_check", self.return_check), ("burn_in", self.burn_in)):
            if command and not any("{node}" in word for word in command[1:]):
                raise ValueError(f"{name} does not name the node: no argument has {{node}}")
            if any("\0" in word for word in command) or (command and not command[0]):
                raise ValueError(f"{name} is not a command: {command!r:.200}")
        if self.burn_in and not self.return_check:
            raise ValueError("burn_in is set without return_check: it would never run")

    def allows(self, action: SchedulerAction) -> bool:
        """Return whether this is done, rather than only told."""
        return self.enabled and self.act and self.switch_of(action)

    def switch_of(self, action: SchedulerAction) -> bool:
        """Return the setting for this action alone."""
        return self.drain and action in (SchedulerAction.DRAIN, SchedulerAction.RESUME)


class SlurmLimits(NodeLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table [slurm] of the controller's configuration."""

    table: ClassVar[str] = "slurm"
    manager: ClassVar[str] = "Slurm"

    requeue: bool = True
    reboot: bool = False
    cancel: bool = False
    requeues_per_hour_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 6
    requeues_per_job_day_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 4

    folder: str | None = None  # of scontrol, squeue, sinfo, sbatch; None: on the PATH
    # Between PENDING and the new start. At once Slurm lost one of four jobs ("Job credential revoked"), after 2 or
    # 3 s none of eight; the revocation has a grain of one second.
    pause_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 3.0
    # A requeued job counts as started once it has run this long, or has written to its output.
    started_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 10.0
    # For how long a job is held back whose old nodes Slurm does not hear: its ranks may still run there. 0: until
    # they are proved gone.
    lost_node_wait_s: _Seconds = 0.0

    # How long a job of ours waits for a usable node within its allocation, until Slurm is asked to requeue it.
    # A launcher that was cut off comes back within the lease (15 s); srun starts none again.
    requeue_after_s: _Seconds = 60.0

    def switch_of(self, action: SchedulerAction) -> bool:
        switches = {
            SchedulerAction.REBOOT: self.reboot,
            SchedulerAction.CANCEL: self.cancel,
            SchedulerAction.REQUEUE: self.requeue,
        }
        return switches[action] if action in switches else NodeLimits.switch_of(self, action)
