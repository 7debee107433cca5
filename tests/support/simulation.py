"""A whole job under a simulated clock: the real controller, journal form and policy.

Simulated are the node (launcher, ranks, training), the storage, the messages between them
(late, twice, out of order, lost) and time. Everything random comes from one seed. rankmend can
be made to crash whenever it crosses a boundary: each journal append, fence advance and order is
crossed once on the way in and once on the way out. The checkers state the rules at the moment
they could be broken:

- an order says only what the journal, as it lies on the disk, says;
- an attempt is started once, and never while a process of another one is alive;
- attempts and the highest step never fall, budgets are never exceeded;
- ranks begin only from checkpoints that are whole.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from detectors.hang.live import HungLimits
from rankmend.errors import JournalError, StorageError
from recovery.controller.job.controller import Controller
from recovery.controller.job.nodes import orders_for
from recovery.controller.job.settings import JobSettings, for_one_node
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.job_records import JobOutcome, OutcomeKind, TailCut
from recovery.journal.journal_rows import GENESIS, JournalRow, make_row, verify_rows
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.journal.pen import AheadPen
from recovery.journal.records import Entry, Record
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.codec import decode_order, decode_report, encode_message
from recovery.messages.exchange import (
    Order,
    RankError,
    RankExit,
    RankReport,
    Report,
    StepTiming,
    Stop,
    StopReason,
)
from tests.support.rank_ends import rank_end
from tests.support.rewording import Words, reword

_T = TypeVar("_T")

JOB_ID = "0c1d6a52-0000-4000-8000-000000000001"
NODE = "node-1"
POLICY = Policy(
    fence_timeout_s=30.0,
    start_timeout_s=30.0,
    verify_timeout_s=120.0,
    checkpoint_wait_s=60.0,
    hung=HungLimits(floor_s=30.0, ceil_s=60.0, stopped_floor_s=5.0, startup_s=60.0),
)
HORIZON_S = 3 * 3600.0
SIGKILL, SIGTERM = 9, 15


class CrashError(BaseException):
    """rankmend dies here. BaseException: no ordinary handler swallows it."""


class SimClock:
    def __init__(self) -> None:
        self.time_s = 1000.0
        self.jumped_s = 0.0  # of the wall clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0  # equal times fire in the order they were scheduled

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1.7e9 + self.time_s + self.jumped_s

    def call_after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._due, (self.time_s + delay_s, self._serial, action))

    def run(self, until: Callable[[], bool], deadline_s: float) -> None:
        while self._due and not until() and self._due[0][0] <= deadline_s:
            self.time_s, _serial, action = heapq.heappop(self._due)
            action()


@dataclass(frozen=True)
class Scenario:
    """What goes wrong in one run. All of it can be drawn from a seed."""

    seed: int
    world_size: int = 4
    steps: int = 60
    step_s: float = 1.0
    startup_s: float = 3.0
    checkpoint_every: int = 10
    faults: tuple[str, ...] = ("kill",)  # one for each attempt, from the first
    fault_after_s: float = 20.0
    torn_ratio: float = 0.0  # of checkpoints
    is_relative: bool = False
    is_telling: bool = True
    bug_at_step: int | None = None
    stop_at_s: float | None = None
    journal_fails: tuple[float, float] | None = None  # from, until; seconds after the start
    storage_fails: tuple[float, float] | None = None
    crashes: tuple[int, ...] = ()  # numbers of the boundaries, counted through
    kills_launcher: bool = False  # a crash takes launcher and ranks along
    is_network_bad: bool = False
    tears_tail: bool = False  # a crash while the journal is written leaves half of it
    commit_s: float = 0.0  # at most, for one commit; 0: each decision waits for the disk


def draw_scenario(seed: int) -> Scenario:
    """Return a scenario that depends on the seed alone."""
    random = Random(seed)
    kinds = ["kill", "kill", "exit", "hang", "early", "launch", "clean", "kill2", "slow_kill"]
    if random.random() < 0.05:
        kinds += ["unkillable", "never"]
    faults = tuple(random.choice(kinds) for _ in range(random.randrange(6)))

    def window() -> tuple[float, float] | None:
        if random.random() > 0.2:
            return None
        start_s = random.uniform(1, 120)
        return start_s, start_s + random.uniform(1, 60)

    return Scenario(
        seed=seed,
        world_size=random.choice([1, 2, 4]),
        steps=random.randrange(10, 120),
        step_s=random.choice([0.3, 1.0, 2.0]),
        startup_s=random.uniform(0.5, 8),
        checkpoint_every=random.choice([3, 10, 1000]),
        faults=faults,
        fault_after_s=random.uniform(1, 40),
        torn_ratio=random.choice([0.0, 0.3, 1.0]),
        is_relative=random.random() < 0.2,
        is_telling=random.random() < 0.9,
        bug_at_step=random.randrange(1, 60) if random.random() < 0.15 else None,
        stop_at_s=random.uniform(0.1, 120) if random.random() < 0.25 else None,
        journal_fails=window(),
        storage_fails=window(),
        crashes=tuple(sorted(random.randrange(1, 80) for _ in range(random.randrange(4)))),
        kills_launcher=random.random() < 0.5,
        is_network_bad=random.random() < 0.7,
        tears_tail=random.random() < 0.5,
        commit_s=random.choice([0.0, 0.0, 0.5, 8.0]),
    )


@dataclass
class SimRank:
    rank: int
    pid: int
    stopped_at_s: float | None = None
    exit: RankExit | None = None
    exited_at_s: float = 0.0
    is_unkillable: bool = False

    @property
    def is_alive(self) -> bool:
        return self.exit is None


@dataclass
class SimAttempt:
    """The ranks of one attempt. They train in step: one that stands still stops all."""

    number: int
    base_step: int
    ready_at_s: float
    ranks: dict[int, SimRank]
    frozen_at_s: float | None = None
    saved_steps: int = 0
    has_been_told_to_stop: bool = False

    @property
    def is_alive(self) -> bool:
        return any(rank.is_alive for rank in self.ranks.values())


@dataclass
class Disk:
    """What outlives every process."""

    rows: list[JournalRow] = field(default_factory=list)
    fence: int | None = None
    budgets: bytes | None = None
    checkpoints: list[CheckpointVerdict] = field(default_factory=list)


class SimJournal:
    """The journal's stored form and chain, in memory."""

    def __init__(self, world: Any) -> None:  # SimWorld, or a controller of several nodes
        self._world = world
        entries, torn = verify_rows(world.disk.rows, "the simulated journal")
        self.opened = tuple(entries)
        if torn:
            assert world.scenario.tears_tail
            first = len(entries) + 1
            del world.disk.rows[len(entries) :]
            self.opened += self._write((TailCut(first, torn, 0, "half written"),))

    @property
    def last_number(self) -> int:
        return len(self._world.disk.rows)

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        return self._append(tuple(self._world.reword(record) for record in records), ())

    def append_entries(self, entries: Sequence[Entry]) -> None:
        self._append(tuple(entry.record for entry in entries), entries)

    def close(self) -> None:
        """Keep nothing open."""

    def _append(self, records: Sequence[Record], given: Sequence[Entry]) -> tuple[Entry, ...]:
        world = self._world
        try:
            world.cross()
        except CrashError:
            if world.scenario.tears_tail:
                self._tear(records)
            raise
        if world.is_in(world.scenario.journal_fails):
            raise JournalError("cannot write journal.db: database or disk is full (ENOSPC 28)")
        entries = self._write(records, given)
        for entry in entries:
            world.remember(entry)
        world.cross()
        return entries

    def _write(self, records: Sequence[Record], given: Sequence[Entry] = ()) -> tuple[Entry, ...]:
        rows, entries = self._world.disk.rows, []
        for place, record in enumerate(records):
            entry = given[place] if given else self._entry(len(rows) + 1, record)
            assert entry.number == len(rows) + 1, "written out of order"
            rows.append(make_row(entry, rows[-1].checksum if rows else GENESIS))
            entries.append(entry)
        return tuple(entries)

    def _tear(self, records: Sequence[Record]) -> None:
        """Leave the rows as a power cut may: some are there, and none is whole."""
        rows = self._world.disk.rows
        for record in records[: self._world.random.randint(1, len(records))]:
            row = make_row(self._entry(len(rows) + 1, record), b"torn")
            rows.append(row._replace(checksum=row.checksum[:-1]))

    def _entry(self, number: int, record: Record) -> Entry:
        clock = self._world.clock
        return Entry(number, clock.unix_s(), clock.now_s(), "boot-1", record)


