"""What one job's controller is told when it starts."""

from dataclasses import dataclass, field

from rankmend.errors import ConfigError
from recovery.policy import Policy


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of one node, in the order of their local ranks."""

    node: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobSettings:
    job_id: str
    name: str
    placement: tuple[Placement, ...]  # one for each node, in the order of group ranks
    rankmend_version: str
    pid: int = 0  # of the controller's process, for the journal
    policy: Policy = field(default_factory=Policy)
    # Between SIGTERM and SIGKILL of a planned stop where nobody says another: Slurm's KillWait,
    # 30 s by default, is what a launcher under it has.
    grace_s: float = 30.0
    budgets_reset_by: str | None = None  # who asked to forget the restarts counted so far

    def __post_init__(self) -> None:
        ranks = sorted(rank for place in self.placement for rank in place.ranks)
        if not ranks or ranks != list(range(len(ranks))):
            raise ConfigError(f"the nodes' ranks are not 0 to {len(ranks) - 1}, each once: {ranks}")
        nodes = [place.node for place in self.placement]
        if len(set(nodes)) != len(nodes):
            raise ConfigError(f"a node is named twice: {nodes}")
        if self.grace_s < 0:
            raise ConfigError(f"grace_s is {self.grace_s}: it can't be negative")

    @property
    def world_size(self) -> int:
        return sum(len(place.ranks) for place in self.placement)
