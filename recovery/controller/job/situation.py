"""What the controller of one job knows, and the one way in which it decides."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from typing import Final, Protocol

from detectors.wording import moment
from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.errors import JournalError, RankmendError
from recovery.controller.cluster.gate import OpenPool, Pool
from recovery.controller.job.nodes import JobNodes, Orders
from recovery.controller.job.observation import Observation
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.watch.meters import SaveMeter, StepMeter, WorkMeter
from recovery.controller.job.watch.slow_causes import SlowInquiry
from recovery.controller.job.watch.slow_ranks import SlowRanks
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.fold_snapshot import EVERY
from recovery.journal.folder.saved_budgets import decode_budgets, encode_budgets, nodes_to_empty
from recovery.journal.job_records import RecordsLost
from recovery.journal.ledger import Ledger, Moment
from recovery.journal.pen import WAIT_S, AheadPen, DirectJournal, DirectPen, Pen
from recovery.journal.record_weights import has_decision
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import Report

log = logging.getLogger(__name__)

Key = tuple[object, ...]

_WARNINGS_MAX: Final = 100

BACKOFF: Final = Backoff(first_s=0.5, cap_s=5.0)  # between two tries to write a failed journal


class LastingTimes:
    """For how long the things that the controller waits for have lasted, by keys that name an attempt, an incident or a node.

    Bounded: it forgets a key that nobody queries in a whole attempt, for its attempt or incident is
    over then.
    """

    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}
        self._before_s: dict[Key, float] = {}  # not queried in this attempt

    def __len__(self) -> int:
        return len(self._since_s) + len(self._before_s)

    def since(self, now_s: float, key: Key) -> float:
        """Return for how many seconds what is named by ``key`` has lasted: from the first question on."""
        if key not in self._since_s:
            self._since_s[key] = self._before_s.pop(key, now_s)
        return now_s - self._since_s[key]

    def begin_attempt(self) -> None:
        self._since_s, self._before_s = {}, self._since_s

    def forget(self) -> None:
        self._since_s, self._before_s = {}, {}

    def forgive(self, paused_s: float) -> None:
        """Count so many seconds less of everything."""
        for times_s in (self._since_s, self._before_s):
            times_s.update({key: at_s + paused_s for key, at_s in times_s.items()})


class BudgetStore(Protocol):
    def save(self, body: bytes, /) -> None: ...

    def load(self) -> bytes | None: ...


class JobMemory:
    """The controller's memory: the journal, the ledger folded from it, and the copy of the budgets.

    It refuses a record that does not fit the ledger before it is written. A decision that can't be
    written is not carried out, and is tried again after a growing pause. The pen may write ahead of
    the disk (`recovery.journal.pen`): the ledger is then what the journal will hold, and `settle`
    returns whether it holds it.
    """

    def __init__(self, journal: DirectJournal | AheadPen, copy: BudgetStore | None) -> None:
        self._pen: Pen = journal if isinstance(journal, AheadPen) else DirectPen(journal)
        self._copy = copy
        known = self._pen.foundation
        self.ledger: Ledger = fold_all(self._pen.opened, None if known is None else known.ledger)
        # the newest record in a snapshot of the fold
        self._kept = 0 if known is None else known.number
        self._decided = self.ledger.number  # the newest record that something may follow from
        self._untold: deque[Entry] = deque()  # not known to be durable, or not yet passed on
        self._is_copy_due = False
        self._durable = self.ledger.number
        self.warnings: tuple[str, ...] = ()
        self.error: str | None = None  # why the journal can't be written at the moment
        self._failing_since_unix_s = 0.0
        self._retry_at_s = 0.0
        self._failures = 0  # in a row

    def foresee(self, records: Iterable[Record]) -> Ledger:
        """Return the ledger as it will be after these records, or raise."""
        ledger = self.ledger
        for record in records:
            ledger = fold(ledger, Entry(ledger.number + 1, 0.0, 0.0, "", record))
        return ledger

    def write(self, records: Sequence[Record], act: Callable[[Ledger], None]) -> bool:
        """Journal the records, then call ``act`` with the ledger from before; raise if a record does not fit.

        Return whether what follows from them must wait for `settle`.
        """
        after = self.foresee(records)
        entries = self._pen.write(records)
        if entries[-1].number != after.number:
            raise JournalError(
                f"record {entries[-1].number} was written where {after.number} was expected: "
                f"another process writes this journal"
            )
        if not self._pen.is_ahead:
            self._note_success()
        before = self.ledger
        self.ledger = after = reduce(fold, entries, before)  # this time with the entries' times
        is_decision = has_decision(records)
        if is_decision:
            self._decided = after.number
        self._untold.extend(entries)
        self._is_copy_due |= _budgets(after) != _budgets(before)
        act(before)
        return is_decision and self._pen.is_ahead

    # What is durable.

    @property
    def is_ahead(self) -> bool:
        """Return whether records are written ahead of the disk."""
        return self._pen.is_ahead

    @property
    def may_note(self) -> bool:
        """Return whether there is room for bookkeeping."""
        return not self._pen.is_full

    def push(self) -> None:
        """Have all that was written until now become durable, by one commit."""
        self._pen.push()

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Return once all is durable, or raise."""
        self._pen.wait(timeout_s)

    def wait_briefly(self) -> bool:
        """Wait until all is durable where commits are quick; return whether it is."""
        return self._pen.wait_briefly()

    def settle(self) -> tuple[bool, list[Entry]]:
        """Return whether every decision is durable, and the entries that have become so since.

        Raises JournalError where the disk refuses them, and what else `AheadPen.durable_number` raises.
        """
        number = self._pen.durable_number()
        if self._pen.is_ahead:
            self._note_success()
        reported = []
        while self._untold and self._untold[0].number <= number:
            reported.append(self._untold.popleft())
        self._durable = number
        if (
            number - self._kept >= EVERY
            and number == self.ledger.number
            and self.ledger.incident is None
        ):
            self._kept = number
            self._pen.offer_fold(self.ledger)
        return number >= self._decided, reported

    def save_copy_if_due(self) -> None:
        """Copy the budgets, if they have changed and the journal has all that the copy would hold."""
        if self._is_copy_due and self._durable >= self.ledger.number:
            self._is_copy_due = False
            self._save_copy()

    def _note_success(self) -> None:
        if self.error is not None:
            log.warning("journal can be written again")
        self.error = None
        self._retry_at_s, self._failures = 0.0, 0

    def is_writable(self, now_s: float) -> bool:
        """Return whether it is time to try (again) to write."""
        return now_s >= self._retry_at_s

    @property
    def trouble(self) -> str | None:
        """Return, for people, that nothing can be decided now, since when and why; None: the journal takes records."""
        if self.error is None:
            return None
        since = moment(self._failing_since_unix_s)
        return f"decisions can't be recorded (since {since}), so nothing is restarted: {self.error}"

    def note_failure(self, error: JournalError, now_s: float, now_unix_s: float) -> None:
        """Note a failed write; the next one is tried after a pause."""
        if self.error is None:
            self._failing_since_unix_s = now_unix_s
            log.error(
                "journal can't be written: nothing is restarted until it can",
                extra={"error": str(error)},
            )
        self.error = str(error)
        self._failures += 1
        self._retry_at_s = now_s + BACKOFF.wait_s(self._failures)

    def warn(self, text: str) -> None:
        """Warn the user of something, once."""
        if text not in self.warnings and len(self.warnings) < _WARNINGS_MAX:
            self.warnings += (text,)
            log.warning("job warning", extra={"warning": text})

    def lost_records(self, job_id: str) -> list[Record]:
        """Return a record of the loss if the copy of the budgets knows more than the journal."""
        if self._copy is None:
            return []
        try:
            body = self._copy.load()
            copy = decode_budgets(body) if body is not None else None
        except (OSError, RankmendError) as error:
            self.warn(f"the copy of the budgets can't be used: {error}")
            return []
        number = self.ledger.number
        if copy is None or copy.record_number <= number:
            return []
        if copy.job_id != job_id:
            self.warn(f"the budgets beside the checkpoints are another job's, {copy.job_id}")
            return []
        self.warn(
            f"records were lost: the journal ends at {number}, the copy of the budgets beside "
            f"the checkpoints knows record {copy.record_number}; the stricter of the two applies"
        )
        return [
            RecordsLost(
                number,
                copy.record_number,
                copy.attempt,
                copy.restarts,
                copy.restarts_without_progress,
                copy.highest_step,
                copy.nodes,
                copy.has_lease,
            )
        ]

    def _save_copy(self) -> None:
        if self._copy is None:
            return
        try:
            self._copy.save(encode_budgets(self.ledger))
        except (OSError, RankmendError) as error:
            self.warn(f"the copy of the budgets can't be written: {error}")


