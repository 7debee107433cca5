"""Drains, cordons and evictions for a launcher's word: only where the manager has something of the job's owner."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery.journal.slurm_records import SlurmOutcome
from recovery.kubernetes.limits import KubernetesLimits
from recovery.slurm.limits import SlurmLimits
from recovery.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.kubernetes.fakes import FakeApi
from tests.recovery.kubernetes.fakes import FakeSite as KubernetesSite
from tests.recovery.slurm.fakes import FakeSite as SlurmSite

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
    assert site.desk.ledger.has_seen("n2", "mallory")
    assert not site.desk.ledger.has_seen("n1", "mallory")
    site.restart()
    assert site.desk.ledger.has_seen("n2", "mallory"), "it is in the journal"


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
    assert site.desk.ledger.has_seen("n1", "mallory")


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
