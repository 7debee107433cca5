"""Drains, cordons and evictions for a launcher's word: only where the manager has something of the job's owner."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.slurm.desk import OPEN_OF_SUBJECT_MAX
from recovery.schedulers.slurm.ledger import SEEN_S
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.node_work import WORD_S
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.schedulers.kubernetes.fakes import FakeApi
from tests.recovery.schedulers.kubernetes.fakes import FakeSite as KubernetesSite
from tests.recovery.schedulers.slurm.fakes import FakeSite as SlurmSite

pytestmark = [pytest.mark.process, pytest.mark.safety]
Open = Callable[[SlurmSite | KubernetesSite], None]
KUBERNETES = KubernetesLimits(enabled=True, act=True, nodes_drained_percent=100.0)


@pytest.fixture
def close() -> Iterator[Open]:
    """Return what has a site closed at the end."""
    sites: list[SlurmSite | KubernetesSite] = []
    yield sites.append
    for one in sites:
        one.journal.close()


def test_slurm_drains_for_a_launchers_word_only_where_its_owner_has_a_job(
    tmp_path: Path, close: Open
) -> None:
    limits = SlurmLimits(enabled=True, act=True, nodes_drained_percent=100.0)
    site = SlurmSite(tmp_path, limits, ("n1", "n2", "n3", "n4"))
    close(site)
    site.slurm.users = {"n1": "alice 1001", "n2": "mallory 1002\nalice 1001", "n3": "root 0"}

    def drain(key: str, node: str, **fields: object) -> SlurmOutcome | None:
        asked = SchedulerRequest(key, SchedulerAction.DRAIN, (node,), reason="bad", **fields)  # type: ignore[arg-type]
        site.desk.ask(asked)
        site.turns(after_s=60.0)
        ended = site.desk.ledger.works[key].ended
        return None if ended is None else ended.outcome

    assert drain("a", "n1", subject="mallory") is SlurmOutcome.REFUSED
    assert drain("b", "n4", subject="mallory") is SlurmOutcome.REFUSED
    assert drain("c", "n2", subject="mallory") is SlurmOutcome.DONE
    assert drain("d", "n3", subject="0") is SlurmOutcome.DONE
    assert drain("e", "n1", subject="mallory", vouched=("n1",)) is SlurmOutcome.DONE
    text = site.desk.ledger.works["a"].nodes["n1"].text
    assert text == (
        "n1: no drain by the word of launchers of mallory alone, and Slurm has nothing of theirs on it ([cluster] single_tenant)"
    )
    assert site.desk.ledger.has_seen("n2", "mallory", site.clock.unix_s())
    assert not site.desk.ledger.has_seen("n1", "mallory", site.clock.unix_s())
    site.restart()
    assert site.desk.ledger.has_seen("n2", "mallory", site.clock.unix_s()), "it is in the journal"


def test_word_of_the_manager_counts_about_its_time_and_not_for_ever(slurm_site: SlurmSite) -> None:
    """Who had the node yesterday has somebody else on it today."""
    slurm_site.slurm.users = {"n1": "mallory 1002"}
    asked = SchedulerRequest("a", SchedulerAction.DRAIN, ("n1",), subject="mallory")
    slurm_site.desk.ask(asked)
    slurm_site.turns(after_s=60.0)
    slurm_site.restart()
    ledger = slurm_site.desk.ledger
    at_unix_s = ledger.works["a"].nodes_unix_s["n1"]

    assert ledger.has_seen("n1", "mallory", at_unix_s + SEEN_S)
    assert ledger.has_seen("n1", "mallory", at_unix_s - SEEN_S)
    assert not ledger.has_seen("n1", "mallory", at_unix_s + SEEN_S + 1.0)
    assert not ledger.has_seen("n1", "mallory", at_unix_s - SEEN_S - 1.0)


def test_requests_for_one_subject_leave_room_for_those_of_another(slurm_site: SlurmSite) -> None:
    """Those that wait for an agent's word are looked at all the time: a thousand of them would keep a real drain waiting."""

    def ask(subject: str, number: int) -> bool:
        key = f"leave/{subject}-{number}/1"
        asked = SchedulerRequest(key, SchedulerAction.DRAIN, ("n1",), subject=subject, job_id="j")
        try:
            slurm_site.desk.ask(asked)
        except ConfigError:
            return False
        return True

    assert sum(ask("mallory", number) for number in range(100)) == OPEN_OF_SUBJECT_MAX
    assert ask("alice", 0)
    assert ask("mallory", 0), "the same intent is asked once"
    requeue = SchedulerRequest("requeue/1", SchedulerAction.REQUEUE, (), "41", owner="mallory")
    with pytest.raises(ConfigError, match="for jobs of mallory"):
        slurm_site.desk.ask(requeue)


def drain_of_job(site: SlurmSite) -> None:
    """Ask for a drain of n1 by the word of a job's launchers; Slurm has nothing of its owner's there."""
    site.slurm.users = {"n1": "alice 1001"}
    asked = SchedulerRequest(
        *("leave/inc-1/1", SchedulerAction.DRAIN, ("n1",)), subject="ann", job_id="job-1"
    )
    site.desk.ask(asked)
    site.turns()


