"""One job of the service: the hold on it, its journal and the controller that decides for it.

For the worker's thread. A controller that raises is put away with its journal, and made anew from
what is durable after a pause; the other jobs notice nothing.
"""

import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

from detectors.node.job_libraries import LibraryShare
from rankmend.backoff import Backoff
from rankmend.clock import Clock, read_boot_id
from rankmend.errors import ConfigError, JobHeldError, JournalError, RankmendError
from rankmend.version import RANKMEND_VERSION
from recovery.api.parallel_sizes import from_wire
from recovery.api.wire import POLICY_OVERRIDES, Join
from recovery.checkpoints.snapshots.memory import NodeMemory
from recovery.controller.cluster.gate import Gate, Pool
from recovery.controller.job.attempts import AttemptFence, Checkpoints
from recovery.controller.job.controller import TICK_BUSY_S, TICK_S, Controller
from recovery.controller.job.membership import have_all_ended
from recovery.controller.job.node_power import PowerReader, PowerSwitch
from recovery.controller.job.nodes import Orders
from recovery.controller.job.report_news import brings_only_progress
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.situation import BudgetStore
from recovery.controller.job.watch.rank_picture import RankPicture
from recovery.journal.job_records import ClaimTaken, JobOutcome, PersonActed
from recovery.journal.ledger import Ledger, Wish
from recovery.journal.limits import Policy
from recovery.journal.narration.launcher_lines import LauncherLines
from recovery.journal.open_journal import OpenJournal
from recovery.journal.pen import AheadPen, Committer, DirectJournal
from recovery.journal.postgres.database import CommitUnknownError, LeaseLostError
from recovery.journal.postgres.leases import HeldByOtherError
from recovery.journal.records import Entry, encode_record
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import RankStart, Report
from recovery.messages.outside import NodeEvidence, PersonCommand
from recovery.messages.probing import ProbeRequest
from recovery.service.jobs.job_store import JobHold, StoredJob
from recovery.service.jobs.retained import ROW_BYTES
from recovery.service.roles import Subject

log = logging.getLogger(__name__)

BACKOFF: Final = Backoff(first_s=1.0, cap_s=60.0)  # before a controller that raised is made anew
# With 9,900 nodes that join a tick takes 0.1 s: no job may take more than a third of the thread by its
# ticks, so that reports are heard and other jobs looked after; and none waits longer than a second.
_TICK_SHARE: Final = 1 / 3
# While nothing calls for a decision: a look at 80,000 ranks that train takes 20 ms, and four of them a second took as long as all their reports.
_CALM_TICK_SHARE: Final = 1 / 40
_TICK_S_MAX: Final = 1.0
_CONTROLLER_ID: Final = str(uuid.uuid4())  # names this start of the process
# A launcher that is turned away asks again after 30 s at most (`recovery.api.connection.pause_s`), a large job's a little later.
ORPHANED_S: Final = 180.0
# A report and a poll of the same launcher are under way at once, and only one of them may see a token change.
ORPHANED_AFTER_S: Final = 3.0
_ORPHANS_SHOWN: Final = 8
_LAUNCHERS_KEPT: Final = 20_000
OVERRIDE_FACTOR_MAX: Final = 10
_OWN_MOST: Final = {"grow_every_s": 1e9}  # off by default, so a multiple of that says nothing


@dataclass(frozen=True, slots=True)
class Parts:
    """What a job's controller needs beside its journal and orders."""

    gate: Gate
    pool: Pool
    checkpoints: Checkpoints | None = None
    fence: AttemptFence | None = None
    budget_copy: BudgetStore | None = None
    hears_evidence: bool = False
    epoch_min: int = 0
    hearing: Clock | None = None  # counts only time in which nodes could be heard
    power: PowerReader | None = None  # reads whether nodes have power
    switch: PowerSwitch | None = None  # may switch them off


