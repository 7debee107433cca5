"""A job on several hosts under a simulated clock: the real controller, journal form and policy.

Simulated are the hosts (launchers and their last words, ranks, boots), the network between each two of them and the
controller (late, twice, lost, cut one way), the lease, alerts, people and the cluster's gate.
Everything random comes from one seed. The checkers state the rules where they could be broken:

- ranks of an attempt start only when no rank of another one is alive on any host;
- no attempt is started twice on a host, and none that its launcher has said to be gone;
- no rank is stopped because its attempt is unknown to a controller;
- an order says only what the journal says; budgets are kept, attempts never fall;
- ranks meet where no attempt has met before, and all of an attempt at the same place;
- ranks begin only from checkpoints that are whole;
- who is on record as ended has ended, and its ranks with it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import TypeVar

from detectors.finding import Severity
from detectors.hang.live import HungLimits
from detectors.node.charges import ChargeVerdict, NodeCharge, judge_charge
from detectors.parts.fleet_parts import NO_PARTS
from rankmend.errors import JournalError
from recovery.controller.cluster.gate import Answer, Judgement, PlanRequest
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.job.controller import Controller
from recovery.controller.job.nodes import orders_for
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import Adopted
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.job_records import JobOutcome
from recovery.journal.journal_rows import JournalRow
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.journal.node_records import FenceWaits, LaunchersEnded
from recovery.journal.records import Entry
from recovery.messages.candidates import CheckpointFormat, Share
from recovery.messages.codec import decode_order, decode_report, encode_message
from recovery.messages.exchange import (
    Claim,
    Endpoint,
    Found,
    FoundCheckpoint,
    Order,
    RankError,
    RankExit,
    RankReport,
    Report,
    StepTiming,
    Stop,
)
from recovery.messages.outside import NodeEvidence, PersonAct, PersonCommand
from recovery.service.jobs.listening_clock import Hearing
from tests.support.rank_ends import rank_end
from tests.support.rewording import Words, reword, without_words
from tests.support.simulation import CrashError, SimClock, SimCommitter, SimJournal, SimPen

_T = TypeVar("_T")

JOB_ID = "0c1d6a52-0000-4000-8000-000000000002"
SLOTS = 2
POLICY = Policy(
    fence_timeout_s=60.0,
    start_timeout_s=60.0,
    verify_timeout_s=240.0,
    join_wait_s=10.0,
    spare_wait_s=300.0,
    checkpoint_wait_s=200.0,
    hung=HungLimits(floor_s=60.0, ceil_s=120.0, stopped_floor_s=5.0, startup_s=90.0),
)
HORIZON_S = 6 * 3600.0
FULL_S = 20.0
OLD_COMES_BACK_S = 3.0  # a loss of the state of this length ends with two controllers
ROUNDS_MAX = 4  # of a starved controller's event loop until a report is read
CONTROLLER = "controller"
SIGKILL = 9


@dataclass(frozen=True)
class Trouble:
    """Something that happens once."""

    kind: str
    at_s: float
    node: int = 0
    lasts_s: float = 0.0


KINDS = (
    "kill_rank", "kill_rank", "exit_rank", "kill_host", "kill_host_for_good", "restart_launcher",
    "cut_controller", "cut_to_controller", "cut_from_controller", "isolate", "isolate", "mute",
    "alert", "false_alert", "old_alert", "burst", "resolved", "pause", "cancel", "restart",
    "leave_node", "approve", "crash", "disk_full", "clock_jump", "gate_waits", "stand_still",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What goes wrong in one run. All of it can be drawn from a seed."""

    seed: int
    hosts: int = 4
    nodes_min: int = 3
    nodes_max: int = 4
    shrink_multiple: int = 0
    steps: int = 120
    step_s: float = 1.0
    startup_s: float = 3.0
    checkpoint_every: int = 10
    troubles: tuple[Trouble, ...] = ()
    crashes: tuple[int, ...] = ()  # numbers of the boundaries, counted through
    is_network_bad: bool = False
    has_checkpoints: bool = True
    has_two_controllers: bool = False
    journal_fails: tuple[float, float] | None = None
    full_at: int = 0  # the boundary at which the controller's disk becomes full for a while
    torn_ratio: float = 0.0  # of checkpoints
    tears_tail: bool = False  # a crash while the journal is written leaves half of it
    commit_s: float = 0.0  # at most, for one commit; 0: each decision waits for the disk
    tells_unreachable: bool = False  # launchers report which peers they can't reach


def draw_setting(seed: int, *, ends_launchers: bool = True) -> Setting:
    """Return a setting that depends on the seed alone.

    ``ends_launchers``: launchers are killed or leave, too; seeds of before that keep what they drew.
    """
    random = Random(seed)
    hosts = random.choice([1, 2, 3, 4, 4, 6])
    nodes_min = random.randrange(1, hosts + 1)
    troubles = tuple(
        Trouble(
            random.choice(KINDS),
            random.uniform(0.5, 150.0),
            random.randrange(hosts),
            random.choice([3.0, 20.0, 60.0, 200.0]),
        )
        for _ in range(random.randrange(6))
    )
    if ends_launchers:
        troubles += _draw_ends(Random(-1 - seed), hosts)
    if ends_launchers:
        troubles += _draw_losses(Random(-5 - seed))
    own = Random(-2 - seed)  # so that what was drawn before there was this trouble stays as it was
    if own.random() < 0.2:
        lasts_s = own.choice([20.0, 60.0, 200.0])
        troubles += (Trouble("starved", own.uniform(0.5, 150.0), 0, lasts_s),)
    return Setting(
        seed=seed,
        hosts=hosts,
        nodes_min=nodes_min,
        nodes_max=hosts,
        shrink_multiple=random.choice([0, 0, SLOTS, 2 * SLOTS]) if nodes_min < hosts else 0,
        steps=random.randrange(20, 150),
        step_s=random.choice([0.5, 1.0, 2.0]),
        startup_s=random.uniform(0.5, 8.0),
        checkpoint_every=random.choice([3, 10, 1000]),
        troubles=troubles,
        crashes=tuple(sorted(random.randrange(1, 150) for _ in range(random.randrange(3)))),
        is_network_bad=random.random() < 0.6,
        has_checkpoints=random.random() < 0.9,
        has_two_controllers=random.random() < 0.08,
        torn_ratio=random.choice([0.0, 0.3, 1.0]),
        tears_tail=random.random() < 0.5,
        commit_s=Random(-6 - seed).choice([0.0, 0.0, 0.5, 8.0]),
    )


