"""slurmd runs the shipped prolog, epilog and health check as they are, but for the paths of program and configuration."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.agent import FIXTURE, ROOT
from tests.support.eventually import eventually
from tests.support.slurm import SlurmCluster, missing, slurm_cluster

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(missing()), reason=missing())]
SCRIPTS = ROOT / "deploy" / "slurm"
USER = "nobody"


@dataclass
class Site:
    """A cluster of two nodes, which share this machine and so its health."""

    cluster: SlurmCluster
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "agent.toml"

    def sicken(self) -> None:
        (sensor,) = (self.folder / "sys").glob("devices/**/hwmon1/temp1_input")
        sensor.write_text("99000\n")

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Return state and reason of each node."""
        told = self.cluster.run("sinfo", "--noheader", "--Node", "--format=%N|%T|%E").stdout
        rows = [line.split("|", 2) for line in told.splitlines()]
        return {name: (state, reason.strip()) for name, state, reason in rows}

    def is_idle(self) -> bool:
        return {state for state, _reason in self.nodes().values()} == {"idle"}

    def drained(self) -> dict[str, str]:
        return {name: reason for name, (state, reason) in self.nodes().items() if "dra" in state}

    def kept_drains(self) -> dict[str, str]:
        """Return the only drained node, if its check kept the drain: two that drain at once both take it back."""
        drained = self.drained()
        last_outcome = {line["node"]: line["outcome"] for line in self.log()}
        kept = all(last_outcome.get(name) == "drained" for name in drained)
        return drained if kept and len(drained) == 1 else {}

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        eventually(is_so, lambda: f"{what}\n{self.nodes()}\n{self.cluster.logs()}", pause_s=0.2)

    def log(self) -> list[dict[str, object]]:
        path = self.folder / "actions.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


def install(folder: Path, name: str, timeout_s: float) -> str:
    """Copy a shipped script and give it the paths of this test, a log of its own, and time on a busy machine."""
    text = (SCRIPTS / name).read_text()
    program = f"{sys.executable} -m rankmend.cli"
    text = text.replace("/opt/rankmend/bin/rankmend", program)
    text = text.replace(
        "/etc/rankmend/agent.toml",
        " ".join([f"{folder}/agent.toml --log {folder}/actions.jsonl", f"--timeout {timeout_s}"]),
    )
    # slurmd gives a health check no SLURM_CONF; a site's lies where Slurm looks for it.
    text = text.replace("#!/bin/sh\n", f"#!/bin/sh\nexport SLURM_CONF={folder}/slurm/slurm.conf\n")
    text = text.replace("timeout -k 1 10 ", "timeout -k 1 50 ")
    text = text.replace("cleanup\n", f"cleanup --log {folder}/actions.jsonl\n")
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@contextmanager
def site(folder: Path, *, timeout_s: float = 40, **scripts: str) -> Iterator[Site]:
    shutil.copytree(FIXTURE / "sys", folder / "sys", symlinks=True)
    write_config(folder)
    (folder / "slurm").mkdir()
    installed = {name: install(folder, script, timeout_s) for name, script in scripts.items()}
    settings = {"SlurmctldDebug": "verbose"}
    if "HealthCheckProgram" in scripts:
        settings |= {"HealthCheckInterval": "3", "HealthCheckNodeState": "ANY,CYCLE"}
    with slurm_cluster(folder / "slurm", 2, **settings, **installed) as cluster:
        yield Site(cluster, folder)


def write_config(folder: Path, first_line: str = "") -> None:
    (folder / "agent.toml").write_text(
        f'{first_line}listen = "127.0.0.1:9"\nprocfs = "{FIXTURE}/proc"\nsysfs = "{folder}/sys"\n'
    )


