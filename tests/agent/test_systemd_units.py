"""The agent's unit on a real systemd: start, ready, reload, hang, crash, stop, and its sandbox."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systemd import ROOT, Bed, running_systemd, why_not

UNIT = "rankmend-agent.service"
UNITS = ROOT / "deploy" / "systemd"
CAP_SYSLOG_ONLY = f"{1 << 34:016x}"  # capability.h: CAP_SYSLOG is 34
CONFIG = 'listen = "127.0.0.1:0"\nstate_dir = "/var/lib/rankmend-agent"\n'

# Runs the agent; when told to, a thread takes the scheduler's lock and never gives it back.
STUCK = """
import gc, sys, threading, time
from pathlib import Path
from apscheduler.schedulers.background import BackgroundScheduler
from rankmend.cli import main

def stick():
    while not Path("/run/rankmend/stick").exists():
        time.sleep(0.05)
    gc.unfreeze()  # what is frozen is not listed
    for found in [o for o in gc.get_objects() if isinstance(o, BackgroundScheduler)]:
        found._jobstores_lock.acquire()
    time.sleep(3600)

threading.Thread(target=stick, daemon=True).start()
sys.argv[0] = "rankmend"
main()
"""

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    files = tmp_path_factory.mktemp("root")
    for folder in ("etc/systemd/system", "usr/lib/sysusers.d", "etc/rankmend", "opt/rankmend/bin"):
        (files / folder).mkdir(parents=True)
    for unit in UNITS.iterdir():
        shutil.copy(unit, files / "etc/systemd/system")
    shutil.copy(ROOT / "deploy/sysusers.d/rankmend.conf", files / "usr/lib/sysusers.d")
    (files / "etc/rankmend/agent.toml").write_text(CONFIG)
    (files / "opt/rankmend/bin/stuck.py").write_text(STUCK)
    with running_systemd(files) as bed:
        bed.run("systemd-sysusers")
        yield bed


@pytest.fixture
def agent(bed: Bed) -> Iterator[Bed]:
    """The unit as it is shipped, started."""
    with bed.started(UNIT) as started:
        yield started


@pytest.fixture
def impatient(bed: Bed) -> Iterator[Bed]:
    """The unit with a short watchdog."""
    with bed.impatient(UNIT) as impatient:
        yield impatient


def write(bed: Bed, path: str, text: str) -> None:
    bed.run("sh", "-c", f"cat > {path}", text=text)


def page(bed: Bed, path: str) -> str:
    """Fetch a page of the agent that runs now; its port is in the journal, which may lag."""
    pages: list[str] = []

    def fetch() -> bool:
        ports = re.findall(r'"agent started".* port=(\d+)', bed.journal(UNIT))
        if ports:
            pages.append(bed.get(f"http://127.0.0.1:{ports[-1]}{path}"))
        return bool(pages and pages[-1])

    bed.wait_for(fetch, f"the page {path}")
    return pages[-1]


def test_start_returns_when_every_collector_has_answered(agent: Bed) -> None:
    assert agent.show(UNIT, "StatusText") == "all collectors answer"
    assert 'rankmend_collector_success{collector="host"} 1.0' in page(agent, "/metrics")
    assert page(agent, "/healthz") == "ok\n\n"


def test_agent_runs_as_its_own_user_with_one_capability_and_filtered_calls(agent: Bed) -> None:
    pid = agent.show(UNIT, "MainPID")

    fields = agent.status_of(pid)
    user = agent.run("id", "-u", "rankmend-agent").stdout.strip()

    assert fields["Uid"].split() == [user] * 4
    assert user != "0"
    assert (fields["CapEff"], fields["CapBnd"]) == (CAP_SYSLOG_ONLY, CAP_SYSLOG_ONLY)
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


def test_agent_sees_the_root_read_only_and_reads_the_kernel_log(agent: Bed) -> None:
    pid = agent.show(UNIT, "MainPID")

    options = agent.mount_options_of(pid)

    assert "ro" in options["/"]
    assert "rw" in options["/var/lib/rankmend-agent"]
    assert 'rankmend_collector_success{collector="kernel_log"} 1.0' in page(agent, "/metrics")


def test_limits_of_the_unit_are_really_set(agent: Bed) -> None:
    assert agent.show(UNIT, "MemoryMax") == str(512 << 20)
    assert agent.show(UNIT, "TasksMax") == "128"
    group = agent.show(UNIT, "ControlGroup")
    limits = agent.run(
        "sh",
        "-c",
        f"cat /sys/fs/cgroup/memory{group}/memory.limit_in_bytes "
        f"/sys/fs/cgroup{group}/memory.max 2>/dev/null || true",
    ).stdout.split()
    assert limits == [str(512 << 20)]


def test_any_user_reaches_the_socket_for_launchers(agent: Bed) -> None:
    script = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        "s.connect('/run/rankmend/agent.sock'); print('connected')"
    )

    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = agent.run(*as_nobody, "/opt/rankmend/bin/python", "-c", script)

    assert done.stdout == "connected\n"


def test_reload_takes_a_good_configuration_and_a_bad_one_changes_nothing(agent: Bed) -> None:
    pid = agent.show(UNIT, "MainPID")
    try:
        write(agent, "/etc/rankmend/agent.toml", CONFIG + 'disabled = ["pressure"]\n')
        agent.run("systemctl", "reload", UNIT)
        agent.wait_for(
            lambda: agent.show(UNIT, "StatusText") == "configuration reloaded", "the reload"
        )
        agent.wait_for(
            lambda: 'collector="pressure"' not in page(agent, "/metrics"), "a page after it"
        )

        write(agent, "/etc/rankmend/agent.toml", CONFIG + 'disalbed = ["host"]\n')
        agent.run("systemctl", "reload", UNIT)
        agent.wait_for(lambda: "disalbed" in agent.show(UNIT, "StatusText"), "the refusal")

        assert 'collector_success{collector="host"}' in page(agent, "/metrics")
        assert agent.show(UNIT, "MainPID") == pid
        assert agent.show(UNIT, "ActiveState") == "active"
    finally:
        write(agent, "/etc/rankmend/agent.toml", CONFIG)


def test_stop_is_clean_and_state_is_there_for_the_next_start(agent: Bed) -> None:
    agent.run("systemctl", "stop", UNIT)

    assert agent.show(UNIT, "Result") == "success"
    owner = agent.run("stat", "-c", "%U %a", "/var/lib/rankmend-agent").stdout.split()
    assert owner == ["rankmend-agent", "750"]
    saved = agent.run("cat", "/var/lib/rankmend-agent/kernel-log.json").stdout

    agent.run("systemctl", "start", UNIT)

    assert saved
    assert "not read" not in agent.journal(UNIT)


def test_killed_agent_is_started_again(impatient: Bed) -> None:
    impatient.run("systemctl", "start", UNIT)
    first = impatient.show(UNIT, "MainPID")

    impatient.run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", UNIT)

    # A short watchdog may end it once more on a busy machine.
    impatient.wait_for(
        lambda: impatient.show(UNIT, "MainPID") not in (first, "0"), "another process"
    )
    assert page(impatient, "/healthz") == "ok\n\n"


def test_frozen_agent_is_killed_by_the_watchdog_and_started_again(impatient: Bed) -> None:
    impatient.run("systemctl", "start", UNIT)
    cursor = impatient.cursor()

    impatient.run("systemctl", "kill", "-s", "STOP", "--kill-whom=main", UNIT)

    impatient.wait_for(lambda: impatient.has_restarted(UNIT), "the restart")
    impatient.wait_for(
        lambda: "Watchdog timeout" in impatient.journal(UNIT, cursor), "the watchdog"
    )


def test_agent_whose_sampling_is_stuck_is_started_again_although_it_lives(bed: Bed) -> None:
    bed.drop_in(
        UNIT,
        "[Service]\nWatchdogSec=4\nRestartSec=200ms\nTimeoutAbortSec=1\nExecStart=\n"
        "ExecStart=/opt/rankmend/bin/python /opt/rankmend/bin/stuck.py agent "
        "--config /etc/rankmend/agent.toml\n",
    )
    try:
        bed.run("systemctl", "start", UNIT)
        cursor = bed.cursor()

        bed.run("touch", "/run/rankmend/stick")

        bed.wait_for(lambda: "Watchdog timeout" in bed.journal(UNIT, cursor), "the watchdog")
    finally:
        bed.stop(UNIT)
        bed.drop_in(UNIT, "")


def test_wrong_configuration_fails_the_start_and_is_named(bed: Bed) -> None:
    cursor = bed.cursor()
    write(bed, "/etc/rankmend/agent.toml", 'colour = "red"\n')
    try:
        started = bed.run("systemctl", "start", UNIT, check=False)

        assert started.returncode != 0
        bed.wait_for(lambda: "colour" in bed.journal(UNIT, cursor), "its name in the journal")
    finally:
        bed.stop(UNIT)
        write(bed, "/etc/rankmend/agent.toml", CONFIG)


def test_agent_starts_on_a_state_folder_that_has_become_read_only_and_tells(bed: Bed) -> None:
    folder = "/var/lib/rankmend-agent"
    stored = "rankmend_finding_journal_success"
    bed.run("systemctl", "start", UNIT)  # makes the folder, with its owner
    bed.run("systemctl", "stop", UNIT)
    uid, gid = bed.run("stat", "-c", "%u %g", folder).stdout.split()
    options = (
        f"ro,mode=750,uid={uid},gid={gid}"  # as systemd would make it: it has nothing to change
    )
    bed.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    try:
        cursor = bed.cursor()
        bed.run("systemctl", "start", UNIT)

        bed.wait_for(lambda: f"{stored} 0.0" in page(bed, "/metrics"), "the metric")
        assert "findings are not saved on disk" in bed.journal(UNIT, cursor)
        for inside in (
            (),
            ("nsenter", "-m", "-t", bed.show(UNIT, "MainPID")),
        ):  # it has its own mounts
            bed.run(*inside, "mount", "-o", "remount,rw", folder)
        bed.wait_for(lambda: f"{stored} 1.0" in page(bed, "/metrics"), "the folder to be used")
        kept = set(bed.run("ls", f"{folder}/findings").stdout.split())
        assert kept >= {"lock", "release", "state.json"}
    finally:
        bed.stop(UNIT)
        bed.run("umount", folder)


def test_helper_starts_at_a_question_answers_the_agent_only_and_ends_when_idle(bed: Bed) -> None:
    question = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(150); "
        "s.connect('/run/rankmend-helper/helper.sock'); s.sendall(b'nonsense\\n'); "
        "s.recv(4096); print('served')"
    )
    python = ("/opt/rankmend/bin/python", "-c", question)
    units = ("rankmend-agent-helper.service", "rankmend-agent-helper.socket")
    bed.run("systemctl", "stop", *units)  # agents of other tests have asked it
    bed.run("systemctl", "start", "rankmend-agent-helper.socket")
    before = bed.show("rankmend-agent-helper.service", "ActiveState")

    stranger = bed.run("setpriv", "--reuid=65534", "--clear-groups", *python, check=False)
    idle = bed.show("rankmend-agent-helper.service", "ActiveState")
    asked = bed.run("setpriv", "--reuid=rankmend-agent", "--clear-groups", *python)

    assert (before, idle) == ("inactive", "inactive")
    assert "PermissionError" in stranger.stderr
    assert asked.stdout == "served\n"
    assert bed.show("rankmend-agent-helper.service", "ActiveState") == "active"
    bed.wait_for(
        lambda: bed.show("rankmend-agent-helper.service", "ActiveState") == "inactive",
        "the helper to end, since nobody asks",
    )
    again = bed.run("setpriv", "--reuid=rankmend-agent", "--clear-groups", *python)
    assert again.stdout == "served\n"
    bed.run("systemctl", "stop", *units)


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.iterdir()))
def test_systemd_finds_nothing_wrong_with_the_unit(bed: Bed, unit: str) -> None:
    checked = bed.run("systemd-analyze", "verify", f"/etc/systemd/system/{unit}")

    assert checked.stderr == ""  # it exits with 0 whatever it finds


def test_exposure_of_the_agent_is_below_three(tmp_path: Path) -> None:
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=29", str(UNITS / UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout[-500:]
