"""Peak FLOPS of accelerators by data type, dense, from the vendors' data sheets. Pure.

The sheets of NVIDIA give tensor-core figures with 2:4 sparsity: half of them is the dense peak. Names are those
that the driver gives. One that isn't here has no peak, and a job on it no MFU.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_T: Final = 1e12

_H100: Final = (
    "NVIDIA H100 Tensor Core GPU data sheet (SXM and NVL), half of the figures with sparsity"
)
_H200: Final = "NVIDIA H200 Tensor Core GPU data sheet, half of the figures with sparsity"


@dataclass(frozen=True, slots=True)
class Peak:
    """One kind of accelerator."""

    name: str  # for people
    words: frozenset[str]  # all are in the driver's name
    without: frozenset[str]  # and none of these
    flops_per_s: dict[str, float]  # by data type, dense
    source: str
    checked: str  # against which public pages, and what differs there; empty: none was found


def _peak(
    name: str, words: str, source: str, *, without: str = "", checked: str = "", **tera: float
) -> Peak:
    flops = {kind: value * _T for kind, value in tera.items()}
    return Peak(name, frozenset(words.split()), frozenset(without.split()), flops, source, checked)


PEAKS: Final = (
    _peak(
        "H100 SXM", "H100 HBM3", _H100, without="PCIE NVL MIG",
        checked="glennklockwood.com/garden/processors/h100, by NVIDIA's white paper: equal within 0.2 %",
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979,
    ),
    _peak(
        "H100 NVL", "H100 NVL", _H100, without="MIG",
        fp64=60, fp32=60, tf32=417.5, fp16=835.5, bf16=835.5, fp8=1670.5,
    ),
    _peak(
        "H100 PCIe", "H100 PCIE", "NVIDIA H100 PCIe data sheet (2022), half of the figures with sparsity",
        checked="hmc-tech.com, computed from clocks: equal within 0.5 %, but for fp64 (47.3)",
        without="MIG", fp64=51, fp32=51, tf32=378, fp16=756.5, bf16=756.5, fp8=1513,
    ),
    _peak(
        "H200 SXM", "H200", _H200, without="NVL MIG",
        checked="itkb.uw.cz/2026/06: fp64, bf16 and fp8 equal; fp32 and tf32 not found",
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979,
    ),
    _peak(
        "H200 NVL", "H200 NVL", _H200, without="MIG",
        fp64=60, fp32=60, tf32=417.5, fp16=835.5, bf16=835.5, fp8=1670.5,
    ),
    _peak(
        "A100", "A100", "NVIDIA A100 Tensor Core GPU data sheet, figures without sparsity",
        checked="glennklockwood.com/garden/processors/A100, by NVIDIA's data sheet: equal",
        without="MIG", fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312,
    ),
    _peak(
        "B200", "B200", "NVIDIA HGX B200 data sheet, an eighth of the system, half of the figures with sparsity",
        checked="hmc-tech.com: equal; glennklockwood.com/garden/processors/B200: equal, but for tf32 (1100)",
        without="MIG", tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp4=9000,
    ),
    _peak(
        "L40S", "L40S", "NVIDIA L40S data sheet, figures without sparsity",
        checked="hmc-tech.com, computed from clocks: equal, but for fp16 and bf16 (366.4, half of fp8)",
        fp32=91.6, tf32=183, fp16=362.05, bf16=362.05, fp8=733,
    ),
    _peak(
        "MI300X", "MI300X", "AMD Instinct MI300X data sheet, matrix figures without sparsity",
        fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9,
    ),
    _peak(
        "MI325X", "MI325X", "AMD Instinct MI325X data sheet, matrix figures without sparsity",
        fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9,
    ),
)  # fmt: skip


@lru_cache(maxsize=256)  # names come from scripts
def peak_of(device: str) -> Peak | None:
    """Return the kind of accelerator that has this name; None: it is not known, or part of one (MIG)."""
    words = set(device.upper().replace("-", " ").replace("_", " ").split())
    found = [peak for peak in PEAKS if peak.words <= words and not peak.without & words]
    return found[0] if len(found) == 1 else None


def peak_flops_per_s(device: str, data_type: str) -> float | None:
    """Return the dense peak of one accelerator; None: it is not known."""
    peak = peak_of(device)
    return None if peak is None else peak.flops_per_s.get(data_type)
