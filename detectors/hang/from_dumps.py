"""Which rank a hung job waits for, from the flight-recorder dumps of its ranks.

1. `positions`: how far each rank has come in each group.
2. `mismatch`: ranks at the same collective with different operations; the program is at fault.
   What the rings still hold of the past is compared, too, before a rank or the network is blamed:
   ranks that have come apart wait for each other later, at a collective that looks alike.
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
from detectors.hang.mismatch import find_mismatch, find_past_mismatch
from detectors.hang.positions import positions_of
from detectors.hang.standings import JobStandings
from detectors.hang.wait_graph import NoDump, WaitGraph, draw_waits
from detectors.hang.wait_verdict import WaitVerdict, judge_transfers, judge_waits


def diagnose_hang(job: JobStandings) -> Diagnosis:
    """Return the ranks that a hung job waits for, or why none can be named."""
    positions = positions_of(job)
    graph = draw_waits(positions)
    verdict = judge_waits(graph)
    mismatch = find_mismatch(positions)
    mismatch = mismatch or find_past_mismatch(positions, _groups_at_issue(graph, verdict))
    if mismatch is not None:
        return dump_diagnosis.of_mismatch(positions, mismatch)
    if verdict.culprits:
        return dump_diagnosis.of_culprits(graph, verdict.culprits)
    if verdict.circles:
        return dump_diagnosis.of_deadlock(graph, verdict.circles[0])
    if verdict.equal:
        return dump_diagnosis.of_equal_positions(graph, verdict.equal)
    if not verdict.pairs and (culprits := judge_transfers(graph)):
        return dump_diagnosis.of_transfers(graph, culprits)
    return dump_diagnosis.of_nobody(graph, verdict.pairs)


def _groups_at_issue(graph: WaitGraph, verdict: WaitVerdict) -> list[str]:
    """Return the groups whose past may explain the hang instead, in the order of their names.

    Of culprits only those in which others wait for them: a difference in another group says nothing of
    these ranks. That a process has ended is a fact, whatever came before.
    """
    if not verdict.culprits:
        return sorted(one.group.name for one in graph.positions.groups)
    return sorted(
        {
            accusation.group.name
            for rank in verdict.culprits
            for accusation in graph.accusations.get(rank, ())
            if not isinstance(accusation, NoDump)
        }
    )
