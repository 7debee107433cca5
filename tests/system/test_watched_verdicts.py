"""A real controller judges jobs of real launchers under real Slurm, from what a real agent reports. Their script is any PyTorch script."""

import http.server
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from detectors.persistence import Persistence
from detectors.slow.busy_shares import ShareLimits
from rankmend.watch.hook_folder import make_hook_folder
from rankmend.watch.lines import WatchPlace, lines_for
from recovery.accounting.goodput.anatomy import anatomy_of
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.throughput import throughput_of
from recovery.api import wire
from recovery.console.views.watched_time_view import time_of_view
from recovery.controller.watched.busy_ranks import BusyRanks
from recovery.service.setup import make_node_files
from tests.support.agent import running_agent
from tests.support.eventually import eventually
from tests.support.service import FullClient, Running, make_folder, running
from tests.support.slurm import SlurmCluster, missing, slurm_cluster
from tests.support.torch_here import needs_torch

pytestmark = [pytest.mark.site, pytest.mark.torch, pytest.mark.timeout(1200)]
SYSTEM = Path(__file__).resolve().parent
SCRIPT = (SYSTEM.parents[1] / "bench/jobs/watched_ddp.py").read_text()
# The product compares windows of 10 s, and four of five count.
SHORT_WINDOWS = ShareLimits(window_s=2.0)
TWO_OF_THREE = Persistence(bad_looks=2, of_looks=3, clear_looks=3)
TELL = """
def tell() -> None:
    import rankmend

    rankmend.work(flops=1e9, tokens=64)


"""