def _draw_losses(random: Random) -> tuple[Trouble, ...]:
    if random.random() >= 0.25:
        return ()
    lasts_s = random.choice([OLD_COMES_BACK_S, 20.0, 20.0, 20.0])
    return tuple(
        Trouble("lose_state", random.uniform(0.5, 200.0), 0, lasts_s)
        for _ in range(random.choice([1, 1, 2]))
    )


def _draw_ends(random: Random, hosts: int) -> tuple[Trouble, ...]:
    return tuple(
        Trouble(
            random.choice(["kill_launcher", "kill_launcher", "leave"]),
            random.uniform(0.5, 150.0),
            random.randrange(hosts),
            random.choice([0.5, 3.0, 20.0, 60.0, 2000.0]),
        )
        for _ in range(random.randrange(4))
    )


@dataclass
class Rank:
    rank: int
    pid: int
    exit: RankExit | None = None
    exited_at_s: float = 0.0


@dataclass
class Run:
    """All ranks of one attempt, wherever they are. They train in step."""

    number: int
    size: int
    base_step: int
    rendezvous: Endpoint
    nodes: dict[str, dict[int, Rank]] = field(default_factory=dict)
    ready_at_s: float | None = None
    frozen_at_s: float | None = None
    saved: int = 0

    @property
    def alive(self) -> list[str]:
        return [n for n, ranks in self.nodes.items() if any(r.exit is None for r in ranks.values())]


@dataclass(frozen=True)
class Saved:
    path: str
    step: int
    is_whole: bool = True


class Disk:
    """One controller's journal. The checkpoint folder is the world's."""

    def __init__(self, rows: list[JournalRow] | None = None) -> None:
        self.rows: list[JournalRow] = list(rows or [])


class Control:
    """A controller's host: its disk, and the process that may die at every boundary."""

    def __init__(self, world: "Cluster", disk: Disk, name: str) -> None:
        self.world, self.disk, self.name = world, disk, name
        self.random = world.random
        self.still_until_s = 0.0  # SIGSTOP: it neither hears nor does anything
        self.starved_until_s = 0.0  # others have its processor: it goes round when it may
        self.hearing = Hearing(world.clock)
        self.unread: list[tuple[Report, int, Callable[[], None]]] = []  # in its sockets
        self.queue: deque[tuple[Report, float]] = deque()  # between its two threads
        self.pauses = Random(-3 - world.setting.seed)
        self.clock = world.clock
        self.scenario = world.setting  # of the journal: when it fails
        self.journaled: Ledger = fold_all(())
        self.control: Controller | None = None
        self.outcome: JobOutcome | None = None
        self.starts = 0
        self.crossings = 0
        self.settings = world.settings
        self.reword = world.reword

    def is_in(self, window: tuple[float, float] | None) -> bool:
        return self.world.is_in(window) or self.world.is_disk_full

    def cross(self) -> None:
        self.crossings += 1
        if self.name == "a" and self.crossings == self.world.setting.full_at:
            self.world.fill_disk(FULL_S)
        if self.name == "a" and self.crossings in self.world.setting.crashes:
            raise CrashError

    @property
    def decided_by(self) -> tuple[int, str]:
        return self.journaled.epoch, self.journaled.controller_id

    def remember(self, entry: Entry) -> None:
        before, after = self.journaled, fold(self.journaled, entry)
        is_adopted = isinstance(entry.record, Adopted)
        assert is_adopted or after.attempt >= before.attempt, "an attempt number fell"
        assert after.restarts <= POLICY.restarts_max, "more restarts than allowed"
        assert after.epoch >= before.epoch, "an epoch fell"
        if isinstance(entry.record, LaunchersEnded):
            for one in entry.record.launchers:
                self.world.hosts[one.node].check_end(one.launcher_id)
        self.journaled = after

    def boot(self) -> None:
        if self.outcome is not None:
            return
        self.starts += 1
        self.hearing = Hearing(self.clock)
        self.hearing.beat()
        self.unread.clear()
        self.queue.clear()
        settings = replace(self.settings, controller_id=f"{self.name}-{self.starts}")
        try:
            self.settings_now = settings
            journal = SimJournal(self)
            self.journaled = fold_all(journal.opened)
            starts = self.starts
            committer = SimCommitter(
                self.clock, self.pauses, self.scenario.commit_s,
                lambda: self.control is None or self.starts != starts, self.crash,
            )  # fmt: skip
            pen = SimPen(journal, committer, self.clock, "boot-1")
            control = Controller(
                pen, self, None, None, None, self.clock, settings, self.world.read,
                gate=self.world, pool=self.world, hearing=self.hearing,
            )  # fmt: skip
            control.start()
        except CrashError:
            self.crash()
            return
        except JournalError:
            self.clock.call_after(5.0, self.boot)
            return
        if self.scenario.commit_s:
            pen.go_ahead()
        self.control = control
        self._tick(control)

    def _tick(self, control: Controller) -> None:
        if self.control is control:
            pause_s = 0.25
            if self.is_starved:
                pause_s = self.pauses.uniform(0.25, 8.0)
            if not self.stands_still:
                if self.pauses.random() < 0.5 or not self.is_starved:
                    self._go_round()
                self._take_reports(self.pauses.randrange(8) if self.is_starved else len(self.queue))
                self.guarded(lambda it: it.tick())
            self.clock.call_after(pause_s, lambda: self._tick(control))

    def _go_round(self) -> None:
        """What the event loop does: reads its sockets, and answers."""
        self.hearing.beat()
        unread, self.unread = self.unread, []
        for report, rounds, answer in unread:
            if rounds > 1 and self.is_starved:
                self.unread.append((report, rounds - 1, answer))
                continue
            self.queue.append((report, self.hearing.listened_s()))
            answer()

    def _take_reports(self, count: int) -> None:
        """What the deciding thread does: it takes out as many as it may."""
        for _turn in range(min(count, len(self.queue))):
            if not self.queue:
                return  # it has crashed
            report, at_s = self.queue.popleft()
            self.hearing.hear_through(at_s)
            self.guarded(lambda it, told=report: it.handle_report(told))
        oldest_s = self.queue[0][1] if self.queue else self.hearing.listened_s()
        self.hearing.hear_through(oldest_s)

    @property
    def is_starved(self) -> bool:
        return self.clock.now_s() < self.starved_until_s

    @property
    def stands_still(self) -> bool:
        return self.clock.now_s() < self.still_until_s

    def guarded(self, action: Callable[[Controller], None]) -> None:
        control = self.control
        if control is None:
            return
        try:
            action(control)
        except CrashError:
            self.crash()
            return
        if control.outcome is not None:
            self.outcome, self.control = control.outcome, None
            self.world.note_end(self)

    def lose(self, kept: int) -> None:
        """Die, and find only the first records of the journal afterwards."""
        del self.disk.rows[kept:]
        if self.control is not None:
            self.crash()

    def crash(self) -> None:
        self.control = None
        self.world.crashed += 1
        self.clock.call_after(self.world.random.uniform(0.1, 40.0), self.boot)

    def send(self, order: Order) -> None:
        self.cross()
        control = self.control
        if control is None or control.journal_error is None:
            assert order in orders_for(self.journaled, self.settings_now), "acted, not journaled"
        else:
            is_known = order in orders_for(self.journaled, self.settings_now)
            assert is_known or (not order.ranks and order.stop is Stop.GRACE)
        self.world.ordered.append(order)
        body = encode_message(self.reword(order))
        host = self.world.hosts.get(order.node)
        if host is not None:
            self.world.deliver(CONTROLLER, order.node, lambda: host.take(decode_order(body)))
        self.cross()

    def hear(self, body: bytes, answer: Callable[[], None]) -> None:
        if self.control is None or self.stands_still:
            return  # who asks waits no longer than a report's time-out, and asks again
        report = decode_report(body)
        if not self.is_starved:
            self.unread.append((report, 1, answer))
            self._go_round()
            self._take_reports(len(self.queue))
            return
        waiting = {
            (one.node, one.launcher_id, one.leaving) for one, _rounds, _answer in self.unread
        }
        if (report.node, report.launcher_id, report.leaving) not in waiting:
            # Head, handler, body and answer may each take a round; who waits for its answer says no more.
            self.unread.append((report, self.pauses.randint(1, ROUNDS_MAX), answer))


