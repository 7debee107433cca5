"""One job from its start to the end of the simulated time: trains, fails, and is recovered by the real rules."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from detectors.finding import Finding
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.controller.job import planner
from recovery.controller.job.membership import choose_placement, size_for
from recovery.controller.job.restore.restore_choice import is_progress
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import AttemptStarted, AttemptVerified, Cause, Choice
from recovery.journal.cluster_records import ClusterRecord
from recovery.journal.fold.entry_fold import fold
from recovery.journal.incident_records import Failure, Plan
from recovery.journal.job_records import JobOpened, LauncherStarted, PersonActed
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import Policy
from recovery.journal.node_records import Joined, NodesJoined
from recovery.journal.records import Entry, Record
from recovery.lab.simulation.assumptions import Assumptions, Setup, orders_scale, rendezvous_scale
from recovery.lab.simulation.faults import NodeFault
from recovery.lab.simulation.findings import JOB_ID
from recovery.lab.simulation.machines import PERSON, Happens, Machines, node_name, node_number
from recovery.lab.simulation.outcome import PHASES, RunAccount, RunPart
from recovery.lab.simulation.rate_table import Shows
from recovery.lab.simulation.training import Training
from recovery.messages.exchange import Endpoint
from recovery.messages.outside import PersonAct, PersonCommand

NAME: Final = "simulated"
_SLOW_BY_HAND_S: Final = 4 * 3600.0  # 86 % of slow nodes took over 4 h to find by hand (Holmes)
_RETRY_S: Final = 3600.0  # about a slow node whose move was not worth it, or refused
NOT_FAILED: Final = (Shows.SLOW, Shows.FALSE_ALARM)


# The journals of a simulated job and cluster, in memory, under the simulated clock.


_BOOT: Final = "simulated"
_UNIX_S: Final = 1.7e9  # of the start; no decision depends on it


class SimulatedClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return _UNIX_S + self.time_s


class JobBook:
    """The job's journal, of which only the ledger is kept."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.ledger = Ledger()

    def record(self, *records: Record) -> None:
        clock = self._clock
        for record in records:
            number = self.ledger.number + 1
            entry = Entry(number, clock.unix_s(), clock.now_s(), _BOOT, record)
            self.ledger = fold(self.ledger, entry)


class ClusterBook:
    """The cluster's journal; the controller keeps what it says."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._written = 0

    @property
    def opened(self) -> tuple[Entry, ...]:
        return ()

    def append_many(self, records: Sequence[ClusterRecord], /) -> tuple[Entry, ...]:
        entries = []
        for record in records:
            self._written += 1
            unix_s, now_s = self._clock.unix_s(), self._clock.now_s()
            entries.append(Entry(self._written, unix_s, now_s, _BOOT, record))
        return tuple(entries)

    def read_newer(self) -> tuple[Entry, ...]:
        """Return nothing: no other controller writes."""
        return ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides: the policy of a job and of the cluster, and the planner."""

    policy: Policy = field(default_factory=Policy)
    cluster: ClusterPolicy = field(default_factory=ClusterPolicy)
    plan: Callable[..., Plan] = planner.plan


