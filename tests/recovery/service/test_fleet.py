"""Two controllers of one database: whichever is asked shows the jobs of both, and passes acts on to the owner."""

import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3

from recovery.api.controller_errors import BusyError, RefusedError, UnknownJobError
from recovery.messages.outside import PersonAct
from recovery.service.http.access import peer_headers
from recovery.service.http.authority import make_node
from recovery.service.roles import Role, Subject
from tests.support.controllers import configure, listen_of, reach, running_controllers
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, Wire, port_of
from tests.support.service import FullClient, Running, Speaker, join_of, running, two_speakers

pytestmark = pytest.mark.site


@dataclass
class Two:
    owner: Running
    other: Running
    speakers: list[Speaker]

    @property
    def job_id(self) -> str:
        return self.speakers[0].job_id

    def ask_other(self) -> FullClient:
        return self.other.client("admin")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Two]:
    """A job at the first of two controllers; the second one knows of it."""
    url = postgres.url(postgres.make_database(), "controller")
    with running_controllers(tmp_path_factory.mktemp("fleet"), url, lease_s=30.0) as (owner, other):
        speakers = two_speakers(owner.client())
        for one in speakers:
            one.obey()
        eventually(
            lambda: speakers[0].job_id in other.service.worker.jobs.everywhere, "it is known"
        )
        eventually(lambda: len(owner.service.worker.jobs.fleet.peers) == 1, "both know each other")
        yield Two(owner, other, speakers)


def test_the_controller_that_is_asked_lists_jobs_and_nodes_of_the_other_one(two: Two) -> None:
    client = two.ask_other()
    # An answer that takes longer than 2 s, as on a busy machine, counts with the next one.
    eventually(lambda: [one.attempt for one in client.jobs()] == [1], "the owner has told")
    eventually(lambda: len(client.nodes()) == 2, "the owner has told of its nodes")

    (job,) = client.jobs()
    nodes = client.nodes()

    assert (job.job_id, job.attempt, job.nodes) == (two.job_id, 1, 2)
    assert job.controller.endswith(f"({two.owner.url})")
    assert sorted(one.node for one in nodes) == ["n1", "n2"]
    eventually(lambda: client.jobs()[0].told_age_s is None, "it is new")
    eventually(lambda: client.cluster().notes == [], "there is nothing to say of the owner")


@pytest.mark.safety
def test_the_owner_lists_its_job_once(two: Two) -> None:
    client = two.owner.client("admin")

    assert [(one.job_id, one.controller) for one in client.jobs()] == [(two.job_id, "")]
    assert len(client.nodes()) == 2


def test_one_job_its_ranks_plan_policy_and_story_are_answered_by_way_of_the_other(two: Two) -> None:
    client = two.ask_other()

    assert [one.node for one in client.job(two.job_id).nodes] == ["n1", "n2"]
    assert client.dry_run(two.job_id, "n1").job_id == two.job_id
    assert client.policy(two.job_id).job == "train"
    assert client.story(two.job_id).job_id == two.job_id
    assert client.incidents(two.job_id) == []


@pytest.mark.safety
def test_a_refusal_of_the_owner_is_told_as_it_is(two: Two) -> None:
    with pytest.raises(RefusedError) as refused:
        two.ask_other().command(two.job_id, PersonAct.APPROVE, reason="go", incident_id="none-1")

    here = _refusal(two.owner.client("admin"), two.job_id)
    assert (refused.value.status, refused.value.problem) == here


def _refusal(client: FullClient, job_id: str) -> tuple[int, object]:
    with pytest.raises(RefusedError) as refused:
        client.command(job_id, PersonAct.APPROVE, reason="go", incident_id="none-1")
    return refused.value.status, refused.value.problem


def test_a_pause_and_a_drain_are_taken_by_either(two: Two) -> None:
    client, desk = two.ask_other(), two.owner.service.worker.desk

    client.pause("look", f"job:{two.job_id}")
    client.drain("n1", "smells")

    eventually(lambda: f"job:{two.job_id}" in desk.ledger.paused, "the owner knows the pause")
    eventually(lambda: desk.unusable("n1") is not None, "the owner knows the drain")
    client.resume("looked", f"job:{two.job_id}")
    client.release("n1", "does not")
    eventually(lambda: desk.unusable("n1") is None, "and its end")


