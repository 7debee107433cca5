"""The controller's unit on a real systemd: start, ready, reload, hang, crash, stop, and its sandbox."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systemd import ROOT, Bed, running_systemd, why_not

UNIT = "rankmend-controller.service"
FOLDER = "/etc/rankmend/controller"
RANKMEND = "/opt/rankmend/bin/rankmend"

# Runs the controller; when told to, its deciding thread never comes back from a question.
STUCK = """
import sys, threading, time
from pathlib import Path
from rankmend.cli import main
from recovery.service.http import backend
from recovery.service.jobs.worker import Worker

assert backend.ALIVE_S_MAX > 1.0
backend.ALIVE_S_MAX = 1.0  # the unit's watchdog is shortened as much
start = Worker.start

def stick(worker):
    while not Path("/var/lib/rankmend-controller/stick").exists():
        time.sleep(0.05)
    worker.call(lambda: time.sleep(3600))

def start_and_stick(worker):
    start(worker)
    threading.Thread(target=stick, args=(worker,), daemon=True).start()

Worker.start = start_and_stick
sys.argv[0] = "rankmend"
main()
"""

JOIN = """
import sys
from pathlib import Path
from recovery.api.launcher_client import LauncherClient
from recovery.api.operator_client import OperatorClient
from recovery.api.wire import Join

way = {"urls": ["https://localhost:9477"], "token_file": Path(sys.argv[1]), "ca_file": Path(sys.argv[2])}
if sys.argv[3] == "join":
    print(LauncherClient(**way).join(Join(key="k", name="kept", node="n1", launcher_id="l", nodes_min=2, nodes_max=2, slots=1)).job_id)
else:
    print(*(job.job_id for job in OperatorClient(**way).jobs()))
