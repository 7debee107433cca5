"""A Slurm of a few nodes, checks that end when a test says so, and a clock that a test moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.journal.incident_machine import IncidentState, Phase
from recovery.journal.incident_records import Failure, Plan, WaitsFor
from recovery.journal.ledger import Ledger, Member, OpenIncident
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.node_records import LeaveCause
from recovery.journal.store import Journal
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.desk import SlurmDesk
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.node_check import CheckEnd
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest


@dataclass
class MovedClock:
    unix: float = 1_000_000.0

    def now_s(self) -> float:
        return self.unix

    def unix_s(self) -> float:
        return self.unix


class FakeSlurm:
    """`recovery.schedulers.slurm.commands.Run` for commands about nodes."""

    def __init__(self, *nodes: str) -> None:
        self.state = dict.fromkeys(nodes, "IDLE")
        self.reason = dict.fromkeys(nodes, "")
        self.listed = 0  # times that all nodes were listed
        self.users: dict[str, str] = {}  # whose jobs have a node, as "name number"

    def __call__(self, words: Sequence[str]) -> str:
        if words[0] == "squeue":
            assert not any("PENDING" in word for word in words)
            assert any(word.startswith("--states=") for word in words), "pending jobs have no node"
            (node,) = (word.partition("=")[2] for word in words if word.startswith("--nodelist="))
            return self.users.get(node, "")
        if words[0] == "sinfo":
            self.listed += 1
            return "\n".join(self.state)
        if words[:3] == ["scontrol", "show", "node"]:
            return "\n".join(self._line(node) for node in words[3].split(",") if node in self.state)
        assert words[:2] == ["scontrol", "update"], words
        told = dict(word.split("=", 1) for word in words[2:])
        is_drain = told["state"] == "drain"
        self.state[told["nodename"]] = "IDLE+DRAIN" if is_drain else "IDLE"
        self.reason[told["nodename"]] = told.get("reason", "")
        return ""

    def _line(self, node: str) -> str:
        reason = f" Reason={self.reason[node]} [root@1]" if self.reason[node] else ""
        return f"NodeName={node} CPUAlloc=0 State={self.state[node]}{reason}"


@dataclass
class FakeCheck:
    words: list[str]
    timeout_s: float
    ended: CheckEnd | None = None
    is_stopped: bool = False

    def end(self) -> CheckEnd | None:
        return self.ended

    def stop(self) -> None:
        self.is_stopped = True


@dataclass
class FakeChecks:
    started: list[FakeCheck] = field(default_factory=list)

    def __call__(self, words: Sequence[str], timeout_s: float, /) -> FakeCheck:
        self.started.append(FakeCheck(list(words), timeout_s))
        return self.started[-1]


class FakeSite:
    """A controller's part for Slurm; `restart` is its next start on the same journal."""

    def __init__(self, folder: Path, limits: SlurmLimits, nodes: Sequence[str]) -> None:
        self.limits = limits
        self.clock, self.slurm, self.checks = MovedClock(), FakeSlurm(*nodes), FakeChecks()
        self.pause = ""
        self._folder = folder
        self._open()

    def _open(self) -> None:
        self.journal = Journal(self._folder / "journal.db", self.clock, "boot")
        self.desk = SlurmDesk(
            self.journal,
            SlurmClient(self.slurm),
            self.limits,
            self.clock,
            self._folder / "scripts",
            may_act=lambda _request: self.pause,
            look_s=0.0,
            drains_look_s=0.0,
            start_check=self.checks,
        )

    def restart(self, limits: SlurmLimits | None = None) -> None:
        self.journal.close()
        self.limits = limits or self.limits
        self._open()

    def turns(self, after_s: float = 0.0) -> None:
        """Let time pass, then let the desk do all it can."""
        self.clock.unix += after_s
        for _turn in range(6):
            self.desk.turn()

    def drain(self, node: str, key: str) -> None:
        self.desk.ask(SchedulerRequest(key, SchedulerAction.DRAIN, (node,), reason="GPU 3 is bad"))
        self.turns()
        assert self.slurm.state[node] == "IDLE+DRAIN"

    def end_check(self, exit_code: int | None, text: str = "") -> None:
        self.checks.started[-1].ended = CheckEnd(exit_code, text)
        self.turns()


# A job of ours that finds no usable node in its allocation.
FINDING = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 2 was killed",
    job_id="1",
    attempt=1,
    node="n3",
    ranks=(2,),
    victims=(),
    since_age_s=1.0,
)
MOVE = Plan(PlanStep.MOVE, "leave n3; wait for a node", (), without=("n3",))
FAILURE = Failure(1, FINDING, 137, 2, None, 40, False, (0, 1, 2))
INCIDENT = OpenIncident(
    IncidentState("inc-1", 20, phase=Phase.RESTORING),
    FAILURE,
    40,
    FAILURE,
    Policy(),
    plan=MOVE,
    waits=(MOVE, "too few nodes"),
    waits_for=WaitsFor.NODES,
)
SLURM = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "2"}


def member(node: str, left: LeaveCause | None = None) -> Member:
    words = None if left is None else left.value
    return Member(node, "l", "b", 1, None, 0.0, 1, 1, 0, left=words, left_cause=left)


LEDGER = Ledger(
    incident=INCIDENT,
    members={
        "n1": member("n1"),
        "n2": member("n2"),
        "n3": member("n3", LeaveCause.BLAMED),
        "n4": member("n4", LeaveCause.SILENT),
    },
)
