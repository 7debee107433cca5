"""A controller with several nodes that carry out their orders, and gate, pool and power as a test likes them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from detectors.finding import Severity
from detectors.node.charges import ChargeVerdict, NodeCharge, judge_charge
from detectors.parts.fleet_parts import NO_PARTS, FleetPart
from recovery.controller.cluster.gate import Answer, Judgement, PlanRequest
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.job.controller import Controller
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.cluster_records import PowerOffAsked
from recovery.journal.records import Entry
from recovery.messages.candidates import Share
from recovery.messages.exchange import (
    Endpoint,
    Found,
    FoundCheckpoint,
    Order,
    RankExit,
    RankReport,
    Report,
)
from recovery.messages.outside import NodeEvidence, PersonAct, PersonCommand
from recovery.service.jobs.listening_clock import Hearing
from tests.support.clocks import FakeClock
from tests.support.controller_bench import POLICY, FakeJournal

SETTINGS = JobSettings(
    "0c1d6a52-job", "sim", "0", policy=POLICY, nodes_min=2, nodes_max=3, slots=1,
    controller_id="c-1",
)  # fmt: skip
SEARCHING = replace(SETTINGS, has_checkpoints=True, nodes_min=3)


class FakeNode:
    """A launcher that carries out its orders at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.launcher_id, self.boot_id, self.started_s = f"{name}-1", "boot-1", 1.0
        self.number, self.port, self.empty_through, self.revision = 0, 1000, 0, 0
        self.attempt = 0
        self.ranks: dict[int, RankReport] = {}
        self.orders: list[Order] = []
        self.found: Found | None = None
        self.slots, self.role = 1, ""
        self.is_silent = False
        self.unreachable: tuple[str, ...] = ()
        self.folder_id = "shared"
        self.known: tuple[FoundCheckpoint, ...] = ()
        self.told: dict[str, object] = {}  # of the checkpoint, where it differs
        self.look_error: str | None = None
        self.found_changes: dict[str, object] = {}  # of the answer, where it differs

    def take(self, order: Order) -> None:
        self.orders.append(order)
        if order.launcher_id != self.launcher_id or self.is_silent:
            return
        self.revision = order.revision
        if order.ranks and order.attempt > max(self.attempt, self.empty_through):
            self.empty_through = order.attempt - 1
            self.attempt, self.port = order.attempt, self.port + 1
            self.ranks = {
                rank: RankReport(rank, 0, 100 + rank, "S", attached_age_s=0.1)
                for rank in order.ranks
            }
        elif not order.ranks:
            self.empty_through = max(self.empty_through, order.attempt, self.attempt)
            self.attempt, self.ranks = 0, {}
        if order.finds_checkpoints:
            told = FoundCheckpoint(
                "/c/7", 7, "npz", 1, 1.0, True, "whole", share=order.share or Share()
            )
            told = replace(told, **self.told)
            found = Found(self.empty_through, (told,), self.look_error, order.revision)
            self.found = replace(found, **self.found_changes)

    def report(self) -> Report:
        self.number += 1
        return Report(
            1, self.name, self.boot_id, SETTINGS.job_id, self.revision, self.attempt,
            tuple(self.ranks.values()), self.empty_through, launcher_id=self.launcher_id,
            number=self.number, slots=self.slots, rendezvous=Endpoint(self.name, self.port),
            peer_endpoint=Endpoint(self.name, 7000), found=self.found,
            launcher_started_s=self.started_s, unreachable=self.unreachable,
            folder_id=self.folder_id, known=self.known, role=self.role,
        )  # fmt: skip


