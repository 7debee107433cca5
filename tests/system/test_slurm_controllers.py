"""Two controllers on one PostgreSQL beside a real Slurm: a node that a job leaves is drained once, whoever works on the desk and dies."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from bench.jepsen.launchers import Job, Seen
from bench.jepsen.stage import POLICY
from recovery.api.controller_errors import UnreachableError
from recovery.api.operator_client import OperatorClient
from recovery.schedulers.slurm.commands import PROGRAMS
from tests.support.controllers import ControllerProcess, controller_process
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.postgres import PostgresServer, running_server
from tests.support.slurm import SlurmCluster, missing, slurm_cluster

pytestmark = [pytest.mark.site, pytest.mark.safety]
AGAIN_S = 15.0  # after which a rank dies again, where the alert came too late for the first death
# Counts the drains that were asked for and that Slurm has done; with the file `hold` the next one comes to nothing, and says so.
SCONTROL = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in *state=drain*) ;; *) exec {scontrol} "$@" ;; esac
echo "$*" >> begun
if rm hold 2>/dev/null; then
  touch reached
  exec sleep 600
fi
{scontrol} "$@" && echo "$*" >> done
"""


@dataclass
class Site:
    server: PostgresServer
    database: str
    slurm: SlurmCluster
    programs: Path
    controllers: list[ControllerProcess]
    urls: list[str]
    job: Job

    def owner(self) -> ControllerProcess:
        """Return the controller that works on Slurm's desk."""
        ((url,),) = self.server.ask(
            self.database,
            "SELECT c.url FROM rankmend.journal j JOIN rankmend.controller c ON c.controller_id = j.holder"
            " WHERE j.name = 'slurm'",
        )
        return next(one for one in self.controllers if one.port_in(url))

    def has_owner(self) -> bool:
        statement = "SELECT holder IS NOT NULL FROM rankmend.journal WHERE name = 'slurm'"
        return self.server.ask(self.database, statement) == [(True,)]

    def break_gpu(self, node: str, is_so: Callable[[], bool], what: str) -> None:
        """Have a rank die, and an alert say again and again, as Prometheus does, that its node's GPU is broken."""
        failed_s = -math.inf

        def look() -> bool:
            nonlocal failed_s
            self._accuse(node)
            if time.monotonic() - failed_s > AGAIN_S and node in self.training():
                failed_s = time.monotonic()
                self.job.fail_rank("kill", Random(1))
            return is_so()

        eventually(look, lambda: f"{what}\n{self.told()}", pause_s=0.2)

    def told(self) -> str:
        """Return where the job trains, what became of it, and the last of its journal and the controllers' logs."""
        logs = [(one.folder / "log").read_text()[-6000:] for one in self.controllers]
        rows = self.server.ask(
            self.database,
            "SELECT number, kind, left(convert_from(body, 'UTF8'), 300) FROM rankmend.record"
            " WHERE journal LIKE 'job:%' ORDER BY number DESC LIMIT 60",
        )
        records = [" ".join(map(str, row)) for row in reversed(rows)]
        return "\n".join([f"trains on {self.training()}, {self.job.outcomes}", *records, *logs])

    def _accuse(self, node: str) -> None:
        labels = {
            "alertname": "RankmendXidFatal", "node": node, "device": f"GPU-{node}",
            "severity": "critical", "action": "reset_gpu",
        }  # fmt: skip
        for url in self.urls:
            client = OperatorClient([url])
            try:
                client.post_alerts([{"labels": labels, "annotations": {"summary": "Xid 79"}}])
            except UnreachableError:  # that one is dead
                continue
            finally:
                client.close()

    def training(self) -> list[str]:
        return [one.node for one in self.job.launchers if one.running and one.running.is_alive]

    def nodes_in_training(self, without: str = "") -> list[str] | None:
        """Return both nodes on which the job trains, if there are two and not this one."""
        nodes = self.training()
        return nodes if len(nodes) == 2 and without not in nodes else None

    def state(self, node: str) -> str:
        words = ("sinfo", "--noheader", f"--nodes={node}", "--format=%T %E")
        return self.slurm.run(*words).stdout.strip()

    def drains(self, node: str, what: str = "done") -> int:
        path = self.programs / what
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(f"nodename={node} " in line for line in lines)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if reason := missing():
        pytest.skip(reason)
    programs, policy = tmp_path / "bin", tmp_path / "policy.toml"
    programs.mkdir()
    for program in PROGRAMS:
        (programs / program).symlink_to(str(shutil.which(program)))
    scontrol = programs / "scontrol"
    scontrol.unlink()
    scontrol.write_text(SCONTROL.format(scontrol=shutil.which("scontrol")))
    scontrol.chmod(0o755)
    policy.write_text(POLICY.format(restarts_max=60, stops_per_hour_max=12))
    (tmp_path / "slurm").mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(running_server())
        name = server.make_database()
        slurm = stack.enter_context(slurm_cluster(tmp_path / "slurm", 4))
        controllers, urls = [], []
        for number in range(2):
            folder = tmp_path / f"controller-{number}"
            (folder / "state").mkdir(parents=True)
            urls.append(f"http://127.0.0.1:{free_port()}")
            (folder / "controller.toml").write_text(
                f'listen = "{urls[-1].removeprefix("http://")}"\nstate_dir = "{folder}/state"\n'
                f'policy_file = "{policy}"\njournal = "{server.url(name, "controller")}"\n'
                f'[postgres]\nlease_s = 20.0\nurl = "{urls[-1]}"\n'
                f'[slurm]\nenabled = true\nact = true\nfolder = "{programs}"\nnodes_drained_percent = 100.0\ntimeout_s = 15.0\n'
            )
            controllers.append(stack.enter_context(controller_process(folder, **slurm.environment)))
        job = Job(0, 2, urls, None, Seen())
        job.place_on(slurm.nodes)
        stack.callback(job.close)
        yield Site(server, name, slurm, programs, controllers, urls, job)


@pytest.mark.timeout(400)
def test_a_node_that_a_job_leaves_is_drained_once_though_the_controller_dies_between_its_record_and_scontrol(
    site: Site,
) -> None:
    site.job.begin()
    eventually(site.has_owner, "a controller works on Slurm", pause_s=0.2)
    first = eventually(site.nodes_in_training, "the job trains", pause_s=0.2)[0]
    site.break_gpu(
        first, lambda: site.state(first).startswith("drained rankmend: "), "it is drained"
    )
    second = eventually(lambda: site.nodes_in_training(without=first), "it goes on", pause_s=0.2)[0]
    (site.programs / "hold").touch()

    reached = site.programs / "reached"
    site.break_gpu(second, reached.exists, "the drain is about to be done")
    dead = site.owner()
    dead.kill()

    eventually(
        lambda: site.state(second).startswith("drained rankmend: "),
        "the other does it",
        pause_s=0.2,
    )
    assert site.owner() is not dead
    client = OperatorClient([url for url in site.urls if not dead.port_in(url)])
    eventually(
        lambda: all(one.outcome == "done" for one in client.slurm().requests),
        "both ended",
        pause_s=0.2,
    )
    client.close()
    assert [site.drains(node) for node in (first, second)] == [1, 1]
    assert [site.drains(node, "begun") for node in (first, second)] == [1, 2]
    assert all("drain" not in site.state(node) for node in {*site.slurm.nodes} - {first, second})
    eventually(lambda: site.nodes_in_training(without=second), "it goes on", pause_s=0.2)
