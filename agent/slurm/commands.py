"""Slurm's commands, each with a timeout: they wait for minutes where slurmctld is away.

Source: scontrol(1), sinfo(1); `State=IDLE+DRAIN`, `Partitions=a,b` and `Reason=... [user@time]` as Slurm 22.05 prints them.
"""

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rankmend.errors import SourceError
from rankmend.slurm_program import SlurmSilentError, run_slurm_program

# slurmd gives its scripts a short PATH, and sites install Slurm elsewhere.
PLACES: Final = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin")
ANSWER_CHARACTERS_MAX: Final = 4_000_000  # sinfo of 20,000 nodes with a reason each
_STATE: Final = re.compile(r"(?:^|\s)State=(\S+)")
_PARTITIONS: Final = re.compile(r"(?:^|\s)Partitions=(\S+)")
_REASON: Final = re.compile(r"(?:^|\s)Reason=(.*?) \[[^\[\]]*@[^\[\]]*\]")
_DRAIN: Final = re.compile(r"drain|drng", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as slurmctld knows it."""

    name: str
    state: str  # as Slurm writes it: "IDLE+DRAIN", "drained*"
    reason: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def is_drained(self) -> bool:
        return bool(_DRAIN.search(self.state))


class NodeSlurmCommands:
    """Asks slurmctld by its command line. All calls together end before ``until_s`` (monotonic)."""

    def __init__(self, until_s: float, environment: Mapping[str, str]) -> None:
        self._until_s = until_s
        self._environment = dict(environment)
        self._path = ":".join((environment.get("PATH", ""), *PLACES))

    def node(self, name: str) -> NodeRecord:
        text = self._ask("scontrol", "show", "node", name, "--oneliner")
        state = _STATE.search(text)
        if state is None:
            raise SourceError(f"scontrol show node {name} names no state: {text[:200]!r}")
        reason, partitions = _REASON.search(text), _PARTITIONS.search(text)
        return NodeRecord(
            name,
            state[1],
            reason[1].strip() if reason else "",
            tuple(partitions[1].split(",")) if partitions else (),
        )

    def partition_nodes(self, partition: str) -> tuple[NodeRecord, ...]:
        text = self._ask(
            *("sinfo", "--Node", "--noheader", f"--partition={partition}", "--format=%N|%T|%E"),
        )
        rows = [line.split("|", 2) for line in text.splitlines()]
        return tuple(
            NodeRecord(name.strip(), state.strip(), reason.strip())
            for name, state, reason in (row for row in rows if len(row) == 3)
        )

    def jobs_of(self, uid: int, node: str) -> tuple[str, ...]:
        """Return the numbers of a user's jobs on a node, also of those that are about to end there."""
        text = self._ask(
            *("squeue", "--noheader", f"--user={uid}", f"--nodelist={node}", "--format=%A"),
            "--states=configuring,running,suspended,completing,stopped",
        )
        return tuple(text.split())

    def drain(self, name: str, reason: str) -> None:
        self._ask("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")

    def undrain(self, name: str) -> None:
        self._ask("scontrol", "update", f"nodename={name}", "state=undrain")

    def _ask(self, program: str, *words: str) -> str:
        found = shutil.which(program, path=self._path)
        if found is None:
            raise SourceError(f"no {program} in {self._path}")
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise SourceError(f"no time left for {program} {' '.join(words[:2])}")
        try:
            done = run_slurm_program([found, *words], left_s, {**self._environment, "LC_ALL": "C"})
        except SlurmSilentError:
            raise SourceError(f"{program} {words[0]} did not answer in {left_s:.1f} s") from None
        except OSError as error:
            raise SourceError(f"{program} {words[0]}: {error.strerror}") from error
        out, errors = (text.decode("utf-8", "replace") for text in (done.out, done.errors))
        if done.code != 0:
            said = (errors or out).strip().splitlines()
            raise SourceError(f"{program} {' '.join(words[:2])}: {said[-1][:200] if said else ''}")
        return out[:ANSWER_CHARACTERS_MAX]
