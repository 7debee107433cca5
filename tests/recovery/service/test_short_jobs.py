"""Jobs that wait for a node in their allocation: when Slurm is asked about them, and when it is not."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from detectors.finding import Severity
from detectors.node.charges import ChargeKind
from rankmend.errors import ConfigError, JournalError, RankmendError
from recovery.controller.cluster.cluster_ledger import ClusterLedger
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.journal.cluster_records import Paused
from recovery.journal.incident_records import ChargedNode
from recovery.journal.ledger import KeptEvidence, Ledger
from recovery.journal.node_records import LeaveCause
from recovery.schedulers.slurm.requests import SchedulerRequest
from recovery.service.jobs.short_jobs import ShortJobs
from tests.recovery.schedulers.slurm.fakes import LEDGER, SLURM, member
from tests.support.nodes_bench import evidence


@dataclass
class FakeScheduler:
    asked: list[SchedulerRequest] = field(default_factory=list)
    error: RankmendError | None = None

    def ask(self, request: SchedulerRequest, /) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error


def job(job_id: str, ledger: Ledger = LEDGER, **attributes: str) -> Any:
    """Return what is read of a served job."""
    join = SimpleNamespace(name=job_id, attributes={**SLURM, **attributes})
    controller = SimpleNamespace(ledger=ledger)
    stored = SimpleNamespace(join=join, owner="ada")
    return SimpleNamespace(job_id=job_id, controller=controller, stored=stored)


def bench(
    *jobs: Any,
    cluster: ClusterLedger | None = None,
    policy: ClusterPolicy | None = None,
    held: str = "",
) -> tuple[ShortJobs, FakeScheduler]:
    scheduler = FakeScheduler()
    registry: Any = SimpleNamespace(running={one.job_id: one for one in jobs})
    desk: Any = SimpleNamespace(
        ledger=cluster or ClusterLedger(),
        policy=policy or ClusterPolicy(),
        shares_as=lambda owner: "" if owner == "only" else owner,
        unusable=lambda node: "drained" if node == held else None,
    )
    short = ShortJobs(registry, desk, scheduler, 60.0, lambda one: one.stored.owner)
    return short, scheduler


def test_slurm_is_asked_once_after_the_wait() -> None:
    short, scheduler = bench(job("a"))

    short.tick(100.0)
    short.tick(159.0)
    assert scheduler.asked == []
    short.tick(160.0)
    short.tick(161.0)

    (request,) = scheduler.asked
    assert (request.slurm_job, request.nodes, request.owner) == ("41", ("n3", "n4"), "ada")
    assert request.shared_by == ()


@pytest.mark.parametrize(("owner", "sharer"), [("ada", "ada"), ("only", ""), ("", "")])
def test_a_requeue_counts_to_the_share_of_its_subject_where_others_may_launch_jobs(
    owner: str, sharer: str
) -> None:
    one = job("a")
    one.stored.owner = owner
    short, scheduler = bench(one)

    short.tick(100.0)
    short.tick(160.0)

    (request,) = scheduler.asked
    assert (request.owner, request.sharer) == (owner, sharer)


FATAL = evidence("n3")
ENDED = replace(
    LEDGER,
    members={**LEDGER.members, "n3": member("n3", LeaveCause.ENDED)},
    incident=LEDGER.incident,
)


def accused(**changes: Any) -> Ledger:
    return replace(
        ENDED, evidence={FATAL.identity: replace(KeptEvidence(FATAL, 1, None), **changes)}
    )


@pytest.mark.parametrize(
    ("ledger", "held", "left_out"),
    [
        (ENDED, "", ("n4",)),
        (ENDED, "n3", ("n3", "n4")),
        (ENDED, "n1", ("n4",)),  # the job has not left it
        (accused(), "", ("n3", "n4")),
        (accused(doubted="too many"), "", ("n4",)),
        (accused(overruled_by="ada"), "", ("n4",)),
        (accused(evidence=replace(FATAL, severity=Severity.WARNING)), "", ("n4",)),
        (replace(ENDED, charged=(ChargedNode("n3", ChargeKind.DEVICE, True, "ECC"),)), "", ("n3", "n4")),
        (replace(ENDED, charged=(ChargedNode("n3", ChargeKind.ENDED, False, "ended"),)), "", ("n4",)),
    ],
)  # fmt: skip
def test_an_ended_launchers_node_is_left_out_where_more_speaks_against_it(
    ledger: Ledger, held: str, left_out: tuple[str, ...]
) -> None:
    short, scheduler = bench(job("a", ledger), held=held)

    short.tick(100.0)
    short.tick(160.0)

    (request,) = scheduler.asked
    assert request.nodes == left_out


def test_observe_mode_asks_slurm_for_nothing() -> None:
    short, scheduler = bench(job("a"), policy=ClusterPolicy(observe=True))

    short.tick(100.0)
    short.tick(200.0)

    assert scheduler.asked == []


def test_the_wait_begins_anew_once_a_node_was_found() -> None:
    one = job("a")
    short, scheduler = bench(one)

    short.tick(100.0)
    one.controller.ledger = Ledger()
    short.tick(130.0)
    one.controller.ledger = LEDGER
    short.tick(140.0)
    short.tick(199.0)
    assert scheduler.asked == []
    short.tick(200.0)

    assert len(scheduler.asked) == 1


def test_other_jobs_of_the_same_slurm_job_are_named() -> None:
    beside = job("b", Ledger())
    elsewhere = job("c", Ledger(), SLURM_JOB_ID="42")
    other_cluster = job("d", Ledger(), SLURM_CLUSTER_NAME="east")
    short, scheduler = bench(job("a"), beside, elsewhere, other_cluster)

    short.tick(0.0)
    short.tick(60.0)

    assert scheduler.asked[0].shared_by == ("b",)


def test_nothing_is_asked_for_a_paused_job_or_one_outside_of_slurm() -> None:
    paused = ClusterLedger(paused={"job:a": Paused("job:a", "ada", "debugging")})
    short, scheduler = bench(job("a"), job("b", SLURM_JOB_ID=""), cluster=paused)

    short.tick(0.0)
    short.tick(60.0)

    assert scheduler.asked == []


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (ConfigError("n 1 is not the name of a Slurm node"), 1),
        (JournalError("the disk is full"), 2),
    ],
)
def test_a_request_that_could_not_be_kept_is_made_again_and_a_refused_one_is_not(
    error: RankmendError, times: int
) -> None:
    short, scheduler = bench(job("a"))
    scheduler.error = error
    short.tick(0.0)

    for now_s in (60.0, 61.0, 65.0, 71.0):
        short.tick(now_s)

    assert len(scheduler.asked) == times
