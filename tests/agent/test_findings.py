"""Findings in the agent: pages, journal, restarts, silences, `rankmend check node`."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.assembly.families import FAMILIES
from agent.findings.collector import FindingsCollector, is_silenced
from agent.findings.journal import FILE_BYTES_MAX, KEEP, FindingStore, ask_release
from agent.findings.policy_files import load_checks
from agent.metrics import Metric
from agent.page.application import make_app
from agent.sampling.collection import CollectorOutcome, CollectorView
from detectors.node.checks import Check
from rankmend.alerting import Alert, Counts
from rankmend.errors import ConfigError, StorageError
from rankmend.links import RUNBOOKS
from tests.support.agent import (
    FIXTURE,
    ROOT,
    FakeClock,
    answer_of,
    run_agent,
    running_agent,
    sick_tree,
    values_of,
)
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

SENSOR = (("device", "nct-1"), ("sensor", "temp1"))


def view(
    name: str,
    *metrics: Metric,
    outcome: CollectorOutcome = CollectorOutcome.MEASURED,
    is_stale: bool = False,
) -> CollectorView:
    return CollectorView(
        name, 1.0, outcome, "no bus" if outcome is CollectorOutcome.BROKEN else "", 0.0, 0.1, None, 0.0, 0,
        is_stale, answer_of(metrics),
    )  # fmt: skip


def hot(value: float) -> CollectorView:
    limits = Metric("rankmend_thermal_crit_celsius", 90, SENSOR)
    return view("thermal", Metric("rankmend_thermal_temperature_celsius", value, SENSOR), limits)


@dataclass
class FakeTarget:
    alerts: list[list[Alert]] = field(default_factory=list)
    name: str = "fake:9093"

    def update(self, alerts: list[Alert]) -> None:
        self.alerts.append(alerts)

    def counts(self) -> Counts:
        return Counts(0, 0, 0, 0, True)


@pytest.fixture(autouse=True)
def _closed_stores() -> Iterator[None]:
    yield
    while WORLDS:
        WORLDS.pop().store.close()


WORLDS: list["World"] = []  # of the test under way


class World:
    """One agent's findings over restarts, on a folder of its own."""

    def __init__(self, folder: Path, silenced: tuple[str, ...] = (), **changes: object) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.silenced = silenced
        self.checks = [
            check
            for check in load_checks(FAMILIES)
            if check.name in ("sensor_critical", "collector_broken")
        ]
        self.views: list[CollectorView] = []
        self.target = FakeTarget()
        self.start()
        WORLDS.append(self)

    def start(self) -> None:
        self.store = FindingStore(self.folder)
        self.findings = FindingsCollector(self.clock, "n1", self.checks, self.silenced)
        self.findings.watch(lambda: self.views)
        self.findings.tell([self.target])  # type: ignore[list-item]
        self.findings.keep_in(self.store)

    def restart(self) -> None:
        self.findings.stop()
        self.store.close()
        self.start()

    def look(self, *views: CollectorView, times: int = 1) -> dict[str, float]:
        for _ in range(times):
            self.clock.time_s += 1
            self.views = list(views)
            metrics = list(self.findings.collect())
        return values_of(metrics)

    def page(self) -> dict[str, Any]:
        return self.findings.page(self.clock.now_s())

    def journal(self) -> list[tuple[str, str]]:
        path = self.folder / "findings.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(entry["change"], entry["id"]) for entry in map(json.loads, lines)]


ACTIVE = "finding_active{sensor_critical,sensor,,nct-1/temp1,critical,drain}"


