"""A node of 8 GPUs, 10 NICs and 60 sensors as a tree of files, in the form that the kernel gives them.

Both agents of the comparison read the same tree. Names and forms: Linux Documentation/ABI/stable/
sysfs-class-infiniband and Documentation/hwmon/sysfs-interface.rst; the counters are those of an
mlx5 card.
"""

from pathlib import Path

COUNTERS = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]
HW_COUNTERS = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
]
SENSORS_OF_CHIP = 10


def make_sysfs(root: Path, nics: int, sensors: int) -> None:
    for number in range(nics):
        _make_nic(root, number)
    for number in range(-(-sensors // SENSORS_OF_CHIP)):
        _make_chip(root, number, min(SENSORS_OF_CHIP, sensors - number * SENSORS_OF_CHIP))


def _make_nic(root: Path, number: int) -> None:
    device = root / f"devices/pci0000:{number:02x}/0000:{number:02x}:00.0"
    folder = device / f"infiniband/mlx5_{number}"
    _write(device, {"vendor": "0x15b3", "device": "0x1021", "numa_node": str(number % 2)})
    _write(
        folder,
        {
            "fw_ver": "28.39.1002",
            "hca_type": "MT4129",
            "board_id": "MT_0000000838",
            "node_guid": f"b83f:d203:00a5:{number:04x}",
        },
    )
    port = folder / "ports/1"
    _write(
        port,
        {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            "lid": hex(number),
            "sm_lid": "0x1",
            "cap_mask": "0xa751e84a",
        },
    )
    _write(port / "counters", {name: str(10**9 + number) for name in COUNTERS})
    _write(port / "hw_counters", {name: str(number) for name in HW_COUNTERS} | {"lifespan": "10"})
    _link(root / f"class/infiniband/mlx5_{number}", folder)
    (folder / "device").symlink_to(device)


def _make_chip(root: Path, number: int, sensors: int) -> None:
    folder = root / f"devices/platform/coretemp.{number}/hwmon/hwmon{number}"
    files = {"name": "coretemp"}
    for sensor in range(1, sensors + 1):
        files |= {
            f"temp{sensor}_input": str(40_000 + 100 * sensor),
            f"temp{sensor}_max": "95000",
            f"temp{sensor}_crit": "105000",
            f"temp{sensor}_crit_alarm": "0",
            f"temp{sensor}_label": f"Core {sensor}",
        }
    _write(folder, files)
    _link(root / f"class/hwmon/hwmon{number}", folder)
    (folder / "device").symlink_to(folder.parent.parent)


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