@pytest.mark.safety
def test_an_unknown_job_stays_unknown_and_a_limited_token_sees_no_more_than_at_the_owner(
    two: Two,
) -> None:
    client = two.ask_other()

    with pytest.raises(UnknownJobError):
        client.job("0c1d6a52-0000-4000-8000-000000000001")
    with pytest.raises(RefusedError) as refused:
        two.other.client("launch").jobs()
    assert refused.value.status == 403


def alert_of(node: str) -> dict[str, object]:
    return {"labels": {"alertname": "RankmendGpuLost", "node": node}}


def accused(up: Running) -> set[str]:
    return {one.target.node for one in up.service.worker.desk.alerts.active}


def test_alerts_reach_both_whichever_gets_them_and_whoever_sends_them(two: Two) -> None:
    files = (two.owner.folder / "g8.crt", two.owner.folder / "g8.key")
    make_node((two.owner.ca, two.owner.folder / "ca.key"), *files, "g8")

    assert two.ask_other().post_alerts([alert_of("g7")]).alerts == 1
    assert two.other.client("", certificate=files).post_alerts([alert_of("g8")]).alerts == 1
    assert two.owner.client("admin").post_alerts([alert_of("g9")]).alerts == 1

    assert accused(two.owner) == accused(two.other) == {"g7", "g8", "g9"}


def test_a_node_may_not_speak_for_another_by_way_of_a_controller(two: Two) -> None:
    node = Subject("node:n7", frozenset({Role.REPORT}), ("n7",), how="certificate")
    secret = two.owner.service._store.peer_secret
    headers = peer_headers(secret, node, "the other one")
    with urllib3.PoolManager(ca_certs=str(two.owner.ca)) as pool:
        answer = pool.request(
            "POST", f"{two.owner.url}/api/v2/alerts", headers=headers, json=[alert_of("n6")]
        )

    assert answer.status == 403


def test_a_stranger_who_claims_to_be_a_controller_is_refused(two: Two) -> None:
    headers = {"Authorization": "Rankmend-Peer guess", "Rankmend-Subject": "e30="}
    with urllib3.PoolManager(ca_certs=str(two.owner.ca)) as pool:
        answer = pool.request("GET", f"{two.owner.url}/v1/jobs", headers=headers)

    assert answer.status == 401


@pytest.mark.safety
def test_the_console_shows_the_job_and_its_journal_at_the_other_one(two: Two) -> None:
    page = _console(two.other)

    eventually(lambda: "train" in page("/"), "the fleet shows it")
    assert "n1" in page(f"/jobs/{two.job_id}")
    assert "attempt_started" in page(f"/journal?job={two.job_id}")


@pytest.mark.safety
def test_a_command_is_carried_out_by_the_owner_and_audited_at_both_with_the_person(
    two: Two,
) -> None:
    for one in two.speakers:
        one.say()  # nodes that have been silent for 10 s get no attempt

    done = two.ask_other().command(two.job_id, PersonAct.RESTART, reason="looks odd")

    assert done.text
    job = two.owner.service.worker.jobs.running[two.job_id]
    eventually(
        lambda: (core := job.controller) is not None and core.ledger.incidents == 1, "a restart"
    )
    (line,) = _audit(two.owner, "looks odd")
    assert '"admin"' in line
    assert "by way of" in line
    (passed,) = _audit(two.other, "looks odd")
    assert "passed to the controller on" in passed


def _console(up: Running) -> Callable[[str], str]:
    token = (up.folder / "admin.token").read_text().strip()
    pool = urllib3.PoolManager(ca_certs=str(up.ca))
    signed = pool.request(
        "POST", f"{up.url}/sign-in", fields={"token": token}, encode_multipart=False, redirect=False
    )
    cookie = signed.headers["Set-Cookie"].partition(";")[0]

    def page(path: str) -> str:
        answer = pool.request("GET", up.url + path, headers={"Cookie": cookie})
        return answer.data.decode()

    return page


