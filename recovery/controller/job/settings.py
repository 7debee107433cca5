"""The settings of one job's controller at its start."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from detectors.replicas.layout import ParallelLayout
from rankmend.errors import ConfigError
from recovery.journal.job_records import ClaimTaken
from recovery.journal.limits import Policy

# For what a job on one node never has to wait for: 30 years. Limits are journaled as JSON, which has
# no infinity.
NEVER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job, whose nodes join by reporting.

    It has a fixed size of ``nodes_min`` nodes, unless ``shrink_multiple`` says which other sizes it
    can have. Nodes above its size are spares.
    """

    job_id: str
    name: str
    rankmend_version: str
    nodes_min: int
    nodes_max: int
    slots: int  # ranks a node, as the first launcher says
    pid: int = 0  # the controller's process, for the journal
    policy: Policy = field(default_factory=Policy)
    # Between SIGTERM and SIGKILL of a planned stop where nobody says another: Slurm's KillWait,
    # 30 s by default, is what a launcher under it has.
    grace_s: float = 30.0
    budgets_reset_by: str | None = None  # who requested to forget the restarts counted so far
    starts_from_scratch: bool = False  # where nothing can be restored: --start-from-scratch
    claim_taken: ClaimTaken | None = None  # from whom the launcher took the checkpoint folder
    # The node whose launcher is in this process, and ends with it; empty: launchers are elsewhere.
    own_node: str = ""
    # The number of ranks must be a multiple of it, since TP x PP must divide; 0: nodes_min, always.
    shrink_multiple: int = 0
    # Nodes of ``nodes_max`` that never train while the others do, where the size may change.
    spares: int = 0
    layout: ParallelLayout | None = None  # --parallel; None: nobody says which ranks are replicas
    has_checkpoints: bool = False  # launchers look for them, where the controller itself can't
    checkpoint_folder: str = ""  # where they are looked for, for people; empty: not known by name
    # Whether the program begins from the checkpoint that it is given (`launcher.ranks.command`); None: not known.
    takes_checkpoint: bool | None = None
    checkpoint_names: tuple[str, ...] = ()  # --checkpoint-name, for the journal
    program: str = (
        ""  # name and content of the script (`launcher.ranks.command.program_of`); empty: not known
    )
    hears_evidence: bool = False  # somebody sends alerts, so that it is worth waiting for them
    # claimed elsewhere: this start of the controller counts as this one at least
    epoch_min: int = 0
    controller_id: str = ""  # UUID of this start of the controller
    # Ids of incidents begin with it; empty: the first block of the job's UUID. A service sees to it that no two jobs have the same.
    incident_prefix: str = ""

    alive_age_s: float | None = None  # how long ago the launcher before was alive; None: not known

    def __post_init__(self) -> None:
        if self.grace_s < 0:
            raise ConfigError(f"grace_s is {self.grace_s}: it can't be negative")
        if not 1 <= self.nodes_min <= self.nodes_max:
            raise ConfigError(f"nodes_min:nodes_max is {self.nodes_min}:{self.nodes_max}")
        if self.slots < 1:
            raise ConfigError(f"slots is {self.slots}: a node runs at least one rank")
        if self.shrink_multiple < 0:
            raise ConfigError(f"shrink_multiple is {self.shrink_multiple}: it can't be negative")
        if not 0 <= self.spares <= self.nodes_max - self.nodes_min:
            raise ConfigError(
                f"spares is {self.spares}: {self.nodes_min} of at most {self.nodes_max} nodes have to train"
            )
        if not self.sizes:
            if self.layout is not None:
                self.layout.sizes((self.nodes_max - self.spares) * self.slots)
            raise ConfigError(
                f"no node count from {self.nodes_min} to {self.nodes_max - self.spares} with {self.slots} "
                f"ranks each gives a multiple of {self.shrink_multiple} ranks"
            )

    def incident_id(self, number: int) -> str:
        """Return the id of the job's incident of this number."""
        return f"{self.incident_prefix or self.job_id[:8]}-{number}"

    @property
    def has_own_slots(self) -> bool:
        """Return whether each node has as many ranks as its own launcher says, as under torchrun.

        Not where the number of ranks has to be a multiple, or to fit parallel sizes: ``slots`` is that of all nodes then.
        """
        return self.shrink_multiple <= 1 and self.layout is None

    def slots_of(self, slots: int) -> int:
        """Return how many ranks a node has whose launcher says ``slots``; 0: it says nothing."""
        return slots if self.has_own_slots and slots else self.slots

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes that the job can run on, the largest first."""
        multiple = self.shrink_multiple
        most = self.nodes_max - self.spares if multiple else self.nodes_min
        return _sizes(self.nodes_min, most, self.slots, multiple or 1, self.layout)


@lru_cache(
    maxsize=256
)  # requested at each look of a job that waits, and 20,000 nodes have 20,000 sizes
def _sizes(
    least: int, most: int, slots: int, multiple: int, layout: ParallelLayout | None
) -> tuple[int, ...]:
    return tuple(
        nodes
        for nodes in range(most, least - 1, -1)
        if nodes * slots % multiple == 0
        if layout is None or layout.fits(nodes * slots)
    )


def for_one_node(policy: Policy) -> Policy:
    """Return the limits of a job on one node, whose launcher shares the controller's process.

    There is no other node to wait for, and a launcher can't fall silent while its process runs.
    """
    return replace(policy, lease_s=0.0, join_wait_s=0.0, spare_wait_s=0.0, node_silent_s=NEVER_S)