class Cluster:
    """Hosts, their network, and one controller; two by mistake."""

    def __init__(self, setting: Setting, words: Words | None = None) -> None:
        """``words`` replaces every text for people in what is journaled, reported and ordered."""
        self.setting = setting
        self.rewording = words
        self.ordered: list[Order] = []
        self.clock = SimClock()
        self.random = Random(setting.seed)
        self.words = Random(-1 - setting.seed)  # of last words alone
        self.losses = Random(-4 - setting.seed)  # of the controller's state
        self.lost: list[JournalRow] = []  # the journal that was lost last
        self.began_s = self.clock.now_s()
        self.crashed = 0
        self.adopted = 0
        self.waited: str | None = None
        self.said = 0  # last words
        self.is_disk_full = False
        self.gate_waits_until_s = 0.0
        self.fence = 0
        self.checkpoints: list[Saved] = []
        self.runs: dict[tuple[int, Endpoint], Run] = {}  # by attempt and place to meet
        self.launched: list[tuple[int, str]] = []
        self.met: dict[tuple[str, int], int] = {}
        self.cuts: dict[tuple[str, str], float] = {}  # one way, until when
        self.dark_until_s = 0.0  # no message of rankmend arrives before
        self.blamed: list[tuple[str, str]] = []
        self.settings = JobSettings(
            JOB_ID, "sim", "0", policy=POLICY, grace_s=20.0,
            nodes_min=setting.nodes_min, nodes_max=setting.nodes_max, slots=SLOTS,
            shrink_multiple=setting.shrink_multiple, has_checkpoints=setting.has_checkpoints,
            hears_evidence=True,
        )  # fmt: skip
        self.control = Control(self, Disk(), "a")
        self.other: Control | None = None
        self.hosts = {f"n{number}": Host(self, f"n{number}") for number in range(setting.hosts)}

    @property
    def outcome(self) -> JobOutcome | None:
        other, control = self.other, self.control.control
        if other is not None and control is not None and control.waits is not None:
            return other.outcome  # the job's launchers have followed that one to the end
        return self.control.outcome

    def reword(self, value: _T) -> _T:
        return value if self.rewording is None else reword(value, self.rewording)

    # The cluster's gate and pool.

    def judge(self, request: PlanRequest) -> Answer:
        if self.clock.now_s() < self.gate_waits_until_s and request.approved_by is None:
            return self.reword(Answer(Judgement.WAIT, "a maintenance window"))
        return self.reword(Answer(Judgement.ALLOWED, "open"))

    parts = NO_PARTS
    broken_parts = MappingProxyType({})

    def doubts(self, _job_id: str, /) -> dict[str, str]:
        return {}

    def accused(self, _job_id: str, /) -> tuple[str, ...]:
        return ()

    def unusable(self, _node: str) -> str | None:
        return None

    def is_dry_for(self, _job_id: str) -> bool:
        return False

    def probe_rules(self, _job_id: str) -> ProbeRules:
        return ProbeRules()

    def note_charge(self, charge: NodeCharge) -> ChargeVerdict:
        self.blamed.append((charge.incident_id, charge.node))
        return judge_charge(charge, (), (), 0.0, 0.0)

    def take_back(self, _job_id: str, _incident_ids: Sequence[str], _reason: str) -> None:
        return

    # The network.

    def is_in(self, window: tuple[float, float] | None) -> bool:
        return window is not None and window[0] <= self.clock.now_s() - self.began_s < window[1]

    def reaches(self, sender: str, receiver: str) -> bool:
        """Return whether a message of rankmend arrives."""
        return self.clock.now_s() >= self.dark_until_s and self.is_linked(sender, receiver)

    def is_linked(self, sender: str, receiver: str) -> bool:
        return self.cuts.get((sender, receiver), 0.0) <= self.clock.now_s()

    def cut(self, sender: str, receiver: str, lasts_s: float) -> None:
        self.cuts[sender, receiver] = self.clock.now_s() + lasts_s

    def deliver(self, sender: str, receiver: str, action: Callable[[], None]) -> None:
        """Have a message arrive, the way the network lets it."""
        random = self.random

        def arrive() -> None:
            if self.reaches(sender, receiver):
                action()

        if not self.reaches(sender, receiver):
            return
        if not self.setting.is_network_bad:
            self.clock.call_after(0.001, arrive)
            return
        if random.random() < 0.1:
            return
        for _copy in range(2 if random.random() < 0.15 else 1):
            self.clock.call_after(random.uniform(0.0, 1.5), arrive)

    # Life.

    def run(self) -> "Cluster":
        """Run the job to its end and check what must hold then."""
        for host in self.hosts.values():
            self.clock.call_after(self.random.uniform(0.0, 8.0), host.boot)
        self.control.boot()
        for trouble in self.setting.troubles:
            self.clock.call_after(trouble.at_s, lambda it=trouble: self._cause(it))
        self.clock.call_after(600.0, self._read_status)
        if self.setting.has_two_controllers:
            self.clock.call_after(self.random.uniform(5.0, 90.0), self._start_other)
        self.clock.run(lambda: self.outcome is not None, self.began_s + HORIZON_S)
        assert self.outcome is not None, (
            f"no end within {HORIZON_S:.0f} s: {self.control.journaled}"
        )
        folded = fold_all(SimJournal(self.control).opened)
        assert folded == self.control.journaled
        has_ended = self.control.outcome is not None  # and not under another controller
        if has_ended and not self.is_disk_full and self.setting.journal_fails is None:
            assert folded.incident is None, "an incident never ended"
        return self

    def read(self, entry: Entry) -> None:
        """Somebody reads what rankmend tells, and looks at the nodes that it asks about."""
        if isinstance(entry.record, Adopted) and entry.record.is_history_lost:
            self.adopted += 1
            after_s = self.losses.uniform(60, 300)
            self.clock.call_after(after_s, lambda: self._order(PersonAct.RESET_BUDGETS))
        if isinstance(entry.record, FenceWaits):
            nodes = entry.record.nodes
            self.clock.call_after(self.random.uniform(60, 300), lambda: self._look_at(nodes))

    def _look_at(self, nodes: tuple[str, ...]) -> None:
        for name in nodes:
            if not self.hosts[name].is_up:
                self._order(PersonAct.CONFIRM_GONE, self.hosts[name])

    def note_end(self, control: Control) -> None:
        if control is self.control and self.other is not None:
            self.other.control = None

    def _start_other(self) -> None:
        """Somebody starts a second controller on a copy of the journal."""
        if self.outcome is None and self.control.disk.rows:
            self.other = Control(self, Disk(self.control.disk.rows), "b")
            self.other.boot()

    @property
    def controls(self) -> list[Control]:
        return [self.control] if self.other is None else [self.control, self.other]

    def _cause(self, trouble: Trouble) -> None:
        name = f"n{trouble.node % self.setting.hosts}"
        getattr(self, f"_{trouble.kind}")(self.hosts[name], trouble)

    def _kill_rank(self, host: "Host", _trouble: Trouble) -> None:
        host.fail_rank(None, SIGKILL)

    def _exit_rank(self, host: "Host", _trouble: Trouble) -> None:
        host.fail_rank(1, None)

    def _kill_host(self, host: "Host", _trouble: Trouble) -> None:
        host.die()
        self.clock.call_after(self.random.uniform(15.0, 120.0), host.boot)

    def _kill_host_for_good(self, host: "Host", _trouble: Trouble) -> None:
        host.die()

    def _restart_launcher(self, host: "Host", _trouble: Trouble) -> None:
        host.restart_launcher()

    def _kill_launcher(self, host: "Host", trouble: Trouble) -> None:
        host.kill_launcher(trouble.lasts_s)

    def _leave(self, host: "Host", trouble: Trouble) -> None:
        host.leave(trouble.lasts_s)

    def _cut_controller(self, host: "Host", trouble: Trouble) -> None:
        self.cut(host.name, CONTROLLER, trouble.lasts_s)
        self.cut(CONTROLLER, host.name, trouble.lasts_s)

    def _cut_to_controller(self, host: "Host", trouble: Trouble) -> None:
        self.cut(host.name, CONTROLLER, trouble.lasts_s)

    def _cut_from_controller(self, host: "Host", trouble: Trouble) -> None:
        self.cut(CONTROLLER, host.name, trouble.lasts_s)

    def _isolate(self, host: "Host", trouble: Trouble) -> None:
        """Cut a host, or it and its neighbour, off from everybody else."""
        inside = {host.name}
        if self.random.random() < 0.3:
            inside.add(f"n{(trouble.node + 1) % self.setting.hosts}")
        for one in inside:
            for other in (CONTROLLER, *self.hosts):
                if other not in inside:
                    self.cut(one, other, trouble.lasts_s)
                    self.cut(other, one, trouble.lasts_s)
        self.break_runs()

    def _tear(self, host: "Host", trouble: Trouble) -> None:
        """Two hosts of the attempt lose each other; the controller hears both."""
        placed = [place.node for place in self.control.journaled.placement]
        other = next((node for node in placed if node != host.name), host.name)
        self.cut(host.name, other, trouble.lasts_s)
        self.cut(other, host.name, trouble.lasts_s)
        self.break_runs()

    def _mute(self, _host: "Host", trouble: Trouble) -> None:
        """The controller hears nobody."""
        for name in self.hosts:
            self.cut(name, CONTROLLER, trouble.lasts_s)

    def _blackout(self, _host: "Host", trouble: Trouble) -> None:
        """The control network is gone: no launcher reaches anybody. The ranks have their own."""
        self.dark_until_s = self.clock.now_s() + trouble.lasts_s

    def _tell(self, evidence: NodeEvidence) -> None:
        evidence = self.reword(evidence)
        for control in self.controls:
            control.guarded(lambda it: it.take_evidence(evidence))

    def _evidence(self, host: "Host", number: int, **changes: object) -> NodeEvidence:
        evidence = NodeEvidence(
            f"{host.name}-{number}", "XidFatal", host.name, (), f"GPU-{number}",
            Severity.CRITICAL, "reset_gpu", "Xid 79", 1.0,
        )  # fmt: skip
        return replace(evidence, **changes)

    def _alert(self, host: "Host", trouble: Trouble) -> None:
        """A device dies: the alert, sooner or later than the rank."""
        evidence = self._evidence(host, 0)
        self.clock.call_after(self.random.uniform(0.0, 8.0), lambda: self._tell(evidence))
        self._kill_rank(host, trouble)

    def _false_alert(self, host: "Host", _trouble: Trouble) -> None:
        """A scheduler says that a node is down, and it is not."""
        self._tell(self._evidence(host, 1, device="", alertname="NodeDown", action="drain"))

    def _old_alert(self, host: "Host", _trouble: Trouble) -> None:
        self._tell(self._evidence(host, 2, since_age_s=7200.0))

    def _burst(self, host: "Host", trouble: Trouble) -> None:
        for number in range(40):
            self._tell(self._evidence(host, 10 + number))
        self._kill_rank(host, trouble)

    def _resolved(self, host: "Host", trouble: Trouble) -> None:
        self._alert(host, trouble)
        gone = self._evidence(host, 0, is_active=False)
        self.clock.call_after(3.0, lambda: self._tell(gone))

    def _order(self, act: PersonAct, host: "Host | None" = None) -> None:
        key = str(self.random.random())
        node = None if host is None else host.name
        command = self.reword(PersonCommand(act, "ada", "as a test", None, node, key))

        def command_twice(control: Controller) -> None:
            try:
                number = control.ledger.number
                result = control.take_command(command)
                assert control.ledger.number > number
                number = control.ledger.number
                again = control.take_command(command)
                assert without_words(again) == without_words(result)
                assert control.ledger.number == number, "a repeated command did something"
            except JournalError:
                return

        is_for_all = act in (PersonAct.RESET_BUDGETS, PersonAct.RESUME)
        for control in self.controls if is_for_all else [self.control]:
            control.guarded(command_twice)

    def _pause(self, _host: "Host", trouble: Trouble) -> None:
        self._order(PersonAct.PAUSE)
        self._resume_later(trouble)

    def _resume_later(self, trouble: Trouble) -> None:
        """A person comes back as often as it takes."""

        def resume() -> None:
            if self.outcome is None and self.control.journaled.paused_by is not None:
                self._order(PersonAct.RESUME)
                self.clock.call_after(20.0, resume)

        self.clock.call_after(trouble.lasts_s, resume)
        self.clock.call_after(trouble.lasts_s + 300.0, resume)

    def _cancel(self, _host: "Host", trouble: Trouble) -> None:
        self._order(PersonAct.CANCEL)
        self._resume_later(trouble)

    def _restart(self, _host: "Host", _trouble: Trouble) -> None:
        self._order(PersonAct.RESTART)

    def _leave_node(self, host: "Host", _trouble: Trouble) -> None:
        self._order(PersonAct.LEAVE_NODE, host)

    def _approve(self, _host: "Host", _trouble: Trouble) -> None:
        self._order(PersonAct.APPROVE)

    def _crash(self, _host: "Host", _trouble: Trouble) -> None:
        if self.control.control is not None:
            self.control.crash()

    def _lose_state(self, _host: "Host", trouble: Trouble) -> None:
        """The controller dies, and its folder with it, or all but its first records."""
        control = self.control
        if control.outcome is None:
            self.lost = list(control.disk.rows)
            kept = self.losses.choice([0, 0, 0, self.losses.randrange(len(self.lost) + 1)])
            control.lose(kept)
            if trouble.lasts_s == OLD_COMES_BACK_S:
                self.clock.call_after(self.losses.uniform(5.0, 90.0), self._bring_old_back)

    def _read_status(self) -> None:
        """Check the status now and then, and restart the launchers if the controller asks for it."""
        control = self.control.control
        waits = None if control is None else control.waits
        if waits is not None and "restart the launchers" in waits and waits == self.waited:
            for host in self.hosts.values():
                host.restart_launcher()
            waits = None
        self.waited = waits
        if any(one.journaled.unconfirmed is not None for one in self.controls):
            self._order(PersonAct.RESET_BUDGETS)
        if self.other is not None and self.other.journaled.paused_by is not None:
            self._order(PersonAct.RESUME)
        self.clock.call_after(600.0, self._read_status)

    def _bring_old_back(self) -> None:
        """Somebody finds the old folder, and starts a second controller on it."""
        if self.outcome is None and self.other is None:
            self.other = Control(self, Disk(self.lost), "b")
            self.other.boot()

    def _disk_full(self, _host: "Host", trouble: Trouble) -> None:
        self.fill_disk(trouble.lasts_s)

    def fill_disk(self, lasts_s: float) -> None:
        self.is_disk_full = True

        def free() -> None:
            self.is_disk_full = False

        self.clock.call_after(lasts_s, free)

    def _stand_still(self, _host: "Host", trouble: Trouble) -> None:
        """The controller's process is stopped, or its machine swaps."""
        self.control.still_until_s = self.clock.now_s() + trouble.lasts_s

    def _starved(self, _host: "Host", trouble: Trouble) -> None:
        """Reports reach the controller late, and it goes round late."""
        self.control.starved_until_s = self.clock.now_s() + trouble.lasts_s

    def _clock_jump(self, _host: "Host", _trouble: Trouble) -> None:
        self.clock.jumped_s = self.random.uniform(-86400.0, 86400.0)

    def _gate_waits(self, _host: "Host", trouble: Trouble) -> None:
        self.gate_waits_until_s = self.clock.now_s() + trouble.lasts_s

    # Training.

    def launch(self, host: "Host", order: Order) -> None:
        now_s = self.clock.now_s()
        assert order.rendezvous is not None
        key = (order.attempt, order.rendezvous)
        alive = {n: run.alive for n, run in self.runs.items() if n != key and run.alive}
        if self.other is not None:
            # Two controllers of one epoch: each launcher obeys the first that it heard, so that
            # both may start ranks, and neither all of them.
            alive = {n: names for n, names in alive.items() if self.runs[n].ready_at_s}
            other = self.other.journaled
            if other.epoch == self.control.journaled.epoch and not self._completes(order):
                alive = {}
        assert not alive, f"attempt {order.attempt} starts beside {alive} at {now_s}"
        assert (order.attempt, host.name) not in self.launched, "an attempt was started twice"
        self.launched.append((order.attempt, host.name))
        self.fence = max(self.fence, order.attempt)
        place = (order.rendezvous.address, order.rendezvous.port)
        assert self.met.setdefault(place, order.attempt) == order.attempt, "met here before"
        base = 0
        if order.restore is not None:
            saved = {one.path: one.step for one in self.checkpoints if one.is_whole}
            assert order.restore.path in saved, "a torn checkpoint is restored"
            base = saved[order.restore.path]
        new = Run(order.attempt, order.world_size, base, order.rendezvous)
        run = self.runs.setdefault(key, new)
        assert run.size == order.world_size
        others = {rank for ranks in run.nodes.values() for rank in ranks}
        assert others.isdisjoint(order.ranks), "a rank was started twice"
        run.nodes[host.name] = {rank: Rank(rank, 1000 + rank) for rank in order.ranks}
        if sum(len(ranks) for ranks in run.nodes.values()) == run.size:
            run.ready_at_s = now_s + self.setting.startup_s
        self.break_runs()

    def _completes(self, order: Order) -> bool:
        """Return whether the attempt has all its ranks with those of the order."""
        run = self.runs.get((order.attempt, order.rendezvous))
        there = 0 if run is None else sum(len(ranks) for ranks in run.nodes.values())
        return there + len(order.ranks) == order.world_size

    def steps(self, run: Run) -> int:
        if run.ready_at_s is None:
            return 0
        until_s = self.clock.now_s() if run.frozen_at_s is None else run.frozen_at_s
        made = int(max(0.0, until_s - run.ready_at_s) / self.setting.step_s)
        return min(made, max(0, self.setting.steps - run.base_step))

    def progress(self, run: Run) -> None:
        """Let the training have done what it did since the last look."""
        made = self.steps(run)
        while run.saved + self.setting.checkpoint_every <= made:
            run.saved += self.setting.checkpoint_every
            if self.fence == run.number and self.setting.has_checkpoints:
                step = run.base_step + run.saved
                is_whole = self.random.random() >= self.setting.torn_ratio
                path = f"/c/{len(self.checkpoints)}-{step}"
                self.checkpoints.append(Saved(path, step, is_whole))
        if (
            run.frozen_at_s is None
            and run.base_step + made >= self.setting.steps
            and run.ready_at_s
        ):
            run.frozen_at_s = self.clock.now_s()
            for name in run.nodes:
                self.clock.call_after(
                    self.random.uniform(0.0, 2.0), lambda n=name: self.hosts[n].finish(run)
                )

    def break_runs(self) -> None:
        """What a rank's death or a cut between two hosts does to the others of its attempt."""
        for run in self.runs.values():
            if run.frozen_at_s is not None or not run.alive:
                continue
            names = list(run.nodes)
            is_torn = any(
                not self.is_linked(one, other) for one in names for other in names if one != other
            )
            is_short = any(
                rank.exit is not None for ranks in run.nodes.values() for rank in ranks.values()
            )
            if is_torn or is_short:
                self.progress(run)
                run.frozen_at_s = run.frozen_at_s or self.clock.now_s()
                # The others lose it at once, or when their collectives time out.
                is_slow = self.random.random() < 0.3
                for name in names:
                    delay_s = self.random.uniform(*((300.0, 600.0) if is_slow else (0.05, 30.0)))
                    self.clock.call_after(
                        delay_s, lambda n=name, it=run: self.hosts[n].lose_peers(it)
                    )