@pytest.mark.safety
def test_finding_is_a_metric_a_page_a_journal_line_and_an_alert(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert ACTIVE not in world.look(hot(95))

    values = world.look(hot(95))

    assert values[ACTIVE] == 1
    assert values["finding_raised_total{sensor_critical,critical}"] == 1
    assert values["finding_raised_last_day{critical}"] == 1
    assert world.journal() == [("raised", "sensor_critical/nct-1/temp1")]
    (shown,) = world.page()["findings"]
    assert shown["summary"] == "nct-1 temp1 is at 95 C; its critical limit is 90 C"
    assert shown["how_to_silence"]["alertmanager"] == (
        'amtool silence add alertname=RankmendSensorCritical node="n1" device="nct-1/temp1"'
    )
    (sent,) = world.target.alerts[-1]
    assert sent.labels["alertname"] == "RankmendSensorCritical"
    assert sent.annotations["runbook_url"] == f"{RUNBOOKS}/findings.md#sensor_critical"
    world.look(hot(50), times=3)
    assert world.journal()[1:] == [("ended", "sensor_critical/nct-1/temp1")]
    assert world.target.alerts[-1] == []


def test_restart_neither_raises_again_nor_forgets(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(hot(95), times=2)
    started_unix_s = world.target.alerts[-1][0].started_unix_s
    world.restart()

    values = world.look()

    assert values[ACTIVE] == 1
    assert "finding_raised_total{sensor_critical,critical}" not in values
    assert world.journal() == [("raised", "sensor_critical/nct-1/temp1")]
    assert world.target.alerts[-1][0].started_unix_s == started_unix_s


def test_crash_forgets_no_finding_that_was_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(hot(95), times=2)
    world.store.close()  # and no stop: what is on disk is all there is
    world.start()

    assert world.look()[ACTIVE] == 1


def test_silenced_finding_is_shown_and_neither_counted_nor_sent(tmp_path: Path) -> None:
    world = World(tmp_path, silenced=("sensor_critical/nct-*",))

    values = world.look(hot(95), times=2)

    assert ACTIVE not in values
    assert values["finding_silenced"] == 1
    assert world.page()["findings"][0]["is_silenced"] is True
    assert world.target.alerts[-1] == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("sensor_critical", True),
        ("sensor_critical/nct-1/temp1", True),
        ("sensor_*/nct-1/*", True),
        ("sensor", False),
        ("sensor_critical/nct-2/*", False),
    ],
)
def test_pattern_silences_a_check_or_a_device(pattern: str, expected: bool) -> None:
    assert is_silenced("sensor_critical/nct-1/temp1", [pattern]) is expected


def ask(world: World, path: str) -> tuple[str, str]:
    answer: list[str] = []
    app = make_app(
        "n1",
        lambda: world.views,
        None,  # type: ignore[arg-type]
        world.clock.now_s,
        FAMILIES,
        world.findings,
    )
    environ = {"PATH_INFO": path, "REQUEST_METHOD": "GET"}
    body = b"".join(app(environ, lambda status, _headers: answer.append(status)))
    return answer[0], body.decode()


def test_health_is_red_and_names_the_check_that_cant_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(hot(50))
    assert ask(world, "/healthz") == ("200 OK", "ok\n")

    world.look(view("thermal", outcome=CollectorOutcome.BROKEN))
    status, text = ask(world, "/healthz")

    assert status.startswith("503")
    assert text == "broken: thermal (no bus)\nchecks that can't run: sensor_critical\n"


