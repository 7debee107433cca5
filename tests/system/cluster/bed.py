"""A small cluster out of test hosts: controller, agents and launchers as people start them, watched from outside.

The last host runs `rankmend controller` with TLS and tokens, the others `rankmend agent` and `rankmend run`.
"""

import contextlib
import json
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from recovery.api.controller_errors import ControllerError
from recovery.api.operator_client import OperatorClient
from recovery.api.wire import NodeView
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT
from recovery.launcher.processes.process_tree import MarkKind, ProcessRef, is_alive, pids, read_mark
from recovery.service.setup import init, make_node_files
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.clock import FakeClock
from tests.support.hosts import Fleet, Host, Process
from tests.system.faults.harness import JOBS

LOOK_S = 0.1
PORT = 9477
# Short, so that the tests are; in the proportions of the defaults, and long enough for a machine whose processes wait
# seconds for their turn. What the tests break on purpose, time and again on the same four nodes, is no reason to leave
# one for good.
LEASE_S, KILL_BOUND_S, SILENT_S = 6, 3, 4
POLICY = f"""
[policy]
lease_s = {LEASE_S}
kill_bound_s = {KILL_BOUND_S}
lease_margin_s = 1
node_silent_s = {SILENT_S}
join_wait_s = 60
evidence_wait_s = 0.5
node_failures_max = 100
[hang]
floor_s = 5
ceil_s = 10
[quarantine]
blames = 1000
"""
T = TypeVar("T")
Entry = dict[str, Any]


