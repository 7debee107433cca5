"""Faults of a real GPU, by NVML: a locked clock, a lower power limit. Never tried on a real GPU."""

from recovery.lab.inject import system_calls
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.undo import ResetClocks, RestorePower


def plan(place: FaultPlace) -> FaultPlan:
    gpu, options = place.request.target.name, place.request.options
    if place.request.fault is FaultKind.GPU_CLOCKS:
        mhz = options.mhz
        assert mhz is not None, "checked with the request"
        system_calls.check_gpu(gpu)  # else what undoes it would fail for ever
        return FaultPlan(
            (f"lock the clocks of {gpu} to {mhz} MHz, and unlock them at the end",),
            (ResetClocks(gpu),),
            lambda: system_calls.lock_clocks(gpu, mhz),
        )
    watts = options.watts
    assert watts is not None, "checked with the request"
    before = system_calls.read_power_limit(gpu)
    return FaultPlan(
        (f"limit the power of {gpu} to {watts} W, which is {before / 1000:g} W now",),
        (RestorePower(gpu, before),),
        lambda: system_calls.set_power_limit(gpu, watts * 1000),
    )
