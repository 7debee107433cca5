"""Which shared part explains ranks of a job that became slow together. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from detectors.parts.fleet_parts import FleetParts
from detectors.parts.shared_blame import PlacedWorker, SharedBlame, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from detectors.slow.cause_signs import SlowSection
from recovery.journal.attempt_records import Placement
from recovery.journal.slow_rank_records import SlowFound

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
        str(one.rank)
        for one in slow
        if (one.section, one.is_always) == (found.section, found.is_always)
        and (one.is_always or abs(one.onset_step - found.onset_step) <= TOGETHER_STEPS)
    }
    workers = [
        PlacedWorker(str(rank), place.node, nics.get(rank))
        for place in placement
        for rank in place.ranks
    ]
    return explain_shared(workers, alike, parts, _PARTS_OF.get(found.section))
