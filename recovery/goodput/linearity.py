"""Linearity: work per device and second, against that on the smallest number of devices. Pure.

Jobs of one name are compared, and of their work only what was done on the same accelerators, with FLOPs of the same data
type, and counted in the same unit. What else differs between two jobs of one name nobody tells: docs/reference/goodput.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from recovery.goodput.job_time import WorkTime

_UNITS = ("tokens", "samples", "flops")


@dataclass(frozen=True, slots=True)
class Setting:
    """What must be equal of two sizes that are compared."""

    device: str  # empty: not known, or several
    data_type: str
    unit: str  # tokens, samples or flops: the first that is told


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
    """Return the setting and the number of devices of work; None where it tells no amount."""
    unit = next((name for name in _UNITS if getattr(work, name) > 0), "")
    if not unit or work.device_s <= 0:
        return None
    return Setting(work.device, work.data_type, unit), work.ranks


def sizes_of(work: Iterable[WorkTime]) -> Sizes:
    """Return the work of each setting and number of devices."""
    found: dict[tuple[Setting, int], SizeWork] = {}
    for one in work:
        if (key := size_of(one)) is not None:
            told = SizeWork(getattr(one, key[0].unit), one.device_s)
            found[key] = _plus(found.get(key), told)
    return found


def add_sizes(groups: Iterable[Sizes]) -> Sizes:
    """Return the work of several jobs together."""
    found: dict[tuple[Setting, int], SizeWork] = {}
    for sizes in groups:
        for key, told in sizes.items():
            found[key] = _plus(found.get(key), told)
    return found


def linearity_of(now: tuple[Setting, int], own: Sizes, all_sizes: Sizes) -> float | None:
    """Return a job's linearity on the size on which it runs now: 1 on the smallest; None where its work is not known.

    ``own``: its work. ``all_sizes``: that of all jobs of its name.
    """
    setting, devices = now
    smallest = min((size for one, size in all_sizes if one == setting), default=devices)
    mine, base = own.get(now), all_sizes.get((setting, smallest))
    if smallest == devices:
        return 1.0
    if mine is None or base is None or base.per_device_s <= 0:
        return None
    return mine.per_device_s / base.per_device_s


def _plus(before: SizeWork | None, told: SizeWork) -> SizeWork:
    if before is None:
        return told
    return SizeWork(before.amount + told.amount, before.device_s + told.device_s)
