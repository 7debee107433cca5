"""What a person receives from real Alertmanagers with the shipped configuration, cause by cause, counted."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from detectors.finding import Severity
from rankmend.alerting import AlertmanagerTarget, make_post, target_url
from rankmend.clock import SystemClock
from recovery.controller.cluster.cluster_ledger import ClusterLedger, fold_entry
from recovery.controller.cluster.cluster_limits import PeopleRules
from recovery.journal.cluster_records import CauseTold
from recovery.journal.records import Entry
from recovery.service.paging.alerts import Links, alerts_of, ended_alerts_of, marks_of
from recovery.service.paging.causes import follow
from recovery.service.paging.trouble import ESCALATED, FINDING, PresentTrouble, Stage
from tests.support.alertmanager import Alerting, alerting
from tests.support.eventually import eventually

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        shutil.which("prometheus-alertmanager") is None, reason="Alertmanager is not installed"
    ),
]
LINKS = Links("https://wiki/runbooks", "https://console")
STANDS_S = 8.0  # in the proportions of the intervals; longer than the second Alertmanager waits
CASE = [0]  # Alertmanager remembers what it has sent: each test has its own names


class Controller:
    """The pager of a controller on a journal that outlives it."""

    def __init__(self, alerting: Alerting) -> None:
        self.alerting = alerting
        self.ledger = ClusterLedger()
        self.start()

    def start(self) -> None:
        """Begin with what the journal holds, as after a kill."""
        clock, post = SystemClock(), make_post()
        self.targets = [
            AlertmanagerTarget(target_url(url), clock, post, resend_s=1.0)
            for url in self.alerting.urls
        ]
        for target in self.targets:
            target.start()

    def kill(self) -> None:
        for target in self.targets:
            target.stop()

    def look(
        self, *troubles: PresentTrouble, ends: dict[str, str] | None = None
    ) -> tuple[CauseTold, ...]:
        now_s = time.time()
        rules = PeopleRules(stands_s=STANDS_S)
        changes = follow(
            self.ledger.causes,
            troubles,
            rules,
            now_s,
            ends=ends or {},
            listened_s=1e6,
        )
        for record in changes.records:
            entry = Entry(self.ledger.number + 1, now_s, 0.0, "", record)
            self.ledger = fold_entry(self.ledger, entry)
        marked = (*(one.told for one in changes.open), *changes.lately)
        alerts = [*alerts_of(changes.open, LINKS), *marks_of(marked)]
        for target in self.targets:
            target.update(alerts, ended_alerts_of(changes.closed, LINKS))
        return changes.closed

    def end(self, said: str, *jobs: str) -> None:
        """Look until what there was is closed."""
        ends = dict.fromkeys(jobs or (f"job-{CASE[0]}",), said)
        eventually(lambda: self.look(ends=ends), lambda: self.ledger.causes)


def incident() -> str:
    return f"6f1c{CASE[0]:04}-1"


def node(offset: int = 0) -> str:
    return f"n{CASE[0] + offset}"


def trouble(offset: int = 0, **fields: Any) -> PresentTrouble:
    number = CASE[0] + offset
    made = PresentTrouble(
        key=f"6f1c{number:04}-1",
        kind="RankmendIncident",
        severity=Severity.INFO,
        what=f"rank 3 on n{number} was killed by SIGKILL",
        since_unix_s=time.time(),
        job_id=f"job-{number}",
        job=f"llama-{number}",
        nodes=(f"n{number}",),
        need="restarting",
        command=f"rankmend why 6f1c{number:04}-1",
        done=("decided: restart in place",),
        gpus_idle=64,
        is_incident=True,
        runbook="rankmendincident",
    )
    return replace(made, **fields)


def finding(alertname: str, node: str, **labels: str) -> dict[str, Any]:
    """Return an alert as the rules of Prometheus carry it."""
    named = {"alertname": alertname, "node": node, "severity": "critical", **labels}
    return {"labels": named, "annotations": {"summary": f"{node}: {alertname}"}}


def over(alert: dict[str, Any]) -> dict[str, Any]:
    return {**alert, "endsAt": datetime.now(timezone.utc).isoformat()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alerting]:
    with alerting(tmp_path_factory.mktemp("alertmanagers"), members=2) as made:
        yield made


@pytest.fixture
def site(shared: Alerting) -> Iterator[Controller]:
    """Two Alertmanagers of a cluster with nothing to tell, and a controller."""
    CASE[0] += 100
    controller = Controller(shared)
    yield controller
    controller.kill()
    ended = datetime.now(timezone.utc).isoformat()
    shared.post([{"labels": one["labels"], "endsAt": ended} for one in shared.active()])
    shared.settle()
    shared.people.pages.clear()


def pages_after_quiet(site: Controller) -> list[dict[str, Any]]:
    site.alerting.settle()
    return list(site.alerting.people.pages)


def say(pages: list[dict[str, Any]]) -> str:
    """Return what was received, a line for each message."""
    return "\n".join(
        f"{one['status']} by {one['externalURL']} at {one['at_s']:.1f} {one['groupKey']}: "
        + ", ".join(f"{alert['status']} {alert['labels']}" for alert in one["alerts"])
        for one in pages
    )


def firing(site: Controller) -> dict[str, Any]:
    pages = site.alerting.people.pages
    eventually(lambda: pages, site.alerting.active)
    return pages[0]


def resolved(site: Controller) -> dict[str, Any]:
    pages = site.alerting.people.pages
    eventually(lambda: any(one["status"] == "resolved" for one in pages), lambda: pages)
    return next(one for one in pages if one["status"] == "resolved")


def test_a_rank_that_is_killed_and_recovered_wakes_nobody(site: Controller) -> None:
    site.look(trouble())
    site.alerting.post([finding("RankmendRankFailed", node(), check="rank_failed")])
    site.look(trouble(need="restarted; waits for its first steps"))
    site.end("trains again")

    assert pages_after_quiet(site) == []


def test_a_gpu_that_falls_off_the_bus_under_a_job_wakes_nobody_while_a_spare_takes_its_place(
    site: Controller,
) -> None:
    lost = trouble(what="GPU lost", need="restarting")
    found = trouble(key=f"node-{node()}", kind=FINDING, severity=Severity.CRITICAL, job_id="",
                    is_incident=False, gpus_idle=0)  # fmt: skip
    site.look(lost)
    site.look(lost, found)
    site.alerting.post(
        [
            finding("RankmendXid79", node(), uuid="GPU-1", check="xid_79"),
            finding("RankmendGpuLost", node(), uuid="GPU-1", check="gpu_lost"),
            finding("RankmendGpuCountLow", node(), check="gpu_count_low"),
            finding("RankmendGpuLost", node(), uuid="GPU-1"),  # by the agent itself
            finding("RankmendRankFailed", node(), check="rank_failed"),
        ]
    )
    site.look(lost, found)
    site.end("trains again")

    assert pages_after_quiet(site) == []


def test_a_job_that_hangs_and_is_restarted_wakes_nobody(site: Controller) -> None:
    site.look(trouble(what="hung: it waits for rank 3"))
    site.alerting.post([finding("RankmendRankHung", node(), check="rank_hung")])
    site.look(trouble(need="restarted; waits for its first steps"))
    site.end("trains again")

    assert pages_after_quiet(site) == []


def test_a_plan_that_waits_is_one_message_from_its_question_to_the_recovery(
    site: Controller,
) -> None:
    waiting = trouble(
        severity=Severity.CRITICAL,
        need="approve the plan",
        command=f"rankmend approve {incident()}",
        runbook="rankmendplanwaits",
    )
    site.look(waiting)
    first = firing(site)
    site.alerting.post([finding("RankmendPlansOpen", "", to="people")])
    site.alerting.settle()
    site.alerting.post([over(finding("RankmendPlansOpen", "", to="people"))])
    site.look(trouble(need="restarting"))
    site.look(trouble(need="restarted; waits for its first steps"))
    site.alerting.settle()
    site.end("trains again (attempt 4, 8 nodes)")
    last = resolved(site)

    pages = pages_after_quiet(site)
    assert [one["status"] for one in pages] == ["firing", "resolved"], say(pages)
    assert first["groupKey"] == last["groupKey"]
    texts = first["commonAnnotations"]
    assert texts["summary"] == (
        f"llama-{CASE[0]}: approve the plan; 64 ranks idle; rank 3 on {node()} was killed by SIGKILL"
    )
    assert texts["next"] == f"rankmend approve {incident()}"
    assert texts["console_url"] == f"https://console/incidents/{incident()}"
    assert texts["runbook_url"].endswith("controller.md#rankmendplanwaits")
    assert "trains again (attempt 4, 8 nodes)" in last["commonAnnotations"]["summary"]


def test_an_incident_that_is_given_up_is_one_message_until_it_is_acknowledged(
    site: Controller,
) -> None:
    site.look(trouble())
    given_up = trouble(kind=ESCALATED, severity=Severity.CRITICAL, need="given up", gpus_idle=None)
    site.look(given_up)
    firing(site)
    site.alerting.post([finding("RankmendEscalationsOpen", "", to="people")])
    site.alerting.settle()
    site.alerting.post([over(finding("RankmendEscalationsOpen", "", to="people"))])
    site.end("acknowledged by ann; the job has ended (gave up)")
    resolved(site)

    pages = pages_after_quiet(site)
    assert [one["status"] for one in pages] == ["firing", "resolved"], say(pages)


def test_whoever_knows_of_a_long_recovery_hears_at_once_that_it_is_given_up(
    site: Controller,
) -> None:
    site.look(trouble(severity=Severity.CRITICAL))
    firing(site)
    given_up = trouble(
        key=f"{incident()}0",
        kind=ESCALATED,
        severity=Severity.CRITICAL,
        need="given up",
        gpus_idle=None,
        stage=Stage.GIVEN_UP,
    )
    site.look(given_up)  # another incident of the job, while the message still stands
    eventually(lambda: len(site.alerting.people.pages) > 1, site.alerting.active)
    second = site.alerting.people.pages[1]
    site.end("acknowledged by ann; the job has ended (gave up)")
    resolved(site)

    pages = pages_after_quiet(site)
    assert [one["status"] for one in pages] == ["firing", "firing", "resolved"], say(pages)
    assert len(site.alerting.people.groups()) == 1, "a pager goes on with the same incident"
    (now,) = [one for one in second["alerts"] if one["status"] == "firing"]
    assert now["labels"]["stage"] == "given_up"
    assert "given up" in now["annotations"]["summary"]


def test_a_node_that_is_lost_is_one_message_though_its_agent_is_missed_too(
    site: Controller,
) -> None:
    lost = trouble(is_loss=True, severity=Severity.CRITICAL, need="waits for a node")
    site.look(lost)
    firing(site)
    site.alerting.post([finding("RankmendAgentDown", node())])
    site.look(lost)
    site.alerting.settle()
    site.end("trains again")
    resolved(site)

    pages = pages_after_quiet(site)
    assert [one["status"] for one in pages] == ["firing", "resolved"], say(pages)


def test_a_switch_that_takes_twenty_nodes_and_ten_jobs_is_one_message(site: Controller) -> None:
    lost = [
        trouble(
            number,
            nodes=(node(2 * number), node(2 * number + 1)),
            is_loss=True,
            severity=Severity.CRITICAL,
            need="waits for a node",
        )
        for number in range(10)
    ]
    for count in range(1, 11):  # one after the other, as each falls silent
        site.look(*lost[:count])
    site.alerting.post([finding("RankmendAgentDown", node(number)) for number in range(20)])
    first = firing(site)
    for count in range(9, 0, -1):
        site.look(*lost[:count])
    site.end("trains again", *(one.job_id for one in lost))
    resolved(site)

    pages = pages_after_quiet(site)
    assert [one["status"] for one in pages] == ["firing", "resolved"], say(pages)
    assert first["commonAnnotations"]["summary"].startswith("10 jobs: waits for a node; 640 ranks")
    assert all(one.job in first["commonAnnotations"]["jobs"] for one in lost)


def test_a_controller_that_is_killed_makes_no_second_message_and_closes_what_ended_meanwhile(
    site: Controller,
) -> None:
    waiting = trouble(severity=Severity.CRITICAL, need="approve the plan")
    site.look(waiting)
    firing(site)

    site.kill()
    site.start()
    site.look(waiting)
    site.alerting.settle()
    assert site.alerting.people.statuses() == ["firing"]
    site.kill()
    site.start()
    site.end("trains again")
    resolved(site)

    pages = pages_after_quiet(site)
    assert [one["status"] for one in pages] == ["firing", "resolved"], say(pages)


def test_templates_give_a_pager_a_mail_and_a_chat_all_that_a_person_asks(
    tmp_path: Path, site: Controller
) -> None:
    if shutil.which("amtool") is None:
        pytest.skip("amtool is not installed")
    site.look(
        trouble(severity=Severity.CRITICAL, need="approve the plan", what="<!channel> GPU lost")
    )
    message = firing(site)
    data = tmp_path / "data.json"
    data.write_text(
        json.dumps({**{key[0].upper() + key[1:]: value for key, value in message.items()}})
    )

    def render(name: str) -> str:
        done = subprocess.run(
            ["amtool", "template", "render", f"--template.glob={ROOT}/deploy/alertmanager/*.tmpl",
             f'--template.text={{{{ template "{name}" . }}}}', f"--template.data={data}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    title, text, slack = (render(f"rankmend.{name}") for name in ("title", "text", "slack"))
    assert title.startswith(
        f"[critical] llama-{CASE[0]}: approve the plan; 64 ranks idle; <!channel>"
    )
    for word in ("Since: 2", "Ranks idle: 64", f"Next: rankmend why {incident()}",
                 f"Page: https://console/incidents/{incident()}", "Done already:"):  # fmt: skip
        assert word in text, text
    assert "<!channel>" not in slack
    assert render("rankmend.link") == f"https://console/incidents/{incident()}"
