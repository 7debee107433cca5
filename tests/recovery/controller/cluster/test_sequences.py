"""Jobs, nodes and incidents over days: which nodes the cluster holds back, and which it must not."""

from collections import Counter
from dataclasses import replace

import pytest

from detectors.finding import Severity
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.controller.job.node_charges import ChargedJob, charges_of
from recovery.journal.attempt_records import Placement
from recovery.journal.incident_records import Failure
from recovery.journal.ledger import KeptEvidence, Ledger
from recovery.messages.exchange import RankError
from recovery.messages.outside import NodeEvidence
from tests.support.cluster_desk import make_desk
from tests.support.node_sequences import (
    SEQUENCES,
    GaveUp,
    Met,
    Sequence,
    failed_ranks,
    find,
    placed,
)

HOUR_S = 3600.0
ENOUGH_NODES = 100  # that ran ranks within a day: the share that may be held is no limit here


def charge(desk: ClusterController, met: Met, incident_id: str) -> None:
    """Let the cluster note one incident as a job's controller does."""
    finding = find(met)
    type_name = met.said.partition(":")[0].rpartition(".")[2]
    error = RankError(type_name, "", "") if met.said else None
    failure = Failure(1, finding, 1, None, error, 40, False, (), met.library)
    places = tuple(Placement(node, ranks) for node, ranks in placed(met).items())
    ledger = replace(Ledger(), attempt=1, placement=places)
    if met.alert:
        alert = NodeEvidence(
            "a", "RankmendXid", met.node, failed_ranks(met), "GPU-1", Severity.CRITICAL, met.alert, "", 1.0
        )  # fmt: skip
        ledger = replace(ledger, evidence={"a": KeptEvidence(alert, 1, incident_id)})
    job = ChargedJob(met.job, met.program or f"{met.job}.py:{met.job}")
    proved = finding if met.is_proved else None
    for one in charges_of(incident_id, failure, job, ledger, {}, proved):
        desk.note_charge(one)


def play(sequence: Sequence) -> ClusterController:
    desk, _journal, clock = make_desk(ClusterPolicy())
    began_s, counts = clock.now, Counter[str]()
    for event in sequence.events:
        clock.now = began_s + event.at_h * HOUR_S
        desk.note_running(f"other-{number}" for number in range(ENOUGH_NODES))
        if isinstance(event, GaveUp):
            ids = [f"{event.job}/{number}" for number in event.incidents]
            desk.take_back(event.job, ids, "the program itself fails")
            continue
        counts[event.job] += 1
        charge(desk, event, f"{event.job}/{counts[event.job]}")
    return desk


@pytest.mark.parametrize("sequence", SEQUENCES, ids=[one.name for one in SEQUENCES])
def test_only_the_nodes_that_evidence_accuses_are_held_back(sequence: Sequence) -> None:
    desk = play(sequence)

    held = tuple(sorted(node for node in desk.ledger.nodes if desk.unusable(node) is not None))
    counted = sum(len(past.blames) for past in desk.ledger.nodes.values())
    assert held == sequence.held
    assert sequence.counted in (None, counted)


def test_the_corpus_holds_40_sequences_and_each_has_a_name_of_its_own() -> None:
    assert len(SEQUENCES) >= 40
    assert len({one.name for one in SEQUENCES}) == len(SEQUENCES)


def test_no_node_is_held_back_for_errors_of_code_data_or_a_service_of_one_job() -> None:
    for sequence in SEQUENCES:
        jobs = {event.job for event in sequence.events}
        says = all(isinstance(event, Met) and event.said for event in sequence.events)
        is_device = any(isinstance(e, Met) and "CUDA error" in e.said for e in sequence.events)
        if len(jobs) == 1 and says and not is_device:
            assert sequence.held == (), sequence.name