class Core(Protocol):
    """The decider of one job: `recovery.controller.job.controller.Controller`."""

    @property
    def outcome(self) -> JobOutcome | None: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def journal_trouble(self) -> str | None: ...
    @property
    def waits(self) -> str | None: ...
    def start(self) -> None: ...
    def handle_report(self, report: Report, /) -> None: ...
    def take_evidence(self, evidence: NodeEvidence, /) -> None: ...
    @property
    def has_recorded_evidence(self) -> bool: ...
    @property
    def is_behind_disk(self) -> bool: ...
    def take_command(self, command: PersonCommand, /) -> PersonActed: ...
    def tick(self) -> None: ...
    def refuses(self, node: str, launcher_id: str, /) -> str | None: ...
    def starts(self) -> dict[str, dict[RankStart, list[int]]]: ...
    def nccl_shares(self) -> tuple[LibraryShare, ...]: ...
    def memories(self) -> list[NodeMemory]: ...
    def picture(self) -> RankPicture: ...
    @property
    def highest_step(self) -> int | None: ...
    @property
    def copy_requests(self) -> Mapping[str, CopyRequest]: ...
    @property
    def probe_requests(self) -> Mapping[str, ProbeRequest]: ...


CoreMaker: TypeAlias = Callable[
    [DirectJournal | AheadPen, Orders, JobSettings, Parts, Clock, Callable[[Entry], None]], Core
]


def make_core(
    journal: DirectJournal | AheadPen,
    orders: Orders,
    settings: JobSettings,
    parts: Parts,
    clock: Clock,
    on_entry: Callable[[Entry], None],
) -> Core:
    return Controller(
        journal=journal,
        orders=orders,
        checkpoints=parts.checkpoints,
        fence=parts.fence,
        budget_copy=parts.budget_copy,
        clock=clock,
        settings=settings,
        on_entry=on_entry,
        gate=parts.gate,
        pool=parts.pool,
        hearing=parts.hearing,
        power=parts.power,
        switch=parts.switch,
    )


class Listener(Protocol):
    def journal_opened(self, job: "Job", opened: Sequence[Entry], through: int) -> None:
        """Note that a job's journal was opened, with these entries through the record ``through``."""
        ...

    def entry(self, job: "Job", entry: Entry) -> None:
        """Note a durable record."""
        ...

    def failed(self, job: "Job", error: Exception) -> None:
        """Note that a job's controller raised."""
        ...


def policy_of(join: Join, base: Policy) -> Policy:
    """Return the limits of a job: the controller's, with the owner's overrides that are allowed.

    An override may make recovery less eager or less patient, and more so up to ten times the
    controller's own limit.
    """
    changed: dict[str, float] = {}
    for name, value in join.policy.items():
        if name not in POLICY_OVERRIDES:
            raise ConfigError(
                f"policy: {name!r:.80} can't be set by a job; {', '.join(sorted(POLICY_OVERRIDES))} can"
            )
        own = getattr(base, name)
        if isinstance(own, bool):  # observe: a job's owner may switch it on, and nobody's off
            if value not in (0, 1):
                raise ConfigError(f"policy: {name} is {value:g}, not 0 or 1")
            changed[name] = own or bool(value)
            continue
        most = _OWN_MOST.get(name, OVERRIDE_FACTOR_MAX * max(own, 1))
        if not 0 <= value <= most:
            raise ConfigError(f"policy: {name} is {value:g}, not 0 to {most:g}")
        if isinstance(own, int) and value != int(value):
            raise ConfigError(f"policy: {name} is {value:g}, not a whole number")
        changed[name] = int(value) if isinstance(own, int) else value
    return replace(base, **changed)  # type: ignore[arg-type]  # the names and types are checked


def _claim_taken(join: Join) -> ClaimTaken | None:
    news = join.claim_taken
    return None if news is None else ClaimTaken(news.owner, news.proof, news.by)


