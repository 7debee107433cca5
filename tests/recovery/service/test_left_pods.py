"""Which pods a job's journal says are to leave: only those of nodes that no rank of it runs on any longer."""

from dataclasses import replace

import pytest

from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Ledger, Member, Wish
from recovery.service.jobs.left_pods import eviction_requests


def member(node: str, left: str | None = None) -> Member:
    return Member(node, f"launcher-{node}", "boot", 2, None, 0.0, 1, 1, 0, left=left)


LEDGER = Ledger(
    wish=Wish.RANKS,
    is_attempt_open=True,
    members={"n1": member("n1", "GPU 3 is bad"), "n2": member("n2"), "n3": member("n3")},
    placement=(Placement("n2", (0, 1)),),
)


def asked(ledger: Ledger) -> list[str]:
    return [one.key for one in eviction_requests("job-1", "train", ledger)]


def test_a_node_that_the_job_has_left_is_asked_for_once_it_runs_elsewhere() -> None:
    (request,) = eviction_requests("job-1", "train", LEDGER)

    assert (request.key, request.nodes) == ("evict/job-1/n1/launcher-n1", ("n1",))
    assert (request.pods_of, request.reason) == (
        "train",
        "the job has left the node: GPU 3 is bad",
    )


def test_a_launcher_that_comes_back_to_the_node_is_another_request() -> None:
    again = replace(member("n1", "GPU 3 is bad"), launcher_id="second")
    ledger = replace(LEDGER, members={**LEDGER.members, "n1": again})

    assert asked(ledger) == ["evict/job-1/n1/second"]


@pytest.mark.parametrize(
    "change",
    [
        {"is_attempt_open": False},  # its ranks may still run there
        {"wish": Wish.NOTHING},
        {"placement": ()},
        {"placement": (Placement("n1", (0, 1)),)},
    ],
)
def test_nothing_is_asked_before_that(change: dict[str, object]) -> None:
    assert asked(replace(LEDGER, **change)) == []  # type: ignore[arg-type]


def test_a_launcher_that_has_proved_its_pod_has_that_pod_evicted() -> None:
    def proved(job_id: str, node: str, launcher_id: str) -> str:
        known = {("job-1", "n1", "launcher-n1"): "jobs/train-0/7d1f"}
        return known.get((job_id, node, launcher_id), "")

    (request,) = eviction_requests("job-1", "train", LEDGER, "ann", proved)
    (other,) = eviction_requests("job-2", "train", LEDGER, "ann", proved)

    (shared,) = eviction_requests("job-1", "train", LEDGER, "ann", proved, "ann")

    assert (request.sharer, shared.sharer) == ("", "ann")
    assert request.pods == ("jobs/train-0/7d1f",)
    assert other.pods == ()
