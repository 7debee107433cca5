"""Every metric that the agent serves: the one list, compared with docs/reference/metrics.md by a test.

Names: rankmend_<subject>_<quantity>_<unit>[_total], base units. Device series carry device
labels only, rank series ``job_id`` and ``rank``; the rest is joined from an info metric.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class MetricType(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):  # thousands a second: half as dear as a dataclass, compared in C
    """One sample: a name out of `FAMILIES` and its labels in the order given there."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    type: MetricType
    unit: str  # empty: a plain number
    labels: tuple[str, ...]
    help: str


def _counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(f"rankmend_{name}_total", MetricType.COUNTER, unit, labels, text)


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(f"rankmend_{name}", MetricType.GAUGE, unit, labels, text)


_DISK = ("device", "mount")
_MOUNT = ("mount", "type")
_MODULE = ("controller", "module")
_GPU = ("gpu", "uuid", "pci_bus_id")
_MIG = (*_GPU, "gpu_instance", "compute_instance")
_FINDING = ("check", "component", "uuid", "device", "severity", "action")
_SENSOR = ("device", "sensor")
_PORT = ("device", "port")
_WAY = ("device", "direction")
_RANK = ("job_id", "rank")

_ALL: Final = (
    # the runner, for each collector
    _gauge(
        "collector_success",
        "",
        ("collector",),
        "1 when the last finished run measured, 0 when its source was broken; no series when the node has no such source.",
    ),
    _gauge(
        "collector_present",
        "",
        ("collector",),
        "1 when this node has the collector's source, 0 when it has none.",
    ),
    _gauge(
        "collector_duration_seconds",
        "seconds",
        ("collector",),
        "How long the last finished run took.",
    ),
    _gauge(
        "collector_age_seconds",
        "seconds",
        ("collector",),
        "Age of the collector's newest answer; grows while it is stuck or broken.",
    ),
    _counter("collector_failures", "", ("collector",), "Runs that found their source broken."),
    _gauge(
        "collector_stale",
        "",
        ("collector",),
        "1 when the newest answer is so old that its values have left the page.",
    ),
    # agent/plugins.py
    _gauge(
        "plugin_info",
        "",
        ("plugin", "package", "version", "proof"),
        "A plugin that the configuration names, and whether it was proved on hardware; always 1.",
    ),
    _gauge(
        "plugin_loaded",
        "",
        ("plugin",),
        "1 when the plugin could be imported and used, 0 when not.",
    ),
    # agent/collectors/agent.py
    _gauge("agent_info", "", ("version", "python"), "Version of the agent; always 1."),
    _gauge("agent_uptime_seconds", "seconds", (), "Time since the agent started."),
    _gauge("agent_memory_bytes", "bytes", (), "Resident memory of the agent."),
    _counter("agent_cpu_seconds", "seconds", (), "CPU time that the agent has used."),
    _gauge("agent_threads", "", (), "Threads of the agent."),
    _gauge("agent_descriptors", "", (), "Open file descriptors of the agent."),
    _gauge("agent_connections", "", (), "Launchers connected to the agent's socket."),
    _counter(
        "agent_connections_refused",
        "",
        (),
        "Connections that the agent closed: a bad message, a foreign file, a bound reached.",
    ),
    # agent/collectors/host.py
    _gauge("host_uptime_seconds", "seconds", (), "Time since the node booted."),
    _gauge("host_cpus", "", (), "Logical CPUs that are online."),
    _counter(
        "host_cpu_seconds",
        "seconds",
        ("mode",),
        "CPU time of all CPUs by mode; user contains guest.",
    ),
    _gauge(
        "host_load_processes",
        "processes",
        ("window",),
        "Load average: processes that run or wait, over 1m, 5m and 15m.",
    ),
    _gauge("host_memory_size_bytes", "bytes", (), "Memory of the node."),
    _gauge(
        "host_memory_available_bytes",
        "bytes",
        (),
        "Memory that can be had without swapping (MemAvailable).",
    ),
    _gauge(
        "host_memory_shared_bytes",
        "bytes",
        (),
        "Shared memory and tmpfs, /dev/shm among it (Shmem).",
    ),
    _gauge("host_swap_size_bytes", "bytes", (), "Swap space of the node."),
    _gauge("host_swap_used_bytes", "bytes", (), "Swap space in use."),
    _counter("host_swap_in_bytes", "bytes", (), "Read back from swap since boot."),
    _counter("host_swap_out_bytes", "bytes", (), "Written to swap since boot."),
    _gauge(
        "host_file_success",
        "",
        ("file",),
        "1 when a file of /proc could be understood, 0 when not: its values are then missing.",
    ),
    _gauge("host_threads", "", (), "Threads of all processes."),
    _gauge("host_tasks_running", "", (), "Threads that run or could run now."),
    _gauge("host_tasks_blocked", "", (), "Threads that wait for a disk or a server now."),
    _gauge("host_memory_dirty_bytes", "bytes", (), "Written by programs and not yet to disk."),
    _gauge("host_memory_writeback_bytes", "bytes", (), "Being written to disk now."),
    _gauge(
        "host_memory_unreclaimable_bytes",
        "bytes",
        (),
        "Kernel memory that can't be reclaimed (SUnreclaim); grows with a leak in a driver.",
    ),
    _gauge(
        "host_memory_corrupted_bytes",
        "bytes",
        (),
        "Memory that the kernel has taken out of use after memory errors (HardwareCorrupted).",
    ),
    _gauge("host_huge_pages_size_bytes", "bytes", (), "Huge pages of the default size."),
    _gauge("host_huge_pages_available_bytes", "bytes", (), "Huge pages that nobody uses."),
    _counter("host_oom_kills", "", (), "Processes killed for want of memory since boot."),
    _gauge("host_descriptors", "", (), "Open files of the whole node (file-nr)."),
    _gauge("host_descriptors_max", "", (), "Files that the node can have open (file-max)."),
    _gauge("host_kernel_taint", "", (), "The kernel's taint bits as one number, 0 when untainted."),
    _gauge(
        "host_kernel_taint_info",
        "",
        ("reason",),
        "One reason why the kernel is tainted; always 1.",
    ),
    # agent/collectors/processes.py
    _gauge("host_processes", "", ("state",), "Processes by state; disk_sleep is state D."),
    _gauge(
        "host_processes_stuck", "", (), "Processes that each look has found in state D for 50 s."
    ),
    _gauge(
        "host_process_stuck_seconds",
        "seconds",
        ("pid", "process"),
        "How long at least a stuck process has been in state D; of the 16 longest.",
    ),
    _gauge("host_pid_max", "", (), "Process numbers that there are."),
    _gauge("host_threads_max", "", (), "Threads that the kernel lets run."),
    # agent/collectors/cgroup.py
    _gauge("rank_cgroup_info", "", ("job_id", "rank", "cgroup"), "The rank's cgroup; always 1."),
    _gauge(
        "cgroup_success",
        "",
        ("cgroup",),
        "1 when all files of the cgroup could be understood, 0 when one could not.",
    ),
    _gauge("cgroup_memory_used_bytes", "bytes", ("cgroup",), "Memory charged to the cgroup."),
    _gauge("cgroup_memory_limit_bytes", "bytes", ("cgroup",), "Its limit; no series without one."),
    _counter("cgroup_memory_limit_hits", "", ("cgroup",), "Times that the limit was reached."),
    _counter(
        "cgroup_oom_kills",
        "",
        ("cgroup",),
        "Processes killed for want of memory; v2 counts those of the cgroups below as well.",
    ),
    _counter(
        "cgroup_cpu_periods", "", ("cgroup",), "Scheduling periods in which it wanted to run."
    ),
    _counter(
        "cgroup_cpu_throttled_periods", "", ("cgroup",), "Periods in which its CPU quota ran out."
    ),
    _counter(
        "cgroup_cpu_throttled_seconds",
        "seconds",
        ("cgroup",),
        "Time during which it was kept from running by its CPU quota, over all CPUs.",
    ),
    _gauge("cgroup_pids", "", ("cgroup",), "Processes and threads of the cgroup."),
    _gauge("cgroup_pids_limit", "", ("cgroup",), "Their limit; no series without one."),
    # agent/collectors/edac.py
    _counter(
        "edac_controller_corrected",
        "",
        ("controller",),
        "Corrected memory errors of a memory controller since its driver was loaded.",
    ),
    _counter("edac_controller_uncorrected", "", ("controller",), "Its uncorrected memory errors."),
    _counter(
        "edac_controller_corrected_unplaced",
        "",
        ("controller",),
        "Corrected memory errors of which the driver can't tell the module.",
    ),
    _counter(
        "edac_controller_uncorrected_unplaced",
        "",
        ("controller",),
        "Uncorrected memory errors of which the driver can't tell the module.",
    ),
    _counter("edac_module_corrected", "", _MODULE, "Corrected memory errors of a memory module."),
    _counter(
        "edac_module_uncorrected", "", _MODULE, "Uncorrected memory errors of a memory module."
    ),
    _gauge(
        "edac_module_info",
        "",
        (*_MODULE, "label", "location"),
        "What is printed beside the module's slot, and where it is; always 1.",
    ),
    _gauge(
        "edac_file_success", "", ("controller", "file"), "0 for a count that can't be understood."
    ),
    # agent/collectors/pcie_aer.py
    _gauge(
        "pcie_aer_success",
        "",
        ("pci_bus_id", "severity"),
        "1 when the device's error counts could be understood, 0 when not.",
    ),
    _counter(
        "pcie_aer_errors",
        "",
        ("pci_bus_id", "severity"),
        "PCIe errors of a device since boot: correctable, nonfatal, fatal.",
    ),
    _counter(
        "pcie_aer_kind_errors",
        "",
        ("pci_bus_id", "severity", "kind"),
        "The same by kind; a kind that has not happened has no series.",
    ),
    _counter(
        "pcie_aer_messages",
        "",
        ("pci_bus_id", "severity"),
        "Error messages that a root port has taken from the devices below it.",
    ),
    # agent/collectors/mounts.py
    _gauge(
        "mount_success",
        "",
        _MOUNT,
        "1 when the file system answered, 0 when it failed or hangs.",
    ),
    _gauge(
        "mount_hung_seconds", "seconds", _MOUNT, "How long it has not answered; 0 when it does."
    ),
    _gauge("mount_answer_seconds", "seconds", _MOUNT, "How long it took to say how full it is."),
    _gauge(
        "mount_read_only",
        "",
        _MOUNT,
        "1 when it became read-only, as after an error; 0 for one mounted read-only on purpose.",
    ),
    _gauge("mount_present", "", ("mount",), "1 when a mount of the configuration is there."),
    _gauge("mount_size_bytes", "bytes", _MOUNT, "Size of a file system that is on no local disk."),
    _gauge("mount_available_bytes", "bytes", _MOUNT, "Space left on it for ordinary users."),
    _gauge("mount_inodes", "", _MOUNT, "Files that it can hold; no series where not limited."),
    _gauge("mount_inodes_available", "", _MOUNT, "Files that ordinary users can still make."),
    # agent/collectors/clock.py
    _counter("clock_steps", "", (), "Times that the clock was set since the agent started."),
    _counter(
        "clock_step_seconds", "seconds", ("way",), "By how much in all, forward and backward."
    ),
    _gauge(
        "clock_kernel_success",
        "",
        (),
        "1 when the kernel said how its clock is kept (adjtimex), 0 when it may not be asked.",
    ),
    _gauge(
        "clock_synchronised", "", (), "1 when a time service keeps the clock, 0 when none does."
    ),
    _gauge("clock_offset_seconds", "seconds", (), "What is left to correct."),
    _gauge("clock_error_max_seconds", "seconds", (), "Largest error that the clock can have."),
    _gauge("clock_error_estimated_seconds", "seconds", (), "Error as the time service estimates."),
    _gauge(
        "clock_frequency_correction_ratio",
        "ratio",
        (),
        "Correction of the clock's rate; 0.00001 is 10 parts per million.",
    ),
    _gauge("clock_source_info", "", ("source",), "Hardware behind the clock; always 1."),
    # agent/collectors/services.py
    _gauge("service_active", "", ("unit",), "1 when a systemd unit that ought to run does."),
    _counter("service_restarts", "", ("unit",), "Times that systemd has restarted it."),
    _gauge(
        "service_info",
        "",
        ("unit", "load", "active", "sub", "result"),
        "Its state in systemd's words; always 1.",
    ),
    _gauge(
        "module_loaded", "", ("module",), "1 when a kernel module of the configuration is there."
    ),
    # agent/collectors/versions.py
    _gauge(
        "version_info",
        "",
        ("component", "device", "version"),
        "Version of the kernel, a driver or a firmware; always 1.",
    ),
    _gauge(
        "version_matches_baseline",
        "",
        ("component", "device"),
        "1 when it is one of the baseline's, 0 when not or when the component is missing.",
    ),
    # agent/collectors/disk.py
    _gauge("disk_size_bytes", "bytes", _DISK, "Size of a mounted file system on a disk."),
    _gauge("disk_available_bytes", "bytes", _DISK, "Space left for ordinary users."),
    _gauge("disk_inodes", "", _DISK, "Files that it can hold; no series where not limited."),
    _gauge("disk_inodes_available", "", _DISK, "Files that ordinary users can still make."),
    _gauge(
        "disk_usage_success",
        "",
        _DISK,
        "1 when the file system answered how full it is, 0 when it failed.",
    ),
    _counter("disk_read_bytes", "bytes", ("device",), "Read from the disk since boot."),
    _counter("disk_written_bytes", "bytes", ("device",), "Written to the disk since boot."),
    _counter("disk_reads", "", ("device",), "Finished reads since boot."),
    _counter("disk_writes", "", ("device",), "Finished writes since boot."),
    _counter(
        "disk_busy_seconds",
        "seconds",
        ("device",),
        "Time during which the disk had something to do.",
    ),
    _counter(
        "disk_read_seconds",
        "seconds",
        ("device",),
        "Time that finished reads took; over the reads it is their mean latency.",
    ),
    _counter(
        "disk_write_seconds",
        "seconds",
        ("device",),
        "Time that finished writes took; over the writes it is their mean latency.",
    ),
    # agent/collectors/md.py
    _gauge("md_success", "", ("device",), "1 when the array's files made sense, 0 when not."),
    _gauge(
        "md_info",
        "",
        ("device", "level", "state"),
        "A software RAID, its level and state in the kernel's words; always 1.",
    ),
    _gauge(
        "md_members",
        "",
        ("device",),
        "Members that the array has when it is whole; no series for a container.",
    ),
    _gauge(
        "md_members_missing",
        "",
        ("device",),
        "Members that are missing or not yet rebuilt; no series where the level has no spare copy.",
    ),
    _gauge(
        "md_sync_info",
        "",
        ("device", "action"),
        "A check, resync, recovery or reshape that is under way; always 1.",
    ),
    _gauge("md_sync_ratio", "", ("device",), "Share of it that is done, 0 to 1."),
    # agent/collectors/bonding.py
    _gauge("bond_links", "", ("bond",), "Links that belong to the bond."),
    _gauge("bond_links_up", "", ("bond",), "Links of the bond that are up."),
    _gauge(
        "bond_link_up",
        "",
        ("bond", "device"),
        "1 when the bond's own monitor calls the link up, 0 when not.",
    ),
    _counter(
        "bond_link_failures",
        "",
        ("bond", "device"),
        "Times that the link went down since it joined the bond.",
    ),
    # agent/collectors/net_stack.py
    _gauge("net_stack_success", "", ("file",), "1 when the file made sense, 0 when not."),
    _counter("tcp_received_segments", "", (), "TCP segments received since boot."),
    _counter("tcp_sent_segments", "", (), "TCP segments sent since boot, without repeated ones."),
    _counter("tcp_retransmitted_segments", "", (), "TCP segments sent again since boot."),
    _counter("tcp_receive_errors", "", (), "TCP segments received in error since boot."),
    _counter("tcp_resets", "", (), "Established TCP connections that were reset since boot."),
    _counter("tcp_timeouts", "", (), "Retransmission timers of TCP that ran out since boot."),
    _counter(
        "tcp_aborted_on_timeout",
        "",
        (),
        "TCP connections given up after too many repetitions since boot.",
    ),
    _counter(
        "tcp_listen_overflows",
        "",
        (),
        "Connections refused since boot because a program did not accept them in time.",
    ),
    _counter("softnet_processed", "", (), "Frames taken from the receive queues of all CPUs."),
    _counter(
        "softnet_dropped", "", (), "Frames dropped because the receive queue of a CPU was full."
    ),
    _counter(
        "softnet_squeezed",
        "",
        (),
        "Times that a CPU stopped receiving with frames left, because its share of time was over.",
    ),
    _gauge("conntrack_entries", "", (), "Connections that netfilter tracks."),
    _gauge(
        "conntrack_entries_max", "", (), "Connections that it can track: further ones are dropped."
    ),
    # agent/collectors/nfs.py
    _counter("nfs_operations", "", _MOUNT, "Operations asked of the server since the mount."),
    _counter(
        "nfs_retransmissions", "", _MOUNT, "Requests sent again since the mount, all operations."
    ),
    _counter(
        "nfs_timeouts",
        "",
        _MOUNT,
        "Operations that waited for their whole time-out since the mount.",
    ),
    _counter(
        "nfs_queue_seconds",
        "seconds",
        _MOUNT,
        "Time that requests waited in the client before they were sent.",
    ),
    _counter(
        "nfs_response_seconds",
        "seconds",
        _MOUNT,
        "Time from sending to the answer; over the operations it is their mean latency.",
    ),
    # agent/collectors/network.py
    *(
        _counter(f"network_{way}_{what}", unit, ("device",), f"{text} since the device came up.")
        for way, verb in (("receive", "received"), ("transmit", "sent"))
        for what, unit, text in (
            ("bytes", "bytes", f"Bytes {verb}"),
            ("packets", "", f"Packets {verb}"),
            ("errors", "", f"Packets not {verb} because of errors"),
            ("drops", "", f"Packets dropped instead of being {verb}"),
        )
    ),
    # agent/collectors/nic.py
    _gauge(
        "nic_device_info",
        "",
        ("device", "pci_bus_id", "driver", "driver_version", "firmware", "model", "board"),
        "What an RDMA device is; always 1.",
    ),
    _gauge(
        "nic_port_info",
        "",
        (*_PORT, "link_layer", "network_device"),
        "Link layer of an RDMA port, and the network device that belongs to it; always 1.",
    ),
    _gauge(
        "nic_port_state_id",
        "",
        _PORT,
        "State of the port: 1 down, 2 init, 3 armed, 4 active, 5 active deferred.",
    ),
    _gauge(
        "nic_port_physical_state_id",
        "",
        _PORT,
        "Physical state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
    ),
    _gauge("nic_rate_bytes_per_second", "bytes per second", _PORT, "Rate of the link now."),
    _gauge(
        "nic_rate_max_bytes_per_second",
        "bytes per second",
        _PORT,
        "Rate that the link ought to have: as configured, else the most that a port of this board has had here.",
    ),
    _gauge(
        "nic_unreadable_files",
        "",
        _PORT,
        "Files of the port that could not be read in the last run; their values are missing.",
    ),
    _gauge(
        "nic_saturated",
        "",
        (*_PORT, "counter"),
        "1 when a narrow counter stands at its end and counts no further; no series otherwise.",
    ),
    *(
        _counter(f"nic_{name}", unit, _PORT, text)
        for name, unit, text in (
            ("symbol_errors", "", "Minor link errors on one or more lanes."),
            ("link_error_recoveries", "", "Link error recoveries that succeeded."),
            ("link_downed", "", "Link error recoveries that failed and took the link down."),
            ("receive_errors", "", "Packets received with an error."),
            ("receive_remote_physical_errors", "", "Packets received that were marked as bad."),
            ("receive_switch_relay_errors", "", "Packets that the switch could not forward."),
            ("transmit_discards", "", "Packets discarded: the port was down or congested."),
            ("transmit_constraint_errors", "", "Packets not sent because of partition or filter."),
            ("receive_constraint_errors", "", "Packets discarded because of partition or filter."),
            ("local_link_integrity_errors", "", "Times that local errors exceeded their limit."),
            ("excessive_buffer_overrun_errors", "", "Overruns of the input buffer."),
            ("vl15_drops", "", "Management packets dropped for lack of buffers."),
            ("transmit_wait_ticks", "", "Ticks during which there was data and none was sent."),
            ("transmit_bytes", "bytes", "Bytes sent on all lanes."),
            ("receive_bytes", "bytes", "Bytes received on all lanes."),
            ("transmit_packets", "", "Packets sent."),
            ("receive_packets", "", "Packets received, those with errors among them."),
            ("transmit_unicast_packets", "", "Unicast packets sent."),
            ("receive_unicast_packets", "", "Unicast packets received."),
            ("transmit_multicast_packets", "", "Multicast packets sent."),
            ("receive_multicast_packets", "", "Multicast packets received."),
        )
    ),
    _counter(
        "nic_hardware",
        "",
        (*_PORT, "counter"),
        "Counters of the card under the driver's own names: ECN, CNP, retransmits, out of sequence; docs/reference/nic.md.",
    ),
    _gauge(
        "nic_resources",
        "",
        (*_PORT, "counter"),
        "Objects in use on the card, by the driver's own names (active_, watermark_).",
    ),
    # agent/collectors/ethernet.py
    _gauge(
        "ethernet_info",
        "",
        ("device", "pci_bus_id", "driver"),
        "What a network device is; always 1.",
    ),
    _gauge("ethernet_enabled", "", ("device",), "1 when the device is switched on (IFF_UP)."),
    _gauge(
        "ethernet_carrier",
        "",
        ("device",),
        "1 when the link is up; no series while the device is switched off.",
    ),
    _counter("ethernet_carrier_changes", "", ("device",), "Times that the link came or went."),
    _counter("ethernet_carrier_downs", "", ("device",), "Times that the link went."),
    _gauge(
        "ethernet_speed_bytes_per_second",
        "bytes per second",
        ("device",),
        "Speed of the link; no series while it is down.",
    ),
    _gauge("ethernet_mtu_bytes", "bytes", ("device",), "Largest packet."),
    _counter("ethernet_errors", "", ("device", "kind"), "Errors by the kernel's own kinds."),
    _gauge(
        "ethernet_unreadable_files",
        "",
        ("device",),
        "Files of the device that could not be read in the last run; their values are missing.",
    ),
    # agent/collectors/ethtool.py
    _gauge(
        "ethernet_driver_info",
        "",
        ("device", "driver", "version", "firmware"),
        "Driver and firmware; always 1.",
    ),
    _gauge(
        "ethernet_driver_success",
        "",
        ("device",),
        "1 when the driver answered everything that it can, 0 when a question failed.",
    ),
    _counter("ethernet_pause_frames", "", _WAY, "Pause frames of the whole link."),
    _counter(
        "ethernet_pause_seconds", "seconds", _WAY, "Time for which pause frames stopped the link."
    ),
    _counter(
        "ethernet_pause_storms",
        "",
        ("device", "kind"),
        "Times that the card sent pauses for too long: warning, or error with pauses cut off.",
    ),
    _counter(
        "ethernet_priority_pause_frames",
        "",
        ("device", "priority", "direction"),
        "Pause frames of a priority (PFC).",
    ),
    _counter(
        "ethernet_priority_pause_seconds",
        "seconds",
        ("device", "priority", "direction"),
        "Time for which a priority was stopped (PFC).",
    ),
    _counter(
        "ethernet_priority_discards",
        "",
        ("device", "priority", "direction"),
        "Packets of a priority dropped for lack of buffers.",
    ),
    _counter(
        "ethernet_link_errors",
        "",
        ("device", "kind"),
        "Errors that the card counts at its port, by kind.",
    ),
    _counter(
        "ethernet_ecn_marked_packets",
        "",
        ("device",),
        "Packets received with a mark of congestion, RDMA not among them.",
    ),
    _counter(
        "ethernet_fec_blocks",
        "",
        ("device", "outcome"),
        "Blocks that forward error correction has corrected, or could not.",
    ),
    # agent/collectors/transceiver.py
    _gauge(
        "transceiver_info",
        "",
        ("device", "standard", "vendor", "part", "revision", "serial"),
        "What a transceiver is; always 1.",
    ),
    _gauge(
        "transceiver_success",
        "",
        ("device",),
        "1 when the transceiver could be read, 0 when it or its driver refused.",
    ),
    _gauge("transceiver_supply_volts", "volts", ("device",), "Supply voltage of a transceiver."),
    *(
        _gauge(f"transceiver_{name}", unit, labels, text)
        for quantity, unit, labels, what in (
            ("temperature", "celsius", ("device",), "Temperature"),
            ("receive_power", "watts", ("device", "lane"), "Optical power received"),
            ("transmit_power", "watts", ("device", "lane"), "Optical power sent"),
        )
        for name, labels, text in (
            (f"{quantity}_{unit}", labels, f"{what}."),
            (f"{quantity}_min_{unit}", ("device",), f"{what}: lower alarm limit of the module."),
            (f"{quantity}_max_{unit}", ("device",), f"{what}: upper alarm limit of the module."),
        )
    ),
    _gauge("transceiver_bias_amperes", "amperes", ("device", "lane"), "Current of the laser."),
    _gauge(
        "transceiver_receive_lost",
        "",
        ("device", "lane"),
        "1 when the lane has lost its light since it was last read.",
    ),
    # agent/collectors/topology.py
    _gauge(
        "topology_info",
        "",
        ("pci_bus_id", "kind", "device", "numa_node", "cpus"),
        "Where a GPU or NIC sits; always 1.",
    ),
    _gauge(
        "nic_pcie_width_lanes",
        "lanes",
        ("device",),
        "PCIe lanes of a network card now; none of a virtual function.",
    ),
    _gauge("nic_pcie_width_max_lanes", "lanes", ("device",), "Most PCIe lanes of card and slot."),
    _gauge(
        "nic_pcie_transfers_per_second",
        "transfers per second",
        ("device",),
        "Rate of each PCIe lane of a network card now.",
    ),
    _gauge(
        "nic_pcie_transfers_max_per_second",
        "transfers per second",
        ("device",),
        "Highest rate of each PCIe lane of card and slot.",
    ),
    _gauge(
        "topology_affinity_info",
        "",
        ("pci_bus_id", "device", "closeness"),
        "How near a GPU (by bus id) is to a NIC: PIX, PXB, PHB, NODE, SYS; always 1.",
    ),
    _gauge(
        "topology_plane_info",
        "",
        (*_PORT, "plane", "rail", "origin"),
        "Network plane and rail of a port, configured or guessed; always 1.",
    ),
    # agent/collectors/pressure.py
    _gauge(
        "pressure_success",
        "",
        ("resource",),
        "1 when the kernel's file for cpu, memory or io could be understood, 0 when not.",
    ),
    _counter(
        "pressure_some_seconds",
        "seconds",
        ("resource",),
        "Time during which at least one task waited for cpu, memory or io.",
    ),
    _counter(
        "pressure_full_seconds",
        "seconds",
        ("resource",),
        "Time during which all tasks waited for it at once.",
    ),
    # agent/collectors/thermal.py
    _gauge("thermal_temperature_celsius", "celsius", _SENSOR, "Temperature of a hwmon sensor."),
    _gauge("thermal_max_celsius", "celsius", _SENSOR, "The sensor's upper limit (temp_max)."),
    _gauge("thermal_crit_celsius", "celsius", _SENSOR, "The sensor's critical limit (temp_crit)."),
    *(
        _gauge(f"thermal_{limit}_celsius", "celsius", _SENSOR, f"The sensor's {text}.")
        for limit, text in (
            ("min", "lower limit (temp_min)"),
            ("lcrit", "lower critical limit (temp_lcrit)"),
            ("emergency", "limit above the critical one (temp_emergency)"),
        )
    ),
    _gauge("thermal_fan_rpm", "revolutions per minute", _SENSOR, "Speed of a fan."),
    _gauge(
        "thermal_fan_min_rpm", "revolutions per minute", _SENSOR, "The fan's lower limit (fan_min)."
    ),
    _gauge(
        "thermal_fan_max_rpm", "revolutions per minute", _SENSOR, "The fan's upper limit (fan_max)."
    ),
    _gauge(
        "thermal_sensor_info",
        "",
        ("device", "sensor", "label"),
        "The driver's own name for a sensor; always 1.",
    ),
    _gauge(
        "thermal_sensor_success",
        "",
        _SENSOR,
        "1 when the sensor could be read, 0 when its driver refused or gave no number.",
    ),
    _gauge(
        "thermal_zone_temperature_celsius",
        "celsius",
        ("device", "type"),
        "Temperature of a kernel thermal zone.",
    ),
    *(
        _gauge(
            f"thermal_zone_{kind}_celsius",
            "celsius",
            ("device", "type"),
            f"The zone's lowest {kind} trip point.",
        )
        for kind in ("passive", "hot", "critical")
    ),
    # agent/collectors/hwmon.py
    *(
        _gauge(f"hwmon_{subject}_{unit}", unit, _SENSOR, f"{text} of a hwmon sensor.")
        for subject, unit, text in (
            ("voltage", "volts", "Voltage"),
            ("current", "amperes", "Current"),
            ("power", "watts", "Power"),
            ("humidity", "ratio", "Relative humidity"),
        )
    ),
    *(
        _gauge(f"hwmon_{subject}_{limit}_{unit}", unit, _SENSOR, f"The sensor's {text} limit.")
        for subject, unit, limits in (
            ("voltage", "volts", ("lcrit", "min", "max", "crit")),
            ("current", "amperes", ("max", "crit")),
            ("power", "watts", ("max", "crit")),
        )
        for limit, text in (
            ("lcrit", "lower critical"),
            ("min", "lower"),
            ("max", "upper"),
            ("crit", "critical"),
        )
        if limit in limits
    ),
    _gauge("hwmon_power_cap_watts", "watts", _SENSOR, "Power that the device is held to."),
    _counter("hwmon_energy_joules", "joules", _SENSOR, "Energy that the device has used."),
    _gauge(
        "hwmon_alarm",
        "",
        (*_SENSOR, "alarm"),
        "1 while the chip raises an alarm; alarm is the limit (max, crit, min ...), or any.",
    ),
    _gauge(
        "hwmon_fault", "", _SENSOR, "1 when the chip says that the sensor itself does not work."
    ),
    # agent/collectors/ipmi.py
    *(
        _gauge(f"ipmi_{subject}", unit, ("sensor",), f"{text} that the BMC measures.")
        for subject, unit, text in (
            ("temperature_celsius", "celsius", "Temperature"),
            ("fan_rpm", "revolutions per minute", "Speed of a fan"),
            ("fan_ratio", "ratio", "Speed of a fan, of its most,"),
            ("voltage_volts", "volts", "Voltage"),
            ("current_amperes", "amperes", "Current"),
            ("power_watts", "watts", "Power"),
        )
    ),
    *(
        _gauge(f"ipmi_{subject}_{limit}_{unit}", help_unit, ("sensor",), f"The sensor's {text}.")
        for subject, unit, help_unit in (
            ("temperature", "celsius", "celsius"),
            ("fan", "rpm", "revolutions per minute"),
            ("voltage", "volts", "volts"),
            ("current", "amperes", "amperes"),
            ("power", "watts", "watts"),
        )
        for limit, text in (
            ("lcrit", "lower critical threshold"),
            ("min", "lower non-critical threshold"),
            ("max", "upper non-critical threshold"),
            ("crit", "upper critical threshold"),
        )
    ),
    _gauge(
        "ipmi_sensor_state_id",
        "",
        ("sensor",),
        "State of a sensor with thresholds: 0 ok, 1 non-critical, 2 critical, 3 non-recoverable.",
    ),
    _gauge(
        "ipmi_sensor_event",
        "",
        ("sensor", "event"),
        "1 for each state that a discrete sensor asserts, such as Failure detected.",
    ),
    _gauge(
        "ipmi_part_success",
        "",
        ("part",),
        "1 when ipmitool showed the full (with values) or compact (discrete) sensors.",
    ),
    _gauge(
        "ipmi_unreadable_lines",
        "",
        (),
        "Lines of ipmitool in the last run that make no sense; their sensors are missing.",
    ),
    _gauge("ipmi_sel_entries", "", (), "Entries in the BMC's event log."),
    _gauge("ipmi_sel_used_ratio", "ratio", (), "How full the BMC's event log is."),
    _gauge(
        "ipmi_sel_events",
        "",
        ("sensor", "event", "state"),
        "Entries of one kind among the newest of the BMC's event log (docs/reference/thermal.md).",
    ),
    # agent/collectors/redfish.py
    *(
        _gauge(f"redfish_{subject}", unit, _SENSOR, text)
        for subject, unit, text in (
            ("temperature_celsius", "celsius", "Temperature that the BMC measures."),
            ("temperature_max_celsius", "celsius", "The sensor's upper caution threshold."),
            ("temperature_crit_celsius", "celsius", "The sensor's upper critical threshold."),
            ("fan_rpm", "revolutions per minute", "Speed of a fan."),
            ("fan_ratio", "ratio", "Speed of a fan, of its most."),
            ("power_watts", "watts", "Power that a chassis takes."),
            ("power_capacity_watts", "watts", "Power that a chassis may take."),
            ("supply_input_watts", "watts", "Power that a power supply takes."),
            ("supply_output_watts", "watts", "Power that a power supply gives."),
            ("supply_capacity_watts", "watts", "Power that a power supply can give."),
            ("supply_input_volts", "volts", "Voltage at the input of a power supply."),
            ("coolant_supply_celsius", "celsius", "Temperature of the coolant that comes in."),
            ("coolant_return_celsius", "celsius", "Temperature of the coolant that goes out."),
            (
                "coolant_flow_liters_per_second",
                "liters per second",
                "Flow of the coolant.",
            ),
            ("coolant_supply_pascals", "pascals", "Pressure of the coolant that comes in."),
            ("coolant_delta_pascals", "pascals", "Pressure that the coolant loses on its way."),
        )
    ),
    _gauge(
        "redfish_health_id",
        "",
        ("device", "sensor", "part"),
        "Health as the BMC judges it: 0 OK, 1 warning, 2 critical.",
    ),
    _gauge("redfish_leak_state_id", "", _SENSOR, "Leak detector: 0 OK, 1 warning, 2 critical."),
    _gauge("redfish_requests", "", (), "Requests of the last run to the BMC."),
    _gauge(
        "redfish_request_failures",
        "",
        (),
        "Requests of the last run that the BMC did not answer well; what they ask for is missing.",
    ),
    _gauge(
        "redfish_complete",
        "",
        (),
        "1 when the last run has read everything, 0 when something failed or a bound was reached.",
    ),
    # agent/collectors/disk_health.py
    _gauge(
        "disk_health_info",
        "",
        ("device", "model", "serial", "firmware"),
        "What a disk is; always 1.",
    ),
    _gauge(
        "disk_health_success",
        "",
        ("device",),
        "1 when the disk told of its health, 0 when it refused or made no sense; no series where it has no health log, or sleeps.",
    ),
    *(
        _gauge(f"disk_{subject}", unit, ("device",), text)
        for subject, unit, text in (
            (
                "smart_passed",
                "",
                "1 when the disk judges itself healthy, 0 when it expects to fail.",
            ),
            ("temperature_celsius", "celsius", "Temperature of the disk."),
            ("reallocated_sectors", "", "Sectors that the disk has replaced (attribute 5)."),
            ("pending_sectors", "", "Sectors that wait to be replaced (attribute 197)."),
            ("uncorrectable_sectors", "", "Sectors that can't be read (attribute 198)."),
            (
                "nvme_critical_warning_id",
                "",
                "Bits: 1 spare, 2 temperature, 4 reliability, 8 read-only, 16 backup, 32 persistent memory.",
            ),
            ("nvme_spare_ratio", "ratio", "Spare blocks that are left."),
            ("nvme_spare_min_ratio", "ratio", "Spare blocks below which the disk warns."),
            ("nvme_used_ratio", "ratio", "Life that is used, by the maker's estimate; may pass 1."),
        )
    ),
    *(
        _counter(f"disk_{subject}", unit, ("device",), text)
        for subject, unit, text in (
            ("power_on_seconds", "seconds", "Time that the disk has been switched on."),
            ("crc_errors", "", "Transfers on the cable that failed (attribute 199)."),
            ("nvme_media_errors", "", "Times that data could not be read back right."),
            ("nvme_error_log_entries", "", "Entries that the error log has had."),
            ("nvme_unsafe_shutdowns", "", "Times that power went without a warning."),
            ("nvme_written_bytes", "bytes", "Bytes that hosts have written."),
            ("nvme_read_bytes", "bytes", "Bytes that hosts have read."),
        )
    ),
    # agent/collectors/kernel_log.py
    _counter(
        "kernel_log_messages",
        "",
        ("kind",),
        "Faults and changes that the kernel told of since boot, by kind (docs/reference/kernel-log.md).",
    ),
    _counter(
        "kernel_log_device_messages",
        "",
        ("kind", "device"),
        "The same for each network device, disk or PCI address that was named.",
    ),
    _counter(
        "gpu_xid",
        "",
        ("pci_bus_id", "xid"),
        "XIDs of a GPU since boot; the address is as sysfs writes it, 0000:3b:00.0.",
    ),
    _counter("nvswitch_sxid", "", ("pci_bus_id", "sxid"), "SXIDs of an NVSwitch since boot."),
    _counter("kernel_log_records", "", (), "Records of the kernel log that were read."),
    _counter(
        "kernel_log_lost",
        "",
        (),
        "Records that the kernel overwrote before they were read, from the start of the boot on.",
    ),
    _counter("kernel_log_broken", "", (), "Records in no form that the kernel documents."),
    _counter(
        "kernel_log_untrusted",
        "",
        (),
        "Records that look like a fault and were written by a process, not by the kernel.",
    ),
    _counter(
        "kernel_log_overflow",
        "",
        (),
        "Messages counted without their device because too many devices had trouble.",
    ),
    # agent/findings/collector.py
    _gauge(
        "finding_active",
        "",
        _FINDING,
        "1 for what is found wrong with this node now, unless it is silenced (docs/operate/findings.md).",
    ),
    _gauge(
        "finding_rank_info",
        "",
        ("job_id", "rank", "check", "uuid", "device"),
        "Which rank a finding hits; always 1.",
    ),
    _gauge("finding_silenced", "", (), "Findings that the configuration silences."),
    _gauge("finding_checks", "", (), "Checks of the policy table."),
    _gauge(
        "finding_checks_blocked",
        "",
        (),
        "Checks that can't run because their collector is broken or stuck.",
    ),
    _counter(
        "finding_raised", "", ("check", "severity"), "Findings raised since the agent started."
    ),
    _gauge(
        "finding_raised_last_day",
        "",
        ("severity",),
        "Findings raised in the last 24 hours, as far as the agent has run.",
    ),
    _counter(
        "finding_overflow", "", (), "Findings not kept because too many things were wrong at once."
    ),
    _gauge(
        "finding_journal_success",
        "",
        (),
        "1 when the last change of a finding was written to disk, 0 when that failed.",
    ),
    # rankmend/alerting.py
    _counter("alert_sent", "", ("target",), "Alerts that the target took, repeats among them."),
    _counter("alert_failures", "", ("target",), "Messages that the target did not take."),
    _counter(
        "alert_dropped", "", ("target",), "Ended alerts whose end the target was not told in time."
    ),
    _gauge(
        "alert_ended_waiting",
        "",
        ("target",),
        "Ended alerts that the target is still to be told of.",
    ),
    _gauge(
        "alert_success",
        "",
        ("target",),
        "1 when the target took the last message, 0 when it did not.",
    ),
    # agent/collectors/ranks.py
    _gauge(
        "rank_info",
        "",
        ("job_id", "rank", "pid", "attempt", "job_name"),
        "What belongs to a rank; always 1.",
    ),
    _gauge(
        "rank_progress_success",
        "",
        _RANK,
        "1 when the rank's progress file could be read, 0 when it is broken.",
    ),
    _gauge("rank_step_number", "", _RANK, "Number of the newest finished step."),
    _counter("rank_steps", "", _RANK, "Steps finished in this attempt."),
    _gauge("rank_step_last_seconds", "seconds", _RANK, "Duration of the newest step."),
    _gauge(
        "rank_step_median_seconds",
        "seconds",
        _RANK,
        "Median duration of the newest steps, at most 32.",
    ),
    _gauge("rank_step_age_seconds", "seconds", _RANK, "Time since the newest step ended."),
    _gauge(
        "rank_section_ratio",
        "ratio",
        ("job_id", "rank", "section"),
        "Share of the time of the newest steps (at most 32) spent in a section; idle is outside of all.",
    ),
    _gauge(
        "rank_section_age_seconds",
        "seconds",
        ("job_id", "rank", "section"),
        "How long the rank has been in the section where it is now.",
    ),
    _counter("rank_collectives_entered", "", _RANK, "Collectives entered in this attempt."),
    _counter("rank_collectives_completed", "", _RANK, "Collectives completed in this attempt."),
    _gauge(
        "rank_slow_ratio",
        "ratio",
        (*_RANK, "section", "cause"),
        "Own work of a step of a rank that its launcher calls slow, against its peers'; the likeliest cause, unknown where hardware shows none.",
    ),
    _gauge(
        "job_fault_age_seconds",
        "seconds",
        ("job_id", "kind", "ranks"),
        "Since the newest incident of a job that runs here: rank_hung or rank_failed, and the culprits on this node (empty: nobody is accused).",
    ),
    _counter(
        "rank_run_queue_seconds",
        "seconds",
        _RANK,
        "Time that the rank's main thread was ready to run and had no CPU.",
    ),
    # agent/collectors/gpu.py: about the collector itself
    _gauge("gpu_answering", "", (), "GPUs that answer now: of each there is a fresh value."),
    _gauge("gpu_expected", "", (), "GPUs that this node is configured to have."),
    _gauge(
        "gpu_collector_stuck",
        "",
        (),
        "1 while a driver call does not come back or a GPU is left out for it, else 0.",
    ),
    _gauge(
        "gpu_call_stuck_seconds",
        "seconds",
        ("call", "gpu"),
        "How long a driver call has not come back; gpu is empty where the call is about none.",
    ),
    _gauge("gpu_collector_released", "", (), "1 while an operator has released the GPUs, else 0."),
    _counter("gpu_collector_restarts", "", (), "Collector processes started after the first."),
    _gauge("gpu_sweep_seconds", "seconds", (), "How long reading all GPUs took the last time."),
    # agent/collectors/gpu.py: one GPU
    _gauge(
        "gpu_success", "", _GPU, "1 when the GPU answers, 0 when it is lost, left out or silent."
    ),
    _gauge("gpu_lost", "", _GPU, "1 when the driver says that the GPU is lost, else 0."),
    _gauge("gpu_reset_required", "", _GPU, "1 when the driver asks for a reset, else 0."),
    _gauge("gpu_sample_age_seconds", "seconds", _GPU, "Age of the newest answer of the GPU."),
    _counter("gpu_read_errors", "", _GPU, "Driver calls that failed, the unsupported aside."),
    _gauge(
        "gpu_info",
        "",
        (*_GPU, "model", "serial", "vbios", "inforom", "part", "device", "driver", "cuda"),
        "What the GPU is and which software drives it; always 1.",
    ),
    _gauge("gpu_persistence_enabled", "", _GPU, "1 when persistence mode is on."),
    _gauge("gpu_mig_enabled", "", _GPU, "1 when MIG is on."),
    _gauge(
        "gpu_mig_info",
        "",
        (*_GPU, "gpu_instance", "compute_instance", "mig_uuid", "profile"),
        "One MIG instance; always 1.",
    ),
    _gauge("gpu_mig_memory_size_bytes", "bytes", _MIG, "Memory of a MIG instance."),
    _gauge("gpu_mig_memory_used_bytes", "bytes", _MIG, "Memory of a MIG instance that is in use."),
    *(
        _gauge(f"gpu_{of}{name}", "ratio", (*_GPU, *instance, *labels), f"{text}{where}.")
        for of, instance, where in (
            ("", (), ""),
            ("mig_", ("gpu_instance",), ", of a MIG GPU instance"),
        )
        for name, labels, text in (
            ("graphics_active_ratio", (), "Share of time with a context at work (GPM)"),
            ("sm_active_ratio", (), "Share of the SMs that were busy, mean over 10 s (GPM)"),
            ("sm_occupancy_ratio", (), "Warps that were active, of those that fit (GPM)"),
            ("dram_active_ratio", (), "Memory bandwidth used, of the theoretical maximum (GPM)"),
            ("pipe_active_ratio", ("pipe",), "Share of time in which a kind of unit worked (GPM)"),
        )
    ),
    _gauge(
        "gpu_engine_utilization_ratio",
        "ratio",
        (*_GPU, "engine"),
        "Share of time in which the video encoder, decoder, JPEG or optical-flow engine worked.",
    ),
    _gauge("gpu_mig_pending_enabled", "", _GPU, "1 when MIG will be on after the next reset."),
    _gauge(
        "gpu_recovery_action_id",
        "",
        _GPU,
        "The driver's own verdict: 0 none, 1 reset GPU, 2 reboot node, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain, 6 reset bus, 7 reboot system.",
    ),
    _gauge("gpu_temperature_celsius", "celsius", _GPU, "Temperature of the core."),
    _gauge("gpu_memory_temperature_celsius", "celsius", _GPU, "Temperature of the memory."),
    _gauge(
        "gpu_temperature_margin_celsius",
        "celsius",
        _GPU,
        "Degrees left to the operating limit, as the driver counts them (T.Limit).",
    ),
    _gauge(
        "gpu_slowdown_margin_celsius", "celsius", _GPU, "Degrees left to the hardware slowdown."
    ),
    _gauge("gpu_temperature_slowdown_celsius", "celsius", _GPU, "Where hardware slows down."),
    _gauge("gpu_temperature_shutdown_celsius", "celsius", _GPU, "Where the GPU shuts down."),
    _gauge("gpu_temperature_max_celsius", "celsius", _GPU, "Where software slows down."),
    _gauge(
        "gpu_memory_temperature_max_celsius",
        "celsius",
        _GPU,
        "Memory temperature where software slows down.",
    ),
    _gauge(
        "gpu_power_watts",
        "watts",
        _GPU,
        "Power at this moment; an average where there is no other.",
    ),
    _gauge("gpu_power_limit_watts", "watts", _GPU, "Power limit in force."),
    _gauge("gpu_power_limit_default_watts", "watts", _GPU, "Power limit from the factory."),
    _gauge("gpu_power_limit_min_watts", "watts", _GPU, "Lowest power limit that can be set."),
    _gauge("gpu_power_limit_max_watts", "watts", _GPU, "Highest power limit that can be set."),
    _counter("gpu_energy_joules", "joules", _GPU, "Energy used since the driver was loaded."),
    _gauge("gpu_clock_hertz", "hertz", (*_GPU, "clock"), "Clock rate now."),
    _gauge("gpu_clock_max_hertz", "hertz", (*_GPU, "clock"), "Highest clock rate."),
    _gauge("gpu_clock_application_hertz", "hertz", (*_GPU, "clock"), "Clock rate asked for."),
    _gauge("gpu_performance_state_id", "", _GPU, "Performance state: 0 highest, 15 lowest."),
    _counter(
        "gpu_clocks_event_seconds",
        "seconds",
        (*_GPU, "reason"),
        "Time during which the reason held the clocks, summed over samples since the agent began.",
    ),
    _counter(
        "gpu_clocks_limited_seconds",
        "seconds",
        (*_GPU, "reason"),
        "Time during which the reason limited the clocks, by the driver's own counters.",
    ),
    _gauge("gpu_utilization_ratio", "ratio", _GPU, "Share of time with a kernel on the GPU."),
    _gauge("gpu_memory_utilization_ratio", "ratio", _GPU, "Share of time with the memory in use."),
    _gauge("gpu_memory_size_bytes", "bytes", _GPU, "Memory of the GPU."),
    _gauge("gpu_memory_used_bytes", "bytes", _GPU, "Memory in use."),
    _gauge("gpu_memory_reserved_bytes", "bytes", _GPU, "Memory that the driver keeps."),
    _gauge("gpu_fan_ratio", "ratio", _GPU, "Speed that the fan is to have."),
    _gauge("gpu_ecc_enabled", "", _GPU, "1 when ECC is on."),
    _gauge("gpu_ecc_pending_enabled", "", _GPU, "1 when ECC will be on after the next reset."),
    _counter(
        "gpu_ecc_errors",
        "",
        (*_GPU, "kind", "counter"),
        "Memory errors, corrected or uncorrected; volatile since the driver was loaded, aggregate ever.",
    ),
    _counter(
        "gpu_ecc_place_errors", "", (*_GPU, "kind", "counter", "place"), "Memory errors by place."
    ),
    _counter("gpu_remapped_rows", "", (*_GPU, "cause"), "Memory rows remapped, ever."),
    _gauge("gpu_remapped_rows_pending", "", _GPU, "1 when a row waits for a reset to be remapped."),
    _gauge("gpu_remapped_rows_failed", "", _GPU, "1 when a row could not be remapped."),
    _gauge(
        "gpu_remap_banks", "", (*_GPU, "spare"), "Memory banks by how many spare rows are left."
    ),
    _counter("gpu_retired_pages", "", (*_GPU, "cause"), "Memory pages retired, ever."),
    _gauge(
        "gpu_retired_pages_pending", "", _GPU, "1 when a page waits for a reboot to be retired."
    ),
    _gauge("gpu_repair_pending", "", (*_GPU, "kind"), "1 when a repair waits for a reset."),
    _gauge("gpu_pcie_generation", "", _GPU, "PCIe generation now; falls when idle."),
    _gauge("gpu_pcie_generation_max", "", _GPU, "Highest PCIe generation of GPU and slot."),
    _gauge("gpu_pcie_width_lanes", "lanes", _GPU, "PCIe lanes now."),
    _gauge("gpu_pcie_width_max_lanes", "lanes", _GPU, "Most PCIe lanes of GPU and slot."),
    _counter("gpu_pcie_errors", "", (*_GPU, "kind"), "PCIe errors, replays among them."),
    _counter("gpu_pcie_transmit_bytes", "bytes", _GPU, "Sent over PCIe."),
    _counter("gpu_pcie_receive_bytes", "bytes", _GPU, "Received over PCIe."),
    _gauge(
        "gpu_pcie_transmit_bytes_per_second",
        "bytes per second",
        _GPU,
        "Sent over PCIe in a sample of 20 ms, where the GPU does not count bytes.",
    ),
    _gauge(
        "gpu_pcie_receive_bytes_per_second",
        "bytes per second",
        _GPU,
        "Received over PCIe in a sample of 20 ms, where the GPU does not count bytes.",
    ),
    _gauge("gpu_nvlink_up", "", (*_GPU, "link"), "1 when the NVLink is active."),
    _gauge(
        "gpu_nvlink_speed_bytes_per_second",
        "bytes per second",
        (*_GPU, "link"),
        "Rate of the NVLink.",
    ),
    _counter("gpu_nvlink_transmit_bytes", "bytes", (*_GPU, "link"), "Data sent over the NVLink."),
    _counter(
        "gpu_nvlink_receive_bytes", "bytes", (*_GPU, "link"), "Data received over the NVLink."
    ),
    _counter("gpu_nvlink_errors", "", (*_GPU, "link", "kind"), "Errors of the NVLink by kind."),
    _gauge("gpu_nvswitch_links", "", _GPU, "NVLinks that lead to a switch."),
    _gauge(
        "gpu_fabric_state_id",
        "",
        _GPU,
        "Registration with the fabric: 1 not begun, 2 under way, 3 done.",
    ),
    _gauge("gpu_fabric_status_id", "", _GPU, "Result of the registration: an NVML error, 0 none."),
    _gauge("gpu_fabric_unhealthy", "", (*_GPU, "kind"), "1 when the fabric has this trouble."),
    _gauge("gpu_fabric_info", "", (*_GPU, "cluster", "clique"), "Place in the fabric; always 1."),
    _counter(
        "gpu_events",
        "",
        (*_GPU, "event"),
        "Events that the driver has reported since the agent began.",
    ),
    _counter("gpu_xid_events", "", (*_GPU, "xid"), "XID events by code since the agent began."),
    _gauge("gpu_processes", "", _GPU, "Processes with a compute context on the GPU."),
    _gauge(
        "gpu_foreign_processes", "", _GPU, "Processes on the GPU that belong to no rank known here."
    ),
    _gauge(
        "gpu_process_memory_bytes",
        "bytes",
        (*_GPU, "pid", "process"),
        "Memory that a process has on the GPU; the first 32 of a GPU.",
    ),
    _gauge(
        "rank_gpu_info",
        "",
        (*_RANK, *_GPU, "pid"),
        "Which rank stands on which GPU, by the driver's list of processes; always 1.",
    ),
    _gauge("rank_gpu_memory_bytes", "bytes", (*_RANK, *_GPU), "Memory that a rank has on a GPU."),
    # agent/collectors/rank_nics.py
    _gauge(
        "rank_nic_info",
        "",
        (*_RANK, "gpu", "pci_bus_id", *_PORT, "rail", "closeness"),
        "Which compute port is nearest to the GPU (pci_bus_id) that a rank stands on; always 1.",
    ),
    # agent/collectors/inventory.py
    _gauge(
        "inventory_state_id",
        "",
        ("kind", "device", "pci_bus_id", "identity"),
        "A device that was there: 0 it is there, 1 it vanished in this boot, 2 it did not come back with this boot, 3 another is in its place, 4 the host took it from this virtual machine.",
    ),
    _gauge(
        "inventory_devices",
        "",
        ("kind", "plane"),
        "GPUs, network cards by plane, disks and memory modules that are there.",
    ),
    _gauge(
        "inventory_expected",
        "",
        ("kind", "plane"),
        "Devices that [expect] states; of the memory, GiB.",
    ),
    _gauge(
        "inventory_short",
        "",
        ("kind", "plane", "missing"),
        "Devices fewer than [expect] states, and which of those that were there are missing; of the memory, GiB.",
    ),
    _gauge(
        "inventory_memory_lost_bytes",
        "bytes",
        (),
        "How much less memory the node has than the most that was seen.",
    ),
    _gauge(
        "inventory_known",
        "",
        ("kind",),
        "1 when the devices of a kind can be counted that [expect] states, or, of GPUs, that the node had; else 0.",
    ),
    _gauge(
        "inventory_kept", "", (), "1 when the devices are remembered on disk, 0 when that failed."
    ),
)

FAMILIES: Final = {family.name: family for family in _ALL}


def markdown_table(families: Iterable[Family] = FAMILIES.values()) -> str:
    """Return the list as docs/reference/metrics.md shows it."""
    rows = ["| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(
            f"| `{family.name}` | {family.type.value} | {family.unit} | {labels} | {family.help} |"
        )
    return "\n".join(rows) + "\n"
