"""Ranks behind `--rank-prefix`, each in a PID namespace of its own: the same faults, the same outcome as without."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detectors.finding import Kind
from recovery.launcher.processes.process_tree import find_marked, read_processes, read_status
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.process import keep_stopped
from tests.support.hook import each_python
from tests.system.faults.harness import Job, assert_recovered, kill

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.getuid() != 0, reason="namespaces need root here"),
]
Make = Callable[..., Job]
RUNC_RANK = Path(__file__).parents[3] / "examples/containers/runc_rank.py"
BUNDLES = Path("/run/runc-rank")
NOT_BOUND = {"/proc", "/sys", "/dev"}


def unshare(_folder: Path) -> str:
    return "unshare --pid --fork --mount-proc --kill-child"


def bubblewrap(_folder: Path) -> str:
    return "bwrap --dev-bind / / --unshare-pid --proc /proc --die-with-parent --clearenv --setenv PATH /usr/bin:/bin"


def runc(folder: Path) -> str:
    rootfs = folder / "rootfs"
    rootfs.mkdir()
    tops = [str(path) for path in Path("/").iterdir() if path.is_dir()]
    binds = [f"--bind={path}" for path in sorted({*tops, "/dev/shm"} - NOT_BOUND)]
    words = [sys.executable, str(RUNC_RANK), "--id={job_id}-{rank}-{attempt}"]
    return shlex.join([*words, f"--rootfs={rootfs}", "--cwd={cwd}", *binds, "--"])


TOOLS = {"unshare": unshare, "bwrap": bubblewrap, "runc": runc}


@pytest.fixture(
    autouse=True
)  # so that it ends last, when nothing of the job is left that removes bundles itself
def _no_containers_left(tmp_path: Path) -> Iterator[None]:
    """The last attempt's containers of a killed runc are nobody's. Other tests have theirs at the same time."""
    yield
    for bundle in BUNDLES.glob("*"):
        if not names_folder(bundle, tmp_path):
            continue
        subprocess.run(["runc", "delete", "--force", bundle.name], check=False)
        shutil.rmtree(bundle, ignore_errors=True)


def names_folder(bundle: Path, folder: Path) -> bool:
    """Return whether a container's root file system lies in this folder."""
    try:
        return f'"{folder}/' in (bundle / "config.json").read_text()
    except FileNotFoundError:  # it is being made, or gone
        return False


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a prefix; this machine may not let the tool make namespaces."""
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    folder = tmp_path / "trial"
    folder.mkdir()
    words = [
        word.format(job_id=f"trial-{os.getpid()}", rank=0, attempt=0, cwd="/")
        for word in shlex.split(TOOLS[name](folder))
    ]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"{name} does not run here: {tried.stderr.strip()[-200:]}")
    return TOOLS[name](tmp_path)


def flags(tool: str, *more: str) -> list[str]:
    return [f"--rank-prefix={tool}", f"--python={sys.executable}", *more]


def are_contained(job: Job, pids: dict[int, int]) -> bool:
    inner = [read_status(pid)["NSpid"].split() for pid in pids.values()]
    return all(len(one) > 1 for one in inner)


def test_a_killed_and_a_stopped_rank_cost_nothing_but_time(
    make_pair: Make, undisturbed_pair: dict[str, object], tool: str
) -> None:
    job = make_pair("--step-s=0.03", flags=flags(tool, "--hang-stopped=1"))
    job.start()

    first = job.pids_at_step(15)
    assert are_contained(job, first), "the host's pids of processes in namespaces of their own"
    kill(first[1])
    second = job.pids_at_step(25, attempt=2)
    keep_stopped(second[0])

    assert_recovered(job, undisturbed_pair, incidents=2)
    killed, stopped = [one.failure.finding for one in job.incidents]
    assert (killed.kind, killed.ranks) == (Kind.RANK_FAILED, (1,))
    # unshare of util-linux 2.38 can't die of SIGKILL itself as its child has, and ends with 1.
    assert ("exit code 1" if tool.startswith("unshare") else "SIGKILL") in killed.summary
    assert (stopped.kind, stopped.ranks) == (Kind.RANK_HUNG, (0,))


@pytest.mark.component("containers")
def test_ranks_save_when_the_job_is_stopped_and_nothing_stays(make_pair: Make, tool: str) -> None:
    job = make_pair("--step-s=0.03", "--steps=2000", flags=flags(tool))
    job.start()
    job.pids_at_step(15)

    job.signal(signal.SIGTERM)

    assert job.wait() == 128 + signal.SIGTERM, job.output
    assert any(job.checkpoints.glob("step-*.npz")), "a rank that saves gets its time"
    assert not find_marked(job.job_id)


def test_a_killed_launcher_leaves_no_rank_in_a_container(make_pair: Make, tool: str) -> None:
    job = make_pair("--step-s=0.03", "--steps=2000", flags=flags(tool))
    job.start()
    pids = job.pids_at_step(15)

    job.signal(signal.SIGKILL)
    job.start()

    job.pids_at_step(25, attempt=2)
    eventually(
        lambda: not any(Path("/proc", str(pid)).exists() for pid in pids.values()), "all are reaped"
    )


def test_launcher_that_is_the_first_process_of_a_container_loses_no_rank_and_takes_its_stop(
    make_pair: Make,
) -> None:
    job = make_pair("--step-s=0.03", "--steps=2000")
    job.prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    job.start()
    inner = job.pids_at_step(15)[1]
    assert job.process is not None
    (launcher,) = (one.pid for one in read_processes().values() if one.ppid == job.process.pid)
    assert read_status(launcher)["NSpid"].split()[1:] == ["1"]
    outer = next(
        one.pid
        for one in find_marked(job.job_id)
        if read_status(one.pid)["NSpid"].split()[1:] == [str(inner)]
    )

    kill(outer)
    job.pids_at_step(25, attempt=2)
    os.kill(launcher, signal.SIGTERM)

    assert job.wait() == 128 + signal.SIGTERM, job.output
    (incident,) = job.incidents
    assert (incident.failure.finding.kind, incident.failure.finding.ranks) == (
        Kind.RANK_FAILED,
        (1,),
    )
    assert any(job.checkpoints.glob("step-*.npz")), "the ranks save before they stop"
    assert not find_marked(job.job_id)


PLAIN = """
import time
import rankmend
for step in range(1, 3000):
    time.sleep(0.03)
    rankmend.step(step)