class SimulatedJob:
    """The job, its nodes and its time. `recovery.lab.simulation.incident` has what is done about a failure."""

    def __init__(
        self,
        setup: Setup,
        assumptions: Assumptions,
        rules: Rules,
        faults: list[NodeFault],
        seed: int,
    ) -> None:
        self.setup, self.assumptions, self.rules = setup, assumptions, rules
        self._draws: dict[float, int] = {}  # by the time of a fault
        self.clock = SimulatedClock()
        self.book = JobBook(self.clock)
        self.cluster = ClusterController(
            ClusterBook(self.clock), rules.cluster, self.clock, lambda _job_id: NAME
        )
        self.account = RunAccount()
        self.training = Training(assumptions, self.account)
        self.machines = Machines()
        self.settings = _settings(setup, rules.policy)
        self.orders = orders_scale(setup)
        self.rendezvous = rendezvous_scale(setup)
        self.is_alive = False  # ranks run, whom a fault can hit
        self.is_training = False
        self.incidents = 0
        self.cause = ""  # of the newest incident
        self.seed = seed
        self._placed: dict[str, int] = {}
        for fault in faults:
            self.machines.plan(fault.at_s, Happens(fault=fault))

    def open(self) -> None:
        """Start the first attempt on all nodes but the spares."""
        names = tuple(node_name(number) for number in range(self.setup.nodes + self.setup.spares))
        slots = self.setup.gpus_per_node
        joined = tuple(_joined(name, slots, "1") for name in names)
        world_size = self.setup.gpus
        self.book.record(
            JobOpened(JOB_ID, NAME),
            LauncherStarted(names[: self.setup.nodes], world_size, 1, "simulated"),
            NodesJoined(joined),
        )
        self.order(Cause.FIRST, Choice(True, None, "nothing is there yet"), self.usable())
        self.spend(RunPart.STARTUP, self.restart_s(in_memory=True), is_alive=False)
        self.begin_training(0.0)

    def order(
        self,
        cause: Cause,
        choice: Choice,
        usable: dict[str, Member],
        *,
        incident: tuple[str, int] | None = None,
    ) -> None:
        """Start an attempt on the usable nodes."""
        ledger = self.book.ledger
        size = size_for(self.settings, len(usable))
        assert size is not None, "who orders an attempt has the nodes for it"
        placement = choose_placement(self.settings, ledger.placement, usable, size)
        incident_id, try_number = incident or (None, None)
        self.book.record(
            AttemptStarted(
                ledger.attempt + 1,
                cause,
                choice,
                incident_id,
                try_number,
                is_progress=is_progress(ledger, choice),
                placement=placement,
            )
        )
        self._placed = {place.node: group for group, place in enumerate(placement)}
        self.cluster.note_running(self._placed)
        self.training.size_ratio = size / self.setup.nodes
        spares_used = sum(node_number(node) >= self.setup.nodes for node in self._placed)
        self.account.spares_used_max = max(self.account.spares_used_max, spares_used)

    def begin_training(self, work_s: float) -> None:
        """Train from this work on; the attempt is verified."""
        ledger = self.book.ledger
        self.book.record(AttemptVerified(ledger.attempt, is_comparable=True, telling_ranks=(0,)))
        self.resume_training(work_s)

    def resume_training(self, work_s: float) -> None:
        self.is_alive = self.is_training = True
        self.training.begin(self.clock.time_s, work_s, self.cause)
        self._note_slow()
        for node, fault in self.machines.bad.items():
            if node in self._placed and fault.shows not in NOT_FAILED:
                after_s = self.random_of(fault).expovariate(1.0 / self.assumptions.recurs_s)
                again = (self.book.ledger.attempt, fault)
                self.machines.plan(self.clock.time_s + after_s, Happens(again=again))

    def train(self, until_s: float) -> NodeFault | None:
        """Train until something hits the job; return it, or None at the end."""
        while True:
            at_s = min(self.machines.next_s(), until_s)
            self.training.go_on(at_s)
            self._pass_time(at_s)
            if at_s >= until_s:
                return None
            hit = self._happen()
            if hit is not None:
                return hit

    # Time and what happens in it.

    def spend(self, part: RunPart, seconds: float, *, is_alive: bool) -> NodeFault | None:
        """Let time pass in which the job does not train; return what hits ranks that are being started."""
        self.is_alive, self.is_training = is_alive, False
        if part in PHASES:
            seconds *= self.assumptions.mttr_factor
        until_s = self.clock.time_s + seconds
        while (at_s := self.machines.next_s()) <= until_s:
            self._pass(part, at_s)
            hit = self._happen()
            if hit is not None:
                return hit
        self._pass(part, until_s)
        return None

    def _pass(self, part: RunPart, at_s: float) -> None:
        took_s = max(0.0, min(at_s, self.setup.horizon_s) - self.clock.time_s)
        if took_s > 0:
            self.account.spend(part, took_s, self.cause or "first start")
        self._pass_time(at_s)

    def _pass_time(self, at_s: float) -> None:
        """Set the clock, and note for how long so many nodes could not be used."""
        took_s = min(at_s, self.setup.horizon_s) - self.clock.time_s
        if took_s > 0:
            self.account.out_s[len(self._out())] += took_s
        self.clock.time_s = max(self.clock.time_s, at_s)

    def wait_for_return(self, part: RunPart, most_s: float) -> bool:
        """Wait until a node comes back, or so long; return whether one came."""
        until_s = min(self.clock.time_s + most_s, self.setup.horizon_s)
        before = len(self.usable())
        self.is_alive = self.is_training = False
        while self.clock.time_s < until_s:
            at_s = min(self.machines.next_s(), until_s)
            self.account.spares_missing_s += max(0.0, at_s - self.clock.time_s)
            self._pass(part, at_s)
            if self.machines.next_s() <= at_s:
                self._happen()
            if len(self.usable()) > before:
                return True
        return False

    def _happen(self) -> NodeFault | None:
        """Let the next thing happen; return the fault where it hits the ranks."""
        _at_s, happens = self.machines.pop()
        if happens.back is not None:
            self._come_back(happens.back)
        elif happens.again is not None:
            attempt, fault = happens.again
            node = node_name(fault.node)
            is_same = attempt == self.book.ledger.attempt and node in self.machines.bad
            if is_same and self.is_alive:
                return self._break(fault)
        elif happens.slow is not None:
            node = node_name(happens.slow.node)
            is_slow = node in self.machines.slow or happens.slow.shows is Shows.FALSE_ALARM
            if not is_slow or node not in self._placed:
                return None
            if self.is_alive and self.is_training:
                return happens.slow
            self.ask_again(happens.slow)
        elif happens.fault is not None:
            return self._break(happens.fault)
        return None

    def _break(self, fault: NodeFault) -> NodeFault | None:
        node, machines, now_s = node_name(fault.node), self.machines, self.clock.time_s
        if node in machines.away:
            return None
        if fault.shows is Shows.FALSE_ALARM:
            machines.plan(now_s, Happens(slow=fault))
            return None
        if fault.shows is Shows.SLOW:
            machines.slow[node] = fault
            self._note_slow()
            is_found = self.random_of(fault).random() < self.assumptions.slow_found_ratio
            found_s = self.assumptions.slow_steps * self.assumptions.step_s
            after_s = found_s * self.assumptions.slow_factor if is_found else _SLOW_BY_HAND_S
            machines.plan(now_s + after_s, Happens(slow=fault))
            return None
        if fault.stays:
            machines.bad[node] = fault
        if fault.shows is Shows.HOST:
            machines.silent.add(node)
        if node not in self._placed:
            if fault.shows is Shows.HOST or (fault.stays and fault.is_told):
                machines.send_away(node, now_s, self.assumptions.check_h * 3600.0)
            return None
        if fault.is_told:
            machines.alerts.append((now_s + self.assumptions.alert_s, node, fault))
        return fault if self.is_alive else None

    def _note_slow(self) -> None:
        is_slow = any(node in self._placed for node in self.machines.slow)
        self.training.slow_factor = self.assumptions.slow_factor if is_slow else 1.0

    def ask_again(self, fault: NodeFault) -> None:
        self.machines.plan(self.clock.time_s + _RETRY_S, Happens(slow=fault))

    def random_of(self, fault: NodeFault) -> Random:
        """Return what is drawn about a fault: the same, whatever has been drawn about others."""
        count = self._draws[fault.at_s] = self._draws.get(fault.at_s, 0) + 1
        return Random(f"{self.seed} {fault.at_s} {count}")  # noqa: S311 - a simulation, no secret

    # Nodes.

    def _come_back(self, node: str) -> None:
        self.machines.bring_back(node)
        slots = self.setup.gpus_per_node
        launcher = f"{self.clock.time_s:.3f}"
        self.book.record(NodesJoined((_joined(node, slots, launcher),)))
        if self.book.ledger.members[node].left is not None:
            command = PersonCommand(PersonAct.RESUME, PERSON, "repaired", node=node)
            self.book.record(PersonActed(command, "taken back"))

    def send_away(self, node: str) -> None:
        self.account.moves += 1
        self.machines.send_away(node, self.clock.time_s, self.assumptions.check_h * 3600.0)

    def usable(self) -> dict[str, Member]:
        """Return the nodes that may get ranks now."""
        out = self._out()
        members = self.book.ledger.members
        return {
            node: member
            for node, member in members.items()
            if member.left is None and node not in out
        }

    def _out(self) -> set[str]:
        return {*self.machines.silent, *self.machines.away, *self.held()}

    def held(self) -> dict[str, str]:
        """Return the nodes to which the cluster gives no ranks, and why: only nodes that were blamed."""
        requested = ((node, self.cluster.unusable(node)) for node in self.cluster.ledger.nodes)
        return {node: reason for node, reason in requested if reason is not None}

    def ranks_of(self, node: str) -> tuple[int, ...]:
        group = self._placed.get(node, 0)
        slots = self.setup.gpus_per_node
        return tuple(range(group * slots, (group + 1) * slots))

    def is_placed(self, node: str) -> bool:
        return node in self._placed

    # Times.

    def restart_s(self, *, in_memory: bool) -> float:
        """Return how long an undisturbed start takes, from the order to the first step."""
        assumed = self.assumptions
        restore_s = assumed.memory_restore_s if in_memory else assumed.restore_s
        rendezvous_s = assumed.rendezvous_s * self.rendezvous
        orders_s = assumed.start_order_s * self.orders
        return orders_s + assumed.start_s + rendezvous_s + restore_s + assumed.first_step_s

    def failure_of(self, finding: Finding) -> Failure:
        rank = finding.ranks[0] if finding.ranks else None
        step = self.training.step
        return Failure(self.book.ledger.attempt, finding, 1, rank, None, step, False, (0,))


def _joined(node: str, slots: int, launcher: str) -> Joined:
    return Joined(node, f"{node} {launcher}", launcher, slots, Endpoint("127.0.0.1", 1), 0.0)


def _settings(setup: Setup, policy: Policy) -> JobSettings:
    can_shrink = setup.nodes_min is not None and setup.nodes_min < setup.nodes
    nodes_min = setup.nodes if setup.nodes_min is None else setup.nodes_min
    return JobSettings(
        JOB_ID,
        NAME,
        rankmend_version="simulated",
        nodes_min=nodes_min,
        nodes_max=setup.nodes if can_shrink else setup.nodes + setup.spares,
        slots=setup.gpus_per_node,
        policy=policy,
        shrink_multiple=setup.gpus_per_node if can_shrink else 0,
        has_checkpoints=True,
        hears_evidence=math.isfinite(policy.evidence_wait_s),
    )
