"""Which kinds of parts can cause which kind of fault. Pure."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from detectors.parts.fleet_parts import NETWORK, SharedKind


class SharedSymptom(Enum):
    ANYTHING = "anything"
    NETWORK = "network"
    HEAT = "heat"
    POWER = "power"
    HEAT_OR_POWER = "heat or power"


_HOUSE: Final = frozenset({SharedKind.NODE, SharedKind.CHASSIS, SharedKind.RACK})

CAUSES_OF: Final[Mapping[SharedSymptom, frozenset[SharedKind] | None]] = {
    SharedSymptom.ANYTHING: None,
    # A rack's own switch is a leaf; nothing else of a rack slows a network down.
    SharedSymptom.NETWORK: NETWORK | {SharedKind.NODE},
    SharedSymptom.HEAT: _HOUSE | {SharedKind.COOLANT_LOOP},
    SharedSymptom.HEAT_OR_POWER: _HOUSE | {SharedKind.COOLANT_LOOP, SharedKind.POWER_FEED},
    SharedSymptom.POWER: _HOUSE | {SharedKind.POWER_FEED},
}

_CHECKS: Final = {
    SharedSymptom.HEAT: (
        *("gpu_hot", "gpu_memory_hot", "gpu_slowed_by_heat", "gpu_slowdown_near"),
        *("sensor_hot", "sensor_critical", "coolant_leak", "cooling_unit"),
    ),
    SharedSymptom.POWER: ("gpu_power_brake", "ipmi_supply_failed", "power_feed"),
    SharedSymptom.HEAT_OR_POWER: ("gpu_slowed_by_hardware",),
}
_SYMPTOM_OF: Final = {name: symptom for symptom, names in _CHECKS.items() for name in names}
_NETWORK_CHECKS: Final = ("nic_", "ethernet_", "bond_", "transceiver_", "plane_")


def symptom_of(check: str) -> SharedSymptom:
    """Return what a node check (detectors/data/node_policy.toml) tells of; ANYTHING where many things can cause it."""
    if check.startswith(_NETWORK_CHECKS):
        return SharedSymptom.NETWORK
    return _SYMPTOM_OF.get(check, SharedSymptom.ANYTHING)
