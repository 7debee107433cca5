"""What the desk needs of the system that gives out a cluster's nodes: Slurm is one, Kubernetes another. Values and protocols only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ManagedNode:
    name: str
    base: str  # Slurm: IDLE, MIXED, ALLOCATED, DOWN, ...; Kubernetes: READY, NOT_READY
    flags: frozenset[str]  # DRAIN, NOT_RESPONDING, COMPLETING, REBOOT_REQUESTED, MAINT, ...
    reason: str = ""  # without who and when
    reason_by: str = ""
    boot_unix_s: float | None = None
    is_used: bool = False  # it runs a job, or cleans up after one
    made_unix_s: float | None = None  # since when the manager has it; None: it does not say

    @property
    def is_drained(self) -> bool:
        """Return whether it takes no new job because someone said so."""
        return bool(self.flags & {"DRAIN", "DRAINING", "DRAINED"}) or self.base in (
            "DRAINING",
            "DRAINED",
        )

    @property
    def is_down(self) -> bool:
        return self.base == "DOWN"

    @property
    def is_silent(self) -> bool:
        """Return whether the manager does not hear it: what runs there is unknown."""
        return "NOT_RESPONDING" in self.flags

    @property
    def is_rebooting(self) -> bool:
        return any(flag.startswith("REBOOT") for flag in self.flags)


class NodeManager(Protocol):
    """Every call is bounded in time, and raises ManagerError where the manager refuses or gives no answer."""

    def nodes(self, names: Iterable[str], /) -> Mapping[str, ManagedNode]:
        """Return these nodes, without those that the manager does not know."""
        ...

    def node_count(self) -> int: ...

    def known(self, names: Iterable[str], /) -> frozenset[str]:
        """Return which of these nodes the manager knows, at a cost that doesn't grow with those that it doesn't."""
        ...

    def subjects_on(self, node: str, /) -> frozenset[str]:
        """Return whose work the node runs: Slurm's users, by name and number; in Kubernetes the subjects of its pods' namespaces."""
        ...

    def has_pod(self, node: str, pods: Iterable[str], /) -> bool:
        """Return whether one of these pods (namespace/name/uid) lives on the node; Slurm has none."""
        ...

    def drain(self, node: str, reason: str, /) -> None:
        """Have the node take nothing new; ``reason`` carries our mark."""
        ...

    def undrain(self, node: str, /) -> None:
        """Take our drain back."""
        ...

    def reboot(self, node: str, reason: str, /) -> None: ...
