"""What watches jobs of other launchers in the matrix: a real controller, a real agent, and a real Slurm where jobs run under it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import RankmendError
from rankmend.watch.hook_folder import make_hook_folder
from rankmend.watch.lines import WatchPlace, lines_for
from recovery.api import wire
from recovery.service.controller_config import Config
from recovery.service.setup import make_node_files
from recovery.slurm.limits import SlurmLimits
from tests.support.agent import running_agent
from tests.support.service import FullClient, make_folder, running
from tests.support.slurm import SlurmCluster, slurm_cluster

NODE: Final = "node1"  # the agent's name: all of Slurm's nodes are this machine
CPUS: Final = 8  # of a node, as Slurm has it
CONFIRM_S: Final = 5.0
_LOOK_S: Final = 0.3
# Requests are made as by default, but for how soon and how often: a cell breaks its job on purpose, and many run in an hour.
_POLICY: Final = f"""
[watched]
action = "requeue"
dry_run = false
confirm_s = {CONFIRM_S:g}
acts_per_hour_max = 100
"""
_SLURM: Final = SlurmLimits(
    enabled=True, act=True, requeues_per_hour_max=1000, requeues_per_job_day_max=20, timeout_s=20.0
)


@dataclass(frozen=True, slots=True)
class Look:
    """What the controller said of a job at a moment."""

    unix_s: float
    view: wire.WatchedView


@dataclass(slots=True)
class WatchedSite:
    """The services, and what they said of each job."""

    folder: Path
    hook: Path
    client: FullClient
    slurm: SlurmCluster | None
    looks: dict[str, list[Look]] = field(default_factory=dict)  # by the job's name; of each change
    _stop: threading.Event = field(default_factory=threading.Event)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _times: tuple[wire.WatchedTime, ...] = ()
    _asked_at_s: float = float("-inf")  # monotonic

    def run_looks(self) -> None:
        """Ask again and again, until the site closes; keep what has changed."""
        while not self._stop.wait(_LOOK_S):
            try:
                seen = self.client.ask("GET", "/v1/watched", wire.Watched).watched
            except RankmendError:
                continue  # busy: the next look is soon
            for one in seen:
                known = self.looks.setdefault(one.name, [])
                if not known or _facts(known[-1].view) != _facts(one):
                    known.append(Look(time.time(), one))

    def close(self) -> None:
        self._stop.set()

    def stalls(self, name: str) -> list[wire.WatchedStall]:
        """Return the failures of a job as the controller accounts for them, at most as old as a look.

        All cells at once would ask more often than the controller lets one person read.
        """
        with self._asking:
            if time.monotonic() - self._asked_at_s > _LOOK_S:
                told = self.client.ask("GET", "/v1/watched/times", wire.WatchedTimes).jobs
                self._times, self._asked_at_s = tuple(told), time.monotonic()
        return [stall for one in self._times if one.name == name for stall in one.stalls]

    def slurm_requests(self, slurm_job: str) -> list[wire.SlurmRequestView]:
        view = self.client.ask("GET", "/v1/slurm", wire.SlurmView)
        return [one for one in view.requests if one.slurm_job == slurm_job]

    def environment(self) -> dict[str, str]:
        """Return the variables that have a job watched, as `rankmend watch env --drills` prints them."""
        kept = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(self.folder)}
        marks = {"RANKMEND_WATCH": "1", "RANKMEND_WATCH_DRILLS": "1"}
        return {**kept, **marks, "PYTHONPATH": str(self.hook)}


def _facts(view: wire.WatchedView) -> tuple[object, ...]:
    ranks = [one.ranks for one in view.findings]
    return view.job_id, view.attempt, view.state, view.act, ranks, view.ranks_seen


@contextmanager
def watched_site(
    folder: Path, *, nodes: int = 0, partitions: Sequence[str] = ()
) -> Iterator[WatchedSite]:
    """Run a controller and an agent, and a Slurm of so many nodes, if any."""
    hook, controller = folder / "hook", folder / "controller"
    make_hook_folder(hook)
    config = make_folder(controller)
    (controller / "policy.toml").write_text(_POLICY)
    config.write_text(f'policy_file = "{controller}/policy.toml"\n{config.read_text()}')
    cert, key = make_node_files(controller, NODE, folder / "node")
    with ExitStack() as stack:
        slurm = None
        change: Callable[[Config], Config] | None = None
        if nodes:
            prolog = folder / "task_prolog.sh"
            prolog.write_text(lines_for(WatchPlace.TASKPROLOG, str(hook), allows_drills=True))
            prolog.chmod(0o755)
            (folder / "slurm").mkdir()
            # The first node takes all jobs that run at once: the agent has its name.
            place = folder / "slurm"
            # Slurm gives a node up soon: that is a part of its time to recover.
            settings = {"SlurmdTimeout": "10", "MessageTimeout": "10", "TaskProlog": str(prolog)}
            cluster = slurm_cluster(place, nodes, partitions, cpus=CPUS, **settings)
            slurm = stack.enter_context(cluster)
            os.environ["SLURM_CONF"] = slurm.environment[
                "SLURM_CONF"
            ]  # for the controller's commands
            stack.callback(os.environ.pop, "SLURM_CONF", None)

            def change(config: Config) -> Config:
                return msgspec.structs.replace(config, slurm=_SLURM)

        up = stack.enter_context(running(controller, change))
        (folder / "agent.toml").write_text(
            f'node = "{NODE}"\nsocket = "{folder}/agent.sock"\ndisabled = ["mounts", "disk_health"]\n'
            f'[alerts]\nca_file = "{up.ca}"\ncert_file = "{cert}"\nkey_file = "{key}"\n'
            f'[watch]\ncontroller = "{up.url}"\n'
        )
        stack.enter_context(running_agent("--config", str(folder / "agent.toml")))
        site = WatchedSite(folder, hook, up.client("admin"), slurm)
        looking = threading.Thread(target=site.run_looks, daemon=True)
        looking.start()
        stack.callback(looking.join)
        stack.callback(site.close)
        yield site


def torchrun(restarts: int, run_id: str, ranks: int) -> list[str]:
    """Return the words that start a job by torchrun on one node; ``run_id`` names it in each of its starts."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={run_id}"),
        f"--max-restarts={restarts}",
    ]