def _budgets(ledger: Ledger) -> tuple[object, ...]:
    return (ledger.attempt, bool(nodes_to_empty(ledger)), ledger.spent, ledger.highest_step)


class Situation:
    """What the controller knows. `record` is its only way to decide.

    A decision is durable before the order that follows from it is sent, and before anything else
    happens. The journal may be written ahead of the disk: then `settle` does what follows, as soon
    as the disk has it, and until then nothing more is decided. Observations may be lost: after a
    crash, new reports restore them.
    """

    def __init__(
        self,
        journal: DirectJournal | AheadPen,
        orders: Orders,
        budget_copy: BudgetStore | None,
        clock: Clock,
        settings: JobSettings,
        on_entry: Callable[[Entry], None] | None,
        hearing: Clock | None = None,
        pool: Pool | None = None,
    ) -> None:
        """``on_entry`` receives every record once it is durable and acted on.

        ``hearing`` counts only time in which reports could arrive (`recovery.service.jobs.listening_clock`).
        """
        self.settings = settings
        self.book = JobMemory(journal, budget_copy)
        self.nodes = JobNodes(settings, orders)
        self.observation = Observation(0, 0)
        self.slow = SlowRanks(settings.job_id)
        self.causes = SlowInquiry()
        self.saves = SaveMeter()
        self.work = WorkMeter()
        self.steps = StepMeter()
        self.pool = pool or OpenPool()
        self.has_checkpoint = False  # one of the newest attempt's, as its nodes have looked; the journal notes some later
        self.is_taken_up = False  # the nodes have reported, and may be sent orders
        self._clock = clock
        self._hearing = hearing or clock
        self._on_entry = on_entry
        self._foreseen: Ledger | None = None  # a stop that is obeyed before it can be journaled
        self._times = LastingTimes()
        self.is_settled = True  # every decision is durable, and what follows from it is done
        self._unsent: set[str] | None = set()  # nodes whose orders wait for that; None: all
        self._owed: list[Callable[[], None]] = []  # what else waits for it

    @property
    def ledger(self) -> Ledger:
        """The job's state by its journal."""
        return self.book.ledger

    @property
    def obeyed(self) -> Ledger:
        """What the nodes are ordered to do: the ledger, or what it will be once it can be written."""
        return self._foreseen or self.ledger

    def now_s(self) -> float:
        """Return the time up to which the nodes' reports were received: it dates all of them."""
        return self._hearing.now_s()

    def now_unix_s(self) -> float:
        """Return the time of day, for people."""
        return self._clock.unix_s()

    def age_s(self, at: Moment) -> float:
        """Return how old a record is."""
        return self._clock.now_s() - at.monotonic_s

    def since_record_s(self, at: Moment) -> float:
        """Return how long ago a record was written, by the wall clock: it may be of another boot."""
        return max(0.0, self._clock.unix_s() - at.unix_s)

    # Remember, then act.

    def record(self, *records: Record) -> None:
        """Remember the records; what follows from them is done once they are durable."""
        if self.book.write(records, self._act):
            self.is_settled = False
        elif not self.book.is_ahead:
            self.settle()

    def _act(self, before: Ledger) -> None:
        self._foreseen = None
        if self.is_taken_up and self.ledger.revision != before.revision:
            self._unsent = None

    def follow(self, act: Callable[[], None]) -> None:
        """Act once all that is on record is durable."""
        if self.is_settled:
            act()
        else:
            self._owed.append(act)

    def send_to(self, nodes: Collection[str] | None) -> None:
        """Send nodes what they ought to be running, once that is durable; None: all nodes."""
        self._unsent = None if nodes is None or self._unsent is None else self._unsent | {*nodes}
        if self.is_settled:
            self._send_due()

    def _send_due(self) -> None:
        unsent, self._unsent = self._unsent, set()
        if unsent is None:
            self.nodes.send(self.ledger, self.now_s())
        elif unsent:
            self.nodes.send_to(self.ledger, unsent)

    def settle(self) -> bool:
        """Do what follows from the decisions that have become durable; return whether all have.

        Raises JournalError where the disk refuses them.
        """
        self.is_settled, reported = self.book.settle()
        self.book.save_copy_if_due()  # first: a new host must wait for the nodes that receive orders now
        if self.is_settled:
            self._send_due()
        if self._on_entry is not None:
            for entry in reported:
                self._on_entry(entry)
        while self.is_settled and self._owed:
            self._owed.pop(0)()
        return self.is_settled

    def commit(self) -> bool:
        """Have what was decided become durable by one commit, and wait for that where commits are quick; return whether it is."""
        self.book.push()
        return self.is_settled or (self.book.wait_briefly() and self.settle())

    def record_now(self, *records: Record) -> None:
        """Remember the records, and return once they are durable: somebody waits for the answer."""
        if self.book.is_ahead and self.book.error is not None:
            raise JournalError(self.book.error)
        self.record(*records)
        self.book.wait()
        self.settle()

    def obey_unwritten(self, records: list[Record]) -> None:
        """Act on records that will be the next ones, so that their revision is known before."""
        self._foreseen = self.book.foresee(records)

    def resend(self, now_s: float) -> None:
        """Send orders again to who has not acknowledged them."""
        if self._foreseen is not None or (self.is_taken_up and self.is_settled):
            self.nodes.resend(self.obeyed, now_s)

    # What was reported, and since when.

    def hear(self, report: Report, now_s: float) -> None:
        self.observation.observe(report, now_s)
        self.slow.note_report(report)
        self.saves.note_report(report, now_s)
        self.work.note_report(report, now_s)
        self.steps.note_report(report, now_s)
        self.causes.note_hardware(report, now_s)

    def observe_anew(self) -> None:
        """Observe the newest attempt, beginning with its nodes' last reports."""
        ledger, gap_s = self.ledger, self.observation.proved_gap_s
        size = sum(len(place.ranks) for place in ledger.placement)
        places = {place.node: frozenset(place.ranks) for place in ledger.placement}
        failed = ledger.incident or ledger.behind
        seen = Observation(
            ledger.attempt,
            size,
            gap_s,
            places,
            ran_before=ledger.has_run,
            former_step=None if failed is None else failed.highest_before,
        )
        now_s = self.now_s()
        for report in self.nodes.reports:
            seen.observe(report, now_s)
        self.observation = seen
        self.has_checkpoint = False
        self._times.begin_attempt()
        self.slow.begin(ledger.attempt, size)
        self.saves.begin(ledger.attempt)
        self.work.begin(ledger.attempt)
        self.steps.begin(ledger.attempt)

    def since(self, now_s: float, *key: object) -> float:
        """Return for how many seconds what is named by ``key`` has lasted."""
        return self._times.since(now_s, key)

    def forget_times(self) -> None:
        """Hold nobody to time that has passed until now."""
        self._times.forget()

    def forgive(self, paused_s: float, now_s: float) -> None:
        """Count no time in which this process itself stood still (SIGSTOP, a debugger)."""
        self._times.forgive(paused_s)
        self.nodes.start(now_s)  # a node is not silent while its reports could not arrive