class Bench:
    """A controller with nodes that do as they are told; gate and pool of the test's choice."""

    def __init__(
        self, settings: JobSettings = SETTINGS, opened: Sequence[Entry] = (), names: str = "abc"
    ) -> None:
        self.clock = FakeClock()
        self.journal = FakeJournal(self.clock, opened)
        self.nodes = {name: FakeNode(name) for name in names}
        self.answer = Answer(Judgement.ALLOWED, "open")
        self.answer_standing: Answer | None = (
            None  # about ranks that do not train, where it differs
        )
        self.asked: list[PlanRequest] = []
        self.held: dict[str, str] = {}
        self.blamed: list[tuple[str, str]] = []
        self.taken_back: list[str] = []
        self.hearing = Hearing(self.clock)
        self.reported_at_s: dict[str, float] = {}
        self.lost: list[PowerOffAsked] = []  # whose power the job wants off
        self.switched_off: list[str] = []
        self.off: set[str] = set()  # nodes without power, by their BMCs
        self.control = Controller(
            self.journal, self, None, None, None, self.clock, settings,
            gate=self, pool=self, hearing=self.hearing, power=self, switch=self,
        )  # fmt: skip
        self.control.start()

    def send(self, order: Order) -> None:
        self.nodes[order.node].take(order)

    def judge(self, request: PlanRequest) -> Answer:
        self.asked.append(request)
        if request.is_standing and self.answer_standing is not None:
            return self.answer_standing
        return self.answer

    parts = NO_PARTS
    broken_parts: Mapping[FleetPart, str] = MappingProxyType({})
    accused_nodes: Collection[str] = ()
    doubted: Mapping[str, str] = MappingProxyType({})

    def doubts(self, _job_id: str, /) -> Mapping[str, str]:
        return self.doubted

    def accused(self, _job_id: str, /) -> Collection[str]:
        return self.accused_nodes

    def unusable(self, node: str) -> str | None:
        return self.held.get(node)

    def is_off(self, node: str, _silence: object) -> bool:
        """Tell that the nodes in `off` have no power."""
        return node in self.off

    def allow_off(self, asked: PowerOffAsked) -> bool:
        self.lost.append(asked)
        return len(self.lost) == 1

    def switch_off(self, node: str) -> None:
        assert PowerOffAsked(node, SETTINGS.job_id, self.lost[0].incident_id) in self.records(
            PowerOffAsked
        ), "journaled first"
        self.switched_off.append(node)
        self.off.add(node)

    def is_dry_for(self, _job_id: str) -> bool:
        return False

    def probe_rules(self, _job_id: str) -> ProbeRules:
        return ProbeRules()

    def note_charge(self, charge: NodeCharge) -> ChargeVerdict:
        counted = judge_charge(charge, (), (), 0.0, 0.0)
        if counted.counts:
            self.blamed.append((charge.node, charge.incident_id))
        return counted

    def take_back(self, _job_id: str, incident_ids: Sequence[str], _reason: str) -> None:
        self.taken_back += incident_ids

    def beat(self, seconds: float = 1.0, step: int | None = None, done: int | None = None) -> None:
        """Let all nodes report, every quarter of a second; ``done``: steps of these processes, where others made some before."""
        for _part in range(max(1, round(seconds * 4))):
            self.clock.time_s += 0.25
            for node in self.nodes.values():
                if step is not None:
                    node.ranks = {
                        rank: replace(
                            told, step=step, step_age_s=0.1, steps_done=step if done is None else done,
                            section="communication", section_age_s=0.1, sections_entered=step,
                        )
                        for rank, told in node.ranks.items()
                    }  # fmt: skip
                if not node.is_silent:
                    self.control.handle_report(node.report())
                    self.reported_at_s[node.name] = self.clock.time_s
            self.control.tick()

    def silent_for_s(self, name: str) -> float:
        """Return for how long a node has reported nothing."""
        return max(0.0, self.clock.time_s - self.reported_at_s.get(name, self.clock.time_s))

    def age(self, seconds: float) -> None:
        """Let time pass in which no rank advances."""
        for _second in range(round(seconds)):
            for node in self.nodes.values():
                node.ranks = {
                    rank: replace(
                        told,
                        step_age_s=None if told.step_age_s is None else told.step_age_s + 1.0,
                        section_age_s=None
                        if told.section_age_s is None
                        else told.section_age_s + 1.0,
                    )
                    for rank, told in node.ranks.items()
                }
            self.beat()

    def kill(self, name: str, signum: int = 9) -> None:
        node = self.nodes[name]
        ended = RankExit(0.1, None, signum, False, False, None, ())
        node.ranks = {
            rank: replace(told, process_state="", exit=ended) for rank, told in node.ranks.items()
        }

    def records(self, kind: type) -> list[object]:
        return [one.record for one in self.journal.entries if isinstance(one.record, kind)]

    @property
    def placed(self) -> list[str]:
        return [place.node for place in self.records(AttemptStarted)[-1].placement]


def make_training() -> Bench:
    """Return a job of two nodes and a spare, whose first attempt makes steps."""
    bench = Bench()
    bench.beat(1.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    assert bench.placed == ["a", "b"]
    return bench


def evidence(node: str, number: int = 0, **changes: object) -> NodeEvidence:
    told = NodeEvidence(
        f"{node}/{number}", "XidFatal", node, (), "GPU-1", Severity.CRITICAL, "reset_gpu",
        "Xid 79", 1.0,
    )  # fmt: skip
    return replace(told, **changes)


def command(act: PersonAct, node: str | None = None, key: str = "") -> PersonCommand:
    return PersonCommand(act, "ada", "because", None, node, key)


def last_word(node: FakeNode) -> Report:
    """What a launcher, or its guardian for it, says at its end."""
    return replace(
        node.report(), revision=0, attempt=0, ranks=(), number=0, rendezvous=None, leaving=True
    )