class Host:
    """A host: its boot, its launcher and what that runs."""

    def __init__(self, world: Cluster, name: str) -> None:
        self.name = name
        self._world, self._clock = world, world.clock
        self._boots = 0
        self._starts = 0
        self._port = 20_000
        self._drift = 1.0 + world.random.uniform(-5e-4, 5e-4)
        self.launcher_id = ""  # empty: none runs
        self.is_up = False

    def boot(self) -> None:
        if not self.is_up:
            self.is_up = True
            self._boots += 1
            self._start_launcher()

    def _start_launcher(self) -> None:
        self._end_ranks()  # a guardian that still kills is killed, and what it had not killed
        self._starts += 1
        self.launcher_id = f"{self.name}-launcher-{self._starts}"
        self._started_s = self._clock.now_s()
        self._number = 0
        self._wanted: Order | None = None
        self._carried = 0
        self._empty_through = 0
        self._killing = 0
        self._epoch: tuple[int, str] = (0, "")  # of the controller that it follows
        self._followed_at_s = self._clock.now_s()
        self._answered_by: tuple[int, str] = (0, "")
        self._standing: Order | None = None
        self._contact_s = self._clock.now_s()
        self._found: Found | None = None
        self.run: Run | None = None
        self._beat(self.launcher_id)

    def die(self) -> None:
        """The host loses its power."""
        if self.is_up:
            self.is_up = False
            self._end_launcher()

    def _end_launcher(self) -> None:
        self.launcher_id = ""
        self._end_ranks()

    def _end_ranks(self) -> None:
        run, self.run = self._run_here(), None
        if run is not None:
            self._world.progress(run)
            for rank in run.nodes[self.name].values():
                self._end(rank, None, SIGKILL, by_launcher=True)
        self._world.break_runs()

    def restart_launcher(self) -> None:
        if self.launcher_id:
            self._end_launcher()
            self._clock.call_after(
                self._world.random.uniform(0.5, 5.0),
                lambda: self._start_launcher() if self.is_up and not self.launcher_id else None,
            )

    def kill_launcher(self, away_s: float) -> None:
        """Its guardian kills the ranks, and perhaps says so: late, twice, or after a successor."""
        if not self.launcher_id:
            return
        words, boots, run = self._world.words, self._boots, self._run_here()
        word = self._last_word(run.number if run else 0)
        self.launcher_id = ""
        ended_s = words.uniform(0.01, POLICY.kill_bound_s * 0.5)
        pauses = [words.choice([0.1, 3.0, 10.0, 60.0]) for _ in range(words.choice([0, 1, 2, 3]))]

        def end() -> None:
            if self._boots == boots and not self.launcher_id:
                self._end_ranks()
                for pause_s in pauses:
                    self._clock.call_after(
                        pause_s * words.random(), lambda: self._send_word(word, boots)
                    )

        self._clock.call_after(ended_s, end)
        self._come_back(away_s, boots)

    def leave(self, away_s: float) -> None:
        """Somebody ends the launcher of a spare."""
        if not self.launcher_id or self._run_here() is not None:
            return
        if self._wanted is not None and self._wanted.ranks:
            return
        word, boots = self._last_word(0), self._boots
        self.launcher_id = ""
        for pause_s in (0.0, 0.6, 1.2, 1.8):
            self._clock.call_after(pause_s, lambda: self._send_word(word, boots))
        self._come_back(away_s, boots)

    def _come_back(self, away_s: float, boots: int) -> None:
        def start() -> None:
            if self.is_up and self._boots == boots and not self.launcher_id:
                self._start_launcher()

        self._clock.call_after(away_s, start)

    def _last_word(self, attempt: int) -> bytes:
        word = Report(
            version=1,
            node=self.name,
            boot_id=f"{self.name}-boot-{self._boots}",
            job_id=JOB_ID,
            revision=0,
            attempt=0,
            ranks=(),
            empty_through=max(attempt, self._empty_through),
            launcher_id=self.launcher_id,
            slots=SLOTS,
            launcher_started_s=self._started_s,
            leaving=True,
        )
        return encode_message(word)

    def _send_word(self, word: bytes, boots: int) -> None:
        if not self.is_up or self._boots != boots:
            return  # whoever was to say it is gone with its boot
        self._world.said += 1
        for control in self._world.controls:
            self._world.deliver(
                self.name, CONTROLLER, lambda to=control: to.hear(word, lambda: None)
            )

    def check_end(self, launcher_id: str) -> None:
        assert self.launcher_id != launcher_id, f"{launcher_id} lives, and is called dead"
        assert self.launcher_id or self._run_here() is None, f"{launcher_id} left ranks"

    def _run_here(self) -> Run | None:
        run = getattr(self, "run", None)
        return run if run is not None and self.name in run.nodes else None

    # Ranks.

    def _end(
        self,
        rank: Rank,
        exit_code: int | None,
        signal: int | None,
        *,
        by_launcher: bool = False,
        error: RankError | None = None,
    ) -> None:
        if rank.exit is None:
            rank.exit = rank_end(exit_code, signal, error, by_launcher=by_launcher)
            rank.exited_at_s = self._clock.now_s()

    def fail_rank(self, exit_code: int | None, signal: int | None) -> None:
        run = self._run_here()
        if run is None or not self.is_up:
            return
        self._world.progress(run)
        number = self._world.random.randrange(10**6)
        error = RankError("ValueError", f"odd {'x' * (number % 7)}", "") if exit_code else None
        rank = self._world.random.choice(sorted(run.nodes[self.name]))
        self._end(run.nodes[self.name][rank], exit_code, signal, error=error)
        self._world.break_runs()
        self._tell()

    def lose_peers(self, run: Run) -> None:
        if self.is_up and self.run is run and run.frozen_at_s is not None:
            error = RankError("RuntimeError", "Connection closed by peer [127.0.0.1]:4711", "")
            for rank in run.nodes[self.name].values():
                self._end(rank, 1, None, error=error)
            self._tell()

    def finish(self, run: Run) -> None:
        if self.is_up and self.run is run:
            for rank in run.nodes[self.name].values():
                self._end(rank, 0, None)
            self._kill(run.number)
            self._tell()

    # Orders.

    def take(self, order: Order) -> None:
        if not self.launcher_id or order.launcher_id != self.launcher_id:
            return
        seen = (order.epoch, order.controller_id)
        if order.epoch < self._epoch[0] or (
            order.epoch == self._epoch[0] and order.controller_id != self._epoch[1]
        ):
            return
        if seen != self._epoch:
            self._epoch, self._wanted = seen, None
            self._followed_at_s = self._clock.now_s()
        elif self._wanted is not None and order.revision <= self._wanted.revision:
            return
        run = self._run_here()
        is_unknown = run is not None and order.attempt < run.number and self.name in run.alive
        if self._world.setting.has_two_controllers:  # of a copy's an order may be under way
            is_unknown = False
        assert not is_unknown, f"attempt {run.number} is stopped for being unknown"
        self._wanted, self._carried = order, 0
        if order.ranks or self._standing is None or self._standing.attempt != order.attempt:
            self._standing = order
        self._reconcile()

    def _reconcile(self) -> None:
        order, run = self._wanted, self._run_here()
        if order is None or self._carried == order.revision or not self.launcher_id:
            return
        if not (run is not None and run.number == order.attempt and order.ranks):
            through = order.attempt if not order.ranks else order.attempt - 1
            if run is not None:
                through = max(through, run.number)
            if self._empty_through < through:
                self._kill(through)
                return
            self.run = None
            if order.ranks and order.attempt > self._empty_through:
                self._contact_s = self._clock.now_s()
                self._world.launch(self, order)
                self.run = self._world.runs[order.attempt, order.rendezvous]
                self._port += 1
        self._carried = order.revision
        if order.finds_checkpoints:
            self._find(order)
        self._tell()

    def _find(self, order: Order) -> None:
        world = self._world
        journaled = world.control.journaled
        if world.other is None and journaled.revision == order.revision:  # else it came late
            alive = [number for number, run in world.runs.items() if run.alive]
            assert not alive, f"looked for checkpoints while attempts {alive} could write"
        saved = tuple(
            FoundCheckpoint(
                one.path,
                one.step,
                CheckpointFormat.NPZ.value,
                1,
                1.0,
                one.is_whole,
                "whole" if one.is_whole else "torn",
                share=order.share or Share(),
            )
            for one in reversed(world.checkpoints[-20:])
        )
        self._found = Found(self._empty_through, saved, None, order.revision)

    def _kill(self, through: int) -> None:
        if self._killing >= through or not self.launcher_id:
            return
        self._killing = through
        delay_s = self._world.random.uniform(0.01, POLICY.kill_bound_s * 0.5)
        launcher_id = self.launcher_id
        self._clock.call_after(delay_s, lambda: self._killed(launcher_id, through))

    def _killed(self, launcher_id: str, through: int) -> None:
        if self.launcher_id != launcher_id:
            return
        run = self._run_here()
        if run is not None and run.number <= through:
            self._world.progress(run)
            for rank in run.nodes[self.name].values():
                self._end(rank, None, SIGKILL, by_launcher=True)
            self._world.break_runs()
        self._empty_through = max(self._empty_through, through)
        self._reconcile()
        self._tell()

    # Lease.

    def runs_attempt(self, attempt: int) -> bool:
        """Answer a peer: whether this launcher still runs the attempt."""
        run = self._run_here()
        return bool(
            self.launcher_id and run and run.number == attempt and self._empty_through < attempt
        )

    def _check_lease(self) -> None:
        order, run = self._wanted, self._run_here()
        if order is None or run is None or not order.lease_s or run.number != order.attempt:
            return
        if self._empty_through >= run.number:
            return
        world = self._world
        reached = 0
        for peer in order.peers:
            there = world.hosts[peer.node]
            is_there = peer.node == self.name or (
                world.reaches(self.name, peer.node) and world.reaches(peer.node, self.name)
            )
            reached += is_there and there.runs_attempt(run.number)
        if 2 * reached > len(order.peers):
            self._contact_s = self._clock.now_s()
        if (self._clock.now_s() - self._contact_s) * self._drift >= order.lease_s:
            self._kill(run.number)

    # Reports.

    def _beat(self, launcher_id: str) -> None:
        if self.launcher_id != launcher_id:
            return
        run = self._run_here()
        if run is not None:
            self._world.progress(run)
            self._world.break_runs()
        self._check_lease()
        self._reconcile()
        self._tell()
        self._clock.call_after(0.5, lambda: self._beat(launcher_id))

    def _tell(self) -> None:
        if not self.launcher_id:
            return
        world, run, now_s = self._world, self._run_here(), self._clock.now_s()
        self._number += 1
        report = Report(
            version=1,
            node=self.name,
            boot_id=f"{self.name}-boot-{self._boots}",
            job_id=JOB_ID,
            revision=self._carried,
            attempt=run.number if run else 0,
            ranks=tuple(self._tell_rank(run, r) for r in run.nodes[self.name].values())
            if run
            else (),
            empty_through=self._empty_through,
            launcher_id=self.launcher_id,
            number=self._number,
            slots=SLOTS,
            rendezvous=Endpoint(self.name, self._port + 1000 * self._starts),
            peer_endpoint=Endpoint(self.name, 7000 + self._starts),
            fence_attempt=world.fence or None,
            found=self._found,
            launcher_started_s=self._started_s,
            epoch=self._epoch[0],
            controller_id=self._epoch[1],
            claim=self._claim(),
            unreachable=self._unreachable(),
            folder_id="shared",
        )
        body, launcher_id = encode_message(world.reword(report)), self.launcher_id

        def answered(by: tuple[int, str]) -> None:
            if self.launcher_id == launcher_id:
                self._contact_s = max(self._contact_s, now_s)
                self._answered_by = by
                if by == self._epoch:
                    self._followed_at_s = self._clock.now_s()

        for control in world.controls:
            world.deliver(
                self.name,
                CONTROLLER,
                lambda to=control: to.hear(
                    body,
                    lambda: world.deliver(CONTROLLER, self.name, lambda: answered(to.decided_by)),
                ),
            )

    def _unreachable(self) -> tuple[str, ...]:
        world, order = self._world, self._wanted
        if order is None or not order.ranks or not world.setting.tells_unreachable:
            return ()
        peers = [peer.node for peer in order.peers if peer.node != self.name]
        return tuple(
            node
            for node in peers
            if not (world.reaches(self.name, node) and world.reaches(node, self.name))
        )

    def _claim(self) -> Claim | None:
        """What a launcher tells a controller that it does not follow; with two, perhaps both."""
        order = self._standing
        is_settled = self._answered_by == self._epoch and self._world.other is None
        if order is None or is_settled or self._answered_by[0] == 0:
            return None
        return Claim(
            self._clock.now_s() - self._followed_at_s,
            order.attempt, order.ranks, order.world_size, order.group_rank, order.group_count,
            order.restarts, order.restore, order.rendezvous, order.peers,
        )  # fmt: skip

    def _tell_rank(self, run: Run, rank: Rank) -> RankReport:
        now_s, world = self._clock.now_s(), self._world
        is_training = run.ready_at_s is not None and now_s >= run.ready_at_s
        told = RankReport(
            rank=rank.rank,
            local_rank=rank.rank % SLOTS,
            pid=rank.pid,
            process_state="" if rank.exit else "S",
            attached_age_s=now_s - run.ready_at_s if is_training else None,
            section="communication" if is_training else "idle",
        )
        if rank.exit is not None:
            told = replace(told, exit=replace(rank.exit, age_s=now_s - rank.exited_at_s))
        made = world.steps(run)
        if not (is_training and made):
            return told
        step_age_s = now_s - (run.ready_at_s + made * world.setting.step_s)
        timing = StepTiming(made, run.base_step + made, step_age_s, 0.0, 0.0, 0.0, 0.0)
        return replace(
            told,
            step=run.base_step + made,
            step_age_s=step_age_s,
            steps_done=made,
            sections_entered=made,
            section_age_s=step_age_s,
            timings=(timing,),
        )