class SimCommitter:
    """Writes what the controller has handed in a while later: one commit at a time, and all of it.

    ``is_over`` tells whether the controller has died since, ``crash`` is called where it dies of a commit.
    """

    quick_s = 0.0

    def __init__(
        self, clock: SimClock, delays: Random, commit_s: float,
        is_over: Callable[[], bool], crash: Callable[[], None],
    ) -> None:  # fmt: skip
        self._clock = clock
        self._delays = delays
        self._commit_s = commit_s
        self._is_over = is_over
        self._crash = crash
        self._is_under_way = False

    def take(self, pen: AheadPen, /, *, is_urgent: bool) -> None:
        if not self._is_under_way:
            self._is_under_way = True
            delay_s = self._delays.uniform(0.0, self._commit_s)
            self._clock.call_after(delay_s, lambda: self._commit(pen))

    def _commit(self, pen: AheadPen) -> None:
        if self._is_over():
            return
        try:
            pen.commit()
        except CrashError:
            self._crash()
            return
        self._is_under_way = False
        if pen.has_pending:
            self.take(pen, is_urgent=True)


class SimPen(AheadPen):
    def wait(self, timeout_s: float) -> None:
        self.commit()
        self.durable_number()


class SimWorld:
    """One job from its first start to its end."""

    def __init__(self, scenario: Scenario, words: Words | None = None) -> None:
        """``words`` replaces every text for people in what is journaled, reported and ordered."""
        self.scenario = scenario
        self.rewording = words
        self.ordered: list[Order] = []
        self.clock = SimClock()
        self.random = Random(scenario.seed)
        self.disk = Disk()
        self.journaled = Ledger()
        self.crossings = 0
        self.crashed = 0
        self.outcome: JobOutcome | None = None
        self.outcomes: list[JobOutcome] = []
        self.started: list[int] = []  # attempts, in the order their ranks were started
        self.settings = JobSettings(
            JOB_ID,
            "sim",
            rankmend_version="0",
            nodes_min=1,
            nodes_max=1,
            slots=scenario.world_size,
            own_node=NODE,
            policy=for_one_node(POLICY),
            grace_s=20.0,
        )
        self._began_s = self.clock.now_s()
        self._launchers = 0
        self.node = SimNode(self)
        self._controller: Controller | None = None
        self._generation = 0

    # Boundaries and rules.

    def is_in(self, window: tuple[float, float] | None) -> bool:
        if window is None:
            return False
        return window[0] <= self.clock.now_s() - self._began_s < window[1]

    def reword(self, value: _T) -> _T:
        return value if self.rewording is None else reword(value, self.rewording)

    def cross(self) -> None:
        self.crossings += 1
        if self.crossings in self.scenario.crashes:
            raise CrashError

    def remember(self, entry: Entry) -> None:
        before, after = self.journaled, fold(self.journaled, entry)
        assert after.attempt >= before.attempt, "an attempt number fell"
        record = entry.record
        is_new_run = isinstance(record, AttemptStarted) and record.choice.is_new_run
        if before.highest_step is not None and not is_new_run:
            assert after.highest_step is not None
            assert after.highest_step >= before.highest_step, "the highest step fell"
        assert after.restarts <= POLICY.restarts_max, "more restarts than allowed"
        assert after.restarts_without_progress <= POLICY.no_progress_any_max, "no progress"
        assert after.spent.of_one_cause <= POLICY.no_progress_max, "no progress, and one cause"
        self.journaled = after

    def next_launcher(self) -> int:
        self._launchers += 1
        return self._launchers

    # What the controller is given.

    def send(self, order: Order) -> None:
        self.cross()
        control = self._controller
        if control is None or control.journal_error is None:
            assert (order,) == orders_for(self.journaled, self.settings), "acted, not journaled"
        elif (order,) != orders_for(self.journaled, self.settings):
            assert not order.ranks, "only a stop may go before its record"
            assert order.stop is Stop.GRACE
        self.ordered.append(order)
        body = encode_message(self.reword(order))
        self._deliver(lambda: self.node.take(decode_order(body)))
        self.cross()

    def known(self) -> tuple[CheckpointVerdict, ...]:
        return ()  # a note more or less changes no decision of these runs

    def candidates(self, is_training: bool) -> tuple[CheckpointVerdict, ...]:
        assert not is_training
        assert not self.node.is_alive, "looked for checkpoints while ranks could write"
        if self.is_in(self.scenario.storage_fails):
            raise StorageError("the checkpoint folder does not answer")
        return tuple(self.reword(verdict) for verdict in reversed(self.disk.checkpoints))

    def check_on(self, path: str) -> None:
        """Read nothing more: there are no files."""

    def is_there(self, path: str) -> bool:
        return any(self.reword(one).candidate.path == path for one in self.disk.checkpoints)

    def read(self) -> int | None:
        return self.disk.fence

    def advance(self, attempt: int) -> None:
        self.cross()
        assert attempt > (self.disk.fence or 0), "the fence fell"
        self.disk.fence = attempt
        self.cross()

    def refuse_short(self, wanted_bytes: int) -> None:
        """There is always room."""

    def save(self, body: bytes) -> None:
        self.cross()
        self.disk.budgets = body

    def load(self) -> bytes | None:
        return self.disk.budgets

    # Messages and processes.

    def _deliver(self, action: Callable[[], None]) -> None:
        """Have a message arrive, the way the network of this scenario lets it."""
        if not self.scenario.is_network_bad:
            self.clock.call_after(0.001, action)
            return
        if self.random.random() < 0.1:
            return
        for _copy in range(2 if self.random.random() < 0.15 else 1):
            self.clock.call_after(self.random.uniform(0.0, 2.0), action)

    def report(self, report: Report) -> None:
        body = encode_message(self.reword(report))
        generation = self._generation if self.scenario.kills_launcher else None
        self._deliver(lambda: self._hand_over(body, generation))

    def _hand_over(self, body: bytes, generation: int | None) -> None:
        if generation in (None, self._generation):  # in one process, messages die with it
            self._guarded(lambda control: _hear(control, body))

    def _guarded(self, action: Callable[[Controller], None]) -> None:
        control = self._controller
        if control is None:
            return
        try:
            action(control)
        except CrashError:
            self.crash()
            return
        if control.outcome is not None:
            self._end(control.outcome)

    def boot(self) -> None:
        """Start rankmend: the first time, or again after it died."""
        self._generation += 1
        journal = SimJournal(self)
        self.journaled = fold_all(journal.opened)
        generation = self._generation
        committer = SimCommitter(
            self.clock, self.random, self.scenario.commit_s,
            lambda: self._controller is None or self._generation != generation, self.crash,
        )  # fmt: skip
        pen = SimPen(journal, committer, self.clock, "boot-1")
        control = Controller(pen, self, self, self, self, self.clock, self.settings)
        try:
            control.start()
        except CrashError:
            self.crash()
            return
        except JournalError:
            self.clock.call_after(5.0, self.boot)
            return
        if self.scenario.commit_s:
            pen.go_ahead()
        self._controller = control
        self._tick(control)

    def _tick(self, control: Controller) -> None:
        if self._controller is control:
            self._guarded(lambda it: it.tick())
            self.clock.call_after(0.25, lambda: self._tick(control))

    def crash(self) -> None:
        self.crashed += 1
        self._controller = None
        if self.scenario.kills_launcher:
            self.node = self.node.reborn(max(self.journaled.attempt, self.disk.fence or 0))
        self.clock.call_after(self.random.uniform(0.1, 10.0), self.boot)

    def _end(self, outcome: JobOutcome) -> None:
        self._controller = None
        self.outcomes.append(outcome)
        is_first_stop = outcome.kind is OutcomeKind.STOPPED and len(self.outcomes) == 1
        if is_first_stop and not self.is_in(self.scenario.journal_fails):
            # Whoever stopped it starts it again: a new launcher on the same state folder.
            self.node = self.node.reborn(max(self.journaled.attempt, self.disk.fence or 0))
            self.clock.call_after(5.0, self.boot)
            return
        self.outcome = outcome

    def run(self) -> "SimWorld":
        """Run the job to its end and check what must hold then."""
        self.node.start()
        self.boot()
        if self.scenario.stop_at_s is not None:
            self.clock.call_after(self.scenario.stop_at_s, self._ask_to_stop)
        self.clock.run(lambda: self.outcome is not None, self._began_s + HORIZON_S)
        assert self.outcome is not None, f"no end within {HORIZON_S:.0f} s: {self.journaled}"
        entries, torn = verify_rows(self.disk.rows, "the simulated journal")
        folded = fold_all(entries)
        assert torn == 0
        assert folded == self.journaled
        if self.scenario.journal_fails is None:
            assert folded.ended == self.outcome, "ended otherwise than journaled"
            assert folded.incident is None, "an incident never ended"
        return self

    def _ask_to_stop(self) -> None:
        self.node.stop_requested = StopReason.SIGTERM


