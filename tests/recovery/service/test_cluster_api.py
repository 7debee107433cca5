"""Policy, approval, acknowledgement and alerts through the service's API, with the real core."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from rankmend.alerting import Alert
from recovery.api import wire
from recovery.api.controller_errors import ConflictError
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.gate import Answer, Judgement, PlanRequest
from recovery.messages.outside import PersonAct, PersonCommand
from recovery.service.daemon import read
from recovery.service.jobs.served_job import Parts
from recovery.service.pager import look
from recovery.service.paging.alerts import Links
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Running, Speaker, join_of, make_folder, running
from tests.support.service_bench import fail_rank

pytestmark = pytest.mark.process

POLICY = """
[policy]
evidence_wait_s = 0
[[jobs]]
match = "asked-*"
approval = "all"
policy = { restarts_max = 7 }
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("cluster") / "files"
    config = make_folder(folder)
    (folder / "policy.toml").write_text(POLICY)
    text = config.read_text().replace("#policy_file = ", f'policy_file = "{folder}/policy.toml" # ')
    config.write_text(text)
    token, entry = make_token("reader", [Role.FLEET_READ])
    add_token(folder / "tokens.toml", entry)
    (folder / "reader.token").write_text(token)
    with running(folder) as up:
        yield up


def ask(up: Running, method: str, path: str, body: object = None, token: str = "admin") -> Any:
    headers = {"Authorization": f"Bearer {(up.folder / f'{token}.token').read_text().strip()}"}
    data = None if body is None else json.dumps(body).encode()
    with urllib3.PoolManager(ca_certs=str(up.ca), retries=False) as pool:
        answer = pool.request(method, up.url + path, headers=headers, body=data, timeout=DEADLINE_S)
    return answer.status, json.loads(answer.data)


def start_job(up: Running, name: str, *spares: str) -> dict[str, Speaker]:
    """Have two nodes of a job run their ranks, with spares beside them."""
    client = up.client()
    speakers = {}
    for node in ("n1", "n2", *spares):
        request = join_of(node, name=name, key=f"job:{name}", nodes_min=2, nodes_max=2)
        speakers[node] = Speaker(client, node, client.join(request).job_id)
        speakers[node].say()
    for node in ("n1", "n2"):
        speakers[node].wait_order()
        speakers[node].obey()
    eventually(lambda: client_state(up, speakers["n1"].job_id) == "running", "the job runs")
    return speakers


def client_state(up: Running, job_id: str) -> str:
    return up.client("admin").job(job_id).job.state


def records(up: Running, job_id: str, kind: str) -> list[dict[str, Any]]:
    lines = up.client("admin").story(job_id).lines
    return [msgspec.json.decode(line.record) for line in lines if line.kind == kind]


def waiting(up: Running, job_id: str) -> wire.PlanView | None:
    plans = [one for one in up.client("admin").plans() if one.job_id == job_id]
    return plans[0] if plans else None


def test_the_plan_that_is_shown_and_approved_is_the_plan_that_is_carried_out(up: Running) -> None:
    speakers = start_job(up, "asked-1")
    one, two = speakers["n1"], speakers["n2"]

    fail_rank(one)
    eventually(lambda: waiting(up, one.job_id) is not None, "a plan that waits")

    shown = waiting(up, one.job_id)
    assert shown is not None
    assert up.client("admin").dry_run(one.job_id) == shown
    assert "approval" in shown.judgement_reason
    assert one.ask(wait_s=0) is None
    up.client("admin").command(one.job_id, PersonAct.APPROVE, incident_id=shown.incident_id)
    for speaker in (one, two):
        assert speaker.wait_order().ranks == (), "the attempt is fenced first"
    (waited,), (decided,) = (
        records(up, one.job_id, "plan_waits"),
        records(up, one.job_id, "decided"),
    )
    assert waited["plan"] == decided["plan"]
    assert (shown.step, shown.reason) == (decided["plan"]["step"], decided["plan"]["reason"])


