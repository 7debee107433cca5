"""The figures of a pre-flight check: unit, which direction is bad, and from which deviation on it matters. Pure.

The shares are floors: a fleet whose figures agree to 1 % is not to accuse a node that is 2 % slower. They are wider where
a sound part of the same model differs: GPUs of one model differ by 8 % in sustained clocks (Sinha et al., "Not All GPUs
Are Created Equal", SC 2022), disks by wear and by what others write meanwhile.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class FigureUnit(Enum):
    BYTES_PER_S = "bytes/s"
    FLOPS_PER_S = "FLOP/s"
    BYTES = "bytes"
    SECONDS = "s"
    RATIO = "ratio"
    HERTZ = "Hz"
    CELSIUS = "celsius"


@dataclass(frozen=True, slots=True)
class FigureKind:
    """``share``: of the baseline, by which a figure may be worse whatever its spread."""

    name: str
    unit: FigureUnit
    share: float
    is_more_better: bool = True
    action: str = "drain"  # value of detectors.finding.Action, if the figure is too bad
    advice: str = ""


@dataclass(frozen=True, slots=True)
class LoadFigure:
    """One measured value of one part of a node."""

    name: str
    value: float
    part: str  # "cpu", "cuda:0", "checkpoints"
    model: str  # what it is compared with: only figures of one model are


_CPU: Final = "look for a CPU quota, a power cap, another program, hot or missing cooling"
_QUOTA: Final = (
    "a CPU quota holds this node back: look at cpu.max, or cpu.cfs_quota_us, of its groups"
)
_MEMORY: Final = "look for another program, a missing or slow memory module, disabled channels"
_GPU: Final = "look at clocks, power limit and temperature under load; then replace the GPU"
_HEAT: Final = "look at fans, airflow, coolant and the seat of the heat sink; then replace the GPU"
_LINK: Final = "look at the PCIe generation and width, ACS and NVLink; reseat the card"
_NETWORK: Final = (
    "look at the NIC's speed, its link's errors and PCIe width, the cable and the switch port"
)
_DISK: Final = "look for other writers, a failing or full disk, a degraded array or server"

_KINDS: Final = (
    FigureKind("cpu_hash_bytes_per_s", FigureUnit.BYTES_PER_S, 0.2, advice=_CPU),
    FigureKind("cpu_hash_bytes_per_cpu_s", FigureUnit.BYTES_PER_S, 0.2, advice=_CPU),
    FigureKind("cpu_unthrottled_ratio", FigureUnit.RATIO, 0.1, advice=_QUOTA),
    FigureKind("cpu_gemm_float32_flops_per_s", FigureUnit.FLOPS_PER_S, 0.2, advice=_CPU),
    FigureKind("cpu_gemm_float64_flops_per_s", FigureUnit.FLOPS_PER_S, 0.2, advice=_CPU),
    FigureKind("memory_copy_bytes_per_s", FigureUnit.BYTES_PER_S, 0.2, advice=_MEMORY),
    FigureKind("disk_write_bytes_per_s", FigureUnit.BYTES_PER_S, 0.5, advice=_DISK),
    FigureKind("disk_read_bytes_per_s", FigureUnit.BYTES_PER_S, 0.5, advice=_DISK),
    FigureKind("disk_sync_s", FigureUnit.SECONDS, 4.0, is_more_better=False, advice=_DISK),
    *(
        FigureKind(f"gpu_gemm_{kind}_flops_per_s", FigureUnit.FLOPS_PER_S, 0.08, advice=_GPU)
        for kind in ("float16", "bfloat16", "tf32", "float32", "float64")
    ),
    FigureKind("gpu_clock_hertz", FigureUnit.HERTZ, 0.08, advice=_GPU),
    # Slots of one chassis differ by 10 K and more, since some get the air that others have heated.
    FigureKind(
        "gpu_temperature_celsius", FigureUnit.CELSIUS, 0.25, is_more_better=False, advice=_HEAT
    ),
    FigureKind("gpu_memory_copy_bytes_per_s", FigureUnit.BYTES_PER_S, 0.05, advice=_GPU),
    FigureKind("gpu_memory_size_bytes", FigureUnit.BYTES, 0.02, advice=_GPU),
    FigureKind("gpu_from_host_bytes_per_s", FigureUnit.BYTES_PER_S, 0.15, advice=_LINK),
    FigureKind("gpu_to_host_bytes_per_s", FigureUnit.BYTES_PER_S, 0.15, advice=_LINK),
    FigureKind("gpu_pair_bytes_per_s", FigureUnit.BYTES_PER_S, 0.15, advice=_LINK),
    # Both ends of a test share it, and what else runs on their links.
    FigureKind("network_sent_bytes_per_s", FigureUnit.BYTES_PER_S, 0.3, advice=_NETWORK),
    FigureKind("network_received_bytes_per_s", FigureUnit.BYTES_PER_S, 0.3, advice=_NETWORK),
    FigureKind("tool_bandwidth_bytes_per_s", FigureUnit.BYTES_PER_S, 0.1, advice=_LINK),
)
KINDS: Final = {kind.name: kind for kind in _KINDS}


def better(kind: FigureKind, number: float, other: float) -> float:
    return max(number, other) if kind.is_more_better else min(number, other)


def say(value: float, unit: FigureUnit) -> str:
    """Return a figure for people, with three significant digits."""
    if unit is FigureUnit.SECONDS:
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    if unit is FigureUnit.CELSIUS:
        return f"{value:.0f} °C"
    if unit is FigureUnit.RATIO:
        return f"{value:.3g}"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}{_SHORT[unit]}"
    return f"{value:.3g} {_SHORT[unit]}"


_SHORT: Final = {
    FigureUnit.BYTES_PER_S: "B/s",
    FigureUnit.FLOPS_PER_S: "FLOP/s",
    FigureUnit.BYTES: "B",
    FigureUnit.HERTZ: "Hz",
}
