"""What the controller of one job knows, and the one way in which it decides.

`record` is that way: what is decided is durable before the order that follows from it is sent, and before anything else is done.
The journal may be written ahead of the disk: then `settle` does what follows, as soon as the disk has it, and nothing more is decided before.
What is only observed may be lost, and is heard again after a crash.
"""

from collections.abc import Callable, Collection

from rankmend.clock import Clock
from rankmend.errors import JournalError
from recovery.cluster.gate import OpenPool, Pool
from recovery.job.job_memory import BudgetStore, JobMemory
from recovery.job.lasting_times import LastingTimes
from recovery.job.nodes import JobNodes, Orders
from recovery.job.observation import Observation
from recovery.job.save_meter import SaveMeter
from recovery.job.settings import JobSettings
from recovery.job.slow_causes import SlowInquiry
from recovery.job.slow_ranks import SlowRanks
from recovery.job.step_meter import StepMeter
from recovery.job.work_meter import WorkMeter
from recovery.journal.ledger import Ledger, Moment
from recovery.journal.pen import AheadPen, DirectJournal
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import Report


class Situation:
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
        """``on_entry`` is told of every record once it is durable and acted on.

        ``hearing`` counts only time in which nodes could be heard (`recovery.service.listening_clock`).
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
        self.is_taken_up = False  # the nodes were heard, and may be sent orders
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
        """What the journal says of the job now."""
        return self.book.ledger

    @property
    def obeyed(self) -> Ledger:
        """What the nodes are told to do: the ledger, or what it will be once it can be written."""
        return self._foreseen or self.ledger

    def now_s(self) -> float:
        """Return the time up to which the nodes were heard: all of theirs is dated by it."""
        return self._hearing.now_s()

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
        self.is_settled, told = self.book.settle()
        if self.is_settled:
            self._send_due()
        self.book.save_copy_if_due()
        if self._on_entry is not None:
            for entry in told:
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

    # What was heard, and since when.

    def hear(self, report: Report, now_s: float) -> None:
        self.observation.observe(report, now_s)
        self.slow.note_report(report)
        self.saves.note_report(report, now_s)
        self.work.note_report(report, now_s)
        self.steps.note_report(report, now_s)
        self.causes.note_hardware(report, now_s)

    def observe_anew(self) -> None:
        """Observe the newest attempt, beginning with what its nodes have said of it."""
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
        self.nodes.start(now_s)  # nobody is silent who could not be heard
