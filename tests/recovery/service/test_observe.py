"""Observe mode of a controller: decided, journaled, shown, and not done."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from recovery.api import wire
from recovery.messages.exchange import RankExit, RankReport
from recovery.messages.outside import PersonAct
from recovery.service.pager import look
from recovery.service.paging.alerts import Links
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Running, Speaker, join_of, make_folder, running

pytestmark = pytest.mark.process

POLICY = """
[cluster]
observe = true
[policy]
evidence_wait_s = 0
[[jobs]]
match = "trusted-*"
observe = false
[hang]
stopped_floor_s = 1
floor_s = 1
ceil_s = 1
"""
LINKS = Links("https://wiki", "https://console")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("observed") / "files"
    config = make_folder(folder)
    (folder / "policy.toml").write_text(POLICY)
    text = config.read_text().replace("#policy_file = ", f'policy_file = "{folder}/policy.toml" # ')
    config.write_text(text)
    return folder


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Running]:
    with running(folder) as up:
        yield up


def start_job(up: Running, name: str) -> Speaker:
    client = up.client()
    request = join_of("n1", name=name, key=f"job:{name}", nodes_min=1, nodes_max=1)
    speaker = Speaker(client, "n1", client.join(request).job_id)
    speaker.say()
    speaker.wait_order()
    speaker.obey()
    eventually(lambda: state(up, speaker.job_id) == "running", "the job runs")
    return speaker


def state(up: Running, job_id: str) -> str:
    return up.client("admin").job(job_id).job.state


def kill_first_rank(speaker: Speaker) -> None:
    assert speaker.report is not None
    killed = RankExit(0.1, None, 9, False, False, None, ())
    first, *others = speaker.report.ranks
    dead = RankReport(first.rank, first.local_rank, first.pid, "", steps_done=3, exit=killed)
    speaker.say(ranks=(dead, *others))


def wait_observed(up: Running, job_id: str) -> None:
    """Wait until the journal has that a plan was only observed: a job's state is shown some milliseconds before."""
    found = eventually(lambda: causes(up, job_id), "the plan that waits is journaled")
    assert found == ["observe"]


def causes(up: Running, job_id: str) -> list[str]:
    lines = up.client("admin").story(job_id).lines
    found = [msgspec.json.decode(bytes(one.record)) for one in lines if one.kind == "plan_waits"]
    return [one["cause"] for one in found]


@pytest.mark.safety
def test_a_job_whose_rank_fails_ends_and_what_would_have_been_done_is_journaled(
    up: Running,
) -> None:
    speaker = start_job(up, "watched-1")

    kill_first_rank(speaker)

    eventually(lambda: state(up, speaker.job_id) in ("stopping", "escalated"), "the job ends")
    wait_observed(up, speaker.job_id)
    lines = [line.text or "" for line in up.client("admin").story(speaker.job_id).lines]
    assert any(line.startswith("would restart in place") for line in lines), lines
    assert not any("start: attempt 2" in line for line in lines)


def test_it_wakes_nobody(up: Running) -> None:
    found = up.service.worker.call(lambda: look(up.service.worker, LINKS, 1e6)).result(DEADLINE_S)

    messages = [one for one in found.alerts if one.labels["alertname"] == "RankmendIncident"]
    assert {one.labels["severity"] for one in messages} <= {"info"}


def test_a_job_that_is_trusted_is_recovered_beside_it(up: Running) -> None:
    speaker = start_job(up, "trusted-1")

    kill_first_rank(speaker)

    eventually(lambda: state(up, speaker.job_id) == "recovering", "the job is recovered")
    assert causes(up, speaker.job_id) == []


def test_everybody_sees_where_observe_mode_is_on(up: Running) -> None:
    client = up.client("admin")

    assert client.cluster().observe == ["the cluster", "not jobs trusted-*"]
    policy = client.ask("GET", "/v1/policy", wire.PolicyView)
    assert policy.observe


def test_what_the_cluster_would_have_had_done_can_be_read(up: Running) -> None:
    client = up.client("admin")
    client.drain("n1", "fan is loud", is_expected=True)

    told = client.untaken()

    assert told.untaken == []
    assert [(one.node, one.where) for one in told.drains] == [("n1", "rankmend")]
    client.release("n1", "repaired")
    assert len(client.untaken().drains) == 1, "a drain that is over was still an answer"


def test_a_person_may_have_a_plan_carried_out_that_was_only_observed(up: Running) -> None:
    speaker = start_job(up, "watched-2")
    assert speaker.report is not None
    first, *others = speaker.report.ranks
    stopped = (replace(first, process_state="T"), *others)
    client = up.client("admin")

    def waits() -> bool:
        speaker.say(ranks=stopped)
        return state(up, speaker.job_id) == "waiting"

    eventually(waits, "a stand-still that is only observed", pause_s=0.2)  # 10 reports a second
    wait_observed(up, speaker.job_id)
    (plan,) = [one for one in client.plans() if one.job_id == speaker.job_id]
    client.command(speaker.job_id, PersonAct.APPROVE, incident_id=plan.incident_id)
    eventually(lambda: state(up, speaker.job_id) == "recovering", "the approved plan")
