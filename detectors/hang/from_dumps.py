"""Which rank a hung job waits for, from the flight-recorder dumps of its ranks.

1. `positions`: how far each rank has come in each group.
2. `mismatch`: ranks at the same collective with different operations; the program is at fault.
3. `wait_graph`: each rank leads from its first unfinished collective to the members that keep it
   from finishing: those that have not launched it, and those with an older one outstanding.
4. `wait_verdict`: a rank that others wait for and that waits for nobody is to blame.
5. `dump_diagnosis`: the answer in words.

Only a rank's first outstanding operation counts: it has not reached what it launched after that.
What a rank launched last proves nothing, because the host of a stuck device keeps launching.
Time stamps are not used.
"""

from detectors.diagnosis import Diagnosis
from detectors.hang import dump_diagnosis
from detectors.hang.mismatch import find_mismatch
from detectors.hang.positions import positions_of
from detectors.hang.standings import JobStandings
from detectors.hang.wait_graph import draw_waits
from detectors.hang.wait_verdict import judge_transfers, judge_waits


def diagnose_hang(job: JobStandings) -> Diagnosis:
    """Return the ranks that a hung job waits for, or why none can be named."""
    positions = positions_of(job)
    if (mismatch := find_mismatch(positions)) is not None:
        return dump_diagnosis.of_mismatch(positions, mismatch)
    graph = draw_waits(positions)
    verdict = judge_waits(graph)
    if verdict.culprits:
        return dump_diagnosis.of_culprits(graph, verdict.culprits)
    if verdict.circles:
        return dump_diagnosis.of_deadlock(graph, verdict.circles[0])
    if verdict.equal:
        return dump_diagnosis.of_equal_positions(graph, verdict.equal)
    if not verdict.pairs and (culprits := judge_transfers(graph)):
        return dump_diagnosis.of_transfers(graph, culprits)
    return dump_diagnosis.of_nobody(graph, verdict.pairs)
