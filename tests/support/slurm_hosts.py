"""A real Slurm cluster whose nodes are hosts of their own: processes, network, /dev/shm, boot id.

slurmctld has the fleet's last host. `Host.power_off` takes everything of a node; once it has booted, `start_node` has it back.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import slurm
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.hosts import Fleet, Host, Process, why_not

MUNGE_SOCKET = "/run/munge.sock"  # of each host its own


def missing() -> str:
    """Return why no such cluster can be started here, or nothing."""
    return slurm.missing() or why_not()


class SlurmHosts:
    def __init__(self, fleet: Fleet) -> None:
        *self.nodes, self.home = fleet
        self.fleet = fleet
        self.folder = fleet.shared / "slurm"
        (self.folder / "log").mkdir(parents=True)
        (self.home.state / "slurmctld").mkdir()
        for host in self.nodes:
            (host.state / "spool").mkdir()
        self.key = self.folder / "munge.key"
        self.key.write_bytes(os.urandom(1024))
        self.key.chmod(0o600)
        self.config = self.folder / "slurm.conf"
        self.daemons: dict[str, Process] = {}  # slurmctld, and slurmd by node

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.config)}

    def write_config(self, **settings: str) -> None:
        lines = {
            "ClusterName": "toy",
            "SlurmctldHost": f"{self.home.name}({self.home.address})",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "CryptoType": "crypto/munge",
            "AuthInfo": f"socket={MUNGE_SOCKET},cred_expire=5",
            "StateSaveLocation": f"{self.home.state}/slurmctld",
            "SlurmdSpoolDir": f"{self.fleet.folder}/%n/spool",
            "SlurmctldPidFile": "/run/slurmctld.pid",
            "SlurmdPidFile": "/run/slurmd.pid",
            "SlurmctldLogFile": f"{self.folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/log/slurmd.%n.log",
            "JobCompType": "jobcomp/filetxt",
            "JobCompLoc": f"{self.folder}/log/jobcomp.txt",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
            "ReturnToService": "1",
            "SlurmdTimeout": "10",
            "KillWait": "3",
            "MessageTimeout": "10",
            "InactiveLimit": "0",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "SlurmdParameters": "config_overrides",
            **settings,
        }
        written = [f"{name}={value}" for name, value in lines.items()]
        written += [
            f"NodeName={host.name} NodeAddr={host.address} CPUs=4 RealMemory=2000"
            for host in self.nodes
        ]
        names = ",".join(host.name for host in self.nodes)
        written += [
            f"PartitionName=train Nodes={names} Default=YES MaxTime=INFINITE State=UP",
            f"PartitionName=urgent Nodes={names} PriorityTier=10 PreemptMode=OFF State=UP",
        ]
        self.config.write_text("\n".join(written) + "\n")

    # ------------------------------------------------------------------------------- daemons

    def start_munge(self, host: Host) -> None:
        self._start(
            host, "munged", "munged", "--foreground", "--force", f"--key-file={self.key}",
            f"--socket={MUNGE_SOCKET}", "--pid-file=/run/munge.pid",
            "--log-file=/run/munge.log", "--seed-file=/run/munge.seed",
        )  # fmt: skip
        self.wait(lambda: host.path(MUNGE_SOCKET).exists(), f"munged of {host.name}")

    def start_node(self, host: Host) -> None:
        if not host.path(MUNGE_SOCKET).exists():
            self.start_munge(host)
        words = ("slurmd", "-D", "-N", host.name, "-f", str(self.config))
        self.daemons[host.name] = self._start(host, "slurmd", *words)

    def start_controller(self, *options: str) -> None:
        words = ("slurmctld", "-D", "-f", str(self.config), *options)
        self.daemons["slurmctld"] = self._start(self.home, "slurmctld", *words)

    def kill(self, name: str) -> None:
        """Kill slurmctld, or slurmd of a node; what it started lives on."""
        self.daemons[name].kill()
        self.daemons[name].wait(DEADLINE_S)

    def _start(self, host: Host, name: str, *words: str) -> Process:
        with (self.folder / "log" / f"{name}.{host.name}.out").open("ab") as out:
            return host.popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    # ------------------------------------------------------------------------------ commands

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a client command on slurmctld's host."""
        return self.home.run(words, 120.0, check=False, env=self.environment, cwd=self.folder)

    def nodes_by_state(self) -> dict[str, tuple[str, str]]:
        told = self.run("sinfo", "--noheader", "--Node", "--format=%N|%T|%E").stdout
        rows = [line.split("|", 2) for line in told.splitlines()]
        return {name: (state, reason.strip()) for name, state, reason in rows}

    def job_field(self, number: str, name: str) -> str:
        told = self.run("scontrol", "show", "job", number, "--oneliner").stdout
        return f" {told}".partition(f" {name}=")[2].partition(" ")[0]

    def submit(self, script: str, *options: str) -> str:
        """Return the number of a batch job."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        out = f"--output={self.folder}/log/job.%j.out"
        done = self.run("sbatch", "--parsable", f"--chdir={self.folder}", out, *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def output(self, number: str) -> str:
        path = self.folder / "log" / f"job.{number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        eventually(is_so, lambda: f"{what}\n{self.logs()}", pause_s=0.25)

    def wait_idle(self) -> None:
        def is_idle() -> bool:
            states = self.nodes_by_state()
            return len(states) == len(self.nodes) and {one for one, _ in states.values()} == {
                "idle"
            }

        self.wait(is_idle, "all nodes are idle")

    def return_all(self) -> None:
        """Have all nodes in service again: one that was rebooted or drained stays out until somebody says so."""
        for name, (state, _reason) in self.nodes_by_state().items():
            if "down" in state or "dra" in state:
                self.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.wait_idle()

    def logs(self) -> str:
        paths = sorted((self.folder / "log").iterdir())
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in paths
        )


@contextmanager
def slurm_hosts(folder: Path, count: int, **settings: str) -> Iterator[SlurmHosts]:
    """Give a cluster of idle nodes, each a host, and one more host with slurmctld."""
    with Fleet(count + 1, folder) as fleet:
        cluster = SlurmHosts(fleet)
        cluster.write_config(**settings)
        for host in fleet:
            cluster.start_munge(host)
        cluster.start_controller("-c", "-i")
        for host in cluster.nodes:
            cluster.start_node(host)
        cluster.wait_idle()
        yield cluster