"""

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    files = tmp_path_factory.mktemp("root")
    for folder in ("etc/systemd/system", "usr/lib/sysusers.d", "opt/rankmend/bin"):
        (files / folder).mkdir(parents=True)
    shutil.copy(ROOT / "deploy/systemd" / UNIT, files / "etc/systemd/system")
    shutil.copy(ROOT / "deploy/sysusers.d/rankmend.conf", files / "usr/lib/sysusers.d")
    (files / "opt/rankmend/bin/stuck.py").write_text(STUCK)
    (files / "opt/rankmend/bin/ask.py").write_text(JOIN)
    with running_systemd(files) as bed:
        bed.run("systemd-sysusers")
        bed.run(
            *(RANKMEND, "controller", "init", FOLDER, "--host", "localhost"),
            *("--user", "rankmend-controller"),
        )
        bed.run("ip", "link", "set", "lo", "up", check=False)
        yield bed


def ask(bed: Bed, what: str, token: str = "admin") -> str:
    files = (f"{FOLDER}/{token}.token", f"{FOLDER}/ca.crt")
    done = bed.run("/opt/rankmend/bin/python", "/opt/rankmend/bin/ask.py", *files, what)
    return done.stdout.strip()


@pytest.fixture
def service(bed: Bed) -> Bed:
    """The unit as it is shipped, with what `init` made: a test finds it started, perhaps by the one before."""
    bed.run("systemctl", "start", UNIT)
    return bed


@pytest.fixture
def stopped(bed: Bed) -> Bed:
    bed.stop(UNIT)
    return bed


@pytest.fixture
def impatient(stopped: Bed) -> Iterator[Bed]:
    """The unit with a short watchdog."""
    with stopped.impatient(UNIT) as impatient:
        yield impatient


def test_start_returns_when_the_jobs_are_taken_up_and_the_port_answers(service: Bed) -> None:
    assert service.show(UNIT, "StatusText") == "0 jobs resumed"
    assert ask(service, "jobs") == ""


def test_controller_runs_as_its_own_user_without_any_capability(service: Bed) -> None:
    pid = service.show(UNIT, "MainPID")

    fields = service.status_of(pid)
    user = service.run("id", "-u", "rankmend-controller").stdout.strip()
    options = service.mount_options_of(pid)

    assert fields["Uid"].split() == [user] * 4
    assert user != "0"
    assert (fields["CapEff"], fields["CapBnd"]) == ("0" * 16, "0" * 16)
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert "ro" in options["/"]
    assert "rw" in options["/var/lib/rankmend-controller"]
    assert b"rm_" not in service.run("cat", f"/proc/{pid}/cmdline").stdout.encode()


def test_limits_of_the_unit_are_really_set(service: Bed) -> None:
    assert service.show(UNIT, "LimitNOFILE") == "65536"
    assert service.show(UNIT, "MemoryMax") == str(4 << 30)
    assert service.show(UNIT, "TasksMax") == "1024"


def test_stop_is_clean_and_jobs_are_there_for_the_next_start(service: Bed) -> None:
    job_id = ask(service, "join", "launch")
    service.run("systemctl", "stop", UNIT)
    result = service.show(UNIT, "Result")
    owner = service.run("stat", "-c", "%U %a", "/var/lib/rankmend-controller").stdout.split()

    service.run("systemctl", "start", UNIT)

    assert result == "success"
    assert owner == ["rankmend-controller", "700"]
    assert service.show(UNIT, "StatusText") == "1 job resumed"
    assert ask(service, "jobs") == job_id


def test_reload_takes_a_good_configuration_and_a_bad_one_changes_nothing(service: Bed) -> None:
    pid = service.show(UNIT, "MainPID")
    path = f"{FOLDER}/controller.toml"
    kept = service.run("cat", path).stdout
    try:
        added = service.run(
            *(RANKMEND, "controller", "token", "add", "late", "--role", "read"),
            *("--output", f"{FOLDER}/late.token"),
        )
        service.run("systemctl", "reload", UNIT)
        service.wait_for(
            lambda: service.show(UNIT, "StatusText") == "configuration reloaded", "the reload"
        )
        ask(service, "jobs", "late")

        service.run("sh", "-c", f"cat > {path}", text=kept + "\ncolour = 1\n")
        service.run("systemctl", "reload", UNIT)
        service.wait_for(lambda: "colour" in service.show(UNIT, "StatusText"), "the refusal")

        ask(service, "jobs", "late")
        assert "token" in added.stderr
        assert service.show(UNIT, "MainPID") == pid
    finally:
        service.run("sh", "-c", f"cat > {path}", text=kept)


def test_killed_controller_is_started_again_with_its_jobs(impatient: Bed) -> None:
    impatient.run("systemctl", "start", UNIT)
    job_id = ask(impatient, "join", "launch")

    impatient.run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", UNIT)
    impatient.wait_for(lambda: impatient.has_restarted(UNIT), "the restart")

    assert job_id in ask(impatient, "jobs").split()


def test_frozen_controller_is_killed_by_the_watchdog_and_started_again(impatient: Bed) -> None:
    impatient.run("systemctl", "start", UNIT)
    cursor = impatient.cursor()

    impatient.run("systemctl", "kill", "-s", "STOP", "--kill-whom=main", UNIT)
    impatient.wait_for(lambda: impatient.has_restarted(UNIT), "the restart")

    impatient.wait_for(
        lambda: "Watchdog timeout" in impatient.journal(UNIT, cursor), "the watchdog"
    )


@pytest.mark.usefixtures("stopped")
def test_controller_whose_deciding_thread_is_stuck_is_started_again(bed: Bed) -> None:
    bed.drop_in(
        UNIT,
        "[Service]\nWatchdogSec=4\nRestartSec=200ms\nTimeoutAbortSec=1\nExecStart=\n"
        "ExecStart=/opt/rankmend/bin/python /opt/rankmend/bin/stuck.py controller run "
        f"--config {FOLDER}/controller.toml\n",
    )
    try:
        bed.run("systemctl", "start", UNIT)
        cursor = bed.cursor()

        bed.run("touch", "/var/lib/rankmend-controller/stick")

        for words in ("the deciding thread is stuck", "Watchdog timeout"):
            bed.wait_for(lambda words=words: words in bed.journal(UNIT, cursor), words)  # type: ignore[misc]
    finally:
        bed.run("rm", "-f", "/var/lib/rankmend-controller/stick")
        bed.stop(UNIT)
        bed.drop_in(UNIT, "")


@pytest.mark.usefixtures("stopped")
def test_state_on_another_disk_needs_the_drop_in_that_the_documentation_shows(bed: Bed) -> None:
    shown = "[Service]\n    ReadWritePaths=/data/rankmend\n"
    assert shown in (ROOT / "docs/operate/controller.md").read_text()
    path, cursor = f"{FOLDER}/controller.toml", bed.cursor()
    kept = bed.run("cat", path).stdout
    elsewhere = kept.replace("/var/lib/rankmend-controller", "/data/rankmend")
    bed.run("mkdir", "-p", "/data")
    bed.run("mount", "-t", "tmpfs", "tmpfs", "/data")
    bed.run("install", "-d", "-o", "rankmend-controller", "-m", "700", "/data/rankmend")
    bed.run("sh", "-c", f"cat > {path}", text=elsewhere)
    try:
        refused = bed.run("systemctl", "start", UNIT, check=False)
        bed.stop(UNIT)
        bed.drop_in(UNIT, shown.replace("    ", ""))
        bed.run("systemctl", "start", UNIT)

        assert refused.returncode != 0
        assert "Read-only file system" in bed.journal(UNIT, cursor)
        assert "jobs" in bed.run("ls", "/data/rankmend").stdout.split()
    finally:
        bed.stop(UNIT)
        bed.drop_in(UNIT, "")
        bed.run("sh", "-c", f"cat > {path}", text=kept)
        bed.run("umount", "-l", "/data")


@pytest.mark.usefixtures("stopped")
def test_open_listening_without_tls_fails_the_start_and_says_what_to_do(bed: Bed) -> None:
    path, cursor = f"{FOLDER}/controller.toml", bed.cursor()
    kept = bed.run("cat", path).stdout
    state = json.dumps("/var/lib/rankmend-controller")
    bed.run("sh", "-c", f"cat > {path}", text=f'listen = ":9477"\nstate_dir = {state}\n')
    try:
        started = bed.run("systemctl", "start", UNIT, check=False)

        assert started.returncode != 0
        said = "rankmend controller init DIR --host NAME"
        bed.wait_for(lambda: said in bed.journal(UNIT, cursor), "what to do")
    finally:
        bed.stop(UNIT)
        bed.run("sh", "-c", f"cat > {path}", text=kept)


def test_exposure_of_the_controller_is_below_three() -> None:
    unit = ROOT / "deploy/systemd" / UNIT
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=29", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout[-500:]


def test_shipped_configuration_is_where_the_unit_looks_for_it() -> None:
    unit = (ROOT / "deploy/systemd" / UNIT).read_text()

    assert f"--config {FOLDER}/controller.toml" in unit
    assert Path(ROOT / "deploy/controller.toml").is_file()
