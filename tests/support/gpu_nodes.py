"""The /sys of nodes with GPUs as they are sold: PCI addresses, switches, cards, links. By hand; nothing here was recorded.

Addresses and names of the DGX H100: its user guide (docs.nvidia.com/dgx/dgxh100-user-guide), table of network ports, and the topology that `nvidia-smi topo -m` prints in
published logs. Each compute NIC shares a PCIe switch with one GPU; the two dual-port storage cards stand on root ports of their own.
"""

from pathlib import Path

from tests.support.nics import add_net, add_pci, add_rdma, link, write

GPU, IB, ETHERNET = ("0x030200", "0x10de"), ("0x020700", "0x15b3"), ("0x020000", "0x15b3")
# NIC, GPU, RDMA device, interface
COMPUTE = (
    ("18", "1b", "mlx5_0", "ibp24s0"),
    ("40", "43", "mlx5_3", "ibp64s0"),
    ("4f", "52", "mlx5_4", "ibp79s0"),
    ("5e", "61", "mlx5_5", "ibp94s0"),
    ("9a", "9d", "mlx5_6", "ibp154s0"),
    ("c0", "c3", "mlx5_9", "ibp192s0"),
    ("ce", "d1", "mlx5_10", "ibp206s0"),
    ("dc", "df", "mlx5_11", "ibp220s0"),
)
STORAGE = (
    ("29:00.0", "mlx5_1", "ens41f0np0", True),
    ("29:00.1", "mlx5_2", "ens41f1np1", False),
    ("aa:00.0", "mlx5_7", "ens170f0np0", True),
    ("aa:00.1", "mlx5_8", "ens170f1np1", False),
)
GPU_BUSES = tuple(int(gpu, 16) for _nic, gpu, _device, _interface in COMPUTE)


def make_dgx_h100(
    root: Path,
    *,
    link_layer: str = "InfiniBand",
    lost_gpus: tuple[str, ...] = (),
    lost_nics: tuple[str, ...] = (),
    down: tuple[str, ...] = (),
) -> Path:
    """Make 8 GPUs, 8 compute NICs of 400 Gbit/s, 4 storage ports and a management NIC; return its /sys."""
    sys = root / "sys"
    for number, (nic, gpu, device, interface) in enumerate(COMPUTE):
        numa_node, bridge = number // 4, f"{int(nic, 16) - 3:02x}"
        switch = f"{bridge}/{bridge}:01.0/{int(nic, 16) - 2:02x}:00.0/{int(nic, 16) - 1:02x}"
        if gpu not in lost_gpus:
            add_pci(sys, f"{switch}:01.0/{gpu}:00.0", *GPU, numa_node, "nvidia")
        if device in lost_nics:
            continue
        kind = IB if link_layer == "InfiniBand" else ETHERNET
        pci = add_pci(sys, f"{switch}:00.0/{nic}:00.0", *kind, numa_node, "mlx5_core")
        port = add_rdma(sys, device, pci, link_layer, "400 Gb/sec (4X NDR)")
        add_net(sys, interface, pci, "400000")
        if device in down:
            write(port / "state", "1: DOWN")
            write(port / "phys_state", "3: Disabled")
    for address, device, interface, is_up in STORAGE:
        bus = address.partition(":")[0]
        chain = f"{int(bus, 16) - 3:02x}/{int(bus, 16) - 3:02x}:01.0/{address}"
        pci = add_pci(sys, chain, *ETHERNET, int(bus, 16) // 0x80, "mlx5_core")
        port = add_rdma(sys, device, pci, "Ethernet", "200 Gb/sec (4X HDR)")
        add_net(sys, interface, pci, "200000")
        write(port / "state", "4: ACTIVE" if is_up else "1: DOWN")
    management = add_pci(sys, "00/00:1c.0/06:00.0", "0x020000", "0x8086", 0, "ixgbe")
    add_net(sys, "eno3", management, "10000")
    _default_route(root, "eno3")
    return sys


def make_cloud_node(root: Path) -> Path:
    """Make a virtual machine with one GPU and one NIC without RDMA, both straight below the host bridge."""
    sys = root / "sys"
    add_pci(sys, "00/00:1e.0", *GPU, -1, "nvidia")
    nic = add_pci(sys, "00/00:05.0", "0x020000", "0x1d0f", -1, "ena")
    add_net(sys, "ens5", nic, "-1")
    _default_route(root, "ens5")
    return sys


def make_bare_machine(root: Path, *, nics: int = 8) -> Path:
    """Make a virtual machine that shows no PCIe switch: each device stands in a PCI domain of its own, as Hyper-V passes them through."""
    sys = root / "sys"
    for number in range(8):
        add_pci(sys, "00/00:00.0", *GPU, number // 4, "nvidia", domain=f"{number + 1:04x}")
    for number in range(nics):
        domain = f"{number + 0x101:04x}"
        pci = add_pci(sys, "00/00:00.0", *IB, number // 4, "mlx5_core", domain=domain)
        add_rdma(sys, f"mlx5_ib{number}", pci, "InfiniBand", "400 Gb/sec (4X NDR)")
        add_net(sys, f"ib{number}", pci, "400000")
    fast_ethernet = add_pci(sys, "00/00:02.0", *ETHERNET, 0, "mlx5_core", domain="aaaa")
    add_rdma(sys, "mlx5_an0", fast_ethernet, "Ethernet", "100 Gb/sec (4X EDR)")
    add_net(sys, "eth1", fast_ethernet, "100000")
    _default_route(root, "eth0")
    return sys


def add_virtual_functions(sys: Path, device: str, count: int) -> None:
    """Give an RDMA device virtual functions, as a host has that hands them to pods."""
    card = (sys / "class" / "infiniband" / device / "device").resolve()
    bus = card.name.rpartition(":")[0]
    for number in range(count):
        folder = card.parent / f"{bus}:{(number + 1) // 8:02x}.{(number + 1) % 8}"
        write(folder / "class", "0x020700")
        write(folder / "vendor", "0x15b3")
        link(folder / "physfn", card)
        add_rdma(sys, f"{device}v{number}", folder, "InfiniBand", "400 Gb/sec (4X NDR)")


def _default_route(root: Path, interface: str) -> None:
    write(root / "proc" / "net" / "route", f"Iface\tDestination\n{interface}\t00000000\tx")
