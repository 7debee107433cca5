"""A controller of one node, and what surrounds it, as a test likes them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from detectors.hang.live import HungLimits
from rankmend.errors import JournalError, StorageError
from recovery.checkpoints.unwritable import short_of_room
from recovery.controller.job.controller import Controller
from recovery.controller.job.settings import JobSettings, for_one_node
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import IncidentEvent
from recovery.journal.limits import Policy
from recovery.journal.records import Entry, Record
from recovery.messages.candidates import CheckpointVerdict
from recovery.messages.exchange import Order, RankError, RankExit, RankReport, Report
from tests.support.clocks import FakeClock

POLICY = Policy(hung=HungLimits(floor_s=60.0, ceil_s=120.0, stopped_floor_s=5.0, startup_s=90.0))
SETTINGS = JobSettings(
    "0c1d6a52-job",
    "digits",
    rankmend_version="0.1",
    nodes_min=1,
    nodes_max=1,
    slots=2,
    own_node="n1",
    policy=for_one_node(POLICY),
    grace_s=20.0,
)
IMPATIENT = replace(SETTINGS, policy=replace(SETTINGS.policy, checkpoint_wait_s=20.0))


class FakeJournal:
    """Keeps records; fails while told to."""

    def __init__(self, clock: FakeClock, opened: Sequence[Entry] = ()) -> None:
        self.opened = tuple(opened)
        self.entries = list(opened)
        self.is_failing = False
        self._clock = clock

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        if self.is_failing:
            raise JournalError("cannot write journal.db: disk full (ENOSPC 28)")
        stamps = (self._clock.unix_s(), self._clock.now_s(), "boot-1")
        first = len(self.entries) + 1
        entries = [Entry(first + place, *stamps, one) for place, one in enumerate(records)]
        self.entries += entries
        return tuple(entries)


class FakeStorage:
    """Checkpoints, the fence file and the copy of the budgets."""

    def __init__(self) -> None:
        self.verdicts: list[CheckpointVerdict] = []
        self.fence: int | None = None
        self.copy: bytes | None = None
        self.is_failing = False
        self.free_bytes: int | None = None
        self.is_watched = False  # beside training
        self.on_advance: Callable[[], None] = lambda: None

    def known(self) -> tuple[CheckpointVerdict, ...]:
        return tuple(self.verdicts) if self.is_watched else ()

    def candidates(self, is_training: bool) -> tuple[CheckpointVerdict, ...]:
        assert not is_training
        self._check()
        return tuple(self.verdicts)

    def check_on(self, path: str) -> None:
        """Read nothing more: there are no files."""

    def is_there(self, path: str) -> bool:
        self._check()
        return any(one.candidate.path == path for one in self.verdicts)

    def read(self) -> int | None:
        return self.fence

    def advance(self, attempt: int) -> None:
        self._check()
        self.fence = attempt
        self.on_advance()

    def refuse_short(self, wanted_bytes: int) -> None:
        if (short := short_of_room("/c", self.free_bytes, wanted_bytes)) is not None:
            raise short

    def save(self, body: bytes) -> None:
        self._check()
        self.copy = body

    def load(self) -> bytes | None:
        return self.copy

    def _check(self) -> None:
        if self.is_failing:
            raise StorageError("the checkpoint folder does not answer")


class Bench:
    """A controller with a node that says what the test wants."""

    def __init__(self, settings: JobSettings = SETTINGS, opened: Sequence[Entry] = ()) -> None:
        self.clock = FakeClock()
        self.journal = FakeJournal(self.clock, opened)
        self.storage = FakeStorage()
        self.orders: list[Order] = []
        self.settings = settings
        self.ranks: dict[int, RankReport] = {}
        self.attempt = 0
        self.empty_through = 0
        self.extra: dict[str, object] = {}
        self.launcher = 1
        self.reports = 0

    def start(self) -> "Bench":
        self.control = Controller(
            self.journal,
            self,
            self.storage,
            self.storage,
            self.storage,
            self.clock,
            self.settings,
        )
        self.control.start()
        return self

    def send(self, order: Order) -> None:
        self.orders.append(order)

    def tell(self, after_s: float = 0.1, **changes: object) -> None:
        """Have the node report, ``after_s`` later."""
        self.clock.time_s += after_s
        self.reports += 1
        report = Report(
            version=1,
            node="n1",
            boot_id="boot-1",
            job_id=self.settings.job_id,
            revision=self.orders[-1].revision if self.orders else 0,
            attempt=self.attempt,
            ranks=tuple(self.ranks.values()),
            empty_through=self.empty_through,
            launcher_id=f"launcher-{self.launcher}",
            number=self.reports,
            slots=2,
        )
        self.control.handle_report(replace(report, **self.extra, **changes))
        self.control.tick()

    def run_attempt(self, number: int, *, is_attached: bool = True) -> None:
        """Carry out the order for an attempt."""
        age_s = 0.1 if is_attached else None
        assert self.orders[-1].attempt == number
        assert self.orders[-1].ranks == (0, 1)
        self.attempt = number
        self.ranks = {
            rank: RankReport(rank, rank, 100 + rank, "S", attached_age_s=age_s) for rank in (0, 1)
        }
        self.tell()

    def step(self, step: int, done: int, after_s: float = 1.0, **changes: object) -> None:
        for rank, told in self.ranks.items():
            self.ranks[rank] = replace(told, step=step, step_age_s=0.1, steps_done=done, **changes)
        self.tell(after_s)

    def end(self, rank: int, exit_code: int | None = None, signal: int | None = None) -> None:
        error = RankError("ValueError", "bad batch", "") if exit_code else None
        ended = RankExit(0.1, exit_code, signal, False, False, error, ())
        self.ranks[rank] = replace(self.ranks[rank], process_state="", exit=ended)
        self.tell()

    def empty(self) -> None:
        self.empty_through = max(self.attempt, self.empty_through)
        self.attempt, self.ranks = 0, {}
        self.tell()

    def recover(self, number: int, step: int) -> None:
        """Fence, start the next attempt and make two steps in it."""
        self.empty()
        self.run_attempt(number)
        self.step(step, 1)
        self.step(step + 1, 2)

    def records(self, kind: type | None = None) -> list[object]:
        records = [entry.record for entry in self.journal.entries]
        return records if kind is None else [one for one in records if isinstance(one, kind)]

    @property
    def outcomes(self) -> list[Outcome]:
        return [record.event.outcome for record in self.records(IncidentEvent)]


def begin(bench: Bench) -> Bench:
    """Begin the job in an empty folder and make ten steps."""
    bench.start().tell()
    bench.run_attempt(1)
    bench.step(10, 10)
    return bench


def fail(bench: Bench) -> None:
    bench.end(1, signal=9)
    bench.tell(after_s=1.0)
    bench.empty()
    bench.tell(after_s=1.0)
