"""The jobs of a controller: which run, which have ended, and whose they are.

One job is one folder on disk (`stored_jobs`) and, while it runs, one `Job` with its controller.
Everything here is for the deciding thread, but ``known``, ``everywhere`` and ``fleet``: any thread may read them.
"""

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from rankmend.clock import Clock, read_boot_id
from rankmend.errors import ConfigError, RankmendError
from recovery.api.wire import Join
from recovery.console.views.state_words import word_of
from recovery.controller.job.adoption import EPOCH_JUMP_MAX
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.journal.ledger import Moment
from recovery.journal.limits import Policy
from recovery.journal.narration.launcher_lines import LauncherLines
from recovery.journal.postgres.leases import HeldByOtherError
from recovery.journal.records import Entry
from recovery.journal.stored_journal import StoredJournal
from recovery.messages.exchange import LauncherLine
from recovery.service.http.request_errors import CallConflictError, EndedError, FullError
from recovery.service.jobs.job_store import (
    ALONE,
    ControllerFleet,
    Ended,
    FoundJobs,
    JobStore,
    StoreCommitter,
    StoredJob,
)
from recovery.service.jobs.join_difference import refuse_difference
from recovery.service.jobs.listening_clock import Hearing
from recovery.service.jobs.newest_orders import NewestOrders
from recovery.service.jobs.retained import JournalBytes
from recovery.service.jobs.served_job import (
    CoreMaker,
    Job,
    Parts,
    make_core,
    policy_of,
    settings_of,
)
from recovery.service.jobs.stored_jobs import new_secret
from recovery.service.roles import TooManyError, UnknownError

log = logging.getLogger(__name__)

ENDED_MAX: Final = 10_000  # jobs whose end is kept in memory for their late launchers
# Ended jobs whose last lines are kept: launchers ask within seconds, late ones within a minute (`recovery.api.connection.pause_s`).
LAST_LINES_MAX: Final = 100
EMPTY: Final[Mapping[str, Sequence[LauncherLine]]] = {}
TAKEN_UP_MAX: Final = 50  # jobs in one turn: each takes some commits, and reports wait meanwhile
TAKE_OVER_PAUSE_S: Final = 1.0  # within which the next of many jobs are ready
HAND_OVER_S: Final = 1.0  # between two jobs that are left to another controller
MOVING_S: Final = 15.0  # then whoever is asked for the job takes it
_SWEEP_S: Final = 3600.0
UNREPORTED_S: Final = 30.0  # a launcher reports each second
SHARE_RETRY_S: Final = 10.0  # after a refusal for a share that lasts as long as jobs do


@dataclass(frozen=True, slots=True)
class RegisteredJob:
    """What the event loop knows about a job without the deciding thread."""

    owner: str
    name: str
    outcome: JobOutcome | None  # None while it runs
    journal: StoredJournal
    incident_prefix: str  # with which the ids of its incidents begin


