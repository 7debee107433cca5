"""Jobs on several nodes under the real `rankmend run`: launchers of one machine, and test hosts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.attempt_records import AttemptEnded, AttemptStarted, Proof
from recovery.journal.cluster_records import PowerOffAsked
from recovery.journal.job_records import JobEnded
from recovery.journal.node_records import LaunchersEnded, NodesOff
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT
from recovery.launcher.processes.process_tree import descendants, pids, read_mark, read_processes
from recovery.report.overview import list_folders, read_entries
from tests.support.faults.clock import WHY_NOT as WHY_NOT_CLOCK
from tests.support.faults.clock import FakeClock
from tests.support.free_port import free_port
from tests.support.hosts import Fleet, Host, Process, why_not
from tests.support.power_bmc import PASSWORD, PowerBmc, write_credentials
from tests.system.faults.harness import EXAMPLES, JOBS, wait_for

pytestmark = [pytest.mark.real, pytest.mark.long]
NEEDS_HOSTS = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
DEADLINE_S = 120.0
DAY_S = 86_400.0
LET_GO = "let-go"  # the job makes its last step once this file is there: no fault comes too late
# Short, so that the tests are; in the proportions of the defaults.
POLICY = """
[policy]
lease_s = 3
kill_bound_s = 2
lease_margin_s = 1
node_silent_s = 2
join_wait_s = 3
"""


@dataclass
class Nodes:
    """The launchers of one job, each a node, in a folder that they share."""

    folder: Path
    nnodes: str
    arguments: list[str]
    flags: list[str] = field(default_factory=list)
    script: Path = JOBS / "lockstep.py"
    hosts: dict[str, Host] = field(default_factory=dict)  # where a node is one; else this machine
    clocks: dict[str, FakeClock] = field(default_factory=dict)  # of nodes on this machine
    running: dict[str, subprocess.Popen[bytes] | Process] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"nodes-{uuid.uuid4().hex[:8]}")

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def start(self, *names: str) -> None:
        self.checkpoints.mkdir(exist_ok=True)
        for name in names:
            host = self.hosts.get(name)
            state = self.folder / f"state-{name}" if host is None else host.state
            argv = [
                *(sys.executable, "-m", "rankmend.cli", "run", f"--nnodes={self.nnodes}"),
                *("--nproc-per-node=2", f"--job={self.name}", f"--node-name={name}"),
                *(f"--state-dir={state}", f"--checkpoint-dir={self.checkpoints}"),
                *(f"--agent-socket={state}/none", *self.flags),
                *(str(self.script), *self.arguments),
            ]
            with self.log(name).open("ab") as out:
                if host is None:
                    self.running[name] = subprocess.Popen(
                        argv,
                        cwd=self.folder,
                        env={
                            **os.environ,
                            **(self.clocks[name].environment if name in self.clocks else {}),
                        },
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                else:
                    self.running[name] = host.popen(
                        argv,
                        cwd=self.folder,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    @property
    def output(self) -> str:
        return "\n".join(f"== {name}\n{self.said(name)}" for name in self.running)

    def wait_said(self, name: str, text: str) -> None:
        wait_for(
            lambda: text in self.said(name), f"{name} says {text!r}:\n{self.output}", DEADLINE_S
        )

    def wait_step(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one lies there."""

        def newest() -> int:
            names = [path.stem for path in self.checkpoints.glob("step-*.npz")]
            return max((int(name.partition("-")[2]) for name in names), default=0)

        try:
            wait_for(lambda: newest() >= step, f"step {step}", DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; step {newest()}\n{self.output}") from None

    def wait_ends(self, *names: str) -> list[int]:
        """Let the job end, and return the launchers' exit codes once they have."""
        (self.folder / LET_GO).touch()
        until_s = time.monotonic() + DEADLINE_S
        try:
            return [self.running[name].wait(max(1, until_s - time.monotonic())) for name in names]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.output}") from None

    def kill(self, name: str) -> None:
        """Kill a launcher, and nothing else."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait(60)

    def freeze(self, name: str) -> list[int]:
        """Stop everything on a node, so that it falls silent and may wake up; return the processes."""
        launcher = self.running[name]
        assert isinstance(launcher, subprocess.Popen), "a node on this machine"
        launcher.send_signal(signal.SIGSTOP)
        below = [one.pid for one in descendants(launcher.pid, read_processes())]
        signal_all(below, signal.SIGSTOP)
        return [launcher.pid, *below]

    def vanish(self, name: str) -> None:
        """Kill everything on a node before any process can send a last word."""
        signal_all(self.freeze(name), signal.SIGKILL)
        self.running[name].wait(60)

    def rank_pids(self, name: str) -> list[int]:
        """Return the processes of a node's ranks, by their mark."""
        found = []
        for job_file in (self.folder / f"state-{name}").glob("nodes/*/jobs/*/job.json"):
            job_id = json.loads(job_file.read_text())["job_id"]
            for pid in pids():
                with contextlib.suppress(PermissionError):
                    marked = read_mark(pid, job_id, node=name)
                    if marked is not None and marked[1].attempt not in (None, STANDBY_ATTEMPT):
                        found.append(pid)
        return found

    def result(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return told

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait(60)
        for name in self.running:
            if name not in self.hosts:
                wait_for(lambda name=name: not self.rank_pids(name), f"{name} is empty")


def signal_all(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make_nodes(nnodes: str, *flags: str, steps: int = 600, **fields: Any) -> Nodes:
        folder = fields.pop("folder", tmp_path)
        (folder / "policy.toml").write_text(fields.pop("policy", POLICY))
        arguments = [
            f"--checkpoint-dir={folder / 'checkpoints'}",
            f"--result={folder / 'result.json'}",
            f"--steps={steps}",
            f"--let-go={folder / LET_GO}",
        ]
        fields.setdefault("arguments", arguments)
        made.append(Nodes(folder, nnodes, flags=list(flags), **fields))
        return made[-1]

    yield make_nodes
    for nodes in made:
        nodes.close()


@pytest.fixture
def make_meeting(make: Callable[..., Nodes], tmp_path: Path) -> Callable[..., Nodes]:
    def make_nodes(nnodes: str, **fields: Any) -> Nodes:
        flags = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--config={tmp_path}/policy.toml"]
        return make(nnodes, *flags, **fields)

    return make_nodes


def test_two_nodes_survive_a_rank_a_launcher_and_the_host_with_the_same_result(
    make_meeting: Callable[..., Nodes], undisturbed_long: dict[str, object]
) -> None:
    # The host comes back before another launcher may take over, however busy the machine is.
    nodes = make_meeting("2", policy=POLICY.replace("lease_s = 3", "lease_s = 30"))
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")

    nodes.wait_step(50)
    os.kill(nodes.rank_pids("b")[0], signal.SIGKILL)
    nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
    nodes.kill("b")
    nodes.start("b")
    nodes.wait_said("a", "attempt 3 makes progress on 4 ranks")
    nodes.kill("a")
    nodes.start("a")

    assert nodes.wait_ends("a", "b") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    assert "(epoch 2)" in nodes.said("a")
    (hosted,) = list_folders(nodes.folder / "state-a")  # where `rankmend why` looks
    records = [entry.record for entry in read_entries(hosted)]
    assert sum(isinstance(record, AttemptStarted) for record in records) == 4
    assert isinstance(records[-1], JobEnded)


@pytest.mark.real_fault("launcher that hosts the controller killed")
def test_when_the_host_stays_away_another_launcher_takes_over_with_the_spare(
    make_meeting: Callable[..., Nodes], undisturbed_long: dict[str, object]
) -> None:
    nodes = make_meeting("2:3")
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c")
    nodes.wait_step(50)

    nodes.kill("a")

    assert nodes.wait_ends("b", "c") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    # On a busy machine the spare may begin before the one whose turn it is; then one of them retires.
    began = [name for name in ("b", "c") if "this node hosts the controller" in nodes.said(name)]
    retired = [name for name in began if "this node no longer hosts" in nodes.said(name)]
    assert len(began) - len(retired) == 1, nodes.output


@pytest.mark.skipif(bool(WHY_NOT_CLOCK), reason=WHY_NOT_CLOCK or "-")
def test_wall_clocks_that_jump_apart_change_neither_the_host_nor_the_result(
    make_meeting: Callable[..., Nodes], tmp_path: Path, undisturbed_long: dict[str, object]
) -> None:
    nodes = make_meeting("2:3")
    nodes.clocks = {name: FakeClock(tmp_path / f"clock-{name}") for name in "abc"}
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c")
    nodes.wait_step(20)

    with nodes.clocks["b"].jump(DAY_S), nodes.clocks["c"].jump(-DAY_S):
        nodes.wait_step(60)
        os.kill(nodes.rank_pids("a")[0], signal.SIGKILL)
        nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
        assert not [name for name in "bc" if "this node hosts the controller" in nodes.said(name)]
        nodes.kill("a")  # the others take over, with clocks two days apart

        assert nodes.wait_ends("b", "c") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long  # of two that take over at once the later one hosts


def test_two_spares_that_race_for_one_place_get_one_place_each_in_turn(
    make: Callable[..., Nodes], controller: str
) -> None:
    nodes = make("2:4", f"--controller={controller}", steps=100_000)
    nodes.start(*"abcd")
    nodes.wait_step(20)
    spares = [name for name in "abcd" if "attempt 1: ranks" not in nodes.said(name)]
    first, second = (name for name in "abcd" if name not in spares)

    nodes.kill(first)
    taken = wait_for(
        lambda: [name for name in spares if "attempt 2: ranks" in nodes.said(name)],
        "a spare takes the place",
        DEADLINE_S,
    )
    nodes.wait_said(second, "attempt 2: ranks")
    assert len(taken) == 1, nodes.output
    (left,) = (name for name in spares if name not in taken)
    assert not nodes.rank_pids(left)
    nodes.kill(second)
    nodes.kill(taken[0])  # two places at once, and one spare: the job waits for a node
    nodes.start(first)

    nodes.wait_said(left, "attempt 3: ranks")
    nodes.wait_said(first, "attempt 3: ranks")
    last = max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
    nodes.wait_step(last + 20)
    placed = [
        sorted(place.node for place in one.placement) for one in journaled(nodes, AttemptStarted)
    ]
    assert placed == [
        sorted([first, second]),
        sorted([second, taken[0]]),
        sorted([first, left]),
    ]


def test_a_person_speaks_to_a_job_whose_launcher_hosts_its_controller(
    make_meeting: Callable[..., Nodes],
) -> None:
    nodes = make_meeting("2", steps=100_000)
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")
    nodes.wait_step(20)

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "rankmend.cli", *arguments]
        named = f"--job-folder={nodes.checkpoints}"
        return subprocess.run(
            [*argv, named], capture_output=True, text=True, timeout=200, check=False
        )

    shown = ask("status", nodes.name, "--json")
    restarted = ask("restart", nodes.name, "--yes", "--reason=new data")
    nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
    unknown = ask("confirm-gone", "z", f"--job={nodes.name}", "--yes")
    stopped = ask("stop", nodes.name, "--yes")

    assert nodes.name in shown.stdout, shown.stderr
    assert restarted.returncode == stopped.returncode == 0, restarted.stderr + stopped.stderr
    assert (unknown.returncode, "'z'" in unknown.stderr) == (1, True), unknown.stderr
    assert nodes.wait_ends("a", "b") == [143, 143], nodes.output
    gone = ask("stop", nodes.name, "--yes")
    assert (gone.returncode, "has ended" in gone.stderr) == (2, True), gone.stderr


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """A controller that runs as a service, on this machine alone."""
    with run_controller(tmp_path, POLICY) as url:
        yield url


@contextlib.contextmanager
def run_controller(tmp_path: Path, policy: str, more: str = "") -> Iterator[str]:
    port = free_port()
    (tmp_path / "ctl").mkdir()
    (tmp_path / "cluster.toml").write_text(policy)
    config = tmp_path / "controller.toml"
    config.write_text(
        f'listen = "127.0.0.1:{port}"\nstate_dir = "{tmp_path}/ctl"\n'
        f'policy_file = "{tmp_path}/cluster.toml"\n{more}'
    )
    argv = [sys.executable, "-m", "rankmend.cli", "controller", "run", f"--config={config}"]
    with (tmp_path / "controller.log").open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def journaled(nodes: Nodes, kind: type[Any]) -> list[Any]:
    """Return what the service has journaled of the job."""
    (job,) = list_folders(nodes.folder / "ctl")
    return [one.record for one in read_entries(job) if isinstance(one.record, kind)]


def test_a_spare_takes_the_place_of_a_lost_node_and_a_scheduler_stops_all(
    make: Callable[..., Nodes], controller: str
) -> None:
    nodes = make("2:3", f"--controller={controller}", "--grace=10", steps=100_000)
    nodes.start("a", "b", "c")
    nodes.wait_step(20)
    (spare,) = (name for name in "abc" if "attempt 1: ranks" not in nodes.said(name))
    lost, kept = (name for name in "abc" if name != spare)

    nodes.kill(lost)
    nodes.wait_said(spare, "attempt 2: ranks")
    nodes.wait_said(kept, "attempt 2: ranks")
    (ended,) = journaled(nodes, AttemptEnded)
    assert [(one.node, one.proof) for one in ended.proofs] == [(lost, Proof.LAST_WORD)]
    nodes.start(lost)  # comes back as a spare, and leaves as one
    nodes.wait_said(lost, "it is a spare")
    nodes.running[lost].send_signal(signal.SIGTERM)
    assert nodes.wait_ends(lost) == [143], nodes.output
    wait_for(
        lambda: [one.launchers[0].node for one in journaled(nodes, LaunchersEnded)] == [lost] * 2,
        "both ends are on record: by the guardian's word, and by its own",
    )
    last = max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
    nodes.wait_step(last + 20)
    nodes.running[kept].send_signal(signal.SIGTERM)

    assert nodes.wait_ends(kept, spare) == [143, 143], nodes.output
    assert "stopped" in nodes.said(spare)


def test_a_spare_takes_the_place_of_a_node_without_power_and_waits_for_no_lease(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    policy = POLICY.replace(
        "lease_s = 3", "lease_s = 600"
    )  # so long that only the BMC can prove it
    with PowerBmc("On") as bmc:
        file = write_credentials(tmp_path)
        more = (
            f'[[bmcs]]\nmatch = "*"\nurl = "{bmc.url}"\ncredentials_file = "{file}"\ncheck_s = 0\n'
        )
        with run_controller(tmp_path, policy, more) as url:
            nodes = make("2:3", f"--controller={url}", "--grace=10", steps=100_000)
            nodes.start("a", "b", "c")
            nodes.wait_step(20)
            (spare,) = (name for name in "abc" if "attempt 1: ranks" not in nodes.said(name))
            lost, kept = (name for name in "abc" if name != spare)

            nodes.vanish(lost)
            wait_for(lambda: bmc.readings > 0, "the controller reads the power state", DEADLINE_S)
            assert len(journaled(nodes, AttemptStarted)) == 1  # On proves nothing
            bmc.power = "Off"

            nodes.wait_said(spare, "attempt 2: ranks")
            nodes.wait_said(kept, "attempt 2: ranks")
            (ended,) = journaled(nodes, AttemptEnded)
            assert (ended.off, ended.proofs) == ((lost,), ())
            assert [one.node for one in journaled(nodes, NodesOff)[0].nodes] == [lost]
            last = max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
            nodes.wait_step(last + 20)
        told = [*(tmp_path / "ctl").rglob("*"), tmp_path / "controller.log"]
        assert not any(PASSWORD.encode() in path.read_bytes() for path in told if path.is_file())


def test_a_lost_node_that_may_wake_up_is_switched_off_and_its_place_taken(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    policy = POLICY.replace("lease_s = 3", "lease_s = 600\npower_off_to_fence = true")
    with PowerBmc("On") as bmc:
        file = write_credentials(tmp_path)
        more = (
            f'[[bmcs]]\nmatch = "*"\nurl = "{bmc.url}"\ncredentials_file = "{file}"\ncheck_s = 0\n'
        )
        with run_controller(tmp_path, policy, more) as url:
            nodes = make("2:3", f"--controller={url}", "--grace=10", steps=100_000)
            nodes.start("a", "b", "c")
            nodes.wait_step(20)
            (spare,) = (name for name in "abc" if "attempt 1: ranks" not in nodes.said(name))
            lost, kept = (name for name in "abc" if name != spare)
            asked_before: list[int] = []

            def lose_power() -> None:
                asked_before.append(len(journaled(nodes, PowerOffAsked)))
                signal_all(frozen, signal.SIGKILL)
                bmc.power = "Off"

            bmc.on_reset = lose_power
            frozen = nodes.freeze(lost)

            nodes.wait_said(spare, "attempt 2: ranks")
            nodes.wait_said(kept, "attempt 2: ranks")
            assert asked_before == [1]  # once, and on record before it was asked for
            (ended,) = journaled(nodes, AttemptEnded)
            assert (ended.off, ended.proofs) == ((lost,), ())


@NEEDS_HOSTS
def test_a_node_that_is_cut_off_stops_its_ranks_and_the_job_goes_on_without_it(
    make: Callable[..., Nodes], tmp_path: Path, undisturbed_long: dict[str, object]
) -> None:
    with Fleet(3, tmp_path) as fleet:
        hosts = {name: fleet[name] for name in ("h1", "h2", "h3")}
        flags = [
            f"--rdzv-endpoint={hosts['h1'].address}:29400",
            f"--config={fleet.shared}/policy.toml",
        ]
        nodes = make("2:3", *flags, folder=fleet.shared, hosts=hosts)
        nodes.start("h1")
        nodes.wait_said("h1", "hosts the controller")
        nodes.start("h2", "h3")
        nodes.wait_step(50)
        cut = next(name for name in ("h2", "h3") if "attempt 1: ranks" in nodes.said(name))
        (other,) = {"h2", "h3"} - {cut}

        with fleet.partition([hosts[cut]]):
            nodes.wait_said(cut, "stopping its ranks")
            nodes.wait_said(other, "attempt 2: ranks")

            assert nodes.wait_ends("h1", other) == [0, 0], nodes.output

        assert nodes.result() == undisturbed_long
        assert nodes.wait_ends(cut) == [0], nodes.output  # it reads the end beside the checkpoints
        nodes.close()


@NEEDS_HOSTS
@pytest.mark.torch
def test_a_torch_job_meets_over_two_hosts_again_after_a_rank_was_killed(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    with Fleet(2, tmp_path) as fleet:
        hosts = {name: fleet[name] for name in ("h1", "h2")}
        nodes = make(
            "2",
            f"--rdzv-endpoint={hosts['h1'].address}",
            f"--config={fleet.shared}/policy.toml",
            folder=fleet.shared,
            hosts=hosts,
            script=EXAMPLES / "unchanged" / "train.py",
            arguments=[
                f"--folder={fleet.shared / 'checkpoints'}",
                "--epochs=6",
                "--steps-per-epoch=10",
            ],
        )
        nodes.start("h1", "h2")
        wait_for(
            lambda: next(nodes.checkpoints.glob("epoch-*.pt"), None), "a checkpoint", DEADLINE_S
        )
        ranks = hosts["h2"].run(["pgrep", "-f", "--", "-u .*unchanged/train.py"]).stdout.split()

        hosts["h2"].run(["kill", "-KILL", ranks[0]])

        assert nodes.wait_ends("h1", "h2") == [0, 0], nodes.output
        assert "attempt 2: ranks 2 to 3 of 4" in nodes.said("h1") + nodes.said("h2")
        nodes.close()
