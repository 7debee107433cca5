"""A node's /sys with GPUs and network cards, in small, and transceivers made byte by byte.

Nothing here was recorded. Forms of files: Linux Documentation/ABI/stable/sysfs-class-infiniband,
testing/sysfs-class-net, testing/sysfs-bus-pci, drivers/infiniband/core/sysfs.c (6.12).

    host bridge 15 (NUMA 0)  switch: GPU 18, mlx5_0 (1a)
    host bridge 37 (NUMA 0)  switch: GPU 39, mlx5_1 (3b)
    host bridge 80 (NUMA 1)  mlx5_2 (81): RoCE, device ens2np0; mlx5_3 (82): limited function
                             eth0 (83): management, default route; usb0: a BMC's
"""

import os
import struct
from pathlib import Path

ZEROS = [
    "link_error_recovery",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "VL15_dropped",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def add_pci(
    sys: Path,
    chain: str,
    kind: str,
    vendor: str,
    numa_node: int,
    driver: str,
    domain: str = "0000",
) -> Path:
    """Make a PCI device under its bridges; ``chain`` is such as ``15/15:01.0/16:00.0``."""
    root, *bridges = chain.split("/")
    folder = sys / "devices" / f"pci{domain}:{root}"
    for bridge in bridges:
        folder /= f"{domain}:{bridge}"
    write(folder / "class", kind)
    write(folder / "vendor", vendor)
    write(folder / "numa_node", str(numa_node))
    write(folder / "local_cpulist", "0-31" if numa_node == 0 else "32-63")
    (sys / "bus" / "pci" / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    link(folder / "driver", sys / "bus" / "pci" / "drivers" / driver)
    link(sys / "bus" / "pci" / "devices" / folder.name, folder)
    return folder


def add_rdma(sys: Path, name: str, pci: Path, link_layer: str, rate: str) -> Path:
    """Make an RDMA device with one port; return the folder of the port."""
    device = pci / "infiniband" / name
    link(device / "device", pci)
    link(sys / "class" / "infiniband" / name, device)
    write(device / "fw_ver", "28.41.1000")
    write(device / "hca_type", "MT4129")
    write(device / "board_id", "MT_0000000838" if link_layer == "InfiniBand" else "MT_0000000884")
    port = device / "ports" / "1"
    write(port / "state", "4: ACTIVE")
    write(port / "phys_state", "5: LinkUp")
    write(port / "rate", rate)
    write(port / "link_layer", link_layer)
    counters = dict.fromkeys(ZEROS, "0") | {
        "port_xmit_data": "1000",
        "port_rcv_data": "18446744073709551615",
        "port_xmit_packets": "7",
        "port_rcv_packets": "8",
        "unicast_xmit_packets": "7",
        "unicast_rcv_packets": "8",
        "symbol_error": "65534",
        "link_downed": "255",
        "port_rcv_errors": "3",
        "excessive_buffer_overrun_errors": "15",
        "port_xmit_wait": "N/A (no PMA)",
    }
    for counter, value in counters.items():
        write(port / "counters" / counter, value)
    for counter, value in (
        ("lifespan", "12"),
        ("np_cnp_sent", "41"),
        ("out_of_sequence", "5"),
        ("roce_adp_retrans", "2"),
        ("active_qps", "9"),
    ):
        write(port / "hw_counters" / counter, value)
    return port


def add_net(sys: Path, name: str, parent: Path, speed_mbit: str = "200000") -> Path:
    """Make a network device beneath ``parent``; return its folder."""
    folder = parent / "net" / name
    link(folder / "device", parent)
    link(sys / "class" / "net" / name, folder)
    for file, text in (
        ("flags", "0x1003"),
        ("carrier", "1"),
        ("carrier_changes", "4"),
        ("carrier_down_count", "2"),
        ("speed", speed_mbit),
        ("mtu", "9000"),
        ("dev_port", "0"),
        ("statistics/rx_crc_errors", "6"),
        ("statistics/tx_carrier_errors", "1"),
    ):
        write(folder / file, text)
    return folder


def make_node(root: Path) -> Path:
    """Make the node described above; return its /sys. Its /proc lies beside it."""
    sys = root / "sys"
    gpu, nic = ("0x030200", "0x10de"), ("0x020700", "0x15b3")
    add_pci(sys, "15/15:01.0/16:00.0/17:00.0/18:00.0", *gpu, 0, "nvidia")
    add_pci(sys, "37/37:01.0/38:00.0/38:01.0/39:00.0", *gpu, 0, "nvidia")
    add_pci(sys, "80/80:05.0/85:00.0", "0x030000", "0x1a03", 1, "ast")  # a BMC's VGA
    first = add_pci(sys, "15/15:01.0/16:00.0/17:02.0/1a:00.0", *nic, 0, "mlx5_core")
    second = add_pci(sys, "37/37:01.0/38:00.0/38:02.0/3b:00.0", *nic, 0, "mlx5_core")
    storage = add_pci(sys, "80/80:01.0/81:00.0", "0x020000", "0x15b3", 1, "mlx5_core")
    limited = add_pci(sys, "80/80:02.0/82:00.0", "0x020000", "0x15b3", 1, "mlx5_core")
    management = add_pci(sys, "80/80:03.0/83:00.0", "0x020000", "0x8086", 1, "ice")
    add_rdma(sys, "mlx5_0", first, "InfiniBand", "400 Gb/sec (4X NDR)")
    add_rdma(sys, "mlx5_1", second, "InfiniBand", "200 Gb/sec (2X NDR)")  # half of its lanes
    add_rdma(sys, "mlx5_2", storage, "Ethernet", "200 Gb/sec (4X HDR)")
    add_rdma(sys, "mlx5_3", limited, "Ethernet", "200 Gb/sec (4X HDR)")
    add_net(sys, "ens2np0", storage)
    add_net(sys, "eth0", management, speed_mbit="25000")
    usb = sys / "devices" / "pci0000:80" / "0000:80:14.0" / "usb1" / "1-8" / "1-8:1.0"
    usb.mkdir(parents=True)
    (sys / "bus" / "usb" / "drivers" / "cdc_ether").mkdir(parents=True)
    link(usb / "driver", sys / "bus" / "usb" / "drivers" / "cdc_ether")
    add_net(sys, "usb0", usb, speed_mbit="-1")
    write(sys / "devices" / "virtual" / "net" / "lo" / "flags", "0x9")
    link(sys / "class" / "net" / "lo", sys / "devices" / "virtual" / "net" / "lo")
    write(sys / "module" / "mlx5_core" / "version", "24.10-1.1.4")
    write(
        root / "proc" / "net" / "route",
        "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0100000A\t0003\n"
        "ens2np0\t0000010A\t00000000\t0001",
    )
    return sys


def put(memory: bytearray, offset: int, *values: int) -> None:
    """Write big-endian 16-bit numbers."""
    for index, value in enumerate(values):
        struct.pack_into(">H" if value >= 0 else ">h", memory, offset + 2 * index, value)


def put_text(memory: bytearray, offset: int, text: str, length: int) -> None:
    memory[offset : offset + length] = text.encode().ljust(length)


def sff_8472(*, is_external: bool = False) -> bytes:
    """A 25G SFP28 at 40.5 degrees, receiving 0.5 mW."""
    identity, diagnostics = bytearray(256), bytearray(256)
    identity[0], identity[92] = 0x03, 0x50 if is_external else 0x60
    put_text(identity, 20, "Finisar", 16)
    put_text(identity, 40, "FTLF8536P4BCL", 16)
    put_text(identity, 68, "UVK0SQM", 16)
    put(diagnostics, 0, 75 * 256, -5 * 256)  # temperature alarms
    put(diagnostics, 24, 20_000, 1_000)
    put(diagnostics, 32, 22_000, 500)
    put(diagnostics, 96, int(40.5 * 256), 33_000, 3_500, 9_000, 5_000)
    diagnostics[110] = 0x02
    if is_external:
        diagnostics[56:76] = struct.pack(">5f", 0, 0, 0, 2.0, 100.0)  # 2 raw + 100
        put(diagnostics, 76, 256, 0, 256, 0, 256, 512, 256, 0)  # temperature: two degrees more
    return bytes(identity + diagnostics)


def sff_8636(*, is_copper: bool = False) -> bytes:
    """A 100G QSFP28 at -3.25 degrees; its third lane receives nothing."""
    memory = bytearray(640)
    memory[0] = 0x11
    put_text(memory, 148, "Mellanox", 16)
    put_text(memory, 168, "MMA1B00-C100D", 16)
    put_text(memory, 184, "B2", 2)
    put_text(memory, 196, "MT2001FT05555", 16)
    if is_copper:
        memory[147] = 0xA0
        return bytes(memory[:256])
    memory[3], memory[220] = 0x04, 0x0C
    put(memory, 22, int(-3.25 * 256))
    put(memory, 26, 32_500)
    put(memory, 34, 8_000, 8_100, 1, 8_300, 3_000, 3_100, 3_200, 3_300, 7_000, 7_100, 7_200, 7_300)
    put(memory, 512, 80 * 256, -10 * 256)
    put(memory, 512 + 48, 34_000, 400)
    put(memory, 512 + 64, 30_000, 700)
    return bytes(memory)


def cmis(*, is_flat: bool = False) -> bytes:
    """A 400G OSFP at 55.5 degrees with 4 media lanes; lane 2 has lost its light."""
    memory = bytearray(640)
    memory[0], memory[1], memory[2] = 0x19, 0x50, 0x80 if is_flat else 0
    memory[88] = 0x84  # 8 lanes to the host, 4 to the fibre
    put(memory, 14, int(55.5 * 256), 33_100)
    put_text(memory, 129, "NVIDIA", 16)
    put_text(memory, 148, "MMS4X00-NM", 16)
    put_text(memory, 164, "A3", 2)
    put_text(memory, 166, "MT2245FT01234", 16)
    memory[256 + 160 - 128] = 0x07 | 0x08  # bias (times 2), sent and received light
    put(memory, 384, 75 * 256, -5 * 256)
    put(memory, 384 + 48, 50_000, 2_000)
    put(memory, 384 + 64, 60_000, 1_500)
    memory[512 + 147 - 128] = 0x02
    put(memory, 512 + 26, 10_000, 10_100, 10_200, 10_300)
    put(memory, 512 + 42, 20_000, 20_100, 20_200, 20_300)
    put(memory, 512 + 58, 9_000, 0, 9_200, 9_300)
    return bytes(memory)
