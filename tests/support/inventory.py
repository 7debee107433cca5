"""A node whose devices come and go."""

import shutil
from pathlib import Path

from agent.collectors.inventory import InventoryCollector
from agent.expected_devices import ExpectedDevices
from agent.sampling.collection import CollectorView
from agent.sources.pci_topology import Plane
from agent.sources.remembered_devices import InventoryFile
from tests.support.agent import FakeClock, values_of
from tests.support.nics import make_node, write


def make_tree(folder: Path) -> Path:
    """Make a node with three RDMA devices and a network card of which /sys tells the identities."""
    tree = make_node(folder)
    for name, guid in (("mlx5_0", "946d:ae03:00f4:0001"), ("mlx5_1", "0000:0000:0000:0000")):
        write(tree / "class" / "infiniband" / name / "node_guid", guid)
    eth0 = tree / "class" / "net" / "eth0"
    write(eth0 / "address", "04:3f:72:aa:00:01")
    write(eth0 / "addr_assign_type", "0")
    return tree


class Bed:
    """A node's /tree, its state folder, and the collector of one boot after the other."""

    def __init__(self, tree: Path, state: Path) -> None:
        self.tree, self.state = tree, state
        self.views: list[CollectorView] = []
        self.machine_id = state.parent / "machine-id"
        self.machine_id.write_text("a" * 32 + "\n")
        self.expect = ExpectedDevices()
        self.planes = {"mlx5_[01]": Plane.COMPUTE, "mlx5_2": Plane.STORAGE}
        self.boot("boot-1")

    def boot(self, boot_id: str) -> None:
        self.inventory = InventoryCollector(
            self.tree,
            self.tree.parent / "proc",
            FakeClock(),
            self.expect,
            ["mlx5_3"],
            self.planes,
            InventoryFile(self.state / "inventory.json", self.machine_id),
            boot_id,
        )
        self.inventory.watch(lambda: self.views)

    def look(self) -> dict[str, float]:
        return values_of(list(self.inventory.collect()))

    def hide(self, *names: str) -> None:
        """Move RDMA or network devices to a container: their PCI functions keep their drivers."""
        for name in names:
            for folder in ("infiniband", "net"):
                entry = self.tree / "class" / folder / name
                if entry.is_symlink():
                    shutil.rmtree(entry.resolve())
                    entry.unlink()

    def pull(self, name: str) -> None:
        """Take an RDMA device out of /sys with its PCI function."""
        entry = self.tree / "class" / "infiniband" / name
        function = entry.resolve().parent.parent
        entry.unlink()
        (self.tree / "bus" / "pci" / "devices" / function.name).unlink()
        shutil.rmtree(function)


def make_bed(tree: Path, folder: Path) -> Bed:
    """Return the bed of a tree, with a new state folder."""
    state = folder / "state"
    state.mkdir()
    return Bed(tree, state)
