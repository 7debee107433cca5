"""A real Slurm cluster on this machine: munged, slurmctld, and a slurmd for each node, in a folder of their own.

Nothing in /etc is touched. All nodes have this machine's network, processes and /dev/shm.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.bound_to_test import BOUND_TO_TEST
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")


def missing() -> str:
    """Return why no cluster can be started here, or nothing."""
    if os.getuid() != 0:
        return "needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return (
        f"{', '.join(absent)} not installed (slurmctld, slurmd, slurm-client, munge)"
        if absent
        else ""
    )


@dataclass
class SlurmCluster:
    folder: Path
    nodes: tuple[str, ...]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a client command; these wait for long where slurmctld is away."""
        return subprocess.run(
            words,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def wait_job(self, number: str) -> str:
        """Return the state in which a job has ended. `sbatch --wait` asks less and less often, for minutes in the end."""

        def show() -> str:
            return self.run("scontrol", "show", "job", number, "--oneliner").stdout

        def look() -> str | None:
            state = show().partition("JobState=")[2].partition(" ")[0]
            is_over = state not in ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
            return state if is_over else None

        return eventually(
            look, lambda: f"job {number} has ended\n{show()}\n{self.logs()}", pause_s=0.5
        )

    def start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [*BOUND_TO_TEST, *words],
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait_until_idle(self, *, has_rebooted: bool = False) -> None:
        """Wait for all nodes. ``has_rebooted``: slurmctld may take the boot of one for unexpected and set it down."""

        def states() -> dict[str, str]:
            # After a reboot sinfo calls a node mixed for as long as a minute, without a job.
            shown = self.run("scontrol", "show", "nodes", "--oneliner").stdout
            return dict(re.findall(r"^NodeName=(\S+) .*? State=(\S+) ", shown, re.MULTILINE))

        def are_idle() -> bool:
            told = states()
            for node in [name for name, state in told.items() if has_rebooted and state == "DOWN"]:
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
            return told == dict.fromkeys(self.nodes, "IDLE")

        eventually(are_idle, lambda: f"nodes are idle: {states()}\n{self.logs()}", pause_s=0.1)

    def logs(self) -> str:
        paths = sorted(self.folder.glob("*.out")) + sorted(self.folder.glob("log/*"))
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in paths)

    def stop(self) -> None:
        for name in reversed(self.processes):
            process = self.processes[name]
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self._left():
            os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Return processes of this cluster that outlived its daemons: slurmstepd, and what it runs."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return [pid for pid in found if pid != os.getpid()]


@contextmanager
def slurm_cluster(
    folder: Path, count: int, partitions: Sequence[str] = (), cpus: int = 4, **settings: str
) -> Iterator[SlurmCluster]:
    """Give a cluster of nodes that are idle. ``partitions``, ``settings``: further lines of slurm.conf; ``cpus``: of each node, as Slurm has it."""
    for name in ("munge", "state", "log"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for path in (folder, *folder.parents):  # munged wants a path that others can enter
        if path.stat().st_uid == os.getuid() and path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    cluster = SlurmCluster(folder, tuple(f"node{number}" for number in range(1, count + 1)))
    # slurmstepd dies where the path of its socket, with the job's number in it, has more than 107 bytes.
    spool = Path(tempfile.mkdtemp(prefix="slurm-"))
    spool.chmod(0o755)
    settings = {"SlurmdSpoolDir": f"{spool}/%n", **settings}
    (folder / "slurm.conf").write_text(
        _configuration(folder, cluster.nodes, settings, partitions, cpus)
    )
    munge = folder / "munge"
    try:
        cluster.start(
            "munged", "munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={munge}/sock", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )  # fmt: skip
        eventually((munge / "sock").exists, cluster.logs)
        cluster.start("slurmctld", "slurmctld", "-D", "-f", str(folder / "slurm.conf"), "-c", "-i")
        for node in cluster.nodes:
            cluster.start(node, "slurmd", "-D", "-N", node, "-f", str(folder / "slurm.conf"))
        cluster.wait_until_idle()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(spool, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return ports that no outgoing connection takes before the daemons listen."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def _configuration(
    folder: Path,
    nodes: tuple[str, ...],
    settings: dict[str, str],
    partitions: Sequence[str],
    cpus: int,
) -> str:
    host = socket.gethostname()
    controller, *ports = _free_ports(len(nodes) + 1)
    lines = {
        "ClusterName": "toy",
        "FirstJobId": f"{controller}00",  # tests that run beside have jobs of other numbers
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CryptoType": "crypto/munge",
        "AuthInfo": f"socket={folder}/munge/sock,cred_expire=5",
        "SlurmctldPort": str(controller),
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
        "StateSaveLocation": f"{folder}/state",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd.%n.log",
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
        "SlurmdTimeout": "120",  # on a busy machine a node must not be given up
        "KillWait": "3",
        "MessageTimeout": "60",
        "SlurmdDebug": "verbose",
        "SlurmdParameters": "config_overrides",
        **settings,
    }
    written = [f"{name}={value}" for name, value in lines.items()]
    written += [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=2000"
        for node, port in zip(nodes, ports, strict=True)
    ]
    written.append(
        f"PartitionName=train Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP"
    )
    return "\n".join([*written, *partitions]) + "\n"
