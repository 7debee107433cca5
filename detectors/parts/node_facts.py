"""What a node's agent tells of its GPUs and NICs, as far as the topology file needs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NO_CLUSTER: Final = "0" * 32  # the UUID of a node whose GPUs are joined to those of no other node


@dataclass(frozen=True, slots=True)
class ToldNic:
    """A port of an RDMA device, or a network device without RDMA."""

    device: str
    port: str
    interface: str
    pci_bus_id: str
    numa_node: int | None
    link_layer: str
    model: str
    bytes_per_s: float | None  # that the link ought to have
    is_up: bool | None  # None: not told
    is_rdma: bool
    plane: str
    rail: int | None
    is_configured: (
        bool  # plane and rail stand in the agent's configuration; else it has guessed them
    )

    @property
    def place(self) -> tuple[str, str]:
        """Return where it sits, which is the same on nodes that are built alike."""
        return self.pci_bus_id or self.device, self.port


@dataclass(frozen=True, slots=True)
class ToldGpu:
    pci_bus_id: str
    numa_node: int | None
    # Of the fabric: cluster UUID in hexadecimal, clique. None: none, or the GPU has not joined it.
    clique: tuple[str, str] | None = None
    peers: Mapping[str, int] = field(default_factory=dict)  # NVLinks to other GPUs, by bus id
    nvswitch_links: int = 0
    chassis: str = ""  # serial number of the chassis it sits in; "": the driver names none


@dataclass(frozen=True, slots=True)
class NodeFacts:
    node: str
    gpus: tuple[ToldGpu, ...] = ()  # in the order of their bus ids
    nics: tuple[ToldNic, ...] = ()
    closeness: Mapping[tuple[str, str], str] = field(default_factory=dict)  # of a GPU and a device
