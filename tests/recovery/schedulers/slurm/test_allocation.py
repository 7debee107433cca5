"""What is asked of Slurm about a job of ours that finds no usable node in its allocation, and what bounds forbid."""

from dataclasses import replace

import pytest

from recovery.journal.fold.node_fold import joined_member
from recovery.journal.incident_machine import IncidentState, Phase
from recovery.journal.incident_records import WaitsFor
from recovery.journal.ledger import Ledger
from recovery.journal.node_records import Joined, LeaveCause
from recovery.journal.records import Entry
from recovery.journal.slurm_records import SlurmAct, SlurmActs, SlurmAsked
from recovery.schedulers.slurm.allocation import requeue_request, unusable_nodes, waiting_incident
from recovery.schedulers.slurm.bounds import refuse_drain, refuse_requeue, refuse_shared_job
from recovery.schedulers.slurm.ledger import SlurmLedger, fold_slurm_entry
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.schedulers.slurm.fakes import INCIDENT, LEDGER, SLURM, member


def test_a_job_that_waits_for_a_node_is_requeued_without_the_nodes_it_has_left() -> None:
    request = requeue_request(INCIDENT, LEDGER, SLURM, "ada", ())

    assert request is not None
    assert request.key == "requeue/inc-1/41/2"
    assert (request.action, request.slurm_job) == (SchedulerAction.REQUEUE, "41")
    assert (request.nodes, request.slurm_step) == (("n3", "n4"), "0")
    assert (request.owner, request.seen_on) == ("ada", ("n1", "n2", "n3", "n4"))
    assert request.reason == "rank 2 was killed; no usable node is left (inc-1)"


def test_a_node_that_a_person_took_back_is_not_left_out() -> None:
    assert unusable_nodes(replace(LEDGER, taken_back=frozenset({"n4"}))) == ("n3",)


@pytest.mark.parametrize(
    ("cause", "left_out"),
    [
        *((cause, True) for cause in LeaveCause if cause is not LeaveCause.ENDED),
        (LeaveCause.ENDED, False),
    ],
)
def test_a_node_is_left_out_unless_its_launcher_alone_has_ended(
    cause: LeaveCause, *, left_out: bool
) -> None:
    members = {**LEDGER.members, "n3": replace(LEDGER.members["n3"], left_cause=cause)}

    left = unusable_nodes(replace(LEDGER, members=members))

    assert ("n3" in left) is left_out


def test_a_node_that_an_older_plan_left_and_that_has_joined_again_is_not_left_out() -> None:
    silent = replace(member("n3", LeaveCause.SILENT), is_lost=True)
    joined = joined_member(silent, Joined("n3", "new", "b", 1, None, 0.0), 9)

    left = unusable_nodes(replace(LEDGER, members={**LEDGER.members, "n3": joined}))

    assert left == ("n4",)


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


def drained_for(*sharers: str) -> SlurmLedger:
    """Return a ledger in which a node each was drained for what launchers of these subjects report."""
    ledger = SlurmLedger()
    for number, sharer in enumerate(sharers, start=1):
        key, node = f"leave/{number}/1", f"n{number}"
        asked = SlurmAsked(key, "drain", (node,), "", "bad", subject=sharer, sharer=sharer)
        for record in (asked, SlurmActs(key, SlurmAct.DRAIN, node)):
            ledger = fold_slurm_entry(ledger, Entry(ledger.number + 1, 0.0, 0.0, "boot", record))
    return ledger


@pytest.mark.parametrize(
    ("drained", "sharer", "is_refused"),
    [
        (("mallory",) * 2, "mallory", False),
        (("mallory",) * 3, "mallory", True),
        (("mallory",) * 3, "alice", False),
        (("mallory",) * 3, "", False),  # an alert says so, or a person
        (("mallory", "mallory", "mallory", "bob", "bob"), "carol", False),
        (("",) * 5, "mallory", False),
        (("",) * 6, "", True),
    ],
)
def test_what_launchers_of_one_subject_report_drains_no_more_than_its_share_of_an_hour(
    drained: tuple[str, ...], sharer: str, *, is_refused: bool
) -> None:
    limits = SlurmLimits(enabled=True, act=True, nodes_drained_percent=100.0)

    refusal = refuse_drain(drained_for(*drained), limits, 100, 60.0, sharer)

    assert (refusal is not None) == is_refused


def requeued_for(*sharers: str) -> SlurmLedger:
    """Return a ledger in which a job of each of these subjects was requeued."""
    ledger = SlurmLedger()
    for number, sharer in enumerate(sharers, start=1):
        key, job = f"requeue/{number}/1", str(number)
        asked = SlurmAsked(key, "requeue", (), job, "bad", owner=sharer, sharer=sharer)
        for record in (asked, SlurmActs(key, SlurmAct.REQUEUE_HOLD, job)):
            ledger = fold_slurm_entry(ledger, Entry(ledger.number + 1, 0.0, 0.0, "boot", record))
    return ledger


@pytest.mark.parametrize(
    ("requeued", "sharer", "is_refused"),
    [
        (("mallory",) * 2, "mallory", False),
        (("mallory",) * 3, "mallory", True),
        (("mallory",) * 3, "alice", False),
        (("mallory", "mallory", "mallory", "bob", "bob"), "carol", False),
        (("",) * 5, "mallory", False),
        (("",) * 5, "", False),  # all users are one party
        (("",) * 6, "", True),
    ],
)
def test_requeues_of_one_subjects_jobs_leave_others_a_share_of_an_hour(
    requeued: tuple[str, ...], sharer: str, *, is_refused: bool
) -> None:
    limits, ledger = SlurmLimits(enabled=True, act=True), requeued_for(*requeued)

    assert (refuse_requeue(ledger, limits, "99", 60.0, sharer) is not None) == is_refused
    assert refuse_requeue(ledger, limits, "99", 3601.0, sharer) is None


def test_what_launchers_of_one_subject_report_holds_no_more_than_its_share_of_the_nodes() -> None:
    limits = SlurmLimits(
        enabled=True, act=True, nodes_drained_percent=100.0, drains_per_hour_max=1000
    )
    later_s = 86_400.0

    assert refuse_drain(drained_for(*["mallory"] * 9), limits, 100, later_s, "mallory") is None
    assert refuse_drain(drained_for(*["mallory"] * 10), limits, 100, later_s, "alice") is None
    assert refuse_drain(drained_for(*["mallory"] * 10), limits, 100, later_s, "mallory") == (
        "10 nodes were drained for what launchers of mallory report, their share of slurm.nodes_drained_max: 10 of 20"
    )
