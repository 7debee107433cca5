"""Which shared part explains ranks of a job that became slow together. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from detectors.parts.fleet_parts import FleetParts
from detectors.parts.shared_blame import PlacedWorker, SharedBlame, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from detectors.slow.explanation import SlowSection
from recovery.journal.attempt_records import Placement
from recovery.journal.observation_records import SlowFound

TOGETHER_STEPS: Final = 50  # noise moves an onset by some steps; steps of large jobs take seconds
_PARTS_OF: Final = {
    SlowSection.COMMUNICATION.value: CAUSES_OF[SharedSymptom.NETWORK],
    SlowSection.COMPUTE.value: CAUSES_OF[SharedSymptom.HEAT_OR_POWER],
}


def explain_together(
    found: SlowFound,
    slow: Sequence[SlowFound],
    placement: Sequence[Placement],
    nics: Mapping[int, str],
    parts: FleetParts,
) -> SharedBlame:
    """Return which shared part explains a slow rank and those that became slow in the same section at the same time."""
    alike = {
        str(item.rank)
        for item in slow
        if (item.section, item.is_always) == (found.section, found.is_always)
        and (item.is_always or abs(item.onset_step - found.onset_step) <= TOGETHER_STEPS)
    }
    workers = list(place_ranks(placement, nics, parts).values())
    return explain_shared(workers, alike, parts, _PARTS_OF.get(found.section))


def place_ranks(
    placement: Sequence[Placement], nics: Mapping[int, str], parts: FleetParts
) -> dict[int, PlacedWorker]:
    """Return each rank with its node and NIC. ``nics``: as the agents reported; of other nodes by the layout, if each of a node's GPUs has a rank."""
    found = {}
    for place in placement:
        layout = parts.layout_of(place.node)
        gpus = () if layout is None or len(layout.gpus) != len(place.ranks) else layout.gpus
        near = {rank: gpu.nics for rank, gpu in zip(place.ranks, gpus, strict=False)}
        for rank in place.ranks:
            own = near.get(rank, ())
            nic = nics.get(rank) or (own[0] if len(own) == 1 else None)
            found[rank] = PlacedWorker(str(rank), place.node, nic)
    return found
