"""The faults of the soak: drawn from a seed, made by `rankmend inject`. Killed services are what a service manager would start again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.soak.stage import JOB, NODES, RANKS, RANKS_OF_NODE, Part, Stage

PAUSE_S: Final = (10.0, 30.0)
_END_S_MAX: Final = 150.0
_NOT_MADE: Final = 1  # exit code of rankmend inject: the target is not there
_REFUSED: Final = 2  # such a fault stands
_SAID_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, and how often it is drawn."""

    name: str
    weight: int
    on: str  # rank, rank 0, node, checkpoint, launcher, agent, controller
    for_s: float = 10.0
    options: Mapping[str, float] = field(default_factory=dict)
    kills_service: bool = False
    with_kill: bool = False  # a rank is killed while it stands
    needs_root: bool = False

    @property
    def fault(self) -> str:
        """Return its name for `rankmend inject`."""
        return self.name.partition(" ")[0]


KINDS: Final = (
    Kind("kill", 4, "rank"),
    Kind("exit-code", 3, "rank", options={"code": 7}),
    Kind("exception", 3, "rank"),
    Kind("stop", 3, "rank", 15.0),
    Kind("grandchild", 1, "rank", 8.0, with_kill=True),
    Kind("memory-leak", 1, "rank", 5.0, {"rate": 20e6, "most": 60e6}),
    Kind("file-limit", 2, "rank 0"),
    Kind("torn-checkpoint", 2, "checkpoint", with_kill=True),
    Kind("bit-flip", 2, "checkpoint", with_kill=True),
    Kind("core-load", 1, "rank", 5.0, {"workers": 2}),
    Kind("cpu-quota", 1, "rank", 5.0, {"share": 0.2}, needs_root=True),
    Kind("service-stop of a launcher", 2, "launcher", 5.0),
    Kind("service-stop of an agent", 2, "agent", 8.0, needs_root=True),
    Kind("service-stop of the controller", 2, "controller", 8.0, needs_root=True),
    Kind("journal-full of the controller", 2, "controller", 5.0, needs_root=True),
    Kind("kill of a launcher", 1, "launcher", kills_service=True),
    Kind("kill of an agent", 1, "agent", kills_service=True),
    Kind("kill of the controller", 1, "controller", kills_service=True),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One fault, as the seed has it."""

    kind: Kind
    rank: int
    other: int  # the rank that is killed beside it
    pause_s: float  # before it


def draw(random_: random.Random, *, may_kill_services: bool, is_root: bool) -> Drawn:
    """Draw the next fault. Every draw takes the same numbers from the seed, whatever it may be."""
    pause_s, place = random_.uniform(*PAUSE_S), random_.random()
    rank, other = random_.randrange(RANKS), random_.randrange(RANKS)
    kinds = [
        kind
        for kind in KINDS
        if (may_kill_services or not kind.kills_service) and (is_root or not kind.needs_root)
    ]
    left = place * sum(kind.weight for kind in kinds)
    for kind in kinds:
        left -= kind.weight
        if left < 0:
            break
    return Drawn(kind, 0 if kind.on == "rank 0" else rank, other, pause_s)


@dataclass(slots=True)
class Made:
    """One fault that was made, or tried."""

    kind: str
    target: str
    unix_s: float
    ranks: tuple[int, ...]  # that an incident may blame for it
    said: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None
    problem: str = ""
    is_missed: bool = False  # its target was gone

    @property
    def is_in_force(self) -> bool:
        return self.said is not None and b"in force" in self.said.read_bytes()


class Injector:
    """Makes faults on a stage, and sees to it that each was undone."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.made: list[Made] = []
        self._marks = stage.folder / "marks" / "drills.toml"
        self._marks.parent.mkdir(mode=0o755)
        self._marks.write_text('[drills]\nallow = ["rankmend", "cpu"]\nfor_s_max = 60\n')
        self._kills: list[tuple[Made, int]] = []  # a rank that dies once this fault stands

    def make(self, drawn: Drawn) -> Made | None:
        """Make a fault; None where there is nothing to make it on now."""
        kind = drawn.kind
        ranks = (drawn.rank,)
        match kind.on:
            case "rank" | "rank 0":
                target = f"rank:{JOB}/{drawn.rank}"
                state = self.stage.state_of(self._node_of(drawn.rank))
            case "checkpoint":
                saved = sorted(self.stage.checkpoints.glob("step-*.npz"))
                if not saved:
                    return None
                target, state, ranks = f"path:{saved[-1]}", self.stage.state_of(NODES[0]), ()
            case _:
                return self._on_service(kind, NODES[drawn.rank // RANKS_OF_NODE])
        one = self._inject(kind, target, state, ranks)
        if kind.with_kill:
            self._kills.append((one, drawn.other))
        return one

    def _on_service(self, kind: Kind, node: str) -> Made | None:
        part = self._part(kind.on, node)
        ranks = tuple(self.stage.ranks_of(node)) if kind.on == "launcher" else ()
        pid = part.pid
        if pid is None:
            return None
        if kind.kills_service:
            os.kill(pid, signal.SIGKILL)
            self.made.append(Made(kind.name, part.name, time.time(), ranks))
            return self.made[-1]
        name = f"launcher/{JOB}" if kind.on == "launcher" else f"{kind.on}/{pid}"
        return self._inject(kind, f"service:{name}", self.stage.state_of(node), ranks)

    def _part(self, on: str, node: str) -> Part:
        if on == "controller":
            return self.stage.controller
        parts = self.stage.launchers if on == "launcher" else self.stage.agents
        return parts[NODES.index(node)]

    def _inject(self, kind: Kind, target: str, state: Path, ranks: tuple[int, ...]) -> Made:
        folder = self.stage.folder
        said = folder / "inject" / f"{len(self.made):05d}.log"
        said.parent.mkdir(exist_ok=True)
        options = [f"--{name}={value:g}" for name, value in kind.options.items()]
        command = [
            *(sys.executable, "-m", "rankmend.cli", "inject", kind.fault, f"--on={target}"),
            *(f"--for={kind.for_s:g}", "--yes", f"--state-dir={state}", f"--marks={self._marks}"),
            *(f"--undo-dir={folder / 'undo'}", *options),
        ]
        with said.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.made.append(Made(kind.name, target, time.time(), ranks, said, process))
        return self.made[-1]

    @property
    def is_idle(self) -> bool:
        """Return whether no fault is still on its way: each stands or is over, with the rank that dies beside it."""
        return not self._kills and all(one.process is None or one.is_in_force for one in self.made)

    def look(self) -> None:
        """Kill the ranks that are to die beside a fault, and take note of the faults that have ended."""
        for one, rank in list(self._kills):
            if one.is_in_force:
                self._inject(
                    Kind("kill", 0, "rank"), f"rank:{JOB}/{rank}",
                    self.stage.state_of(self._node_of(rank)), (rank,),
                )  # fmt: skip
            if one.is_in_force or one.process is None:
                self._kills.remove((one, rank))
        for one in self.made:
            if one.process is not None and one.process.poll() is not None:
                self._note_end(one, one.process.returncode)

    def _note_end(self, one: Made, code: int) -> None:
        one.process = None
        if code and one.said is not None:
            text = one.said.read_text(errors="replace").strip()[-_SAID_MAX:]
            # What was to be broken may end between the look and the deed, or be broken already.
            one.is_missed = not one.is_in_force and code in (_NOT_MADE, _REFUSED)
            one.problem = "" if one.is_missed else f"exit code {code}: {text}"

    def close(self) -> list[str]:
        """Wait until every fault has ended; return what went wrong with any."""
        until_s = time.monotonic() + _END_S_MAX
        while any(one.process is not None for one in self.made) and time.monotonic() < until_s:
            self.look()
            time.sleep(0.1)
        problems = [
            f"{one.kind} on {one.target}: {one.problem}" for one in self.made if one.problem
        ]
        problems += [f"{one.kind} on {one.target} does not end" for one in self.made if one.process]
        left = sorted(path.name for path in (self.stage.folder / "undo").glob("*.json"))
        return [*problems, *(f"{name} is not undone" for name in left)]

    def _node_of(self, rank: int) -> str:
        """Return where a rank runs, which another attempt may change."""
        return next((node for node in NODES if rank in self.stage.ranks_of(node)), NODES[0])