def test_an_approval_is_of_the_plan_that_was_shown_and_of_no_other(up: Running) -> None:
    speakers = start_job(up, "asked-2", "n3")
    one = speakers["n1"]
    fail_rank(one)
    eventually(lambda: waiting(up, one.job_id) is not None, "a plan that waits")
    shown = waiting(up, one.job_id)
    assert shown is not None
    assert shown.without == []

    worker = up.service.worker

    def drain_and_approve() -> None:  # at one moment: nobody has seen the plan that follows
        worker.desk.drain("n2", "ann", "to be repaired")
        approval = PersonCommand(PersonAct.APPROVE, "bob", incident_id=shown.incident_id)
        worker.command(one.job_id, approval)

    worker.call(drain_and_approve).result(DEADLINE_S)

    def other() -> bool:
        plan = waiting(up, one.job_id)
        return plan is not None and plan.without == ["n2"]

    eventually(other, "the plan that leaves n2 waits anew")
    assert records(up, one.job_id, "decided") == []
    up.client("admin").release("n2", "repaired")


def test_an_approval_that_names_another_plan_is_refused(up: Running) -> None:
    speakers = start_job(up, "asked-4")
    one = speakers["n1"]
    fail_rank(one)
    eventually(lambda: waiting(up, one.job_id) is not None, "a plan that waits")
    shown = waiting(up, one.job_id)
    assert shown is not None
    admin = up.client("admin")

    with pytest.raises(ConflictError, match="no longer pending"):
        admin.command(one.job_id, PersonAct.APPROVE, plan_id="0123456789abcdef")
    assert records(up, one.job_id, "decided") == []
    admin.command(one.job_id, PersonAct.APPROVE, plan_id=shown.plan_id)

    eventually(lambda: bool(records(up, one.job_id, "decided")), "the plan is carried out")


def test_policy_of_a_job_and_of_all_jobs_is_shown(up: Running) -> None:
    job_id = up.client().join(join_of("n1", name="asked-9", key="job:asked-9")).job_id

    status, of_job = ask(up, "GET", f"/v1/policy?job={job_id}", token="reader")
    _status, of_all = ask(up, "GET", "/v1/policy", token="reader")

    assert status == 200
    assert (of_job["approval"], of_job["limits"]["restarts_max"]) == ("all", 7)
    assert (of_all["approval"], of_all["limits"]["restarts_max"]) == ("off", 10_000)
    assert of_all["limits"]["evidence_wait_s"] == 0
    assert of_all["budgets"]["nodes_held_max"] == 20
    assert (of_all["watched"]["action"], of_all["watched"]["dry_run"]) == ("tell", True)
    nobody = "00000000-0000-0000-0000-000000000000"
    assert ask(up, "GET", f"/v1/policy?job={nobody}")[0] == 404


def test_a_reload_changes_what_alerts_count_and_what_is_asked(up: Running) -> None:
    path = up.folder / "policy.toml"
    strange = {"labels": {"alertname": "DcgmXid", "node": "n1"}}
    worker = up.service.worker
    up.client("admin").post_alerts([strange])
    assert not any(one.target.alertname == "DcgmXid" for one in worker.desk.alerts.active)

    path.write_text(f'[cluster]\ndry_run = true\n[alerts]\naccept = ["Dcgm*"]\n{POLICY}')
    up.thread.reload(*read(up.folder / "controller.toml"))
    up.client("admin").post_alerts([strange])

    assert any(one.target.alertname == "DcgmXid" for one in worker.desk.alerts.active)
    assert ask(up, "GET", "/v1/policy")[1]["dry_run"] is True
    path.write_text(POLICY)
    up.thread.reload(*read(up.folder / "controller.toml"))


def test_an_acknowledgement_is_an_act_with_a_name_in_the_audit_file(up: Running) -> None:
    speakers = start_job(up, "asked-noted")
    one = speakers["n1"]
    fail_rank(one)
    eventually(lambda: waiting(up, one.job_id) is not None, "a plan that waits")
    incident = f"{one.job_id[:8]}-1"
    path = f"/v1/incidents/{incident}/acknowledge"
    status, said = ask(up, "POST", path, {"reason": "seen"})
    assert (status, "it has not ended its job" in said["error"]) == (409, True)
    up.client("admin").command(one.job_id, PersonAct.REJECT, incident_id=incident)
    for speaker in speakers.values():
        speaker.wait_order()
        speaker.obey()
    eventually(lambda: client_state(up, one.job_id) == "escalated", "the job is given up")

    assert ask(up, "POST", path, {"reason": "seen"}, token="reader")[0] == 403
    assert ask(up, "POST", path, {"reason": "seen"})[0] == 200
    assert ask(up, "POST", path, {})[0] == 200

    seen = up.service.worker.desk.ledger.acknowledged[incident]
    assert (seen.who, seen.reason) == ("admin", "seen"), "the first word stays"
    assert path in (Path(up.service.config.state_dir) / "audit.jsonl").read_text()