def newcomers_room(jobs_max: int, waiting: int = 0) -> int:
    """Return how many jobs are kept for subjects that have none, so that several subjects together can't fill the fleet.

    ``waiting``: subjects who may launch jobs and have none. Each of them has room for its first job, which nobody else can take, however
    many others agree to fill the fleet; for at most half of all jobs, so that tokens that nobody uses don't halve the fleet again. At
    least an eighth is kept, as of the connections: tokens are made meanwhile. None where there is room for one job only.
    """
    if jobs_max <= 1:
        return 0
    return max(1, jobs_max // 8, min(waiting, jobs_max // 2))


class JobListener(Protocol):
    """Receives events to count (`recovery.service.metrics.measures`)."""

    def journal_opened(self, job: Job, opened: Sequence[Entry], through: int) -> None: ...
    def entry(self, job: Job, entry: Entry) -> None: ...
    def failed(self, job: Job, error: Exception) -> None: ...
    def taken_up(self, job: Job) -> None: ...
    def ended(self, job: Job) -> None: ...


class JobRegistry:
    def __init__(
        self,
        store: JobStore,
        board: NewestOrders,
        listener: JobListener,
        clock: Clock,
        hearing: Hearing,
        policy_for: Callable[[str], Policy],
        parts_for: Callable[[Join], Parts],
        *,
        make_core: CoreMaker = make_core,
        committer: StoreCommitter | None = None,
        jobs_max: int = 500,
        of_subject_percent: float = 50.0,
        journal_bytes_per_day: float = math.inf,
        unreported_s: float = UNREPORTED_S,
        ended_kept_s: float = 90 * 86400.0,
        ended_max: int = ENDED_MAX,
        alive: Moment | None = None,
        launchers: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """``committer`` writes the jobs' journals; None: each decision waits for the disk.

        ``alive``: when the controller before was last alive; None: not known. ``launchers`` returns the subjects who may launch jobs.

        ``policy_for`` gives a job's limits by its name, ``parts_for`` what its controller works with."""
        self._store = store
        self._generation = store.generation
        self._board = board
        self._listener = listener
        self._clock = clock
        self._hearing = hearing
        self.policy_for = policy_for
        self._parts_for = parts_for
        self._make_core = make_core
        self._committer = committer
        self._jobs_max = jobs_max
        self._unreported_s = unreported_s
        self._of_subject_max = max(1, int(jobs_max * of_subject_percent / 100.0))
        self._keeps_room = of_subject_percent < 100.0
        self._launchers = launchers
        self._ended_kept_s = ended_kept_s
        self._ended_max = ended_max
        self._alive = alive
        self.journals = JournalBytes(journal_bytes_per_day)
        self.running: dict[str, Job] = {}  # by job id
        self._by_key: dict[tuple[str, str], str] = {}
        self._ended: dict[str, FoundJobs] = {}
        self._freed: dict[str, FoundJobs] = {}  # that are to be taken up
        self._moving: dict[
            str, float
        ] = {}  # job that was let go -> until when it is left to others
        self._handed_at_s = clock.now_s()
        self.known: Mapping[str, RegisteredJob] = {}  # here, or ended; replaced as a whole
        self.everywhere: Mapping[
            str, RegisteredJob
        ] = {}  # those of other controllers, too; likewise
        self.is_shared = bool(store.peer_secret)  # there may be other controllers
        # The last lines of jobs that have ended, for their launchers; replaced as a whole.
        self.last_lines: Mapping[str, Sequence[LauncherLine]] = EMPTY
        self.fleet: ControllerFleet = ALONE
        self.problems: tuple[str, ...] = ()
        self._swept_at_s = clock.now_s()
        self._taken_over_at_s = -math.inf

    def take_up_all(self) -> None:
        """Resume the jobs that are kept; what keeps one from it is in ``problems``."""
        found, problems = self._store.find()
        running = []
        for item in found:
            if item.ended is not None:
                self._note_ended(item)
            else:
                running.append(item)
        for first in range(0, len(running), TAKEN_UP_MAX):
            for item, error in self._take_up(running[first : first + TAKEN_UP_MAX]):
                if not isinstance(error, HeldByOtherError):  # took it meanwhile
                    problems.append(f"{item.job_id}: {error}")
        for problem in problems:
            log.error("cannot resume a job", extra={"error": problem})
        self.problems = tuple(problems)
        self._publish()

    def is_heard(self, node: str) -> bool:
        """Return whether a launcher of any job has reported from the node lately."""
        return any(
            (at_s := job.reported_at_s.get(node)) is not None
            and job.hearing.now_s() - at_s < job.settings.policy.node_silent_s
            for job in self.running.values()
        )

    def _take_up(self, found: Sequence[FoundJobs]) -> list[tuple[FoundJobs, RankmendError]]:
        """Resume jobs, whose first records become durable together; return those that can't be, and why."""
        jobs, failed = [], []
        for item in found:
            try:
                stored = item.stored
                job = self._hold(stored.owner, stored.join, stored, resumes=False, is_together=True)
            except RankmendError as error:
                failed.append((item, error))
                continue
            job.prepare()
            jobs.append(job)
        failures = self._store.write_held()
        for job in jobs:
            job.go_live(failures.get(job.job_id))
            self._listener.taken_up(job)
        return failed

    def _open(self, owner: str, join: Join, before: StoredJob | None, *, resumes: bool) -> Job:
        """Hold a job and have its controller begin; ``before``: what is known of it already."""
        job = self._hold(owner, join, before, resumes=resumes)
        job.start()
        self._listener.taken_up(job)
        return job

    def _hold(
        self,
        owner: str,
        join: Join,
        before: StoredJob | None,
        *,
        resumes: bool,
        is_together: bool = False,
    ) -> Job:
        """Hold a job whose controller is about to begin."""
        hearing = self._hearing.of(owner)
        parts = replace(self._parts_for(join), hearing=hearing)
        if resumes and join.epoch:  # bounded: a forged one leaves room above itself
            epoch_min = min(join.epoch, EPOCH_JUMP_MAX) + 1
            parts = replace(parts, epoch_min=max(parts.epoch_min, epoch_min))
        hold = self._store.open(owner, join, self._clock.unix_s(), is_together=is_together)
        job_id = str(hold.job_id)
        secret = before.secret if before is not None else new_secret()
        prefix = before.incident_prefix if before is not None else self._new_prefix(job_id)
        retained = StoredJob(owner, secret, join, prefix)
        try:
            settings = settings_of(job_id, join, self.policy_for(join.name), parts, prefix)
            if not resumes and self._alive is not None:
                now = Moment(self._clock.unix_s(), self._clock.now_s(), read_boot_id())
                settings = replace(settings, alive_age_s=self._alive.until_s(now))
            if job_id in self.running:
                raise CallConflictError(f"job {job_id} has another key", "job_id", job_id)
            # One taken up is on disk as it is; writing it again would fail on a full disk.
            if resumes:
                hold.save(retained)
        except BaseException:
            hold.close()
            raise
        opened_s = hearing.now_s()
        job = Job(
            hold=hold,
            stored=retained,
            settings=settings,
            parts=parts,
            orders=self._board,
            clock=self._clock,
            listener=self._listener,
            make_core=self._make_core,
            committer=self._committer,
            resumes=resumes,
            has_reported=not resumes,
            joined_at_s=opened_s,
            began_at_s=opened_s,
            lines=LauncherLines(names_nodes=join.nodes_max > 1),
            write=lambda size: self.journals.write(owner, size, self._clock.now_s()),
        )
        self.running[job_id] = job
        self._by_key[owner, join.key] = job_id
        self._ended.pop(job_id, None)
        return job

    def join(self, owner: str, join: Join) -> tuple[Job, bool]:
        """Return the job that a launcher joins, and whether it is the first of it."""
        self._store.note_join()
        job_id = self._by_key.get((owner, join.key))
        job = self.running.get(job_id) if job_id is not None else None
        if job is not None:
            job = self._agreed(job, owner, join)
            is_new = False
        else:
            job, is_new = self._begin(owner, join, job_id), True
        job.note_launcher(join)
        return job, is_new

    def _agreed(self, job: Job, owner: str, join: Join) -> Job:
        """Return the job, as a launcher says that it is to run; raise where another one says else.

        Whoever starts a job with other settings, of which no launcher is there, needs to stop nothing first.
        """
        try:
            refuse_difference(job.stored.join, join)
        except CallConflictError:
            if not job.is_abandoned():
                raise
            log.info("job starts with other settings", extra={"job_id": job.job_id})
            job.close()
            del self.running[job.job_id]
            self._board.end(job.job_id)
            self._listener.ended(job)
            job = self._open(owner, join, job.stored, resumes=True)
            self._publish()
        return job

    def _begin(self, owner: str, join: Join, job_id: str | None) -> Job:
        if not join.begins:
            raise UnknownError(f"job {join.name} is not running here")
        before = self._look_up(owner, join, job_id)
        if before is not None and before.ended is not None:
            ended = before.ended
            job_id = before.job_id
            if (join.run and join.run in ended.runs) or join.launcher_id in ended.launchers:
                raise EndedError("this run of the job has ended", ended.outcome)
        self._refuse_more(owner)
        claimed = self.known.get(join.job_id) if join.job_id is not None else None
        if claimed is not None and join.job_id != job_id:
            raise CallConflictError(
                f"job {join.job_id} is known under another key or owner", "job_id", join.job_id
            )
        job = self._open(owner, join, before.stored if before is not None else None, resumes=True)
        self._publish()
        return job

    def _refuse_more(self, owner: str) -> None:
        """Raise FullError where no other job may begin, TooManyError where none of this subject may: the room is for all."""
        own = sum(job.stored.owner == owner for job in self.running.values())
        if own >= self._of_subject_max:
            raise TooManyError(
                f"{owner} has {own} running jobs: its share of jobs.at_once_max (jobs.of_subject_percent)",
                SHARE_RETRY_S,
            )
        retained = self._kept_for_newcomers() if own and owner else 0
        if retained and len(self.running) >= self._jobs_max - retained:
            raise TooManyError(
                f"{len(self.running)} jobs are running: the last {retained} of jobs.at_once_max are for subjects without a job",
                SHARE_RETRY_S,
            )
        if len(self.running) >= self._jobs_max:
            raise FullError(
                f"{len(self.running)} jobs are running; jobs.at_once_max is {self._jobs_max}"
            )

    def _kept_for_newcomers(self) -> int:
        """Return how many jobs are kept for the subjects that have none now."""
        if not self._keeps_room:
            return 0
        busy = {job.stored.owner for job in self.running.values()}
        return newcomers_room(self._jobs_max, len(self._launchers() - busy))

    def _unreported(self) -> list[Job]:
        return [job for job in self.running.values() if job.is_unreported(self._unreported_s)]

    def drop_unreported(self) -> None:
        """Forget the jobs of which no launcher has ever reported: one that is only late joins anew."""
        for job in self._unreported():
            reason = f"no launcher of it has reported within {self._unreported_s:.0f} s"
            self.end(job, JobOutcome(OutcomeKind.STOPPED, 1, reason))
            self._forget(job.job_id)
            self._publish()

    def _look_up(self, owner: str, join: Join, job_id: str | None) -> FoundJobs | None:
        """Return what is known of a job that does not run here, also from other controllers."""
        found = self._store.find_one(owner, join)
        if found is None:
            return self._ended.get(job_id) if job_id is not None else None
        if found.ended is not None:
            self._note_ended(found)
        elif self._moving.get(found.job_id, 0.0) > self._clock.now_s():
            self._store.refuse_held(found)
            raise FullError(f"job {found.job_id} is moving to another controller; try again")
        return found

    def _new_prefix(self, job_id: str) -> str:
        """Return with what the ids of a new job's incidents begin: its UUID's first block, or another where a job has that.

        A launcher may choose the UUID, and ids must name one incident: people approve by them.
        """
        taken = {job.incident_prefix for job in self.everywhere.values()}
        taken |= {job.stored.incident_prefix or other[:8] for other, job in self.running.items()}
        prefix = job_id[:8]
        while prefix in taken:
            prefix = secrets.token_hex(4)
        return prefix

    def follow_leases(self) -> None:
        """Take up jobs that no other controller manages any more, and drop those that others have taken.

        Where this controller could not keep its leases, every job is taken up anew from its journal, or found to be
        another controller's: until then its launchers get no answer here and look elsewhere.
        """
        if self._generation != (generation := self._store.generation):
            self._generation = generation
            for job in self.running.values():
                job.suspend("the lease of this controller has expired")
        for job in [item for item in self.running.values() if item.is_elsewhere]:
            self.let_go(job)
        self._hand_over()
        self._store.note_silence(self._silent_s())
        self._follow_fleet()
        self._freed.update({jobs.job_id: jobs for jobs in self._store.freed()})
        freed = list(self._freed.values())[:TAKEN_UP_MAX]
        for jobs in freed:
            del self._freed[jobs.job_id]
        # Of those that run already a launcher was quicker.
        for item, error in self._take_up(
            [jobs for jobs in freed if jobs.job_id not in self.running]
        ):
            log.info("job not taken over", extra={"job_id": item.job_id, "why": str(error)})
            self._store.give_up(item)
        if freed:
            self._taken_over_at_s = self._clock.now_s()
            self._publish()

    def _silent_s(self) -> float | None:
        """Return how long ago the newest report or join of any job came; None: this controller manages no job."""
        managed = (job for job in self.running.values() if job.controller is not None)
        return min((job.hearing.now_s() - job.silent_since_s for job in managed), default=None)

    def _follow_fleet(self) -> None:
        """Take in what other controllers have and what they have ended."""
        fleet = self._store.fleet
        if fleet is self.fleet:
            return
        for job_id, found in fleet.ended.items():
            if found != self.fleet.ended.get(job_id) and job_id not in self.running:
                self._note_ended(found)
        for job_id in fleet.jobs.keys() & self._ended.keys():  # it runs anew, at another one
            self._ended.pop(job_id)
        self.fleet = fleet
        self._publish()

    def _hand_over(self) -> None:
        """Let one calm job go that another controller is to have; its launchers find it there when they join again."""
        now_s = self._clock.now_s()
        if now_s - self._handed_at_s < HAND_OVER_S:
            return
        for job_id in self._store.leaving:
            job = self.running.get(job_id)
            if job is not None and job.is_calm:
                self._handed_at_s = now_s
                self._moving = {item: s for item, s in self._moving.items() if s > now_s}
                self._moving[job_id] = now_s + MOVING_S
                self.let_go(job)
                return

    @property
    def away_s(self) -> float | None:
        """Return for how long the database of the jobs has not answered; None: it does, or there is none."""
        return self._store.away_s()

    @property
    def has_freed(self) -> bool:
        """Return whether jobs wait to be taken up, of which one turn takes some."""
        return bool(self._freed)

    @property
    def is_taking_over(self) -> bool:
        """Return whether more jobs are to be taken up than one turn takes, or may be in a moment."""
        return bool(self._freed) or self._clock.now_s() - self._taken_over_at_s < TAKE_OVER_PAUSE_S

    def let_go(self, job: Job) -> None:
        """Forget a job that another controller manages now, or is to manage."""
        log.warning("job left to another controller", extra={"job_id": job.job_id})
        job.close()
        del self.running[job.job_id]
        self._by_key.pop((job.stored.owner, job.stored.join.key), None)
        self._publish()
        self._board.end(job.job_id)
        self._listener.ended(job)

    def end(self, job: Job, outcome: JobOutcome) -> None:
        fields = {"job_id": job.job_id, "outcome": f"{outcome.kind.value}: {outcome.reason}"}
        log.info("job ended", extra=fields)
        runs, launchers = sorted(job.runs), sorted(job.launchers)
        ended = Ended(self._clock.unix_s(), outcome, runs, launchers)
        try:
            job.hold.save_end(ended)
        except RankmendError as error:  # the next start finds it in the journal
            log.error("cannot save the end of a job", extra={"error": str(error)})  # noqa: TRY400
        job.close()
        retained = dict(tuple(self.last_lines.items())[1 - LAST_LINES_MAX :])
        self.last_lines = {**retained, job.job_id: job.lines.newest}
        del self.running[job.job_id]
        self._note_ended(FoundJobs(job.hold.stored_journal, job.job_id, job.stored, ended))
        self._publish()
        self._board.end(job.job_id)
        self._listener.ended(job)

    def _note_ended(self, found: FoundJobs) -> None:
        self._ended[found.job_id] = found
        self._by_key[found.stored.owner, found.stored.join.key] = found.job_id
        while len(self._ended) > self._ended_max:
            self._forget(next(iter(self._ended)))

    def _forget(self, job_id: str) -> None:
        found = self._ended.pop(job_id)
        self._by_key.pop((found.stored.owner, found.stored.join.key), None)
        try:
            self._store.remove(found)
        except (OSError, ConfigError) as error:
            log.warning("cannot remove an ended job", extra={"job_id": job_id, "error": str(error)})

    def _publish(self) -> None:
        running = {
            job_id: _registered(job_id, job.stored, None, job.hold.stored_journal)
            for job_id, job in self.running.items()
        }
        ended = {
            job_id: _registered(job_id, item.stored, item.ended.outcome, item.journal)
            for job_id, item in self._ended.items()
            if item.ended is not None
        }
        elsewhere = {
            job_id: _registered(job_id, job.found.stored, None, job.found.journal)
            for job_id, job in self.fleet.jobs.items()
        }
        self.known = {**ended, **running}
        self.everywhere = {**ended, **elsewhere, **running} if elsewhere else self.known

    def ended(self) -> tuple[FoundJobs, ...]:
        """Return the jobs that have ended and are kept."""
        return tuple(self._ended.values())

    def find_ended(self, job_id: str) -> FoundJobs:
        found = self._ended.get(job_id)
        if found is None:
            raise UnknownError(f"no job {job_id}")
        return found

    def find_running(self, job_id: str) -> Job:
        job = self.running.get(job_id)
        if job is None:
            known = self.known.get(job_id)
            if known is not None and known.outcome is not None:
                raise EndedError(f"job {job_id} has ended", known.outcome)
            raise UnknownError(f"no job {job_id}")
        if job.controller is None:
            raise FullError(f"the controller cannot manage job {job_id} now: {job.problem}")
        return job

    def sweep(self, now_s: float) -> None:
        """Remove jobs that ended long ago, where it is time to look for them."""
        if now_s - self._swept_at_s < _SWEEP_S:
            return
        self._swept_at_s = now_s
        due_unix_s = self._clock.unix_s() - self._ended_kept_s
        old = [
            job_id
            for job_id, item in self._ended.items()
            if item.ended is not None and item.ended.unix_s < due_unix_s
        ]
        for job_id in old:
            self._forget(job_id)
        if old:
            self._publish()

    def close(self) -> None:
        """Close the journals of the running jobs; training continues."""
        for job in self.running.values():
            job.push()
        for job in self.running.values():
            job.close()
        if self._committer is not None:
            self._committer.close()


def refuse_ended(
    job_id: str, known: RegisteredJob, lines: Mapping[str, Sequence[LauncherLine]] = EMPTY
) -> None:
    """Raise EndedError where the job has ended; ``lines``: the last ones of ended jobs."""
    outcome = known.outcome
    if outcome is not None:
        text = f"job {job_id} has ended: {word_of(outcome.kind.value)}: {outcome.reason}"
        raise EndedError(text, outcome, lines.get(job_id, ()))


def _registered(
    job_id: str, job: StoredJob, outcome: JobOutcome | None, journal: StoredJournal
) -> RegisteredJob:
    prefix = job.incident_prefix or job_id[:8]
    return RegisteredJob(job.owner, job.join.name, outcome, journal, prefix)


def check_join(join: Join, policy: Policy) -> None:
    """Raise ConfigError if a launcher asks for settings that the limits forbid."""
    policy_of(join, policy)