def settings_of(
    job_id: str, join: Join, policy: Policy, parts: Parts, incident_prefix: str = ""
) -> JobSettings:
    """Return what the job's controller is told; a contradiction is a ConfigError."""
    return JobSettings(
        job_id=job_id,
        name=join.name,
        rankmend_version=RANKMEND_VERSION,
        pid=os.getpid(),
        policy=policy_of(join, policy),
        grace_s=join.grace_s,
        budgets_reset_by=join.budgets_reset_by,
        starts_from_scratch=join.starts_from_scratch,
        claim_taken=_claim_taken(join),
        nodes_min=join.nodes_min,
        nodes_max=join.nodes_max,
        slots=join.slots,
        shrink_multiple=join.shrink_multiple,
        spares=join.spares,
        layout=from_wire(join.parallel),
        has_checkpoints=join.has_checkpoints and parts.checkpoints is None,
        checkpoint_folder=join.checkpoint_folder,
        takes_checkpoint=join.takes_checkpoint,
        checkpoint_names=tuple(join.checkpoint_names),
        program=join.program,
        hears_evidence=parts.hears_evidence,
        epoch_min=parts.epoch_min,
        controller_id=_CONTROLLER_ID,
        incident_prefix=incident_prefix,
    )


@dataclass(frozen=True, slots=True)
class RefusedLauncher:
    """The newest request of a node's launcher that was turned away for its token."""

    at_s: float  # as the times in `Job.reported_at_s`
    why: str


@dataclass(frozen=True, slots=True)
class OrphanedNodes:
    """Nodes of a job whose launchers are turned away: nothing that fails there is recovered."""

    nodes: tuple[str, ...]
    why: str  # of the newest refusal

    def describe(self, owner: str) -> str:
        """Return for people what happened and what to do."""
        shown = ", ".join(self.nodes[:_ORPHANS_SHOWN])
        more = len(self.nodes) - _ORPHANS_SHOWN
        where = f"{shown} and {more} more" if more > 0 else shown
        launchers = "1 launcher is" if len(self.nodes) == 1 else f"{len(self.nodes)} launchers are"
        return (
            f"{launchers} refused ({where}): {self.why}. Its ranks run on, and rankmend recovers no failure of them: put a valid token into "
            f"the launchers' token file (rankmend controller token add {owner} --role launch --output FILE)"
        )