def test_a_prolog_drains_the_node_for_a_fault_and_the_reason_names_it(tmp_path: Path) -> None:
    with site(tmp_path, Prolog="prolog.sh", Epilog="epilog.sh") as here:
        before = here.cluster.run("srun", "--nodes=2", "true")
        assert before.returncode == 0, before.stderr + here.cluster.logs()
        here.wait(here.is_idle, "the epilogs are over")
        here.sicken()

        here.cluster.run("sbatch", "--nodelist=node1", "--output=/dev/null", "--wrap=true")
        here.wait(here.drained, "node1 is drained")
        here.wait(here.log, "the check has written down what it did")

        assert list(here.drained()) == ["node1"]
        assert here.drained()["node1"].startswith("rankmend: sensor_critical/nvme-nvme0/temp1: ")
        assert [(one["node"], one["for"], one["outcome"]) for one in here.log()] == [
            ("node1", "prolog", "drained")
        ]


@pytest.mark.parametrize("what", ["typo", "hang", "missing program"])
def test_what_is_no_fault_of_the_node_lets_the_job_run(what: str, tmp_path: Path) -> None:
    with site(tmp_path, timeout_s=4.5, Prolog="prolog.sh", Epilog="epilog.sh") as here:
        here.sicken()
        if what == "typo":
            write_config(tmp_path, "lisen = 1\n")
        elif what == "hang":
            here.config.unlink()
            os.mkfifo(here.config)
        else:
            for name in ("prolog.sh", "epilog.sh"):
                script = tmp_path / name
                script.write_text(script.read_text().replace(sys.executable, "/no/python"))

        done = here.cluster.run("srun", "--nodes=2", "true")

        assert done.returncode == 0, done.stderr + here.cluster.logs()
        here.wait(here.is_idle, "the epilogs are over, and no node is drained")


def test_a_health_check_drains_its_node_once_and_no_more_than_the_share(tmp_path: Path) -> None:
    with site(tmp_path, HealthCheckProgram="health.sh") as here:
        here.sicken()

        here.wait(here.drained, "a node is drained")
        here.wait(lambda: any(one["outcome"] == "braked" for one in here.log()), "the other is not")

        here.wait(here.kept_drains, "one node is drained, and its check has counted again")
        ((name, reason),) = here.kept_drains().items()
        assert reason.startswith("rankmend: sensor_critical/")
        # A person's reason stays, whatever the next checks find.
        here.cluster.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=mine")
        braked = len([one for one in here.log() if one["outcome"] == "braked"])
        other = ({"node1", "node2"} - {name}).pop()
        here.wait(lambda: other in here.drained(), "now the other is drained by rankmend")
        assert here.drained()[name] == "mine"
        assert here.drained()[other].startswith("rankmend: ")
        assert len([one for one in here.log() if one["outcome"] == "braked"]) >= braked


def test_an_epilog_removes_what_the_job_left(tmp_path: Path) -> None:
    run = Path("/dev/shm") / f"rankmend-{user_id()}" / f"test-{os.getpid()}"
    beside = subprocess.Popen(["runuser", "-u", USER, "--", "sleep", "600"], cwd="/")
    try:
        with site(tmp_path, Epilog="epilog.sh") as here:
            script = (
                f"mkdir -m 700 -p {run.parent}; mkdir -p {run}/snapshots;"
                f" echo $SLURM_JOB_ID > {run}/slurm-job; echo x > {run}/snapshots/rank-0.0.snapshot;"
                " setsid sleep 654 < /dev/null > /dev/null 2>&1 & sleep 1"
            )
            done = here.cluster.run(
                "runuser", "-u", USER, "--", "srun", "--chdir=/", "sh", "-c", script
            )
            assert done.returncode == 0, done.stderr + here.cluster.logs()
            here.wait(lambda: any(one["action"] == "cleanup" for one in here.log()), "the clean-up")

            (line,) = here.log()
            assert [one["command"] for one in line["ended"]] == ["sleep"]  # type: ignore[attr-defined]
            assert line["removed"] == [str(run)]
            assert not run.exists()
            assert beside.poll() is None
            assert here.drained() == {}
    finally:
        beside.send_signal(signal.SIGTERM)
        beside.wait()
        shutil.rmtree(run, ignore_errors=True)
        with contextlib.suppress(OSError):
            run.parent.rmdir()


def user_id() -> int:
    import pwd

    return pwd.getpwnam(USER).pw_uid
