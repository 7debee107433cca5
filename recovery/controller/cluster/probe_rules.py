"""When the controller has idle nodes test the network of a slow job, and how much that may load. Pure; `[fabric_probe]` of the policy."""

from dataclasses import dataclass
from typing import Final

from rankmend.errors import ConfigError

PROBES_MOST: Final = 60  # per hour: the ledger remembers ten times as many
NODES_MOST: Final = 1024
SECONDS_MOST: Final = 600.0
RAILS_MOST: Final = 16
RATE_LEAST: Final = 1e6  # below, what a socket holds takes longer than a test


@dataclass(frozen=True, slots=True)
class ProbeRules:
    dry_run: bool = True  # a probe that is due is journaled and shown, and nothing is sent
    # From the order to the end on every node. 64 nodes take 12 rounds of some 2 s, after the start of a process each.
    seconds_max: float = 60.0
    # That a node sends. 8 Gbit/s are 2 % of a link of 400 Gbit/s: jobs below the same switches don't notice.
    bytes_per_s_max: float = 1e9
    bytes_per_node_max: float = 2e10  # that a node sends in a whole probe
    nodes_max: int = 64  # that take part; 2 log2 of them are the rounds
    # Of all jobs together, one at a time. A network that is slow for many jobs needs no more to be found. 0: none.
    per_hour_max: int = 2
    again_after_s: float = (
        1800.0  # for one job: the last probe's verdict on its network holds for so long
    )
    rails: tuple[str, ...] = ()  # interfaces to test; (): the one that leads to the other nodes
    # Whether nodes that run ranks of the slow job take part: their cards are the job's own.
    through_training_nics: bool = False
    training_nodes_max: int = 8  # that take part then
    # Then of every node of the probe. 0.8 Gbit/s beside an all-reduce of 100 Gbit/s costs less than 1 %.
    training_bytes_per_s_max: float = 1e8

    def __post_init__(self) -> None:
        for name in ("bytes_per_s_max", "bytes_per_node_max", "training_bytes_per_s_max"):
            if getattr(self, name) < RATE_LEAST:
                raise ConfigError(f"{name} is {getattr(self, name):g}: give {RATE_LEAST:g} or more")
        if not 10 <= self.seconds_max <= SECONDS_MOST:
            raise ConfigError(f"seconds_max is {self.seconds_max:g}, not 10 to {SECONDS_MOST:g}")
        if not 2 <= self.nodes_max <= NODES_MOST:
            raise ConfigError(f"nodes_max is {self.nodes_max}, not 2 to {NODES_MOST}")
        if not 0 <= self.per_hour_max <= PROBES_MOST:
            raise ConfigError(f"per_hour_max is {self.per_hour_max}, not 0 to {PROBES_MOST}")
        if not 0 <= self.again_after_s <= 86_400:
            raise ConfigError(f"again_after_s is {self.again_after_s:g}, not 0 to 86400")
        if not 1 <= self.training_nodes_max <= NODES_MOST:
            raise ConfigError(f"training_nodes_max is {self.training_nodes_max}, not 1 to {NODES_MOST}")  # fmt: skip
        if len(self.rails) > RAILS_MOST or not all(0 < len(rail) <= 15 for rail in self.rails):
            raise ConfigError(
                f"rails is {list(self.rails)!r:.200}: at most {RAILS_MOST} interfaces of at most 15 characters"
            )