@dataclass(slots=True)
class Job:
    """A job that runs or waits for its launchers."""

    hold: JobHold
    stored: StoredJob
    settings: JobSettings
    parts: Parts
    orders: Orders
    clock: Clock
    listener: Listener
    make_core: CoreMaker = make_core
    committer: Committer | None = None  # None: each decision waits for the disk
    controller: Core | None = None
    problem: str | None = None
    runs: set[str] = field(default_factory=set)
    launchers: set[str] = field(default_factory=set)
    reported_at_s: dict[str, float] = field(default_factory=dict)  # node, when it reported last
    revisions: dict[str, int] = field(default_factory=dict)  # node, newest order it carried out
    emptied: dict[str, int] = field(default_factory=dict)  # node, attempt that it is empty through
    silent_since_s: float = (
        0.0  # when the newest report or join came, or this controller took the job up
    )
    joined_at_s: float = 0.0  # when a launcher joined last, or the job was taken up
    began_at_s: float = 0.0  # when the first one joined
    write: Callable[[int], None] = lambda _bytes: None  # receives the size of each record
    entries: int = 0
    failures: int = 0
    retry_at_s: float = 0.0
    ticked_at_s: float = 0.0
    tick_took_s: float = 0.0  # the last one
    is_touched: bool = False  # by what may call for a decision: the next tick does not wait
    has_reported: bool = (
        False  # a launcher has, since this controller has the job; true of one taken up
    )
    resumes: bool = False  # a launcher starts the job: an ended one begins again
    is_elsewhere: bool = False  # another controller manages it
    refused: dict[str, RefusedLauncher] = field(default_factory=dict)  # by node
    tokens: dict[str, str] = field(default_factory=dict)  # node, id of its launcher's token
    began_unix_s: float | None = None  # of the journal's first record
    lines: LauncherLines = field(default_factory=LauncherLines)  # for its launchers
    _prepared: Core | None = None  # whose first records may not be durable yet
    _found_end: JobOutcome | None = None
    _journal: OpenJournal | None = None
    _pen: AheadPen | None = None  # that writes it, where there is a committer

    @property
    def job_id(self) -> str:
        return str(self.hold.job_id)

    @property
    def hearing(self) -> Clock:
        """The clock that dates what nodes say, and counts their silence."""
        return self.parts.hearing or self.clock

    @property
    def outcome(self) -> JobOutcome | None:
        """How the job ended; None while it has not."""
        return self._found_end if self.controller is None else self.controller.outcome

    def note_launcher(self, join: Join) -> None:
        """Remember who took part, so that the end of the job is the end for them, too."""
        self.joined_at_s = self.silent_since_s = self.hearing.now_s()
        if join.run:
            self.runs.add(join.run)
        if len(self.launchers) < _LAUNCHERS_KEPT:
            self.launchers.add(join.launcher_id)

    def note_token(self, node: str, subject: Subject) -> None:
        """Record with which token a node's launcher speaks. For the event loop."""
        if node in self.tokens or len(self.tokens) < _LAUNCHERS_KEPT:
            self.tokens[node] = subject.token_id

    @property
    def token_ids(self) -> list[str]:
        """Return the tokens that its launchers use. For any thread."""
        return sorted({*tuple(self.tokens.values())} - {""})

    def note_refused(self, node: str, why: str, at_s: float) -> None:
        """Record that a launcher of a node was turned away. For any thread.

        Anyone may send such a request: it counts only for a node of the job, and only until its launcher reports.
        """
        controller = self.controller
        is_known = node in self.reported_at_s or (
            controller is not None and node in controller.ledger.members
        )
        if is_known:
            self.refused[node] = RefusedLauncher(at_s, why)

    def orphaned(self) -> OrphanedNodes | None:
        """Return the nodes whose launchers are turned away now and have reported nothing since. For any thread."""
        now_s = self.hearing.now_s()
        found = {
            node: refused
            for node, refused in tuple(self.refused.items())
            if refused.at_s > self.reported_at_s.get(node, -math.inf) + ORPHANED_AFTER_S
            and now_s - refused.at_s <= ORPHANED_S
        }
        if not found:
            return None
        newest = max(found.values(), key=lambda refused: refused.at_s)
        return OrphanedNodes(tuple(sorted(found)), newest.why)

    def start(self) -> None:
        """Resume the job from its journal, or note why that fails now."""
        self.prepare()
        self.go_live(None)

    def prepare(self) -> None:
        """Do so, but have nobody see the controller before what it wrote is durable, which `go_live` is told."""
        self._guard(self._prepare)

    def go_live(self, failure: Exception | None) -> None:
        """Let the controller that was prepared decide; ``failure``: why its records may not be durable."""
        controller, self._prepared = self._prepared, None
        if failure is not None:
            self._fail(failure)
        elif controller is not None:
            self.controller = controller
            self.silent_since_s = self.hearing.now_s()
            if self._pen is not None:
                self._pen.go_ahead()

    def _start(self) -> None:
        self._prepare()
        self.go_live(None)

    def _prepare(self) -> None:
        try:
            journal = self._journal = self.hold.open_journal(
                self.clock, uses_snapshot=self.committer is not None
            )
        except HeldByOtherError:
            self.is_elsewhere = True
            raise
        self.listener.journal_opened(self, journal.opened, journal.last_number)
        known = journal.foundation
        if known is not None:
            self.began_unix_s = known.began_unix_s
        elif journal.opened:
            self.began_unix_s = journal.opened[0].unix_s
        pen: DirectJournal | AheadPen = journal
        if self.committer is not None:
            pen = self._pen = AheadPen(journal, self.committer, self.clock, read_boot_id(), journal)
        controller = self.make_core(
            pen, self.orders, self.settings, self.parts, self.clock, self._heard
        )
        journal.opened = ()  # the controller's ledger holds what counts of it
        ended = controller.ledger.ended
        if ended is not None and not self.resumes:
            self._found_end = ended
            return
        controller.start()
        self._prepared, self.resumes = controller, False
        # From now on it is this process that lives.
        self.settings = replace(self.settings, alive_age_s=None)

    def _heard(self, entry: Entry) -> None:
        self.entries = entry.number
        self.write(len(encode_record(entry.record)) + ROW_BYTES)
        self.lines.note(entry)
        if self.began_unix_s is None:
            self.began_unix_s = entry.unix_s
        self.listener.entry(self, entry)

    def take_report(self, report: Report) -> None:
        self.has_reported = True
        self.silent_since_s = self.hearing.now_s()
        if self._is_news(report):
            self.is_touched = True
        if report.leaving:
            self.reported_at_s.pop(report.node, None)
            self.revisions.pop(report.node, None)
            self.emptied.pop(report.node, None)
            self.tokens.pop(report.node, None)
            self.refused.pop(report.node, None)
        elif report.node in self.reported_at_s or len(self.reported_at_s) < _LAUNCHERS_KEPT:
            self.reported_at_s[report.node] = self.hearing.now_s()
            self.revisions[report.node] = report.revision
            self.emptied[report.node] = report.empty_through
        self._guard(lambda: self._live().handle_report(report))

    def _is_news(self, report: Report) -> bool:
        """Return whether a report may call for a decision, so that the next tick must not wait."""
        controller = self.controller
        return (
            controller is None
            or report.empty_through != self.emptied.get(report.node)
            or not brings_only_progress(report, controller.ledger)
        )

    def take_evidence(self, evidence: NodeEvidence) -> None:
        self.is_touched = True
        self._guard(lambda: self._live().take_evidence(evidence))

    def take_command(self, command: PersonCommand) -> PersonActed:
        """Have the person obeyed; what is wrong with the asking is raised, and only that."""
        self.is_touched = True
        acted: list[PersonActed] = []
        self._guard(lambda: acted.append(self._live().take_command(command)))
        if not acted:
            raise NotTakenUpError(
                f"the controller cannot manage job {self.job_id} now: {self.problem}"
            )
        return acted[0]

    def refuses(self, node: str, launcher_id: str) -> str | None:
        """Return why a launcher is refused for ever, or None. For any thread."""
        controller = self.controller
        return None if controller is None else controller.refuses(node, launcher_id)

    @property
    def decided_by(self) -> tuple[int, str, int]:
        """Return epoch and UUID of the job's controller, and its newest attempt; or 0 and none."""
        controller = self.controller
        if controller is None:
            return 0, "", 0
        ledger = controller.ledger
        return ledger.epoch, ledger.controller_id, ledger.attempt

    def copy_request(self, node: str, launcher_id: str) -> CopyRequest | None:
        """Return what this launcher is queried about copies of snapshots."""
        controller = self.controller
        requested = None if controller is None else controller.copy_requests.get(node)
        return (
            None if requested is None or self.refuses(node, launcher_id) is not None else requested
        )

    def probe_request(self, node: str, launcher_id: str) -> ProbeRequest | None:
        """Return this launcher's part in a probe of the network."""
        controller = self.controller
        requested = None if controller is None else controller.probe_requests.get(node)
        return (
            None if requested is None or self.refuses(node, launcher_id) is not None else requested
        )

    def is_unreported(self, for_s: float) -> bool:
        """Return whether its first launcher joined so long ago, and none has ever reported, however often others joined."""
        controller = self.controller
        if controller is None or controller.ledger.attempt > 0 or self.has_reported:
            return False
        return self.hearing.now_s() - self.began_at_s >= for_s

    def is_abandoned(self) -> bool:
        """Return whether no rank can run and no launcher waits: none ever started, or all launchers have ended."""
        if self.controller is None:
            return False
        ledger, waiting = self.controller.ledger, [*self.reported_at_s.values()]
        if ledger.attempt == 0 or self.joined_at_s > self.began_at_s:
            waiting.append(self.joined_at_s)
        if ledger.attempt > 0 and not have_all_ended(ledger):
            return False
        silent_s, now_s = self.settings.policy.node_silent_s, self.hearing.now_s()
        return all(now_s - at_s >= silent_s for at_s in waiting)

    @property
    def unacknowledged(self) -> int:
        """Return how many of the job's nodes have not said that they carry out the newest order."""
        if self.controller is None or self.controller.ledger.wish is Wish.NOTHING_YET:
            return 0
        ledger = self.controller.ledger
        return sum(
            known < ledger.revision
            for node, known in self.revisions.items()
            if (member := ledger.members.get(node)) is not None and member.left is None
        )

    @property
    def is_calm(self) -> bool:
        """Return whether ranks run, nothing is being done about them, and all nodes carry the newest order out."""
        if self.controller is None:
            return False
        ledger = self.controller.ledger
        is_busy = ledger.incident is not None or ledger.closing is not None
        return ledger.wish is Wish.RANKS and not is_busy and self.unacknowledged == 0

    def is_due(self, now_s: float) -> bool:
        """Return whether something is to be done: a tick, or another try to take the job up."""
        if self.controller is None:
            return now_s >= self.retry_at_s
        pause_s, share = (TICK_BUSY_S, _TICK_SHARE) if self.is_busy else (TICK_S, _CALM_TICK_SHARE)
        return now_s - self.ticked_at_s >= max(pause_s, min(_TICK_S_MAX, self.tick_took_s / share))

    @property
    def is_busy(self) -> bool:
        """Return whether the next tick is not to wait: there is something to decide, or to do as soon as the disk has what was decided."""
        return self.is_touched or (self._pen is not None and self._pen.owes_decision)

    def push(self) -> None:
        """Have written what waits for the disk. `close` waits for it."""
        if self._pen is not None:
            self._pen.push()

    def tick(self, now_s: float) -> None:
        self.ticked_at_s, self.is_touched = now_s, False
        if self.controller is None:
            self._guard(self._start)
        else:
            self._guard(self._tick)
        self.tick_took_s = self.clock.now_s() - now_s

    def _tick(self) -> None:
        controller = self._live()
        controller.tick()
        self.problem = controller.journal_trouble or controller.waits
        if self.failures and self.clock.now_s() - self.retry_at_s > BACKOFF.cap_s:
            self.failures = 0

    def suspend(self, problem: str) -> None:
        """Put the controller away until its journal can be opened again, which is tried at once."""
        self.failures, self.retry_at_s = 0, self.clock.now_s()
        if self.controller is not None:
            self.problem = problem
            self._put_away()

    def close(self) -> None:
        """Let go of the journal and the job."""
        self._put_away()
        self.hold.close()

    def _live(self) -> Core:
        if self.controller is None:
            raise NotTakenUpError(f"job {self.job_id} is not resumed: {self.problem}")
        return self.controller

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NotTakenUpError:
            return  # said already; what was to be told is told again once it is taken up
        except (
            JournalError
        ) as error:  # a disk that is full: the controller is sound, and tries again
            self.problem = str(error)
            if self.controller is None:
                self._fail(error)
        except (LeaseLostError, CommitUnknownError, JobHeldError) as error:
            self._fail(error)  # no defect: another controller has the job, or the database is away
        except Exception as error:
            log.exception("job failed", extra={"job_id": self.job_id})
            self._fail(error)
        else:
            if self.controller is not None and self.problem is not None:
                self.problem = self.controller.journal_trouble or self.controller.waits

    def _fail(self, error: Exception) -> None:
        """Drop the controller, and rebuild it from the journal after a pause."""
        self.failures += 1
        pause_s = BACKOFF.wait_s(self.failures)
        self.retry_at_s = self.clock.now_s() + pause_s
        self.problem = f"{type(error).__name__}: {error}"
        fields = {"job_id": self.job_id, "retry_s": pause_s, "error": self.problem}
        log.error("cannot manage a job", extra=fields)
        self._put_away()
        self.listener.failed(self, error)

    def _put_away(self) -> None:
        self.controller = None
        journal, self._journal = self._journal, None
        pen, self._pen = self._pen, None
        if pen is not None:
            pen.close()
        elif journal is not None:
            journal.close()


class NotTakenUpError(RankmendError):
    """A job's journal can't be read now."""
