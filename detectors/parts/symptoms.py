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


_HOUSE: Final = frozenset({SharedKind.NODE, SharedKind.RACK})

CAUSES_OF: Final[Mapping[SharedSymptom, frozenset[SharedKind] | None]] = {
    SharedSymptom.ANYTHING: None,
    # A rack's own switch is a leaf; nothing else of a rack slows a network down.
    SharedSymptom.NETWORK: NETWORK | {SharedKind.NODE},
    SharedSymptom.HEAT: _HOUSE | {SharedKind.COOLANT_LOOP},
    SharedSymptom.POWER: _HOUSE | {SharedKind.POWER_FEED},
}