class Inbox(http.server.BaseHTTPRequestHandler):
    """Takes alerts, as Alertmanager does."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.alerts += json.loads(body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        return


@dataclass
class Site:
    slurm: SlurmCluster
    up: Running
    client: FullClient
    alerts: list[dict[str, dict[str, str]]]
    folder: Path

    def view(self, name: str) -> wire.WatchedView | None:
        seen = self.client.ask("GET", "/v1/watched", wire.Watched).watched
        return next((one for one in seen if one.name == name), None)

    def wait(self, name: str, is_so: Callable[[wire.WatchedView], bool]) -> wire.WatchedView:
        """Wait for a job's verdict, and return it."""

        def look() -> wire.WatchedView | None:
            seen = self.view(name)
            return seen if seen is not None and is_so(seen) else None

        return eventually(
            look, lambda: f"{name}: {self.view(name)}\n{self.slurm.logs()}", pause_s=0.7
        )

    def submit(self, name: str, launch: str, names: str, settings: str) -> str:
        """Submit a job of one node whose script is launched so; return its number."""
        script, meet = self.folder / "train.py", self.folder / f"{name}.meet"
        (self.slurm.folder / f"{name}.sh").write_text(
            f"#!/bin/sh\n#SBATCH --nodes=1 --ntasks=4 --job-name={name} --output={name}.log\n"
            "export OMP_NUM_THREADS=1 RANKMEND_WATCH_EVIDENCE=1\n"
            f"{launch} {script} {names} {meet} {settings}\n"
        )
        done = self.slurm.run("sbatch", f"{name}.sh")
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    def pid_of(self, name: str, rank: int) -> int:
        shown = self.view(name)
        assert shown is not None
        pid, _start_ticks = self.up.service.worker.watched.jobs[shown.job_id].seats[rank].process
        assert pid > 1, "0 would be this process and all of its group"
        return pid


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    needs_torch()
    if reason := missing():
        pytest.skip(reason)
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun (openmpi-bin)")
    folder = tmp_path_factory.mktemp("verdicts")
    hook, prolog = folder / "hook", folder / "task_prolog.sh"
    make_hook_folder(hook)
    prolog.write_text(lines_for(WatchPlace.TASKPROLOG, str(hook)))
    prolog.chmod(0o755)
    short = {"work(3.0)": "work(0.7)", "work(2.0)": "work(0.7)"}
    write_script(folder, short)
    (folder / "slurm").mkdir()
    controller = folder / "controller"
    make_folder(controller)
    cert, key = make_node_files(controller, "n1", folder / "node")
    inbox = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Inbox)
    inbox.alerts = []  # type: ignore[attr-defined]
    threading.Thread(target=inbox.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{inbox.server_port}"
    try:
        with (
            slurm_cluster(folder / "slurm", 4, TaskProlog=str(prolog)) as slurm,
            running(controller, lambda config: _with_alertmanager(config, address)) as up,
        ):
            (folder / "agent.toml").write_text(
                f'node = "n1"\nsocket = "{folder}/agent.sock"\ndisabled = ["mounts", "disk_health"]\n'
                f'[alerts]\nca_file = "{up.ca}"\ncert_file = "{cert}"\nkey_file = "{key}"\n'
                f'[watch]\ncontroller = "{up.url}"\n'
            )
            with running_agent("--config", str(folder / "agent.toml")):
                client = up.client("admin")
                yield Site(slurm, up, client, inbox.alerts, folder)  # type: ignore[attr-defined]
                slurm.run("scancel", "--signal=KILL", "--user=root")
    finally:
        inbox.shutdown()
        inbox.server_close()


def write_script(folder: Path, changes: Mapping[str, str]) -> None:
    """Write `train.py` with these changes, and without PyTorch's compiler."""
    script = SCRIPT
    without = {"import torch\n": "import without_compiler\nimport torch\n"}
    for old, new in {**without, **changes}.items():
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    (folder / "train.py").write_text(script)
    shutil.copy(SYSTEM / "faults/jobs/without_compiler.py", folder)


def _with_alertmanager(config, address):  # type: ignore[no-untyped-def]
    told = msgspec.structs.replace(config.alertmanagers, urls=(address,))
    return msgspec.structs.replace(config, alertmanagers=told)


# mpirun asks Slurm for its nodes, and takes these for other hosts than this one, whose name differs.
LAUNCHERS = {
    "torchrun": (
        f"srun --ntasks=1 {sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2",
        "RANK WORLD_SIZE",
    ),
    "srun": (f"srun --ntasks=2 {sys.executable}", "SLURM_PROCID SLURM_NTASKS"),
    "mpirun": (
        f"srun --ntasks=1 mpirun --mca ras ^slurm --mca plm ^slurm --allow-run-as-root --oversubscribe -n 2 {sys.executable}",
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE",
    ),
}


def test_stopped_rank_of_each_launcher_is_named_and_pauses_saves_and_compiling_are_not(
    site: Site,
) -> None:
    before = Counter(site.up.service.worker.watched.found)
    light = "-1 0.002 0.3 0"
    numbers = {
        name: site.submit(f"stopped-{name}", *launched, light)
        for name, launched in LAUNCHERS.items()
    }
    other = site.submit("pauses", *LAUNCHERS["srun"], "-1 0.004 0.1 15")
    jobs = [*(f"stopped-{name}" for name in LAUNCHERS), "pauses"]
    for awaited in jobs:
        site.wait(awaited, lambda one: one.state == "training" and (one.step or 0) > 5)
    for name in LAUNCHERS:
        shown = site.view(f"stopped-{name}")
        assert shown is not None
        assert (shown.launcher, shown.slurm_job, shown.user) == (name, numbers[name], "root")

    pids = [site.pid_of(f"stopped-{name}", 1) for name in LAUNCHERS]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    for name in LAUNCHERS:
        site.wait(f"stopped-{name}", lambda one: one.state == "hung")
        shown = site.view(f"stopped-{name}")
        assert shown is not None
        (finding,) = shown.findings
        assert (finding.ranks, finding.node, finding.kind) == ([1], "n1", "rank_hung")
        site.wait(f"stopped-{name}", lambda one: _has_stack(one, 0))
    # Each rank is stopped on the same node, so that all of it is one cause: one message, which names every job.
    _wait_for_message(site, "n1", [f"stopped-{name}" for name in LAUNCHERS])
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    for name in LAUNCHERS:
        site.wait(f"stopped-{name}", lambda one: one.state == "training")
    for number in numbers.values():
        site.slurm.run("scancel", number)

    # After two evaluations, each with a save.
    shown = site.wait("pauses", lambda one: (one.step or 0) >= 35)
    assert (shown.state, shown.findings) == ("training", [])
    assert site.up.service.worker.watched.found - before == {"hung": len(LAUNCHERS)}
    site.slurm.run("scancel", other)
    for awaited in jobs:
        site.wait(awaited, lambda one: one.state == "ended")


def _has_stack(shown: wire.WatchedView, rank: int) -> bool:
    """Return whether a hung job's evidence has the script's own line at which the rank waits."""
    lines = [line for finding in shown.findings for line in finding.evidence]
    return any(
        line.startswith(f"Python stack of rank {rank}: ") and "train.py:" in line for line in lines
    )


def _wait_for_message(site: Site, node: str, jobs: Sequence[str]) -> None:
    """Wait until a message of this node is told that names these jobs."""

    def names_all(message: dict[str, dict[str, str]]) -> bool:
        text = f"{message['labels']} {message['annotations']}"
        return message["labels"].get("node") == node and all(job in text for job in jobs)

    _wait_until_told(site, names_all)


def _wait_for_line(site: Site, job: str, who: str) -> None:
    """Wait until a message is told with a line of this job that says who it waits for.

    The labels name the first trouble of a message: an earlier one of the same node may have been another job's.
    """

    def has_line(message: dict[str, dict[str, str]]) -> bool:
        lines = message["annotations"].get("what", "").splitlines()
        return any(line.startswith(f"{job}: ") and who in line for line in lines)

    _wait_until_told(site, has_line)


def _wait_until_told(site: Site, is_it: Callable[[dict[str, dict[str, str]]], bool]) -> None:
    def told() -> list[dict[str, dict[str, str]]]:
        return [
            one for one in list(site.alerts) if one["labels"]["alertname"] == "RankmendIncident"
        ]

    eventually(lambda: any(is_it(one) for one in told()), lambda: told()[-3:], pause_s=0.5)


def test_rank_that_is_twice_as_slow_is_named(site: Site) -> None:
    # A rank for each core, and other tests take nothing from them: ranks that all lack a processor are all slow.
    first = "echo -20 > /proc/self/autogroup; exec nice -n -20"
    launch = f"srun --ntasks=2 sh -c '{first} \"$@\"' - {sys.executable}"
    number = site.submit("slow", launch, LAUNCHERS["srun"][1], "1 0.1 0.05 0")
    job = site.wait("slow", lambda one: one.state == "training" and (one.step or 0) > 5)
    site.up.service.worker.watched.jobs[job.job_id].busy = BusyRanks(SHORT_WINDOWS, TWO_OF_THREE)

    shown = site.wait("slow", lambda one: one.state == "slow")

    assert [(one.kind, one.ranks, one.node) for one in shown.findings] == [("rank_slow", [1], "n1")]
    _wait_for_line(site, "slow", "rank 1 on n1")
    site.slurm.run("scancel", number)


def test_rank_that_sleeps_while_the_others_wait_is_named_by_its_sections(site: Site) -> None:
    launch = f"srun --ntasks=3 --export=ALL,RANKMEND_WATCH_SECTIONS=1 {sys.executable}"
    sleeping = "time.sleep(0.4 if rank == double else 0.2)"
    changes = {
        "work(work_s * (2 if rank == double else 1))": sleeping,
        "        optimizer.step()\n": "        optimizer.step()\n        tell()\n",
        "def main()": f"{TELL}def main()",
    }
    own = replace(site, folder=site.folder / "sections")
    own.folder.mkdir()
    write_script(own.folder, changes)
    number = own.submit("sleeps", launch, LAUNCHERS["srun"][1], "1 0 0 0")

    site.wait("sleeps", lambda one: one.state == "slow")

    shown = site.view("sleeps")
    assert shown is not None
    assert [one.ranks for one in shown.findings] == [[1]]
    time_of = _wait_for_work(site, "sleeps")
    found = throughput_of([time_of])
    assert found is not None
    step = anatomy_of([time_of])
    assert step is not None
    assert step.step_s > 0.39
    # Three ranks with 64 tokens a step; the records of both begin and end at different steps.
    assert found.tokens_per_s == pytest.approx(3 * 64 / step.step_s, rel=0.5)
    assert (step.waited_s or 0.0) > 0.05
    assert step.hidden_communication is not None, "by DistributedDataParallel's own statistics"
    site.slurm.run("scancel", number)


def _wait_for_work(site: Site, name: str) -> JobTime:
    """Wait until a watched job's account has its work and its steps; agents and notes take some 10 s."""

    def look() -> JobTime | None:
        told = site.client.ask("GET", "/v1/watched/times", wire.WatchedTimes).jobs
        counted = [one for one in told if one.name == name and one.work and one.steps]
        return time_of_view(counted[0]) if counted else None

    return eventually(look, f"{name}: work and steps are told", pause_s=0.5)