def _hear(control: Controller, body: bytes) -> None:
    control.handle_report(decode_report(body))
    control.tick()


class SimNode:
    """A launcher and its ranks, as `recovery.messages.exchange` demands of them."""

    def __init__(self, world: SimWorld, empty_through: int = 0) -> None:
        self._world = world
        self._clock = world.clock
        self._attempt: SimAttempt | None = None
        self._wanted: Order | None = None
        self._carried = 0
        self._empty_through = empty_through
        self._killing_through = 0
        self._launch_error: str | None = None
        self._is_gone = False
        self.stop_requested: StopReason | None = None
        self._launcher_id = f"launcher-{world.next_launcher()}"
        self._started_s = self._clock.now_s()
        self._reports = 0

    @property
    def is_alive(self) -> bool:
        return self._attempt is not None and self._attempt.is_alive

    def start(self) -> None:
        self._beat()

    def reborn(self, last_attempt: int) -> "SimNode":
        """Return the launcher that is started after this one was killed; its ranks die with it."""
        self._is_gone = True
        if self._attempt is not None:
            for rank in self._attempt.ranks.values():
                rank.is_unkillable = False
                self._end(rank, None, SIGKILL, by_launcher=True)
        node = SimNode(self._world, last_attempt)
        node.start()
        return node

    # Orders.

    def take(self, order: Order) -> None:
        if self._is_gone or (self._wanted and order.revision <= self._wanted.revision):
            return
        self._wanted = order
        self._reconcile()

    def _reconcile(self) -> None:
        order, attempt = self._wanted, self._attempt
        if order is None or self._carried == order.revision or self._is_gone:
            return
        is_wanted = attempt is not None and attempt.number == order.attempt and order.ranks
        if not is_wanted:
            through = order.attempt if not order.ranks else order.attempt - 1
            if attempt is not None:
                through = max(through, attempt.number)
            if self._empty_through < through:
                self._stop(order, through)
                return
            self._attempt = None
            if order.ranks and order.attempt > self._empty_through:
                self._launch(order)
        self._carried = order.revision
        self._tell()

    def _stop(self, order: Order, through: int) -> None:
        attempt = self._attempt
        if attempt is not None and order.stop is Stop.GRACE and not attempt.has_been_told_to_stop:
            attempt.has_been_told_to_stop = True
            self._progress(attempt)
            if attempt.frozen_at_s is None:
                self._save(attempt, self._steps(attempt))
                attempt.frozen_at_s = self._clock.now_s()
                delay_s = self._world.random.uniform(0.1, 5.0)
                self._clock.call_after(delay_s, lambda: self._end_all(attempt, 0))
            self._clock.call_after(order.grace_s, lambda: self._kill(through))
        elif order.stop is Stop.KILL:
            self._kill(through)

    def _kill(self, through: int) -> None:
        if self._is_gone or self._killing_through >= through:
            return
        self._killing_through = through
        attempt = self._attempt
        delay_s = self._world.random.uniform(0.01, 3.0)
        self._clock.call_after(delay_s, lambda: self._killed(attempt, through))

    def _killed(self, attempt: SimAttempt | None, through: int) -> None:
        if attempt is not None:
            self._progress(attempt)
            for rank in attempt.ranks.values():
                if not rank.is_unkillable:
                    self._end(rank, None, SIGKILL, by_launcher=True)
            if attempt.is_alive:
                return  # stuck in the kernel: never proved gone
        self._empty_through = max(self._empty_through, through)
        self._reconcile()
        self._tell()

    # Ranks.

    def _launch(self, order: Order) -> None:
        world, now_s = self._world, self._clock.now_s()
        scenario = world.scenario
        assert order.attempt not in world.started, "an attempt was started twice"
        assert order.attempt == world.disk.fence, "ranks that may not publish"
        world.started.append(order.attempt)
        base_step = 0
        if order.restore is not None:
            paths = [v.candidate.path for v in world.disk.checkpoints if v.is_valid]
            assert order.restore.path in paths, "began from a checkpoint that is not whole"
            base_step = int(order.restore.path.rpartition("-")[2])
        faults = scenario.faults
        place = len(world.started) - 1
        fault = faults[place] if place < len(faults) else "none"
        self._launch_error = None
        if fault == "launch":
            self._launch_error = "rank 0 can't be started: no such file"
            self._attempt = SimAttempt(order.attempt, 0, now_s, {})
            self._kill(order.attempt)
            return
        ranks = {
            rank: SimRank(rank, 0 if fault == "never" and rank == 0 else 1000 + rank)
            for rank in order.ranks
        }
        self._attempt = SimAttempt(order.attempt, base_step, now_s + scenario.startup_s, ranks)
        self._plan_fault(self._attempt, fault)

    def _plan_fault(self, attempt: SimAttempt, fault: str) -> None:
        random, scenario = self._world.random, self._world.scenario
        first = random.randrange(len(attempt.ranks))
        if fault == "unkillable" and len(attempt.ranks) == 1:
            fault = "kill"  # a lone rank that neither dies nor tells a step can't be told from a slow one
        after_s = random.uniform(0.0, scenario.fault_after_s) + scenario.startup_s
        if fault in ("kill", "kill2", "unkillable", "slow_kill"):
            self._later(after_s, attempt, lambda: self._fail(attempt, first, None, SIGKILL))
            if fault == "kill2":
                second = (first + 1) % len(attempt.ranks)
                self._later(after_s, attempt, lambda: self._fail(attempt, second, None, SIGKILL))
            if fault == "unkillable":
                attempt.ranks[(first + 1) % len(attempt.ranks)].is_unkillable = True
        elif fault == "exit":
            self._later(after_s, attempt, lambda: self._fail(attempt, first, 1, None))
        elif fault == "hang":
            self._later(after_s, attempt, lambda: self._hang(attempt, first))
        elif fault == "early":
            self._later(0.2, attempt, lambda: self._fail(attempt, first, 1, None))
        elif fault == "clean":
            self._later(after_s, attempt, lambda: self._end(attempt.ranks[first], 0, None))

    def _later(self, delay_s: float, attempt: SimAttempt, action: Callable[[], None]) -> None:
        def act() -> None:
            if self._attempt is attempt and not self._is_gone:
                self._progress(attempt)
                action()
                self._tell()

        self._clock.call_after(delay_s, act)

    def _fail(
        self, attempt: SimAttempt, rank: int, exit_code: int | None, signal: int | None
    ) -> None:
        """One rank dies; its peers lose it a moment later."""
        number = self._world.random.randrange(10**6)
        error = (
            RankError("ValueError", f"odd thing {'x' * (number % 7)}", "") if exit_code else None
        )
        self._end(attempt.ranks[rank], exit_code, signal, error=error)
        attempt.frozen_at_s = attempt.frozen_at_s or self._clock.now_s()
        lost = RankError("RuntimeError", "Connection closed by peer [127.0.0.1]:4711", "")
        for peer in attempt.ranks.values():
            delay_s = self._world.random.uniform(0.05, 4.0)
            self._later(delay_s, attempt, lambda peer=peer: self._end(peer, 1, None, error=lost))

    def _hang(self, attempt: SimAttempt, rank: int) -> None:
        attempt.ranks[rank].stopped_at_s = self._clock.now_s()
        attempt.frozen_at_s = attempt.frozen_at_s or self._clock.now_s()

    def _end_all(self, attempt: SimAttempt, exit_code: int) -> None:
        for rank in attempt.ranks.values():
            self._end(rank, exit_code, None)
        self._after_end(attempt)
        self._tell()

    def _end(
        self,
        rank: SimRank,
        exit_code: int | None,
        signal: int | None,
        *,
        by_launcher: bool = False,
        error: RankError | None = None,
    ) -> None:
        if rank.exit is not None or rank.is_unkillable:
            return
        rank.exit = rank_end(exit_code, signal, error, by_launcher=by_launcher)
        rank.exited_at_s = self._clock.now_s()

    def _after_end(self, attempt: SimAttempt) -> None:
        """The launcher stops what outlives its ranks, also without an order."""
        if not attempt.is_alive and self._attempt is attempt and attempt.ranks:
            self._kill(attempt.number)

    # Training.

    def _steps(self, attempt: SimAttempt) -> int:
        scenario = self._world.scenario
        until_s = self._clock.now_s() if attempt.frozen_at_s is None else attempt.frozen_at_s
        made = int(max(0.0, until_s - attempt.ready_at_s) / scenario.step_s)
        most = max(0, scenario.steps - attempt.base_step)
        if scenario.bug_at_step is not None:
            most = min(most, max(0, scenario.bug_at_step - attempt.base_step))
        return min(made, most)

    def _progress(self, attempt: SimAttempt) -> None:
        """Let the training have done what it did since the last look."""
        scenario = self._world.scenario
        made = self._steps(attempt)
        while attempt.saved_steps + scenario.checkpoint_every <= made:
            attempt.saved_steps += scenario.checkpoint_every
            self._save(attempt, attempt.saved_steps)
        if attempt.frozen_at_s is not None:
            return
        reached = attempt.base_step + made
        if scenario.bug_at_step is not None and reached >= scenario.bug_at_step:
            attempt.frozen_at_s = self._clock.now_s()
            error = RankError("IndexError", "index 17 is out of bounds", "")
            for rank in attempt.ranks.values():
                self._end(rank, 1, None, error=error)
        elif reached >= scenario.steps:
            attempt.frozen_at_s = self._clock.now_s()
            for rank in attempt.ranks.values():
                delay_s = self._world.random.uniform(0.0, 2.0)
                self._later(delay_s, attempt, lambda rank=rank: self._end(rank, 0, None))

    def _save(self, attempt: SimAttempt, steps: int) -> None:
        world = self._world
        step = attempt.base_step + steps
        if world.disk.fence != attempt.number:
            return  # rankmend.may_publish says no
        is_valid = world.random.random() >= world.scenario.torn_ratio
        path = f"/checkpoints/{len(world.disk.checkpoints)}-{step}"
        told = None if world.scenario.is_relative else step
        candidate = Candidate(path, told, CheckpointFormat.NPZ, 1000, self._clock.unix_s())
        world.disk.checkpoints.append(
            CheckpointVerdict(candidate, is_valid, "whole" if is_valid else "torn")
        )

    # Reports.

    def _beat(self) -> None:
        if not self._is_gone:
            if self._attempt is not None:
                self._progress(self._attempt)
                self._after_end(self._attempt)
            self._reconcile()
            self._tell()
            self._clock.call_after(1.0, self._beat)

    def _tell(self) -> None:
        if self._is_gone:
            return
        attempt = self._attempt
        self._reports += 1
        self._world.report(
            Report(
                version=1,
                node=NODE,
                boot_id="boot-1",
                job_id=JOB_ID,
                revision=self._carried,
                attempt=attempt.number if attempt else 0,
                ranks=tuple(self._tell_rank(attempt, rank) for rank in attempt.ranks.values())
                if attempt
                else (),
                empty_through=self._empty_through,
                launch_error=self._launch_error,
                launch_fault="ENOENT" if self._launch_error else "",
                stop_requested=self.stop_requested,
                launcher_id=self._launcher_id,
                number=self._reports,
                slots=self._world.scenario.world_size,
                launcher_started_s=self._started_s,
            )
        )

    def _tell_rank(self, attempt: SimAttempt, rank: SimRank) -> RankReport:
        now_s, scenario = self._clock.now_s(), self._world.scenario
        made = self._steps(attempt)
        is_training = now_s >= attempt.ready_at_s and scenario.is_telling
        told = RankReport(
            rank=rank.rank,
            local_rank=rank.rank,
            pid=rank.pid,
            process_state="" if rank.exit else "T" if rank.stopped_at_s else "S",
            attached_age_s=now_s - attempt.ready_at_s if is_training else None,
        )
        if rank.exit is not None:
            told = replace(told, exit=replace(rank.exit, age_s=now_s - rank.exited_at_s))
        if not (is_training and made):
            return told
        base = 0 if scenario.is_relative else attempt.base_step
        step_age_s = now_s - (attempt.ready_at_s + made * scenario.step_s)
        timing = StepTiming(made, base + made, step_age_s, 0.0, 0.0, 0.0, 0.0)
        return replace(
            told,
            step=base + made,
            step_age_s=step_age_s,
            steps_done=made,
            is_relative=scenario.is_relative,
            timings=(timing,),
        )