"""


@each_python
def test_container_with_a_python_of_its_own_shows_steps_and_loses_no_rank(
    tmp_path: Path, python: str
) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    prefix = f"{bubblewrap(tmp_path)} --unshare-ipc --unshare-uts"
    inside = [f"--rank-prefix={prefix}", f"--python={python}"]
    job = Job(tmp_path / "job", script, [], world_size=2, flags=inside)
    job.start()
    try:
        first = job.pids_at_step(5)
        interpreter = Path(f"/proc/{first[1]}/exe").resolve()

        kill(first[1])
        job.pids_at_step(5, attempt=2)
        job.signal(signal.SIGTERM)

        assert job.wait() == 128 + signal.SIGTERM, job.output
        assert interpreter == Path(python).resolve()
        assert [one.failure.finding.ranks for one in job.incidents] == [(1,)]
    finally:
        job.close()


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("no-such-tool exec", "the program 'no-such-tool' was not found"),
        ("unshare 'x", "can't be split into words"),
        ("env A={host}", "{host} is not one of the placeholders"),
        ("", "--rank-prefix is empty"),
    ],
)
def test_prefix_that_makes_no_sense_is_refused(make_pair: Make, prefix: str, said: str) -> None:
    job = make_pair(flags=[f"--rank-prefix={prefix}"])
    job.start()

    assert job.process is not None
    assert job.process.wait(DEADLINE_S) != 0
    assert said in job.output
