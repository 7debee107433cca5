"""What is exported of GPUs: the families of `agent/collectors/gpu.py`."""

from typing import Final

from agent.metrics import RANK_LABELS, Family, counter, gauge

_GPU: Final = ("gpu", "uuid", "pci_bus_id")
_MIG: Final = (*_GPU, "gpu_instance", "compute_instance")
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
    counter("gpu_collector_restarts", "", (), "Collector processes started after the first."),
    gauge("gpu_sweep_seconds", "seconds", (), "How long reading all GPUs took the last time."),
    # one GPU
    gauge(
        "gpu_success", "", _GPU, "1 when the GPU answers, 0 when it is lost, left out or silent."
    ),
    gauge("gpu_lost", "", _GPU, "1 when the driver says that the GPU is lost, else 0."),
    gauge("gpu_reset_required", "", _GPU, "1 when the driver asks for a reset, else 0."),
    gauge("gpu_sample_age_seconds", "seconds", _GPU, "Age of the newest answer of the GPU."),
    counter("gpu_read_errors", "", _GPU, "Driver calls that failed, the unsupported aside."),
    gauge(
        "gpu_info",
        "",
        (*_GPU, "model", "serial", "vbios", "inforom", "part", "device", "driver", "cuda"),
        "What the GPU is and which software drives it; always 1.",
    ),
    gauge("gpu_persistence_enabled", "", _GPU, "1 when persistence mode is on."),
    gauge("gpu_mig_enabled", "", _GPU, "1 when MIG is on."),
    gauge(
        "gpu_mig_info",
        "",
        (*_GPU, "gpu_instance", "compute_instance", "mig_uuid", "profile"),
        "One MIG instance; always 1.",
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
    gauge(
        "gpu_engine_utilization_ratio",
        "ratio",
        (*_GPU, "engine"),
        "Share of time in which the video encoder, decoder, JPEG or optical-flow engine worked.",
    ),
    gauge("gpu_mig_pending_enabled", "", _GPU, "1 when MIG will be on after the next reset."),
    gauge(
        "gpu_recovery_action_id",
        "",
        _GPU,
        "The driver's own verdict: 0 none, 1 reset GPU, 2 reboot node, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain, 6 reset bus, 7 reboot system.",
    ),
    gauge("gpu_temperature_celsius", "celsius", _GPU, "Temperature of the core."),
    gauge("gpu_memory_temperature_celsius", "celsius", _GPU, "Temperature of the memory."),
    gauge(
        "gpu_temperature_margin_celsius",
        "celsius",
        _GPU,
        "Degrees left to the operating limit, as the driver counts them (T.Limit).",
    ),
    gauge("gpu_slowdown_margin_celsius", "celsius", _GPU, "Degrees left to the hardware slowdown."),
    gauge("gpu_temperature_slowdown_celsius", "celsius", _GPU, "Where hardware slows down."),
    gauge("gpu_temperature_shutdown_celsius", "celsius", _GPU, "Where the GPU shuts down."),
    gauge("gpu_temperature_max_celsius", "celsius", _GPU, "Where software slows down."),
    gauge(
        "gpu_memory_temperature_max_celsius",
        "celsius",
        _GPU,
        "Memory temperature where software slows down.",
    ),
    gauge(
        "gpu_power_watts",
        "watts",
        _GPU,
        "Power at this moment; an average where there is no other.",
    ),
    gauge("gpu_power_limit_watts", "watts", _GPU, "Power limit in force."),
    gauge("gpu_power_limit_default_watts", "watts", _GPU, "Power limit from the factory."),
    gauge("gpu_power_limit_min_watts", "watts", _GPU, "Lowest power limit that can be set."),
    gauge("gpu_power_limit_max_watts", "watts", _GPU, "Highest power limit that can be set."),
    counter("gpu_energy_joules", "joules", _GPU, "Energy used since the driver was loaded."),
    gauge("gpu_clock_hertz", "hertz", (*_GPU, "clock"), "Clock rate now."),
    gauge("gpu_clock_max_hertz", "hertz", (*_GPU, "clock"), "Highest clock rate."),
    gauge("gpu_clock_application_hertz", "hertz", (*_GPU, "clock"), "Clock rate asked for."),
    gauge("gpu_performance_state_id", "", _GPU, "Performance state: 0 highest, 15 lowest."),
    counter(
        "gpu_clocks_event_seconds",
        "seconds",
        (*_GPU, "reason"),
        "Time during which the reason held the clocks, summed over samples since the agent began.",
    ),
    counter(
        "gpu_clocks_limited_seconds",
        "seconds",
        (*_GPU, "reason"),
        "Time during which the reason limited the clocks, by the driver's own counters.",
    ),
    gauge("gpu_utilization_ratio", "ratio", _GPU, "Share of time with a kernel on the GPU."),
    gauge("gpu_memory_utilization_ratio", "ratio", _GPU, "Share of time with the memory in use."),
    gauge("gpu_memory_size_bytes", "bytes", _GPU, "Memory of the GPU."),
    gauge("gpu_memory_used_bytes", "bytes", _GPU, "Memory in use."),
    gauge("gpu_memory_reserved_bytes", "bytes", _GPU, "Memory that the driver keeps."),
    gauge("gpu_fan_ratio", "ratio", _GPU, "Speed that the fan is to have."),
    gauge("gpu_ecc_enabled", "", _GPU, "1 when ECC is on."),
    gauge("gpu_ecc_pending_enabled", "", _GPU, "1 when ECC will be on after the next reset."),
    counter(
        "gpu_ecc_errors",
        "",
        (*_GPU, "kind", "counter"),
        "Memory errors, corrected or uncorrected; volatile since the driver was loaded, aggregate ever.",
    ),
    counter(
        "gpu_ecc_place_errors", "", (*_GPU, "kind", "counter", "place"), "Memory errors by place."
    ),
    counter("gpu_remapped_rows", "", (*_GPU, "cause"), "Memory rows remapped, ever."),
    gauge("gpu_remapped_rows_pending", "", _GPU, "1 when a row waits for a reset to be remapped."),
    gauge("gpu_remapped_rows_failed", "", _GPU, "1 when a row could not be remapped."),
    gauge("gpu_remap_banks", "", (*_GPU, "spare"), "Memory banks by how many spare rows are left."),
    counter("gpu_retired_pages", "", (*_GPU, "cause"), "Memory pages retired, ever."),
    gauge("gpu_retired_pages_pending", "", _GPU, "1 when a page waits for a reboot to be retired."),
    gauge("gpu_repair_pending", "", (*_GPU, "kind"), "1 when a repair waits for a reset."),
    gauge("gpu_pcie_generation", "", _GPU, "PCIe generation now; falls when idle."),
    gauge("gpu_pcie_generation_max", "", _GPU, "Highest PCIe generation of GPU and slot."),
    gauge("gpu_pcie_width_lanes", "lanes", _GPU, "PCIe lanes now."),
    gauge("gpu_pcie_width_max_lanes", "lanes", _GPU, "Most PCIe lanes of GPU and slot."),
    counter("gpu_pcie_errors", "", (*_GPU, "kind"), "PCIe errors, replays among them."),
    counter("gpu_pcie_transmit_bytes", "bytes", _GPU, "Sent over PCIe."),
    counter("gpu_pcie_receive_bytes", "bytes", _GPU, "Received over PCIe."),
    gauge(
        "gpu_pcie_transmit_bytes_per_second",
        "bytes per second",
        _GPU,
        "Sent over PCIe in a sample of 20 ms, where the GPU does not count bytes.",
    ),
    gauge(
        "gpu_pcie_receive_bytes_per_second",
        "bytes per second",
        _GPU,
        "Received over PCIe in a sample of 20 ms, where the GPU does not count bytes.",
    ),
    gauge("gpu_nvlink_up", "", (*_GPU, "link"), "1 when the NVLink is active."),
    gauge(
        "gpu_nvlink_speed_bytes_per_second",
        "bytes per second",
        (*_GPU, "link"),
        "Rate of the NVLink.",
    ),
    counter("gpu_nvlink_transmit_bytes", "bytes", (*_GPU, "link"), "Data sent over the NVLink."),
    counter("gpu_nvlink_receive_bytes", "bytes", (*_GPU, "link"), "Data received over the NVLink."),
    counter("gpu_nvlink_errors", "", (*_GPU, "link", "kind"), "Errors of the NVLink by kind."),
    gauge("gpu_nvswitch_links", "", _GPU, "NVLinks that lead to a switch."),
    gauge(
        "gpu_fabric_state_id",
        "",
        _GPU,
        "Registration with the fabric: 1 not begun, 2 under way, 3 done.",
    ),
    gauge("gpu_fabric_status_id", "", _GPU, "Result of the registration: an NVML error, 0 none."),
    gauge("gpu_fabric_unhealthy", "", (*_GPU, "kind"), "1 when the fabric has this trouble."),
    gauge("gpu_fabric_info", "", (*_GPU, "cluster", "clique"), "Place in the fabric; always 1."),
    counter(
        "gpu_events",
        "",
        (*_GPU, "event"),
        "Events that the driver has reported since the agent began.",
    ),
    counter("gpu_xid_events", "", (*_GPU, "xid"), "XID events by code since the agent began."),
    gauge("gpu_processes", "", _GPU, "Processes with a compute context on the GPU."),
    gauge(
        "gpu_foreign_processes", "", _GPU, "Processes on the GPU that belong to no rank known here."
    ),
    gauge(
        "gpu_process_memory_bytes",
        "bytes",
        (*_GPU, "pid", "process"),
        "Memory that a process has on the GPU; the first 32 of a GPU.",
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
