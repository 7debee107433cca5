"""What is read of real processes of this machine: zombies, systemctl as a program, the job of a process."""

import os
import subprocess
import sys as python
import textwrap
from pathlib import Path

import pytest

from agent.collectors.processes import ProcessesCollector, parse_stat
from agent.collectors.services import Systemctl, parse_units
from agent.jobs.processes import read_process, slurm_job_of
from rankmend.clock import SystemClock
from rankmend.errors import SourceError
from tests.support.agent import values_of
from tests.support.eventually import eventually

pytestmark = pytest.mark.process


def test_real_zombie_is_counted() -> None:
    collector = ProcessesCollector(Path("/proc"), SystemClock())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        eventually(
            lambda: parse_stat(Path(f"/proc/{pid}/stat").read_text()).state == "zombie", "a zombie"
        )

        values = values_of(list(collector.collect()))

        assert values["host_processes{zombie}"] >= 1
    finally:
        os.waitpid(pid, 0)


def make_program(folder: Path, body: str) -> str:
    path = folder / "systemctl"
    path.write_text(f"#!{python.executable}\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("import time; time.sleep(600)", "gave no answer within 0.3 s"),
        ("while True: print('Id=' + 'x' * 1000)", "said more than"),
        ("raise SystemExit(4)", "ended with 4"),
    ],
)
def test_systemctl_that_hangs_floods_or_fails_is_broken_and_gone(
    body: str, problem: str, tmp_path: Path
) -> None:
    wait_s = 0.3 if "sleep" in body else 30.0
    systemctl = Systemctl(make_program(tmp_path, body), wait_s, runtime_folder=tmp_path)

    with pytest.raises(SourceError, match=problem):
        systemctl.show(["munge.service"])


def test_systemctl_is_asked_for_all_units_at_once(tmp_path: Path) -> None:
    body = "import sys; print('Id=' + ','.join(sys.argv[3:])); print('ActiveState=active')"
    systemctl = Systemctl(make_program(tmp_path, body), 30.0, runtime_folder=tmp_path)

    units = parse_units(systemctl.show(["a.service", "-b.service"]))

    assert [unit.name for unit in units] == ["--,a.service,-b.service"]


def test_process_of_this_machine_is_read_with_its_user_and_environment() -> None:
    told = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "llama"}
    inside = Path("/proc/self/cgroup").read_text()
    with subprocess.Popen(["cat"], env=os.environ | told, stdin=subprocess.PIPE) as process:
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "cat\n", "exec")
        job, uid = read_process(Path("/proc"), process.pid)
        process.communicate()

    assert uid == os.getuid()
    if not slurm_job_of(inside) and "user.slice" not in inside:
        assert (job.slurm_job, job.job_name) == ("42", "llama")