def test_a_job_whose_controller_does_not_answer_is_shown_as_it_was_and_said_to_be_so(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.make_database(), "controller")
    owner_folder = configure(tmp_path / "owner", url, lease_s=30.0)
    wire = Wire(port_of(f"{listen_of(owner_folder)}/"))
    reach(owner_folder, wire.port)
    other_folder = configure(tmp_path / "other", url, lease_s=30.0, like=owner_folder)
    with running(owner_folder) as owner, running(other_folder) as other:
        (speaker, *_rest) = two_speakers(owner.client())
        client = other.client("admin")
        eventually(lambda: [one.attempt for one in client.jobs()] == [1], "the job is shown")
        wire.close_all()
        eventually(lambda: client.jobs()[0].told_age_s is not None, "it is old")

        (job,) = client.jobs()
        detail = client.job(speaker.job_id)
        (note,) = client.cluster().notes
        with pytest.raises(BusyError, match=r"does not answer.*may have been carried out anyway"):
            client.command(speaker.job_id, PersonAct.RESTART, reason="r")
        with pytest.raises(BusyError, match="does not answer"):  # Alertmanager sends it again
            client.post_alerts([alert_of("g7")])

        assert (job.attempt, job.controller) == (
            1,
            f"{socket.gethostname()} (https://127.0.0.1:{wire.port})",
        )
        assert detail.job.told_age_s is not None
        assert detail.job.problem is not None
        assert "does not answer" in detail.job.problem
        assert "object at 0x" not in detail.job.problem
        assert re.search(r"has not answered for \d+ s .*: 1 job of it shown as last reported", note)

        wire.is_open = True
        eventually(lambda: client.jobs()[0].told_age_s is None, "it is new again")
        eventually(lambda: client.cluster().notes == [], "and nothing is said")
        assert client.post_alerts([alert_of("g7")]).alerts == 1
        assert accused(owner) == {"g7"}
    wire.close()


def test_a_job_that_an_older_controller_has_is_shown_and_the_client_is_sent_there(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database()
    url = postgres.url(name, "controller")
    with running_controllers(tmp_path, url, lease_s=30.0) as (owner, other):
        postgres.ask(  # as one of one minor release before leaves its row
            name,
            "UPDATE rankmend.controller SET peer_secret = '', certificate = '' WHERE url = %s",
            owner.url,
        )
        client = other.client("admin")

        def is_older() -> bool:
            return any("is an older one" in one for one in client.cluster().notes)

        eventually(is_older, "it is said")  # before it has told of any job
        (speaker, *_rest) = two_speakers(owner.client())
        eventually(lambda: client.jobs() != [], "the job is shown")
        (job,) = client.jobs()
        detail = client.job(speaker.job_id)

        assert (job.job_id, job.name, job.state) == (speaker.job_id, "train", "not heard")
        assert detail.job.attempt == 1  # from the owner itself
        assert client.current == owner.url


def _audit(up: Running, word: str) -> list[str]:
    text = (up.folder / "state/audit.jsonl").read_text()
    return [line for line in text.splitlines() if word in line]


def knows_another(up: Running) -> bool:
    fleet = up.service.worker.jobs.fleet
    return len(fleet.peers) == len(fleet.jobs) == 1


def evidence_names(up: Running, job_id: str) -> set[str]:
    job = up.service.worker.jobs.running[job_id]
    assert job.controller is not None
    return {kept.evidence.told_node for kept in job.controller.ledger.evidence.values()}


def test_a_node_of_another_controller_is_not_taken_for_one_of_the_same_short_name(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.make_database(), "controller")
    with running_controllers(tmp_path, url, lease_s=30.0) as (owner, other):
        one, _two = two_speakers(owner.client())
        client = other.client()
        joined = client.join(join_of("n1.b.org", key="theirs", nodes_min=1, nodes_max=1))
        speaker = Speaker(client, "n1.b.org", joined.job_id)
        speaker.say()
        assert speaker.ask() is not None
        eventually(lambda: knows_another(owner) and knows_another(other), "each knows the other")

        other.client("admin").post_alerts([alert_of("N1.b.org"), alert_of("N2")])

        # N2 is matched once the owner has learned which nodes the other one has.
        eventually(lambda: bool(evidence_names(owner, one.job_id)), "the owner has evidence")
        eventually(lambda: bool(evidence_names(other, joined.job_id)), "the other one, too")
        assert evidence_names(owner, one.job_id) == {"N2"}
        assert evidence_names(other, joined.job_id) == {"N1.b.org"}
