"""Faults of rankmend itself by `rankmend inject`, on a real systemd with a controller, an agent, PostgreSQL and Alertmanager as units."""

import json
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.free_port import free_port
from tests.support.postgres import find_programs
from tests.support.systemd import Bed, running_systemd, why_not

RANKMEND = "/opt/rankmend/bin/rankmend"
UNDO = "/run/drilled-undo"  # the bed sees this machine's /var
CONFIG = "/etc/rankmend/controller"
SERVICES = ("agent", "controller", "postgresql", "alertmanager")
UNIT = """
[Service]
ExecStart={command}
User={user}
Restart={restart}
RestartSec=100ms
"""
ALERTMANAGER = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"
MARKS = '[drills]\nallow = ["rankmend"]\n'


def why_no_stage() -> str:
    if find_programs() is None or shutil.which("prometheus-alertmanager") is None:
        return "needs Debian's postgresql and prometheus-alertmanager"
    return why_not()


pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_no_stage()), reason=why_no_stage())]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    programs = find_programs()
    files = tmp_path_factory.mktemp("root")
    units = files / "etc/systemd/system"
    units.mkdir(parents=True)
    (files / "etc/rankmend").mkdir()
    (files / "etc/rankmend/drills.toml").write_text(MARKS)
    (files / "etc/rankmend/alertmanager.yml").write_text(ALERTMANAGER)
    commands = {
        "agent": (
            f"{RANKMEND} agent --listen=127.0.0.1:{free_port()} --socket=/run/agent.sock",
            "root",
        ),
        "controller": (f"{RANKMEND} controller run --config={CONFIG}/controller.toml", "root"),
        "postgresql": (
            f"{programs}/postgres -D /var/lib/drilled/data -clisten_addresses= -cunix_socket_directories=/tmp",
            "postgres",
        ),
        "alertmanager": (
            "/usr/bin/prometheus-alertmanager --config.file=/etc/rankmend/alertmanager.yml --cluster.listen-address="
            f" --storage.path=/var/lib/drilled/alerts --web.listen-address=127.0.0.1:{free_port()}",
            "root",
        ),
    }
    for name, (command, user) in commands.items():
        restart = "no" if name == "alertmanager" else "on-failure"
        text = UNIT.format(command=command, user=user, restart=restart)
        (units / f"drilled-{name}.service").write_text(text)
    with running_systemd(files) as made:
        made.run("install", "-d", "-o", "postgres", "/var/lib/drilled")
        made.run(
            *("runuser", "-u", "postgres", "--", f"{programs}/initdb", "-D"),
            *("/var/lib/drilled/data", "-A", "trust", "--no-locale", "-E", "UTF8", "--no-sync"),
        )
        made.run(
            RANKMEND,
            "controller",
            "init",
            CONFIG,
            "--host=localhost",
            "--state-dir=/var/lib/drilled-controller",
        )
        made.run(
            *("sed", "-i", f's/^listen = .*/listen = "127.0.0.1:{free_port()}"/'),
            f"{CONFIG}/controller.toml",
        )
        made.run("systemctl", "start", *(f"drilled-{name}" for name in SERVICES))
        yield made


class Injecting:
    """One `rankmend inject` inside the bed."""

    def __init__(self, bed: Bed, fault: str, service: str) -> None:
        self.bed, self.said = bed, f"/tmp/said-{time.monotonic_ns()}"
        command = f"{RANKMEND} inject {fault} --on service:{service} --for 100s --yes --json --undo-dir={UNDO}"
        self.pid = bed.run(
            "sh", "-c", f"{command} >{self.said} 2>&1 </dev/null & echo $!"
        ).stdout.strip()

    @property
    def text(self) -> str:
        return self.bed.run("cat", self.said).stdout

    def wait_until_in_force(self) -> None:
        def look() -> bool:
            text = self.text
            assert "rankmend: in force" in text or "rankmend:" not in text, text
            return "in force" in text

        self.bed.wait_for(look, "the fault is in force")

    def end(self, number: int) -> None:
        """End the injector, and wait until nothing is left to undo."""
        self.bed.run("kill", f"-{number}", self.pid)
        is_left = f"ls {UNDO} | grep -q json"
        self.bed.wait_for(
            lambda: self.bed.run("sh", "-c", is_left, check=False).returncode != 0,
            "all is undone",
        )  # fmt: skip


def pid_of(bed: Bed, service: str) -> str:
    """Return the unit's process, once that is the service and no longer the shell that starts it."""
    unit = f"drilled-{service}"
    word = {"postgresql": "postgres", "alertmanager": "prometheus-aler"}.get(service, "python")
    found = ["0"]

    def look() -> bool:
        found[0] = bed.show(unit, "MainPID")
        name = bed.run("cat", f"/proc/{found[0]}/comm", check=False).stdout.strip()
        return found[0] != "0" and name.startswith(word)

    bed.wait_for(look, f"{unit} runs")
    return found[0]


@pytest.mark.parametrize("service", SERVICES)
def test_stopped_service_goes_on_after_a_kill_9_of_the_injector(bed: Bed, service: str) -> None:
    pid = pid_of(bed, service)

    injecting = Injecting(bed, "service-stop", service)
    injecting.wait_until_in_force()
    # A process stops when it next gets a processor.
    bed.wait_for(lambda: bed.status_of(pid)["State"].startswith("T"), "it stands still")
    injecting.end(signal.SIGKILL)

    assert not bed.status_of(pid)["State"].startswith("T")
    assert bed.show(f"drilled-{service}", "MainPID") == pid


@pytest.mark.parametrize("service", SERVICES)
def test_killed_service_runs_again_after_a_kill_9_of_the_injector(bed: Bed, service: str) -> None:
    """Alertmanager's unit is one that systemd does not start again by itself."""
    pid = pid_of(bed, service)

    injecting = Injecting(bed, "service-kill", service)
    injecting.wait_until_in_force()
    bed.wait_for(lambda: bed.show(f"drilled-{service}", "MainPID") != pid, "it is killed")
    injecting.end(signal.SIGKILL)

    assert pid_of(bed, service) != pid


@pytest.mark.safety
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_controller_may_write_its_journal_again_when_the_injector_ends(
    bed: Bed, number: int
) -> None:
    pid = pid_of(bed, "controller")
    limits = ("prlimit", "--fsize", "--noheadings", f"--pid={pid}")
    before = bed.run(*limits).stdout

    injecting = Injecting(bed, "journal-full", "controller")
    injecting.wait_until_in_force()
    during = bed.run(*limits).stdout
    injecting.end(number)

    assert during.split()[-3:-1] != before.split()[-3:-1]
    assert bed.run(*limits).stdout == before


def test_what_root_does_to_services_is_in_the_log_of_actions(bed: Bed) -> None:
    lines = bed.run("cat", "/var/log/rankmend/node-actions.jsonl").stdout.splitlines()

    told = {json.loads(line).get("on", "").partition("/")[0] for line in lines}
    assert {f"service:{one}" for one in SERVICES} <= told
