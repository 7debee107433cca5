"""What is asked of Slurm about a job of ours that finds no usable node in its allocation."""

from dataclasses import replace

import pytest

from recovery.journal.incident_machine import IncidentState, Phase
from recovery.journal.incident_records import WaitsFor
from recovery.journal.ledger import Ledger
from recovery.slurm.allocation import requeue_request, unusable_nodes, waiting_incident
from recovery.slurm.bounds import refuse_shared_job
from recovery.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.slurm.fakes import INCIDENT, LEDGER, SLURM


def test_a_job_that_waits_for_a_node_is_requeued_without_the_nodes_it_has_left() -> None:
    request = requeue_request(INCIDENT, LEDGER, SLURM, "ada", ())

    assert request is not None
    assert request.key == "requeue/inc-1/41/2"
    assert (request.action, request.slurm_job) == (SchedulerAction.REQUEUE, "41")
    assert (request.nodes, request.slurm_step) == (("n3", "n4"), "0")
    assert (request.owner, request.seen_on) == ("ada", ("n1", "n2", "n3", "n4"))
    assert request.reason == "rank 2 was killed; no usable node is left (inc-1)"


def test_a_node_that_a_person_took_back_is_not_left_out() -> None:
    assert unusable_nodes(replace(LEDGER, taken_back=frozenset({"n4"})), INCIDENT) == ("n3",)


@pytest.mark.parametrize("number", ["", "41 --force", "41_7", "٤"])
def test_a_job_outside_of_slurm_is_not_requeued(number: str) -> None:
    assert requeue_request(INCIDENT, LEDGER, {"SLURM_JOB_ID": number}, "ada", ()) is None


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(),
        replace(LEDGER, paused_by="ada"),
        replace(LEDGER, incident=replace(INCIDENT, waits=None)),
        replace(LEDGER, incident=replace(INCIDENT, waits_for=WaitsFor.LEAVE)),
        replace(
            LEDGER,
            incident=replace(INCIDENT, state=IncidentState("inc-1", 20, phase=Phase.FENCING)),
        ),
    ],
)
def test_only_a_fenced_job_that_waits_for_nodes_counts(ledger: Ledger) -> None:
    assert waiting_incident(LEDGER) is INCIDENT
    assert waiting_incident(ledger) is None


@pytest.mark.parametrize(
    ("own", "shared_by", "steps", "why"),
    [
        ("0", (), {"0"}, None),
        ("0", (), set(), None),
        ("0", (), {"0", "1"}, "job 41 is shared: a requeue would also end 41.1"),
        ("batch", (), {"10", "9"}, "job 41 is shared: a requeue would also end 41.9, 41.10"),
        ("0", ("sweep-2",), {"0"}, "job 41 is shared: a requeue would also end sweep-2"),
        ("", (), {"0", "1"}, None),  # a watched job: its policy says what may be done
    ],
)
def test_a_requeue_never_ends_what_others_run_in_the_allocation(
    own: str, shared_by: tuple[str, ...], steps: set[str], why: str | None
) -> None:
    request = SchedulerRequest(
        "k", SchedulerAction.REQUEUE, (), "41", slurm_step=own, shared_by=shared_by
    )

    assert refuse_shared_job(request, steps) == why
