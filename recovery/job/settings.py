"""What one job's controller is told when it starts."""

from dataclasses import dataclass, field

from rankmend.errors import ConfigError
from recovery.journal.attempt_records import Placement
from recovery.journal.job_records import ClaimTaken
from recovery.journal.limits import Policy


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job: on nodes that are known beforehand (``placement``), or on nodes that join.

    A job whose nodes join has a fixed size of ``nodes_min`` nodes, unless ``shrink_multiple`` says
    which other sizes it can have. What is above its size are spares.
    """

    job_id: str
    name: str
    placement: tuple[Placement, ...]  # one for each node, in the order of group ranks; (): join
    rankmend_version: str
    pid: int = 0  # of the controller's process, for the journal
    policy: Policy = field(default_factory=Policy)
    # Between SIGTERM and SIGKILL of a planned stop where nobody says another: Slurm's KillWait,
    # 30 s by default, is what a launcher under it has.
    grace_s: float = 30.0
    budgets_reset_by: str | None = None  # who asked to forget the restarts counted so far
    claim_taken: ClaimTaken | None = None  # from whom the launcher took the checkpoint folder
    nodes_min: int = 0
    nodes_max: int = 0
    slots: int = 0  # ranks a node
    # The number of ranks must be a multiple of it, since TP x PP must divide; 0: nodes_min, always.
    shrink_multiple: int = 0
    has_checkpoints: bool = False  # launchers look for them, where the controller itself can't
    hears_evidence: bool = False  # somebody sends alerts, so that it is worth waiting for them
    epoch_min: int = (
        0  # claimed elsewhere: this start of the controller counts as this one at least
    )
    controller_id: str = ""  # UUID of this start of the controller
    # Ids of incidents begin with it; empty: the first block of the job's UUID. A service sees to it that no two jobs have the same.
    incident_prefix: str = ""

    def __post_init__(self) -> None:
        if self.grace_s < 0:
            raise ConfigError(f"grace_s is {self.grace_s}: it can't be negative")
        if self.is_joined:
            self._check_join()
            return
        ranks = sorted(rank for place in self.placement for rank in place.ranks)
        if not ranks or ranks != list(range(len(ranks))):
            raise ConfigError(f"the nodes' ranks are not 0 to {len(ranks) - 1}, each once: {ranks}")
        nodes = [place.node for place in self.placement]
        if len(set(nodes)) != len(nodes):
            raise ConfigError(f"a node is named twice: {nodes}")

    def _check_join(self) -> None:
        if not 1 <= self.nodes_min <= self.nodes_max:
            raise ConfigError(f"nodes_min:nodes_max is {self.nodes_min}:{self.nodes_max}")
        if self.slots < 1:
            raise ConfigError(f"slots is {self.slots}: a node runs one rank at least")
        if self.shrink_multiple < 0:
            raise ConfigError(f"shrink_multiple is {self.shrink_multiple}: it can't be negative")
        if not self.sizes:
            raise ConfigError(
                f"no number of nodes from {self.nodes_min} to {self.nodes_max} with {self.slots} "
                f"ranks each gives a multiple of {self.shrink_multiple} ranks"
            )

    def incident_id(self, number: int) -> str:
        """Return the id of the job's incident of this number."""
        return f"{self.incident_prefix or self.job_id[:8]}-{number}"

    @property
    def is_joined(self) -> bool:
        """Its nodes join by reporting."""
        return not self.placement and self.nodes_max > 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes that the job can run on, the largest first."""
        if not self.shrink_multiple:
            return (self.nodes_min,)
        return tuple(
            nodes
            for nodes in range(self.nodes_max, self.nodes_min - 1, -1)
            if nodes * self.slots % self.shrink_multiple == 0
        )

    @property
    def world_size(self) -> int:
        """Ranks of the fixed placement; 0 where nodes join."""
        return sum(len(place.ranks) for place in self.placement)
