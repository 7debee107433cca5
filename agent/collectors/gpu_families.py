"""The metric families of `agent/collectors/gpu.py`."""

from typing import Final

from agent.metrics import RANK_LABELS, Family, counter, gauge

_GPU: Final = ("gpu", "uuid", "pci_bus_id")
_MIG: Final = (*_GPU, "gpu_instance", "compute_instance")


def _gauge(name: str, unit: str, text: str, *labels: str) -> Family:
    """Return a gauge of one GPU, with these labels behind those of the GPU."""
    return gauge(f"gpu_{name}", unit, (*_GPU, *labels), text)


def _counter(name: str, unit: str, text: str, *labels: str) -> Family:
    """Return a counter of one GPU, with these labels behind those of the GPU."""
    return counter(f"gpu_{name}", unit, (*_GPU, *labels), text)


FAMILIES: Final[tuple[Family, ...]] = (
    # about the collector itself
    gauge("gpu_answering", "", (), "GPUs that answer now: of each there is a fresh value."),
    gauge("gpu_expected", "", (), "GPUs that this node is configured to have."),
    gauge(
        "gpu_collector_stuck",
        "",
        (),
        "1 while a driver call does not come back or a GPU is left out for it, else 0.",
    ),
    gauge(
        "gpu_call_stuck_seconds",
        "seconds",
        ("call", "gpu"),
        "How long a driver call has not come back; gpu is empty where the call is about none.",
    ),
    gauge("gpu_collector_released", "", (), "1 while an operator has released the GPUs, else 0."),
    gauge(
        "gpu_driver_mismatch",
        "",
        (),
        "1 while this host's NVML and the driver's kernel module are of two versions.",
    ),
    counter("gpu_collector_restarts", "", (), "Collector processes started after the first."),
    gauge("gpu_sweep_seconds", "seconds", (), "How long reading all GPUs took the last time."),
    # one GPU
    _gauge("success", "", "1 when the GPU answers, 0 when it is lost, left out or silent."),
    _gauge("lost", "", "1 when the driver says that the GPU is lost, else 0."),
    _gauge("reset_required", "", "1 when the driver asks for a reset, else 0."),
    _gauge("sample_age_seconds", "seconds", "Age of the newest answer of the GPU."),
    _counter("read_errors", "", "Driver calls that failed, the unsupported aside."),
    _gauge(
        "info",
        "",
        "What the GPU is and which software drives it; always 1.",
        "model",
        "serial",
        "vbios",
        "inforom",
        "part",
        "device",
        "driver",
        "cuda",
    ),
    _gauge("persistence_enabled", "", "1 when persistence mode is on."),
    _gauge("mig_enabled", "", "1 when MIG is on."),
    _gauge(
        "mig_info",
        "",
        "One MIG instance; always 1.",
        "gpu_instance",
        "compute_instance",
        "mig_uuid",
        "profile",
    ),
    gauge("gpu_mig_memory_size_bytes", "bytes", _MIG, "Memory of a MIG instance."),
    gauge("gpu_mig_memory_used_bytes", "bytes", _MIG, "Memory of a MIG instance that is in use."),
    *(
        gauge(f"gpu_{of}{name}", "ratio", (*_GPU, *instance, *labels), f"{text}{where}.")
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
        "engine_utilization_ratio",
        "ratio",
        "Share of time in which the video encoder, decoder, JPEG or optical-flow engine worked.",
        "engine",
    ),
    _gauge("mig_pending_enabled", "", "1 when MIG will be on after the next reset."),
    _gauge(
        "recovery_action_id",
        "",
        "The driver's own verdict: 0 none, 1 reset GPU, 2 reboot node, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain, 6 reset bus, 7 reboot system.",
    ),
    _gauge("temperature_celsius", "celsius", "Temperature of the core."),
    _gauge("memory_temperature_celsius", "celsius", "Temperature of the memory."),
    _gauge(
        "temperature_margin_celsius",
        "celsius",
        "Degrees left to the operating limit, as the driver counts them (T.Limit).",
    ),
    _gauge("slowdown_margin_celsius", "celsius", "Degrees left to the hardware slowdown."),
    _gauge("temperature_slowdown_celsius", "celsius", "Where hardware slows down."),
    _gauge("temperature_shutdown_celsius", "celsius", "Where the GPU shuts down."),
    _gauge("temperature_max_celsius", "celsius", "Where software slows down."),
    _gauge(
        "memory_temperature_max_celsius", "celsius", "Memory temperature where software slows down."
    ),
    _gauge("power_watts", "watts", "Power at this moment; an average where there is no other."),
    _gauge("power_limit_watts", "watts", "Power limit in force."),
    _gauge("power_limit_default_watts", "watts", "Power limit from the factory."),
    _gauge("power_limit_min_watts", "watts", "Lowest power limit that can be set."),
    _gauge("power_limit_max_watts", "watts", "Highest power limit that can be set."),
    _counter("energy_joules", "joules", "Energy used since the driver was loaded."),
    _gauge("clock_hertz", "hertz", "Clock rate now.", "clock"),
    _gauge("clock_max_hertz", "hertz", "Highest clock rate.", "clock"),
    _gauge("clock_application_hertz", "hertz", "Clock rate asked for.", "clock"),
    _gauge("performance_state_id", "", "Performance state: 0 highest, 15 lowest."),
    _counter(
        "clocks_event_seconds",
        "seconds",
        "Time during which the reason held the clocks, summed over samples since the agent began.",
        "reason",
    ),
    _counter(
        "clocks_limited_seconds",
        "seconds",
        "Time during which the reason limited the clocks, by the driver's own counters.",
        "reason",
    ),
    _gauge("utilization_ratio", "ratio", "Share of time with a kernel on the GPU."),
    _gauge("memory_utilization_ratio", "ratio", "Share of time with the memory in use."),
    _gauge("memory_size_bytes", "bytes", "Memory of the GPU."),
    _gauge("memory_used_bytes", "bytes", "Memory in use."),
    _gauge("memory_reserved_bytes", "bytes", "Memory that the driver keeps."),
    _gauge("fan_ratio", "ratio", "Speed that the fan is to have."),
    _gauge("ecc_enabled", "", "1 when ECC is on."),
    _gauge("ecc_pending_enabled", "", "1 when ECC will be on after the next reset."),
    _counter(
        "ecc_errors",
        "",
        "Memory errors, corrected or uncorrected; volatile since the driver was loaded, aggregate ever.",
        "kind",
        "counter",
    ),
    _counter("ecc_place_errors", "", "Memory errors by place.", "kind", "counter", "place"),
    _counter("remapped_rows", "", "Memory rows remapped, ever.", "cause"),
    _gauge("remapped_rows_pending", "", "1 when a row waits for a reset to be remapped."),
    _gauge("remapped_rows_failed", "", "1 when a row could not be remapped."),
    _gauge("remap_banks", "", "Memory banks by how many spare rows are left.", "spare"),
    _counter("retired_pages", "", "Memory pages retired, ever.", "cause"),
    _gauge("retired_pages_pending", "", "1 when a page waits for a reboot to be retired."),
    _gauge("repair_pending", "", "1 when a repair waits for a reset.", "kind"),
    _gauge(
        "sram_threshold_exceeded",
        "",
        "1 when the SRAM has had more uncorrectable errors than NVIDIA allows.",
    ),
    _gauge("memory_unrepairable", "", "1 when the driver calls the memory unrepairable."),
    _gauge("pcie_generation", "", "PCIe generation now; falls when idle."),
    _gauge("pcie_generation_max", "", "Highest PCIe generation of GPU and slot."),
    _gauge("pcie_width_lanes", "lanes", "PCIe lanes now."),
    _gauge("pcie_width_max_lanes", "lanes", "Most PCIe lanes of GPU and slot."),
    _gauge(
        "pcie_replays_per_minute_max",
        "",
        "Replays a minute that a healthy link of this PCIe generation and width may have.",
    ),
    _counter("pcie_errors", "", "PCIe errors, replays among them.", "kind"),
    _counter("pcie_transmit_bytes", "bytes", "Sent over PCIe."),
    _counter("pcie_receive_bytes", "bytes", "Received over PCIe."),
    _gauge(
        "pcie_transmit_bytes_per_second",
        "bytes per second",
        "Sent over PCIe in a sample of 20 ms, where the GPU does not count bytes.",
    ),
    _gauge(
        "pcie_receive_bytes_per_second",
        "bytes per second",
        "Received over PCIe in a sample of 20 ms, where the GPU does not count bytes.",
    ),
    _gauge("nvlink_up", "", "1 when the NVLink is active.", "link"),
    _gauge("nvlink_speed_bytes_per_second", "bytes per second", "Rate of the NVLink.", "link"),
    _counter("nvlink_transmit_bytes", "bytes", "Data sent over the NVLink.", "link"),
    _counter("nvlink_receive_bytes", "bytes", "Data received over the NVLink.", "link"),
    _counter("nvlink_errors", "", "Errors of the NVLink by kind.", "link", "kind"),
    _gauge("nvswitch_links", "", "NVLinks that lead to a switch."),
    _gauge(
        "nvlink_peer_links",
        "",
        "NVLinks that are up and lead to this other GPU, where there is no switch.",
        "peer_pci_bus_id",
    ),
    _gauge(
        "fabric_state_id", "", "Registration with the fabric: 1 not begun, 2 under way, 3 done."
    ),
    _gauge("fabric_status_id", "", "Result of the registration: an NVML error, 0 none."),
    _gauge("fabric_unhealthy", "", "1 when the fabric has this trouble.", "kind"),
    _gauge(
        "platform_info",
        "",
        "Place in the rack (GB200 NVL72 and newer), to be joined by uuid; always 1.",
        "chassis",
        "slot",
        "tray",
        "host",
        "module",
    ),
    _gauge("fabric_info", "", "Place in the fabric; always 1.", "cluster", "clique"),
    _counter("events", "", "Events that the driver has reported since the agent began.", "event"),
    _counter("xid_events", "", "XID events by code since the agent began.", "xid"),
    _gauge("last_xid_id", "", "Code of the last XID event since the agent began; 0 for none."),
    _gauge("processes", "", "Processes with a compute context on the GPU."),
    _gauge("foreign_processes", "", "Processes on the GPU that belong to no rank known here."),
    _gauge(
        "process_memory_bytes",
        "bytes",
        "Memory that a process has on the GPU; the first 32 of a GPU.",
        "pid",
        "process",
    ),
    gauge(
        "rank_gpu_info",
        "",
        (*RANK_LABELS, *_GPU, "pid"),
        "Which rank stands on which GPU, by the driver's list of processes; always 1.",
    ),
    gauge(
        "rank_gpu_memory_bytes", "bytes", (*RANK_LABELS, *_GPU), "Memory that a rank has on a GPU."
    ),
)