def test_page_of_findings_is_json(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(hot(95), times=2)

    status, text = ask(world, "/api/v1/findings")

    assert status == "200 OK"
    assert json.loads(text)["findings"][0]["check"] == "sensor_critical"


def test_broken_collector_is_itself_a_finding_in_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    broken = view("thermal", outcome=CollectorOutcome.BROKEN)

    assert "finding_active{collector_broken,agent,,thermal,warning,watch}" not in world.look(
        broken, times=29
    )
    assert "finding_active{collector_broken,agent,,thermal,warning,watch}" in world.look(broken)


def test_reload_ends_the_findings_of_checks_that_are_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(hot(95), times=2)

    world.findings.reload([c for c in world.checks if c.name != "sensor_critical"], ())

    assert ACTIVE not in world.look(hot(95))


@pytest.mark.safety
def test_finding_of_a_check_that_is_gone_after_a_restart_is_journaled_as_ended(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.look(hot(95), times=2)
    world.checks = [check for check in world.checks if check.name != "sensor_critical"]
    world.restart()

    world.look(hot(95))

    assert world.journal()[-1] == ("ended", "sensor_critical/nct-1/temp1")


def latched(checks: list[Check]) -> list[Check]:
    from dataclasses import replace

    from detectors.persistence import Latch

    return [
        replace(check, persistence=replace(check.persistence, latch=Latch.RELEASE))
        for check in checks
    ]


@pytest.mark.safety
def test_person_releases_a_latched_finding_by_its_id(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.checks = latched(world.checks)
    world.restart()
    world.look(hot(95), times=2)
    assert ACTIVE in world.look(hot(50), times=10)

    ask_release(tmp_path, "sensor_critical/nct-1/temp1")

    assert ACTIVE not in world.look(hot(50), times=2)
    assert list((tmp_path / "release").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":2}', b"\xff", b'{"version":"a"}'])
def test_broken_state_is_named_and_begun_anew(data: bytes, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.close()
    (tmp_path / "state.json").write_bytes(data)
    store = FindingStore(tmp_path)
    with pytest.raises(StorageError, match=r"state\.json"):
        store.load()
    store.close()

    world.start()

    assert ACTIVE in world.look(hot(95), times=2)


def test_disk_that_takes_nothing_is_told_and_harms_no_finding(tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "state.json").mkdir()  # can't be replaced, not by root either

    values = world.look(hot(95), times=2)

    assert values[ACTIVE] == 1
    assert values["finding_journal_success"] == 0
    (tmp_path / "state.json").rmdir()
    assert world.look(hot(50), times=3)["finding_journal_success"] == 1


def test_disk_that_takes_nothing_is_told_at_each_look_until_it_takes_all_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World(tmp_path)
    (tmp_path / "state.json").mkdir()
    world.look(hot(95), times=2)

    told = [world.look(hot(95))["finding_journal_success"] for _ in range(5)]

    (tmp_path / "state.json").rmdir()
    assert told == [0] * 5
    assert world.look(hot(95))["finding_journal_success"] == 1
    assert caplog.text.count("findings are not saved on disk") == 1
    assert caplog.text.count("findings are saved on disk again") == 1


def test_word_that_a_finding_is_over_which_cant_be_taken_harms_no_finding(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    (tmp_path / "release" / "x").mkdir()  # nobody can unlink it, not root either

    assert world.look(hot(95), times=3)[ACTIVE] == 1
    assert caplog.text.count("cannot look for released findings") == 1


@pytest.mark.safety
def test_journal_is_bounded_and_survives_a_torn_line(tmp_path: Path) -> None:
    store = FindingStore(tmp_path)
    store.append([{"n": 1}])
    with (tmp_path / "findings.jsonl").open("ab") as file:
        file.write(b'{"n": 2, "to')  # a crash
    store.append([{"n": 3}])
    lines = (tmp_path / "findings.jsonl").read_text().splitlines()
    for _ in range(8):
        store.append([{"text": "x" * (FILE_BYTES_MAX - 50)}])

    files = sorted(path.name for path in tmp_path.glob("findings.jsonl*"))

    store.close()

    assert [json.loads(line)["n"] for line in (lines[0], lines[2])] == [1, 3]
    assert len(files) == KEEP + 1
    assert (
        sum(path.stat().st_size for path in tmp_path.glob("findings*")) < 5 * FILE_BYTES_MAX + 500
    )


def test_two_agents_on_one_folder_are_refused(tmp_path: Path) -> None:
    store = FindingStore(tmp_path)

    with pytest.raises(ConfigError, match="another agent uses"):
        FindingStore(tmp_path)

    store.close()


def check_node(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "check", "node", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )


def test_scan_of_a_sick_node_names_it_and_exits_2(tmp_path: Path) -> None:
    run = check_node("--json", *sick_tree(tmp_path))

    page = json.loads(run.stdout)
    assert run.returncode == 2, run.stderr
    assert page["exit_code"] == 2
    assert "sensor_critical/nvme-nvme0/temp1" in [found["id"] for found in page["findings"]]


def test_scan_of_a_healthy_node_exits_0() -> None:
    run = check_node("--procfs", str(FIXTURE / "proc"), "--sysfs", str(FIXTURE / "sys"))

    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 findings" in run.stdout


def test_table_for_people_says_what_and_what_to_do(tmp_path: Path) -> None:
    run = check_node(*sick_tree(tmp_path))

    assert run.returncode == 2
    assert "critical" in run.stdout
    assert "drain" in run.stdout
    assert "99 C" in run.stdout


def test_wrong_configuration_is_neither_good_nor_bad(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[findings]\npolicy = '/nowhere.toml'\n")

    run = check_node("--config", str(tmp_path / "a.toml"), "--scan")

    assert run.returncode == 64
    assert "/nowhere.toml" in run.stderr


def test_check_asks_the_agent_that_runs_here(tmp_path: Path) -> None:
    flags = sick_tree(tmp_path)
    arguments = ("--socket", str(tmp_path / "a.sock"), "--interval", "0.2", *flags)
    with running_agent(*arguments) as (agent, port):

        def findings() -> list[dict[str, Any]]:
            return json.loads(agent.get(port, "/api/v1/findings")[1])["findings"]

        eventually(lambda: bool(findings()), "the finding")
        config = tmp_path / "agent.toml"
        config.write_text(f'listen = "127.0.0.1:{port}"\n')
        run = check_node("--json", "--config", str(config))
        _status, metrics = agent.get(port, "/metrics")

    page = json.loads(run.stdout)
    assert page["asked"] == f"the agent at 127.0.0.1:{port}"
    assert run.returncode == 2
    assert 'device="nvme-nvme0/temp1"' in metrics


def test_agent_with_a_wrong_policy_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("[sensor_critical]\nmetric = 'rankmend_typo'\nsource='x'\n")
    (tmp_path / "a.toml").write_text(f"[findings]\npolicy = '{tmp_path / 'site.toml'}'\n")

    run = run_agent("--config", str(tmp_path / "a.toml"), "--once")

    assert run.returncode == 1
    assert "sensor_critical: no metric 'rankmend_typo'" in run.stderr
    assert "Traceback" not in run.stderr


def test_agent_posts_its_findings_to_the_target_it_is_given(tmp_path: Path) -> None:
    from tests.support.monitoring import active_alerts, running_alertmanager

    flags = sick_tree(tmp_path)
    with running_alertmanager(tmp_path) as base:
        eventually(lambda: _is_ready(base), "the Alertmanager")
        config = tmp_path / "agent.toml"
        config.write_text(f'[alerts]\nurls = ["{base}"]\n')
        arguments = ("--config", str(config), "--node", "n7", "--interval", "0.2", *flags)
        with running_agent("--socket", str(tmp_path / "a.sock"), *arguments):
            alerts = eventually(lambda: active_alerts(base), "the alert")
            shown = {alert["labels"]["alertname"]: alert for alert in alerts}

    labels = shown["RankmendSensorCritical"]["labels"]
    assert labels == {
        "alertname": "RankmendSensorCritical",
        "node": "n7",
        "device": "nvme-nvme0/temp1",
        "severity": "critical",
    }


def _is_ready(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/-/ready", timeout=DEADLINE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_limit_that_moves_is_seen_while_the_value_stands_still(tmp_path: Path) -> None:
    world = World(tmp_path)
    steady = Metric("rankmend_thermal_temperature_celsius", 85, SENSOR)
    before = view("thermal", steady, Metric("rankmend_thermal_crit_celsius", 90, SENSOR))
    after = view("thermal", steady, Metric("rankmend_thermal_crit_celsius", 80, SENSOR))

    calm = world.look(before, times=3)

    assert ACTIVE not in calm
    assert ACTIVE in world.look(after, times=2)