def test_an_incident_that_never_was_and_a_job_are_not_acknowledged(up: Running) -> None:
    job_id = up.client().join(join_of("n1", name="quiet", key="job:quiet")).job_id

    for unknown in (f"{job_id[:8]}-1", "6f1c1b52-1", job_id):
        status, said = ask(up, "POST", f"/v1/incidents/{unknown}/acknowledge", {})
        assert (status, said["error"]) == (404, f"no incident {unknown}")


def test_a_waiting_plan_is_a_word_to_people_and_a_metric_as_long_as_it_waits(up: Running) -> None:
    speakers = start_job(up, "asked-3")
    one = speakers["n1"]
    fail_rank(one)
    worker, job_id = up.service.worker, one.job_id
    messages: list[Alert] = []

    def told() -> list[str]:
        found = worker.call(lambda: look(worker, Links("https://w", "https://c"), 1e6)).result(
            DEADLINE_S
        )
        messages.extend(one for one in found.alerts if "asked-3" in one.annotations.get("jobs", ""))
        return [notice.kind.value for notice in found.notices if notice.job_id == job_id]

    eventually(lambda: told() == ["RankmendPlanWaits"], "a word about the plan")
    message = messages[-1]
    assert (message.labels["alertname"], message.labels["severity"]) == (
        "RankmendIncident",
        "critical",
    )
    assert "approve the plan" in message.annotations["summary"]
    plan = waiting(up, one.job_id)
    assert plan is not None
    up.client("admin").command(one.job_id, PersonAct.APPROVE, incident_id=plan.incident_id)
    eventually(lambda: told() == [], "nothing more to say")
    headers = {"Authorization": f"Bearer {(up.folder / 'admin.token').read_text().strip()}"}
    with urllib3.PoolManager(ca_certs=str(up.ca), retries=False) as pool:
        body = pool.request("GET", f"{up.url}/metrics", headers=headers).data.decode()
    assert 'rankmend_controller_notices{notice="RankmendPlanWaits"}' in body


class Refusing:
    """A gate that lets nothing through."""

    def judge(self, _request: PlanRequest, /) -> Answer:
        return Answer(Judgement.REFUSED, "the budget is spent")


def test_a_refusal_gives_up_a_job_that_stands_and_leaves_one_that_trains_alone(
    tmp_path: Path,
) -> None:
    make_folder(tmp_path / "files")

    def parts(desk: ClusterController, _join: wire.Join) -> Parts:
        return Parts(Refusing(), desk)

    with running(tmp_path / "files", parts_for=parts) as up:
        job = start_job(up, "refused")["n1"]
        admin = up.client("admin")

        admin.command(job.job_id, PersonAct.RESTART, reason="try")
        eventually(lambda: bool(records(up, job.job_id, "incident_event")), "an answer")
        assert records(up, job.job_id, "incident_event")[0]["event"]["outcome"] == "cancel"
        assert admin.job(job.job_id).job.state == "running"
        fail_rank(job)

        def given_up() -> bool:
            events = records(up, job.job_id, "incident_event")
            return events[-1]["event"]["outcome"] == "escalate"

        eventually(given_up, "the job is given up")


def test_story_of_a_job_since_a_moment_has_the_records_that_its_time_needs(up: Running) -> None:
    job_id = start_job(up, "since")["n1"].job_id

    story = up.client("admin").story(job_id, 4e9)
    status, refused = ask(up, "GET", f"/v1/incidents/{job_id}?since=yesterday")

    assert story.lines[0].kind == "job_opened"
    assert (status, "since" in refused["error"]) == (400, True)
