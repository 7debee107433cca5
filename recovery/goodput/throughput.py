"""Throughput, MFU and linearity of jobs, from the work that their ranks told. Pure.

Useful compute = peak x devices x MFU x linearity x availability. MFU: FLOPs of the model per second of training
by the dense peak of the accelerators for the data type (PaLM, arXiv 2204.02311, appendix B). What nobody
told is None, never zero; docs/reference/goodput.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recovery.goodput.job_time import JobTime, WorkTime
from recovery.goodput.linearity import Setting, sizes_of
from recovery.goodput.peaks import peak_flops_per_s


@dataclass(frozen=True, slots=True)
class SizeRate:
    """How fast a job was on one number of devices."""

    devices: int
    per_device_s: float  # of the unit, for each device and second
    linearity_ratio: float  # to the smallest size; 1.0 for that


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates are those while ranks trained, for the job as a whole."""

    flops_per_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    mfu_ratio: float | None = None  # 0 to 1
    device: str = ""  # the accelerators that the peak is of; empty: not known, or several
    data_type: str = ""
    unit: str = ""  # of `sizes`: tokens, samples or flops; empty: nothing was told
    sizes: tuple[SizeRate, ...] = field(default=())  # the smallest first


def throughput_of(jobs: Sequence[JobTime]) -> Throughput | None:
    """Return how fast jobs of one name were; None where they told no work."""
    work = [one for job in jobs for one in job.work if one.device_s > 0]
    if not work:
        return None
    took_s = sum(one.end_s - one.begin_s for one in work)
    amounts = {
        "tokens": sum(one.tokens for one in work),
        "samples": sum(one.samples for one in work),
        "flops": sum(one.flops for one in work),
    }
    unit = next((name for name, amount in amounts.items() if amount > 0), "")
    devices, types = ({one.device for one in work}, {one.data_type for one in work})
    return Throughput(
        flops_per_s=_rate(amounts["flops"], took_s),
        tokens_per_s=_rate(amounts["tokens"], took_s),
        samples_per_s=_rate(amounts["samples"], took_s),
        mfu_ratio=_mfu(work),
        device=devices.pop() if len(devices) == 1 else "",
        data_type=types.pop() if len(types) == 1 else "",
        unit=unit,
        sizes=_sizes(work, unit) if unit else (),
    )


def throughput_by_name(jobs: Iterable[JobTime]) -> Mapping[str, Throughput]:
    """Return the throughput of all jobs of a name together: linearity compares their sizes."""
    named: dict[str, list[JobTime]] = {}
    for job in jobs:
        named.setdefault(job.name, []).append(job)
    found = {name: throughput_of(group) for name, group in named.items()}
    return {name: one for name, one in found.items() if one is not None}


def _mfu(work: Sequence[WorkTime]) -> float | None:
    """Return the MFU; None where FLOPs were not told, or the peak of an accelerator is not known."""
    able = 0.0
    for one in work:
        peak = peak_flops_per_s(one.device, one.data_type)
        if peak is None:
            return None
        able += one.device_s * peak
    flops = sum(one.flops for one in work)
    return flops / able if flops > 0 and able > 0 else None


def _sizes(work: Sequence[WorkTime], unit: str) -> tuple[SizeRate, ...]:
    """Return the sizes of the setting, of those with this unit, in which most was trained."""
    found = sizes_of(work)
    trained: dict[Setting, float] = {}
    for (setting, _size), told in found.items():
        if setting.unit == unit:
            trained[setting] = trained.get(setting, 0.0) + told.device_s
    most = max(trained, key=lambda setting: trained[setting], default=None)
    rates = sorted(
        (size, told.per_device_s) for (setting, size), told in found.items() if setting == most
    )
    return tuple(SizeRate(size, rate, rate / rates[0][1]) for size, rate in rates)


def _rate(amount: float, took_s: float) -> float | None:
    return amount / took_s if amount > 0 and took_s > 0 else None