class Cluster:
    """A controller and its nodes; every process in it is a real one."""

    def __init__(self, fleet: Fleet) -> None:
        *self.nodes, self.home = fleet
        self.fleet = fleet
        self.folder = self.home.state / "controller"
        self.state = self.home.state / "state"
        self.state.mkdir()
        # Small, so that a test may fill it; the journals of these tests take less than 2 MB.
        self.home.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", self.state])
        self._running: Process | None = None
        self._client: OperatorClient | None = None
        self.agents: dict[str, Process] = {}
        made = init(self.folder, [self.home.address, self.home.name], self.state, None)
        (self.folder / "policy.toml").write_text(POLICY)
        text = made.config.read_text()
        off = '#policy_file = "/etc/rankmend/controller/policy.toml"'
        assert off in text
        made.config.write_text(text.replace(off, f'policy_file = "{self.folder}/policy.toml"'))
        for host in self.nodes:
            for path in (made.authority, made.launch_token):
                (host.state / path.name).write_bytes(path.read_bytes())
                (host.state / path.name).chmod(0o600)
            make_node_files(self.folder, host.name, host.state)

    @property
    def url(self) -> str:
        return f"https://{self.home.address}:{PORT}"

    # ------------------------------------------------------------------------------ controller

    @property
    def log(self) -> Path:
        return self.home.state / "controller.log"

    @property
    def controller(self) -> Process:
        assert self._running is not None, "the controller runs"
        return self._running

    def start_controller(self, clock: FakeClock | None = None) -> None:
        config = self.folder / "controller.toml"
        argv = [sys.executable, "-m", "rankmend.cli", "controller", "run", f"--config={config}"]
        with self.log.open("ab") as out:
            self._running = self.home.popen(
                argv,
                env=clock.environment if clock is not None else {},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.ask(lambda client: client.jobs() or True, "the controller answers")

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait(DEADLINE_S)

    def ask(self, get: Callable[[OperatorClient], T | None], what: str) -> T:
        """Return what the controller answers once it is something."""

        def look() -> tuple[T] | None:
            with self.home.network():
                try:
                    found = get(self.client)
                except ControllerError:
                    assert self.controller.poll() is None, f"{what}:\n{self.log.read_text()}"
                    return None
            return None if found is None or found is False else (found,)

        return eventually(look, what, pause_s=LOOK_S)[0]  # a person may read 50 times a second

    @property
    def client(self) -> OperatorClient:
        if self._client is None:
            self._client = OperatorClient(
                [self.url],
                token_file=self.folder / "admin.token",
                ca_file=self.folder / "ca.crt",
            )
        return self._client

    def command(self, *words: str) -> str:
        """Return what a person is told who asks from the controller's host."""
        options = [
            f"--controller={self.url}",
            f"--token-file={self.folder}/admin.token",
            f"--ca-file={self.folder}/ca.crt",
        ]
        argv = [sys.executable, "-m", "rankmend.cli", *words, *options]
        return self.home.run(argv, DEADLINE_S).stdout

    # ---------------------------------------------------------------------------------- agents

    def start_agent(self, host: Host) -> None:
        config = host.state / "agent.toml"
        config.write_text(
            f'listen = "{host.address}:9476"\nnode = "{host.name}"\n'
            f'[alerts]\nurls = ["{self.url}"]\nca_file = "{host.state}/ca.crt"\n'
            f'cert_file = "{host.state}/{host.name}.crt"\nkey_file = "{host.state}/{host.name}.key"\n'
        )
        argv = [sys.executable, "-m", "rankmend.cli", "agent", f"--config={config}"]
        with (host.state / "agent.log").open("ab") as out:
            self.agents[host.name] = host.popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


@contextmanager
def running(folder: Path, nodes: int) -> Iterator[Cluster]:
    """Have a controller and agents on hosts of their own."""
    with Fleet(nodes + 1, folder, planes=("data", "second")) as fleet:
        cluster = Cluster(fleet)
        try:
            cluster.start_controller()
            for host in cluster.nodes:
                cluster.start_agent(host)
            yield cluster
        finally:
            cluster.close()


@dataclass
class Training:
    """One job on the nodes of a cluster."""

    cluster: Cluster
    nnodes: str
    script: Path
    arguments: list[str]
    flags: list[str] = field(default_factory=list)
    slots: int = 2
    spares: int = 0
    name: str = field(default_factory=lambda: f"train-{uuid.uuid4().hex[:8]}")
    plane: int = 0  # of which network the ranks meet on
    launchers: dict[str, Process] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.cluster.fleet.shared / self.name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def start(self, *hosts: Host) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for host in hosts:
            argv = [
                *(sys.executable, "-m", "rankmend.cli", "run", f"--nnodes={self.nnodes}"),
                *(
                    f"--spares={self.spares}",
                    f"--nproc-per-node={self.slots}",
                    f"--job={self.name}",
                ),
                *(f"--controller={self.cluster.url}", f"--ca-file={host.state}/ca.crt"),
                *(f"--token-file={host.state}/launch.token", f"--state-dir={host.state}/launcher"),
                *(f"--checkpoint-dir={self.checkpoints}", *self.flags),
                f"--local-addr={host.addresses[self.plane].ip}",
                *(str(self.script), *self.arguments),
            ]
            with self.log(host.name).open("ab") as out:
                self.launchers[host.name] = host.popen(
                    argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )

    def log(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    @property
    def output(self) -> str:
        logs = {node: self.log(node) for node in self.launchers}
        logs["controller"] = self.cluster.log
        return "\n".join(
            f"== {name}\n{path.read_text(errors='replace')}" for name, path in logs.items()
        )

    @property
    def job_id(self) -> str:
        def find(client: OperatorClient) -> str | None:
            return next(
                (job.job_id for job in client.jobs(with_ended=True) if job.name == self.name), None
            )

        return self.cluster.ask(find, f"job {self.name}")

    def placed(self, after: int) -> dict[str, NodeView]:
        """Return the nodes that run ranks of an attempt above ``after``, once that makes steps."""
        job_id = self.job_id

        def look(client: OperatorClient) -> dict[str, NodeView] | None:
            detail = client.job(job_id)
            attempt = detail.job.attempt
            if attempt <= after or detail.job.state != "running":
                return None
            nodes = {one.node: one for one in detail.nodes if one.ranks and not one.is_spare}
            if len(nodes) < int(self.nnodes) - self.spares:
                return None
            told = [
                json.loads(bytes(one.record))
                for one in client.story(job_id).lines
                if one.kind == "attempt_verified"
            ]
            return nodes if any(one["attempt"] == attempt for one in told) else None

        return self._wait(look, f"an attempt after {after} makes steps")

    def _wait(self, look: Callable[[OperatorClient], T | None], what: str) -> T:
        try:
            return self.cluster.ask(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.account}") from None

    @property
    def attempt(self) -> int:
        job_id = self.job_id
        return self.cluster.ask(lambda client: client.job(job_id).job.attempt, "the attempt")

    def wait_told(self, kind: str, after: int) -> int:
        """Wait for a record of this kind with a number above ``after``; return its number."""
        job_id = self.job_id

        def look(client: OperatorClient) -> int | None:
            lines = client.story(job_id).lines
            return next(
                (one.number for one in lines if one.kind == kind and one.number > after), None
            )

        return self._wait(look, f"{kind} after #{after}")

    @property
    def last_number(self) -> int:
        """The newest record's."""
        job_id = self.job_id
        return self.cluster.ask(lambda client: client.story(job_id).lines[-1].number, "the story")

    @property
    def journal(self) -> Path:
        """The controller's journal of the job, as it is found from out here."""
        state = self.cluster.home.path(self.cluster.state)
        (name,) = [
            path.parent for path in state.glob("jobs/*/job.json") if self.job_id in path.read_text()
        ]
        return name / "journal.db"

    @property
    def account(self) -> str:
        """Return what is on record and what was printed, for the message of a failed test."""
        return f"{self.output}\n{self.story_text()}"

    def story_text(self) -> str:
        with self.cluster.home.network():
            try:
                lines = self.cluster.client.story(self.job_id).lines
            except (ControllerError, AssertionError) as error:
                return repr(error)
        return "\n".join(f"#{one.number} {one.kind}: {one.text}" for one in lines)

    def ranks_on(self, host: Host) -> dict[int, int]:
        """Return the ranks that run on a host, with their processes."""
        found = {}
        for process in host.processes():
            marked = _marked(process.pid, self.job_id)
            if marked is not None:
                maps = ""
                with contextlib.suppress(OSError):  # it may end at any moment
                    # a forked rank's environ is the server's
                    maps = Path(f"/proc/{process.pid}/maps").read_text()
                attached = re.search(r"/rank-(\d+)\.progress", maps)
                if attached is not None:
                    found[int(attached[1])] = process.pid
        return found

    def attempts_running(self) -> set[int]:
        """Return the attempts of which any process lives on any host."""
        found = (_marked(pid, self.job_id) for pid in pids())
        return {ref.attempt for ref in found if ref is not None and ref.attempt is not None}

    def steps(self) -> list[int]:
        return sorted(
            int(path.stem.partition("-")[2]) for path in self.checkpoints.glob("step-*.*")
        )

    def wait_step(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one lies there."""
        eventually(lambda: self.steps()[-1:] >= [step], lambda: f"step {step}\n{self.account}")

    def wait_ends(self, *nodes: str) -> list[int]:
        try:
            return [self.launchers[node].wait(DEADLINE_S) for node in nodes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.account}") from None

    def why(self) -> list[Entry]:
        """Return the story that a person is told, as JSON."""
        told: dict[str, Any] = json.loads(self.cluster.command("why", self.name, "--json"))
        entries: list[Entry] = told["entries"]
        return entries

    def close(self) -> None:
        for process in self.launchers.values():
            if process.poll() is None:
                process.kill()
                process.wait(DEADLINE_S)


def _marked(pid: int, job_id: str) -> ProcessRef | None:
    """Return a living process of an attempt, of whatever host; standbys belong to none."""
    try:
        marked = read_mark(pid, job_id)
    except PermissionError:
        return None
    if marked is None or marked[0] is not MarkKind.RANK:
        return None
    return None if marked[1].attempt in (None, STANDBY_ATTEMPT) else marked[1]


class Watch:
    """Looks at all processes of all hosts all the time: never may two attempts of a job run at once."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._is_over = threading.Event()
        self._look_s = LOOK_S
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.together: list[tuple[ProcessRef, ProcessRef]] = []
        self.attempts: set[int] = set()
        self.looks = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._look_s):
            self.looks += 1
            found = [ref for pid in pids() if (ref := _marked(pid, self._job_id)) is not None]
            newest = max(found, key=lambda ref: ref.attempt or 0, default=None)
            if newest is None:
                continue
            self.attempts |= {ref.attempt or 0 for ref in found}
            # What has died since it was looked at did not run beside the other.
            old = [ref for ref in found if ref.attempt != newest.attempt and is_alive(ref)]
            self.together += [(ref, newest) for ref in old]


LOCKSTEP = JOBS / "lockstep.py"
DDP = JOBS / "ddp.py"
