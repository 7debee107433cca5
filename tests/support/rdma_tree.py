"""A node's RDMA devices in small, as sysfs shows them. Forms of files: Linux Documentation/ABI/{stable,testing}/sysfs-class-infiniband.

An unused GID index can't be read on a real node (EINVAL); a folder in place of the file can't be read either.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.nics import write

ACTIVE, DOWN, INIT = "4: ACTIVE", "1: DOWN", "2: INIT"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def add_port(
    sysfs: Path,
    device: str,
    *,
    state: str = ACTIVE,
    link_layer: str = "Ethernet",
    gids: Sequence[tuple[str, str, str] | None] = (),
    port: int = 1,
) -> Path:
    """Make a port; ``gids``: interface, type and GID of each index, None for an unused one."""
    folder = sysfs / "class/infiniband" / device / "ports" / str(port)
    write(folder / "state", state)
    write(folder / "link_layer", link_layer)
    for index, entry in enumerate(gids):
        interface, kind, gid = entry or ("", "", NO_GID)
        write(folder / f"gids/{index}", gid)
        for name, text in (("ndevs", interface), ("types", kind)):
            if entry is None:
                (folder / "gid_attrs" / name / str(index)).mkdir(parents=True)
            else:
                write(folder / "gid_attrs" / name / str(index), text)
    return folder


def add_ipoib(sysfs: Path, interface: str, device: str, port: int = 1) -> None:
    """Lay an IPoIB interface on a port: they share a PCI device."""
    pci = sysfs / "devices" / f"pci-{device}"
    for kind, name in (("net", interface), ("infiniband", device)):
        (pci / kind / name).mkdir(parents=True, exist_ok=True)
    net = sysfs / "class/net" / interface
    write(net / "dev_port", str(port - 1))
    for link in (net / "device", sysfs / "class/infiniband" / device / "device"):
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(pci)


def make_roce_tree(sysfs: Path, interface_of: Mapping[str, str]) -> Path:
    """Make RoCE devices that each carry an interface, with GIDs as mlx5 lists them."""
    for device, interface in interface_of.items():
        gid = "fe80:0000:0000:0000:0a00:27ff:fe4e:66a1"
        add_port(
            sysfs,
            device,
            gids=[(interface, "IB/RoCE v1", gid), (interface, "RoCE v2", gid), None],
        )
    return sysfs
