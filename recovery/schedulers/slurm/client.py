"""What the controller asks of Slurm and tells it, one method for each. Every call is bounded (`commands`)."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from recovery.schedulers.slurm.answers import JobInSlurm, read_jobs, read_nodes
from recovery.schedulers.slurm.commands import Run, SlurmUnknownError
from recovery.schedulers.slurm.managed_node import ManagedNode

HAS_NODES: Final = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED"


class SlurmClient:
    def __init__(self, run: Run) -> None:
        self._run = run

    # Reading.

    def nodes(self, names: Iterable[str]) -> dict[str, ManagedNode]:
        """Return these nodes, without those that Slurm does not know."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        try:
            text = self._run(["scontrol", "show", "node", ",".join(wanted), "--oneliner"])
        except SlurmUnknownError:
            if len(wanted) == 1:
                return {}
            known = self.known(wanted)  # launchers may have named any number that Slurm has not
            if len(known) < len(wanted):
                return self.nodes(known)
            found = [self.nodes([name]) for name in wanted]
            return {name: node for part in found for name, node in part.items()}
        return {name: node for name, node in read_nodes(text).items() if name in wanted}

    def node_count(self) -> int:
        """Return how many nodes Slurm has."""
        return len(self._names())

    def known(self, names: Iterable[str]) -> frozenset[str]:
        """Return which of these nodes Slurm has."""
        return frozenset(self._names().intersection(names))

    def _names(self) -> set[str]:
        return set(self._run(["sinfo", "--noheader", "--Node", "--format=%N"]).split())

    def subjects_on(self, node: str) -> frozenset[str]:
        """Return the users, by name and number, whose jobs have the node."""
        # Those that have it: anybody's pending job may ask for it.
        words = ["squeue", "--all", "--noheader", f"--states={HAS_NODES}", f"--nodelist={node}"]
        words.append("--format=%u %U")
        try:
            return frozenset(self._run(words).split())
        except SlurmUnknownError:
            return frozenset()

    def has_pod(self, _node: str, _pods: Iterable[str]) -> bool:
        """Return False: Slurm has no pods."""
        return False

    def jobs(self, number: str) -> list[JobInSlurm]:
        """Return the job with this number; several for an array; none where Slurm does not know it."""
        try:
            return read_jobs(self._run(["scontrol", "show", "job", number]))
        except SlurmUnknownError:
            return []

    def numbers_with(self, comment: str) -> list[str]:
        """Return the jobs with this comment, the oldest first."""
        words = ["squeue", "--all", "--states=all", "--noheader", "--format=%i %k"]
        lines = (line.split(" ", 1) for line in self._run(words).splitlines())
        found = [line[0].strip() for line in lines if len(line) == 2 and line[1].strip() == comment]
        return sorted(found, key=lambda item: int(item) if item.isdigit() else 0)

    def steps(self, number: str) -> set[str]:
        """Return the numbers of a job's steps that run, without those that Slurm adds to each job."""
        words = ["squeue", "--steps", "--jobs", number, "--noheader", "--format=%i"]
        try:
            reported = self._run(words).split()
        except SlurmUnknownError:
            return set()
        return {
            step
            for _job, _dot, step in (word.rpartition(".") for word in reported)
            if step.isdigit()
        }

    def expand(self, host_list: str) -> list[str]:
        """Return the names in a host list such as `gpu-[1-4,7]`."""
        if not host_list:
            return []
        if "[" not in host_list:
            return host_list.split(",")
        return self._run(["scontrol", "show", "hostnames", host_list]).split()

    def save_script(self, number: str, path: Path) -> None:
        """Save the batch script of a job in a file that only we can read."""
        text = self._run(["scontrol", "write", "batch_script", number, "-"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    # Acting.

    def drain(self, node: str, reason: str) -> None:
        self._run(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"])

    def undrain(self, node: str) -> None:
        """Take a drain back; a node that is down stays down."""
        self._run(["scontrol", "update", f"nodename={node}", "state=undrain"])

    def reboot(self, node: str, reason: str) -> None:
        """Have the node restart once it is empty, and take jobs again afterwards."""
        words = ["scontrol", "reboot", "ASAP", "nextstate=resume", f"reason={reason}", node]
        self._run(words)

    def cancel(self, number: str) -> None:
        self._run(["scancel", number])

    def hold(self, number: str) -> None:
        self._run(["scontrol", "hold", number])

    def requeue(self, number: str) -> None:
        self._run(["scontrol", "requeue", number])

    def requeue_hold(self, number: str) -> None:
        self._run(["scontrol", "requeuehold", number])

    def exclude(self, number: str, nodes: Sequence[str]) -> None:
        self._run(["scontrol", "update", f"jobid={number}", f"excnodelist={','.join(nodes)}"])

    def start_now(self, number: str) -> None:
        """Let a held job start: without its begin time, which lies 121 s ahead after a requeue."""
        self._run(["scontrol", "update", f"jobid={number}", "starttime=now"])
        self._run(["scontrol", "release", number])

    def submit_held(self, script: Path, options: Sequence[str]) -> str:
        """Submit a script that waits until it is released, and return its number."""
        words = ["sbatch", "--parsable", "--hold", *options, str(script)]
        return self._run(words).strip().partition(";")[0]