@pytest.fixture
def slurm_site(tmp_path: Path, close: Open) -> SlurmSite:
    limits = SlurmLimits(enabled=True, act=True, nodes_drained_percent=100.0)
    site = SlurmSite(tmp_path, limits, ("n1", "n2"))
    close(site)
    return site


def outcome_of(site: SlurmSite) -> SlurmOutcome | None:
    ended = site.desk.ledger.works["leave/inc-1/1"].ended
    return None if ended is None else ended.outcome


def test_drain_waits_over_a_take_over_for_the_word_of_the_nodes_agent(
    slurm_site: SlurmSite,
) -> None:
    drain_of_job(slurm_site)
    slurm_site.restart()
    slurm_site.turns(after_s=WORD_S - 1.0)
    waited = outcome_of(slurm_site), slurm_site.slurm.state["n1"]

    slurm_site.desk.vouch("n1", lambda job_id, subject: (job_id, subject) == ("job-1", "ann"))
    slurm_site.restart()  # the word is in the journal
    slurm_site.turns(after_s=60.0)
    slurm_site.turns(after_s=60.0)

    assert waited == (None, "IDLE")
    assert outcome_of(slurm_site) is SlurmOutcome.DONE
    assert slurm_site.slurm.state["n1"] == "IDLE+DRAIN"


@pytest.mark.parametrize(
    ("node", "job_id", "subject"),
    [("n2", "job-1", "ann"), ("n1", "job-2", "ann"), ("n1", "job-1", "mallory")],
)
def test_drain_that_no_agent_confirms_in_time_is_refused(
    slurm_site: SlurmSite, node: str, job_id: str, subject: str
) -> None:
    drain_of_job(slurm_site)
    slurm_site.desk.vouch(node, lambda *told: told == (job_id, subject))
    slurm_site.turns(after_s=WORD_S)

    assert outcome_of(slurm_site) is SlurmOutcome.REFUSED
    assert slurm_site.slurm.state["n1"] == "IDLE"


def test_manager_that_has_the_owner_on_the_node_ends_the_wait(slurm_site: SlurmSite) -> None:
    drain_of_job(slurm_site)
    slurm_site.slurm.users = {"n1": "ann 1003"}
    slurm_site.turns(after_s=20.0)
    slurm_site.turns(after_s=60.0)

    assert outcome_of(slurm_site) is SlurmOutcome.DONE


def test_in_a_dry_run_slurm_is_asked_about_the_owner_all_the_same(
    tmp_path: Path, close: Open
) -> None:
    site = SlurmSite(tmp_path, SlurmLimits(enabled=True), ("n1", "n2"))
    close(site)
    site.slurm.users = {"n1": "mallory 1002"}
    for node in ("n1", "n2"):
        request = SchedulerRequest(node, SchedulerAction.DRAIN, (node,), subject="mallory")
        site.desk.ask(request)
    site.turns()

    outcomes = {
        key: work.ended.outcome for key, work in site.desk.ledger.works.items() if work.ended
    }
    assert outcomes == {"n1": SlurmOutcome.DRY, "n2": SlurmOutcome.REFUSED}
    assert site.desk.ledger.has_seen("n1", "mallory", site.clock.unix_s())


@pytest.mark.parametrize(
    ("subjects", "outcome", "effects"),
    [
        ({"jobs": "mallory"}, SlurmOutcome.DONE, ["cordon n1", "evict train-0"]),
        ({"jobs": "alice"}, SlurmOutcome.REFUSED, []),
        ({}, SlurmOutcome.REFUSED, []),
    ],
    ids=["own", "anothers", "unlabelled"],
)
def test_kubernetes_touches_only_nodes_and_pods_of_the_owners_namespaces(
    tmp_path: Path, close: Open, subjects: dict[str, str], outcome: SlurmOutcome, effects: list[str]
) -> None:
    api = FakeApi("n1", "n2")
    api.subjects = subjects
    site = KubernetesSite(tmp_path, api, KUBERNETES)
    close(site)
    api.add_pod("train-0", "n1")

    site.ask(SchedulerAction.DRAIN, "drain", subject="mallory")
    site.turns(after_s=60.0)
    site.ask(SchedulerAction.EVICT, "evict", pods_of="train", subject="mallory")
    site.turns(after_s=60.0)
    api.pods.clear()
    site.turns(after_s=60.0)

    ended = site.desk.ledger.works["drain"].ended
    assert ended is not None
    assert ended.outcome is outcome
    assert api.effects == effects


def test_an_alert_lets_a_node_be_cordoned_and_nobodys_pods_be_evicted(
    tmp_path: Path, close: Open
) -> None:
    api = FakeApi("n1")
    api.subjects = {"jobs": "alice"}
    site = KubernetesSite(tmp_path, api, KUBERNETES)
    close(site)
    api.add_pod("train-0", "n1")

    site.ask(SchedulerAction.DRAIN, "drain", subject="mallory", vouched=("n1",))
    site.turns(after_s=60.0)
    site.ask(SchedulerAction.EVICT, "evict", pods_of="train", subject="mallory")
    site.turns(after_s=60.0)

    ended = site.desk.ledger.works["evict"].ended
    assert api.effects == ["cordon n1"]
    assert ended is not None
    assert ended.outcome is SlurmOutcome.REFUSED
    assert (
        ended.text
        == "the pods are not known to be mallory's: namespace jobs has no label rankmend.io/subject=mallory"
    )
