"""Throughput, MFU and linearity of jobs, from the work that their ranks reported. Pure.

Useful compute = peak x devices x MFU x linearity x availability. MFU: FLOPs of the model per second
of training by the dense peak of the accelerators for the data type (PaLM, arXiv 2204.02311,
appendix B). Linearity: work per device and second, against that on the smallest number of devices.

We compare jobs of one name, and of their work only what was done on the same accelerators, with
FLOPs of the same data type, and counted in the same unit. Nobody reports what else differs between
two jobs of one name. A figure that nobody reported is None, never zero; docs/reference/goodput.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from recovery.accounting.goodput.job_time import JobTime, WorkTime
from recovery.accounting.goodput.peaks import peak_flops_per_s
from recovery.accounting.goodput.timeline import TRAINING, TimePart

_UNITS = ("tokens", "samples", "flops")

_RUNS = frozenset({*TRAINING, TimePart.CHECKPOINT})


@dataclass(frozen=True, slots=True)
class Setting:
    """What must be equal of two sizes that are compared."""

    device: str  # empty: not known, or several
    data_type: str
    unit: str  # tokens, samples or flops: the first that is reported


@dataclass(frozen=True, slots=True)
class SizeWork:
    """The work that was done on one number of devices."""

    amount: float  # of the unit
    device_s: float

    @property
    def per_device_s(self) -> float:
        return self.amount / self.device_s


Sizes: TypeAlias = Mapping[tuple[Setting, int], SizeWork]  # by setting and number of devices


def size_of(work: WorkTime) -> tuple[Setting, int] | None:
    """Return the setting and the number of devices of work; None where it has no amount."""
    unit = next((name for name in _UNITS if getattr(work, name) > 0), "")
    if not unit or work.device_s <= 0:
        return None
    return Setting(work.device, work.data_type, unit), work.ranks


def sizes_of(work: Iterable[WorkTime]) -> Sizes:
    """Return the work of each setting and number of devices."""
    found: dict[tuple[Setting, int], SizeWork] = {}
    for time in work:
        if (key := size_of(time)) is not None:
            reported = SizeWork(getattr(time, key[0].unit), time.device_s)
            found[key] = _plus(found.get(key), reported)
    return found


def add_sizes(groups: Iterable[Sizes]) -> Sizes:
    """Return the work of several jobs together."""
    found: dict[tuple[Setting, int], SizeWork] = {}
    for sizes in groups:
        for key, reported in sizes.items():
            found[key] = _plus(found.get(key), reported)
    return found


def linearity_of(now: tuple[Setting, int], own: Sizes, all_sizes: Sizes) -> float | None:
    """Return a job's linearity on the size on which it runs now: 1 on the smallest; None where its work is not known.

    ``own``: its work. ``all_sizes``: that of all jobs of its name.
    """
    setting, devices = now
    smallest = min((size for item, size in all_sizes if item == setting), default=devices)
    mine, base = own.get(now), all_sizes.get((setting, smallest))
    if smallest == devices:
        return 1.0
    if mine is None or base is None or base.per_device_s <= 0:
        return None
    return mine.per_device_s / base.per_device_s


def _plus(before: SizeWork | None, reported: SizeWork) -> SizeWork:
    if before is None:
        return reported
    return SizeWork(before.amount + reported.amount, before.device_s + reported.device_s)


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
    unit: str = ""  # of `sizes`: tokens, samples or flops; empty: nothing was reported
    sizes: tuple[SizeRate, ...] = field(default=())  # the smallest first


def throughput_of(jobs: Sequence[JobTime]) -> Throughput | None:
    """Return how fast jobs of one name were; None where they reported no work."""
    work = [item for job in jobs for item in job.work if item.device_s > 0]
    if not work:
        return None
    took_s = sum(item.end_s - item.begin_s for item in work)
    amounts = {
        "tokens": sum(item.tokens for item in work),
        "samples": sum(item.samples for item in work),
        "flops": sum(item.flops for item in work),
    }
    unit = next((name for name, amount in amounts.items() if amount > 0), "")
    devices, types = ({item.device for item in work}, {item.data_type for item in work})
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
    return {name: item for name, item in found.items() if item is not None}


def _mfu(work: Sequence[WorkTime]) -> float | None:
    """Return the MFU; None where no FLOPs were reported, or the peak of an accelerator is not known."""
    able = 0.0
    for time in work:
        peak = peak_flops_per_s(time.device, time.data_type)
        if peak is None:
            return None
        able += time.device_s * peak
    flops = sum(time.flops for time in work)
    return flops / able if flops > 0 and able > 0 else None


def _sizes(work: Sequence[WorkTime], unit: str) -> tuple[SizeRate, ...]:
    """Return the sizes of the setting, of those with this unit, in which most was trained."""
    found = sizes_of(work)
    trained: dict[Setting, float] = {}
    for (setting, _size), reported in found.items():
        if setting.unit == unit:
            trained[setting] = trained.get(setting, 0.0) + reported.device_s
    most = max(trained, key=lambda setting: trained[setting], default=None)
    rates = sorted(
        (size, reported.per_device_s)
        for (setting, size), reported in found.items()
        if setting == most
    )
    return tuple(SizeRate(size, rate, rate / rates[0][1]) for size, rate in rates)


def _rate(amount: float, took_s: float) -> float | None:
    return amount / took_s if amount > 0 and took_s > 0 else None


@dataclass(frozen=True, slots=True)
class JobRates:
    """Rates of the whole job; None: its ranks do not report that, or it does not train now."""

    flops_per_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    mfu_ratio: float | None = None


def rates_of(job: JobTime) -> JobRates:
    """Return the rates since the record of work before the newest."""
    if not (job.work and job.spans) or job.spans[-1].part not in _RUNS:
        return JobRates()
    newest = job.work[-1]
    if not _is_of_now(job, newest):
        return JobRates()
    now: Throughput | None = throughput_of(
        [JobTime(job.job_id, job.name, job.began_unix_s, (), (), (), (), (newest,))]
    )
    if now is None:
        return JobRates()
    return JobRates(now.flops_per_s, now.tokens_per_s, now.samples_per_s, now.mfu_ratio)


def _is_of_now(job: JobTime, newest: WorkTime) -> bool:
    """Return whether these ranks have done that work, and not those before them."""
    if not job.is_watched:
        return bool(job.attempts) and newest.begin_s >= job.attempts[-1].ordered_s
    stood = (span.end_s for span in job.spans if span.part not in _RUNS)
    return newest.end_s > max(stood, default=0.0)
