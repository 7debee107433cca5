"""Faults of rankmend itself and of what it needs: a service that is killed, stands still, or can write no more."""

from dataclasses import replace

from rankmend.errors import ConfigError
from recovery.lab.inject.acts import process
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.undo import StartUnit


def plan(place: FaultPlace) -> FaultPlan:
    made = process.plan(place)
    if place.request.fault is not FaultKind.SERVICE_KILL or place.found.job is not None:
        return made
    unit = place.found.unit
    if unit is None:
        raise ConfigError(
            f"{place.request.target} is not a systemd unit, so nothing would start it again: use service-stop"
        )
    return replace(
        made,
        steps=(*made.steps, f"at the end, have systemd start {unit} where it has not done so"),
        undo=(StartUnit(unit),),
    )
