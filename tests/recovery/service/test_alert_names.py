"""Alerts that call a node otherwise than its launcher, through the real service: evidence, incident, journal, status, metrics."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
import urllib3

from recovery.api.controller_errors import BusyError
from recovery.journal.narration.narrator import details
from recovery.journal.node_records import EvidenceTaken
from recovery.messages.exchange import Endpoint, RankExit
from recovery.messages.outside import NameMatch
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Running, evidence_of, job_on, make_folder, running
from tests.support.service_bench import fail_rank

pytestmark = pytest.mark.process


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    make_folder(tmp_path)
    with running(tmp_path) as up:
        yield up


def tell(up: Running, told: str, label: str = "node", by: str = "admin") -> None:
    """Send an alert about a node as Alertmanager does."""
    labels = {"alertname": "RankmendGpuLost", label: told, "severity": "critical"}
    alert = {"labels": labels, "annotations": {"action": "drain", "summary": "GPU is lost"}}
    assert up.client(by).post_alerts([alert]).alerts == 1


@pytest.mark.parametrize(
    ("told", "label", "match"),
    [
        ("gpu-1.example.org", "node", NameMatch.SHORT),
        ("GPU-1", "node", NameMatch.CASE),
        ("gpu-1.example.org:9400", "instance", NameMatch.SHORT),
        ("10.9.0.1:9400", "instance", NameMatch.ADDRESS),
    ],
)
def test_alert_is_evidence_for_the_job_on_the_node_that_it_means(
    up: Running, told: str, label: str, match: NameMatch
) -> None:
    one, _two = job_on(up.client(), "gpu-1", "gpu-2")

    tell(up, told, label)

    eventually(lambda: bool(evidence_of(up, one.job_id)), "the evidence is journaled")
    (evidence,) = evidence_of(up, one.job_id)
    assert (evidence.node, evidence.told_node, evidence.match) == ("gpu-1", told, match)


def test_a_rank_that_dies_on_such_a_node_moves_off_it_and_why_says_by_which_name(
    up: Running,
) -> None:
    one, two, spare = job_on(up.client(), "gpu-1", "gpu-2", "gpu-3", spares=1)
    tell(up, "gpu-1.example.org")
    eventually(lambda: bool(evidence_of(up, one.job_id)), "the evidence is journaled")
    assert one.report is not None
    killed = RankExit(0.1, None, 9, False, False, None, ())

    dead = tuple(replace(rank, process_state="", exit=killed) for rank in one.report.ranks)
    one.say(ranks=dead)

    def is_moved() -> bool:
        for speaker in (one, two, spare):
            if speaker.ask(0.2) is not None and speaker is not spare:
                speaker.obey()
            else:
                speaker.say()
        job = up.service.worker.jobs.running[one.job_id]
        assert job.controller is not None
        ledger = job.controller.ledger
        return {place.node for place in ledger.placement} == {"gpu-2", "gpu-3"}

    eventually(is_moved, "the spare takes the place of gpu-1")
    stored = up.service.worker.jobs.running[one.job_id].hold.stored_journal
    taken = [entry.record for entry in stored.read() if isinstance(entry.record, EvidenceTaken)]
    said = "gpu-1 (gpu-1.example.org in the alert; the only node with this short name)"
    assert any(said in line for record in taken for line in details(record))


@pytest.mark.safety
def test_an_alert_that_was_accepted_is_in_the_journal(up: Running) -> None:
    """Alertmanager sends it again after hours only, so a controller that dies now must not lose it."""
    one, _two = job_on(up.client(), "gpu-1", "gpu-2")

    for number in range(1, 21):
        labels = {"alertname": f"RankmendGpu{number}", "node": "gpu-1", "severity": "critical"}
        alert = {"labels": labels, "annotations": {"action": "drain", "summary": "GPU is lost"}}
        assert up.client("admin").post_alerts([alert]).alerts == 1

        stored = up.service.worker.jobs.running[one.job_id].hold.stored_journal
        records = [entry.record for entry in stored.read()]
        taken = [record for record in records if isinstance(record, EvidenceTaken)]
        assert sum(len(record.evidence) for record in taken) == number


def test_alert_counts_in_each_attempt_that_stays_on_its_node(up: Running) -> None:
    one, two = job_on(up.client(), "gpu-1", "gpu-2")  # no spare: the job needs both
    tell(up, "gpu-1")
    eventually(lambda: bool(evidence_of(up, one.job_id)), "the evidence is journaled")
    fail_rank(two)

    def counts_again() -> bool:
        for speaker, port in (one, 31001), (two, 31002):
            if speaker.ask(0.1) is not None:
                speaker.obey()
            else:  # each attempt meets at a place of its own
                speaker.say(rendezvous=Endpoint("127.0.0.1", port))
        job = up.service.worker.jobs.running[one.job_id]
        assert job.controller is not None
        (kept,) = job.controller.ledger.evidence.values()
        return (kept.evidence.node, kept.attempt) == ("gpu-1", 2)

    eventually(counts_again, "the second attempt knows of it")


def test_first_alert_finds_all_nodes_counted_of_which_the_accused_are_a_share(up: Running) -> None:
    """A rule that accuses two nodes of two is doubted, and one that does so of twenty is not."""
    job_on(up.client(), "gpu-1", "gpu-2")

    tell(up, "gpu-1")

    desk = up.service.worker.desk
    assert up.service.worker.call(desk.nodes_active).result(DEADLINE_S) == 2


def metrics(up: Running) -> str:
    token = (up.folder / "admin.token").read_text().strip()
    with urllib3.PoolManager(ca_certs=str(up.ca)) as pool:
        headers = {"Authorization": f"Bearer {token}"}
        answer = pool.request("GET", f"{up.url}/metrics", headers=headers)
    assert answer.status == 200
    return answer.data.decode()


def test_a_name_that_could_be_two_nodes_is_evidence_for_no_job_and_people_see_it(
    up: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client = up.client()
    one, _two = job_on(client, "gpu-1.a.org", "gpu-2.a.org", key="a")
    other, _two = job_on(client, "gpu-1.b.org", "gpu-2.b.org", key="b")

    tell(up, "gpu-1")

    operator = up.client("admin")
    said = "gpu-1 (not certain to be gpu-1.a.org or gpu-1.b.org)"
    eventually(lambda: any(said in note for note in operator.cluster().notes), "status says it")
    assert 'rankmend_controller_alerts_unmatched{reason="ambiguous"} 1.0' in metrics(up)
    assert evidence_of(up, one.job_id) == evidence_of(up, other.job_id) == []
    logged = [one for one in caplog.records if getattr(one, "told", "") == "gpu-1"]
    assert [one.levelname for one in logged] == ["WARNING"]


def test_domains_of_the_policy_settle_which_names_are_ours(tmp_path: Path) -> None:
    make_folder(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text('[alerts]\ndomains = ["a.org"]\n')
    config = tmp_path / "controller.toml"
    config.write_text(f'policy_file = "{policy}"\n' + config.read_text())
    with running(tmp_path) as up:
        one, _two = job_on(up.client(), "gpu-1", "gpu-2")

        tell(up, "gpu-2.storage.org")
        tell(up, "gpu-1.a.org")

        eventually(lambda: bool(evidence_of(up, one.job_id)), "the evidence is journaled")
        assert [one.node for one in evidence_of(up, one.job_id)] == ["gpu-1"]


def test_a_token_for_some_nodes_accuses_no_other_by_another_name(tmp_path: Path) -> None:
    make_folder(tmp_path)
    text, entry = make_token("rack", [Role.ALERT], nodes=["*.rack7"])
    add_token(tmp_path / "tokens.toml", entry)
    (tmp_path / "rack.token").write_text(text)
    (tmp_path / "rack.token").chmod(0o600)
    with running(tmp_path) as up:
        one, _two = job_on(up.client(), "gpu-1", "gpu-2")

        tell(up, "gpu-1.rack7", by="rack")

        reason = 'rankmend_controller_alerts_unmatched{reason="limits"} 1.0'
        eventually(lambda: reason in metrics(up), "the alert counts for no job")
        tell(up, "gpu-2.rack7")
        eventually(lambda: bool(evidence_of(up, one.job_id)), "that of Alertmanager does")
        assert [one.node for one in evidence_of(up, one.job_id)] == ["gpu-2"]


def test_alert_that_fires_late_is_not_accepted_so_that_its_sender_tries_again(up: Running) -> None:
    """It may hold on: Alertmanager ends the alerts of a Prometheus that it lost, which comes back with the same start."""
    job_on(up.client("admin"), "gpu-1")
    fires = {
        "labels": {"alertname": "RankmendGpuLost", "node": "gpu-1", "severity": "critical"},
        "annotations": {"action": "drain", "summary": "GPU is lost"},
        "startsAt": datetime.now(timezone.utc).isoformat(),
    }
    admin = up.client("admin")
    admin.post_alerts([fires])
    admin.post_alerts([{**fires, "endsAt": fires["startsAt"]}])

    with pytest.raises(BusyError, match="just ended"):
        admin.post_alerts([fires])
