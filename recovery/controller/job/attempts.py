"""Starts attempts, detects when an attempt has left its nodes, and closes the job.

An attempt is ordered once everything that it needs is there (`recovery.controller.job.attempt_needs`) and the fence
beside the checkpoints lets only it publish. Nothing starts before the last attempt is proved gone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from detectors.finding import SymptomKind
from rankmend.errors import JournalError, RankmendError, SourceError, StorageError
from recovery.checkpoints.unwritable import UnwritableError
from recovery.controller.cluster.gate import Pool
from recovery.controller.job import shared_reasons
from recovery.controller.job.attempt_diagnosis import EXIT_UNKNOWN
from recovery.controller.job.attempt_health import AttemptHealth
from recovery.controller.job.attempt_needs import AttemptNeeds, NeedsMet, NeedsMissing
from recovery.controller.job.membership import Gone, size_for
from recovery.controller.job.restore.restorable import (
    LOOK_S,
    NOTE_S,
    MissingSaves,
    checkpoint_seen,
    room_wanted,
)
from recovery.controller.job.restore.restore_choice import (
    choose_checkpoint,
    damage_found,
    is_progress,
    is_unchecked,
    without_deleted,
)
from recovery.controller.job.restore.snapshot_choice import (
    FETCH_S_MAX,
    NOBODY,
    SETTLE_S_MAX,
    Differ,
    Fault,
    Fetching,
    StandIns,
    failed_fetches,
    stand_ins,
    unsettled,
    with_snapshot,
)
from recovery.controller.job.situation import Situation
from recovery.journal.attempt_records import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    Cause,
    Choice,
    PassedOver,
    Placement,
    RestoreDamaged,
    StartWaits,
)
from recovery.journal.faults import UNSEEN
from recovery.journal.job_records import JobEnded, JobOutcome, OutcomeKind
from recovery.journal.ledger import Ledger, OpenIncident
from recovery.journal.limits import Policy, out_of_patience, out_of_restarts
from recovery.journal.node_records import FenceWaits, FinderChosen
from recovery.journal.records import Record
from recovery.messages.candidates import CheckpointVerdict, Hindrance
from recovery.messages.copying import FetchOrder
from recovery.messages.exchange import Report, SnapshotPoint

_LAST_BYTES_MAX: Final = (
    2_000_000_000  # of a checkpoint that is read at the job's end: 2 s at 1 GB/s
)
_LOOK_AGAIN_S: Final = 5.0  # between two looks for a checkpoint while a job is held for lack of one
_RESULTS: Final = {
    OutcomeKind.DONE: AttemptResult.DONE,
    OutcomeKind.STOPPED: AttemptResult.STOPPED,
    OutcomeKind.TIME_LIMIT: AttemptResult.STOPPED,
    OutcomeKind.ESCALATED: AttemptResult.FAILED,
}


class Checkpoints(Protocol):
    def candidates(self, is_training: bool) -> tuple[CheckpointVerdict, ...]:
        """Return all checkpoints found, newest first, each with its verdict."""
        ...

    def known(self) -> tuple[CheckpointVerdict, ...]:
        """Return what the background search has found, without looking now."""
        ...

    def check_on(self, path: str) -> None:
        """Note that ranks restore this one; if it is unchecked, read the rest of it before all others."""
        ...

    def is_there(self, path: str) -> bool:
        """Return whether a checkpoint that was found still exists; a look at its name alone."""
        ...


class AttemptFence(Protocol):
    def read(self) -> int | None:
        """Return the attempt that may publish checkpoints; None before the first."""
        ...

    def advance(self, attempt: int) -> None:
        """Let only this attempt publish; return once that is durable."""
        ...

    def refuse_short(self, wanted_bytes: int) -> None:
        """Raise UnwritableError where a save of this size does not fit."""
        ...


def ended_unstarted(reason: str, *, is_empty: bool = False) -> JobEnded:
    """Return the record of a job that ends because no attempt can start."""
    return JobEnded(JobOutcome(OutcomeKind.ESCALATED, EXIT_UNKNOWN, reason), is_empty)


class Attempts:
    def __init__(
        self,
        situation: Situation,
        watch: AttemptHealth,
        pool: Pool,
        checkpoints: Checkpoints | None,
        fence: AttemptFence | None,
        differ: Differ,
    ) -> None:
        """``differ``: how replicas differ in a step's snapshots."""
        self._situation = situation
        self._settings = situation.settings
        self._policy = situation.settings.policy
        self._nodes = situation.nodes
        self._watch = watch
        self._pool = pool
        self._checkpoints = checkpoints
        self._fence = fence
        self._differ = differ
        # when the checkpoint that a failure would restore was last noted
        self._noted_at_s = float("-inf")
        # when the result of a check of what the ranks have restored was last requested
        self._damage_at_s = float("-inf")
        # when the findings of the background search were last read
        self._known_at_s = float("-inf")
        # The previous attempt, the time of the look, and its result, if nothing could be restored.
        self._held: tuple[int, float, Choice] | None = None
        # When and why the checkpoint folder could not be written.
        self._unwritable: tuple[float, UnwritableError] | None = None
        self._fetching = Fetching()
        # The nodes without ranks that the job grows by; None: it may take every one that is usable.
        self.newcomers: frozenset[str] | None = None
        self._missing = MissingSaves(self._policy, self._settings.checkpoint_folder)
        # Checkpoints that were deleted between their choice and the order of the next attempt.
        self._deleted: dict[str, PassedOver] = {}

    @property
    def _ledger(self) -> Ledger:
        return self._situation.ledger

    # Start.

    def start(self, now_s: float) -> bool:
        """Start an attempt outside of an incident."""
        ledger = self._ledger
        cause = Cause.TAKEOVER
        if ledger.attempt == 0:
            cause = Cause.FIRST
        elif ledger.is_resumed:
            cause = Cause.RESUMED
        if cause is Cause.TAKEOVER and ledger.unconfirmed is not None:
            return self._tell_unconfirmed(ledger.unconfirmed)
        try:
            may_begin = self._settings.starts_from_scratch and not ledger.has_ordered
            may_begin |= ledger.start_approved_by is not None
            ready = self.prepare(self._policy, now_s, may_begin=may_begin)
            if isinstance(ready, NeedsMissing) and ready.left_s > 0:
                return False
            if isinstance(ready, NeedsMet) and not ready.choice.is_possible:
                return self._hold_start(ready.choice, now_s)
            spent = self._spent(ready) if cause is Cause.TAKEOVER else None
            if spent is not None:
                self._situation.record(ended_unstarted(spent, is_empty=True))
            elif isinstance(ready, NeedsMet):
                attempt = self.advance_fence()
                if self.is_still_there(ready.choice):
                    self.order(attempt, cause, ready, None)
            else:
                self._situation.record(self._unready(ready))
        except JournalError:
            raise
        except UnwritableError as full:
            return self._hold_for_storage(full, now_s)
        except (OSError, RankmendError) as error:
            reason = shared_reasons.cannot_start(error)
            self._situation.record(ended_unstarted(reason, is_empty=True))
        return True

    def _hold_for_storage(self, full: UnwritableError, now_s: float) -> bool:
        """Start nothing that could not save; return whether this was news."""
        waited_s = self._situation.since(now_s, "unwritable", self._ledger.epoch)
        if waited_s >= self._policy.checkpoint_wait_s:
            reason = shared_reasons.cannot_start(f"{full}; held for {waited_s:.0f} s")
            self._situation.record(ended_unstarted(reason, is_empty=True))
            return True
        reported = self._ledger.start_waits
        if reported is not None and (reported.is_for_storage, reported.about) == (
            True,
            full.why.value,
        ):
            return False
        reason = f"{full}. rankmend starts it by itself then"
        self._situation.record(StartWaits(reason, full.why.value, is_for_storage=True))
        return True

    def _hold_start(self, choice: Choice, now_s: float) -> bool:
        """Start nothing while the job would begin at step 0; return whether this was news."""
        waited_s = self._situation.since(now_s, "held", self._ledger.epoch)
        if waited_s >= self._policy.checkpoint_wait_s:
            reason = shared_reasons.cannot_start(f"{choice.reason}; held for {waited_s:.0f} s")
            self._situation.record(ended_unstarted(reason, is_empty=True))
            return True
        about, reported = choice.held_about, self._ledger.start_waits
        if reported is not None and reported.about == about:
            return False
        reason = shared_reasons.held(choice, self._settings.name)
        self._situation.record(StartWaits(reason, about, model_alone=choice.model_alone))
        return True

    def _spent(self, ready: NeedsMet | FinderChosen | NeedsMissing) -> str | None:
        """Return in words which budget forbids a takeover, or None."""
        ledger, policy = self._ledger, self._policy
        spent = ledger.spent_on(UNSEEN)
        reason = out_of_restarts(spent, policy)
        if reason is None and isinstance(ready, NeedsMet):
            is_newer = ready.choice.is_new_run or is_progress(ledger, ready.choice)
            reason = None if is_newer else out_of_patience(spent, policy)
        if reason is None:
            return None
        return (
            f"rankmend ended while ranks ran, and {shared_reasons.budget_spent(reason)}: "
            f"find out why, then start it with --reset-budgets"
        )

    def _tell_unconfirmed(self, unconfirmed: str) -> bool:
        """Journal once that a person must confirm the budgets; return whether this was news."""
        ledger = self._ledger
        assert ledger.adopted is not None, "only an adopted attempt needs confirmation"
        nodes = tuple(place.node for place in ledger.placement) or ledger.adopted.heard
        if set(nodes) <= set(ledger.fence_waits):
            return False
        reason = (
            f"attempt {ledger.attempt} is over, and no other starts: {unconfirmed}; "
            f"`rankmend reset-budgets {self._settings.name}` lets the job continue"
        )
        self._situation.record(FenceWaits(ledger.attempt, nodes, reason))
        return True

    @staticmethod
    def _unready(ready: FinderChosen | NeedsMissing) -> Record:
        """Return the next record on the way to an attempt, or the record that no attempt can start."""
        if isinstance(ready, FinderChosen):
            return ready
        return ended_unstarted(shared_reasons.cannot_start(ready.reason), is_empty=True)

    def prepare(
        self, policy: Policy, now_s: float, *, may_begin: bool = False
    ) -> NeedsMet | FinderChosen | NeedsMissing:
        """Return everything that the next attempt needs, or what is missing.

        ``may_begin``: a person allows it to begin at step 0 if nothing can be restored.
        """
        if self._unwritable is not None and now_s - self._unwritable[0] < _LOOK_AGAIN_S:
            raise self._unwritable[1]
        self._unwritable = None
        preparation = self.preparation(policy, now_s)
        placement = preparation.place()
        if isinstance(placement, NeedsMissing):
            return placement
        choice = self._choose(preparation, placement, policy, may_begin=may_begin)
        if not isinstance(choice, Choice):
            return choice
        with_memory = self._with_snapshot(choice, placement, policy, now_s)
        if isinstance(with_memory, NeedsMissing):
            return with_memory
        choice = with_memory
        if not choice.is_possible:
            return NeedsMet(placement, None, choice)
        rendezvous = preparation.meet(placement)
        if isinstance(rendezvous, NeedsMissing):
            return rendezvous
        return NeedsMet(placement, rendezvous, choice)

    def _choose(
        self,
        preparation: AttemptNeeds,
        placement: tuple[Placement, ...],
        policy: Policy,
        *,
        may_begin: bool,
    ) -> Choice | FinderChosen | NeedsMissing:
        if self._checkpoints is None:
            return preparation.find(placement, may_begin=may_begin)
        ledger, now_s, held = self._ledger, preparation.now_s, self._held
        if held is not None and not may_begin:
            attempt, looked_at_s, choice = held
            if attempt == ledger.attempt and now_s - looked_at_s < _LOOK_AGAIN_S:
                return choice
        found = self._checkpoints.candidates(False)
        choice = choose_checkpoint(ledger, policy, found, may_begin=may_begin)
        choice = without_deleted(choice, tuple(self._deleted.values()), may_begin=may_begin)
        self._held = None if choice.is_possible else (ledger.attempt, now_s, choice)
        return choice

    def _with_snapshot(
        self, choice: Choice, placement: tuple[Placement, ...], policy: Policy, now_s: float
    ) -> Choice | NeedsMissing:
        """Return the choice, with the snapshot in the ranks' memory where there is a better one."""
        ledger = self._ledger
        if not ledger.attempt or choice.is_new_run:
            return choice
        fetching = self._fetching = self._fetching.of_attempt(ledger.attempt)
        reported = [self._nodes.report_of(place.node) for place in placement]
        reports = [report for report in reported if report is not None]
        received = self._nodes.heard(ledger, now_s)
        waited_s = self._situation.since(now_s, "snapshots", ledger.attempt)
        failed = failed_fetches(received, ledger.attempt, waited_s)
        elsewhere = fetching.sources(placement, received, ledger.attempt, failed)
        equal = self._stand_ins(placement, received, failed)
        busy = unsettled(placement, reports, ledger.attempt, waited_s, {*elsewhere, *equal.ranks})
        if busy is not None:
            reason = f"{busy} is reading its snapshots"
            return NeedsMissing(reason, SETTLE_S_MAX - waited_s)
        held = {
            report.node: report.snapshots
            for report in reports
            if (report.snapshots_through or 0) >= ledger.attempt
        }
        with_memory = with_snapshot(
            choice, ledger, policy, placement, held, self._differ, elsewhere, equal
        )
        self._fetching = fetching.wanting(with_memory, placement, elsewhere, equal, received)
        if not with_memory.fetched:
            return self._fetching.told(with_memory)
        fetching_s = self._situation.since(now_s, "fetch", ledger.attempt)
        if fetching_s < FETCH_S_MAX:
            return NeedsMissing(self._fetching.text, FETCH_S_MAX - fetching_s)
        return with_snapshot(choice, ledger, policy, placement, held, self._differ)

    def _stand_ins(
        self,
        placement: Sequence[Placement],
        received: Mapping[str, Report],
        failed: Collection[Fault],
    ) -> StandIns:
        """Return which ranks' snapshots others could begin from; none where a node of the next attempt can't fetch any."""
        homes = [received.get(place.node) for place in placement]
        if any(home is None or home.copier is None for home in homes):
            return NOBODY
        return stand_ins(self._ledger, received, failed)

    def fetches(self) -> Mapping[str, tuple[FetchOrder, ...]]:
        """Return what each node is to bring from others before the next attempt."""
        return self._fetching.orders

    def preparation(self, policy: Policy, now_s: float) -> AttemptNeeds:
        """Return a look at what the next attempt needs."""

        def since(*key: object) -> float:
            return self._situation.since(now_s, *key)

        incident = self._ledger.incident
        is_growth = incident is not None and (
            incident.last_failure.finding.symptom.kind is SymptomKind.GROWTH
        )
        return AttemptNeeds(
            *(self._settings, policy, self._ledger, self._nodes, self._pool, now_s, since),
            newcomers=self.newcomers if is_growth else None,
        )

    def is_still_there(self, choice: Choice) -> bool:
        """Look again for the chosen checkpoint; if it was deleted, note that, and the caller chooses again.

        Where the launchers look for checkpoints, they do this themselves.
        """
        restore = choice.restore
        if choice.snapshot is not None or restore is None or self._checkpoints is None:
            return True
        if restore.path in self._deleted:
            return True  # a storage that lists and denies it in turns is left to the ranks
        if self._checkpoints.is_there(restore.path):
            return True
        self._deleted[restore.path] = PassedOver(
            restore.path, restore.step, "deleted after it was chosen"
        )
        return False

    def advance_fence(self) -> int:
        """Let only the next attempt publish checkpoints, and return its number.

        The number is above every known one, so that attempt numbers never repeat.
        """
        known = [self._ledger.attempt_max, self._nodes.highest_attempt]
        if self._fence is not None:
            try:
                known.append(self._fence.read() or 0)
            except SourceError as error:
                self._situation.book.warn(f"the fence beside the checkpoints is rewritten: {error}")
        attempt = max(known) + 1
        if self._fence is not None:
            try:
                if wanted := room_wanted(self._ledger):
                    self._fence.refuse_short(wanted)
                self._fence.advance(attempt)
            except UnwritableError as full:
                self._unwritable = self._situation.now_s(), full
                raise
        return attempt

    def order(
        self, attempt: int, cause: Cause, ready: NeedsMet, incident: OpenIncident | None
    ) -> None:
        """Order an attempt that is ready, with the number that the fence has."""
        has_moved = is_progress(self._ledger, ready.choice)
        path = ready.choice.restored_path
        if self._checkpoints is not None and path is not None:
            self._checkpoints.check_on(path)
        self._deleted.clear()
        self._situation.record(
            AttemptStarted(
                attempt,
                cause,
                ready.choice,
                None if incident is None else incident.state.incident_id,
                None if incident is None else incident.state.try_number,
                has_moved,
                ready.placement,
                ready.rendezvous,
                self._settings.takes_checkpoint,
            )
        )
        self._situation.observe_anew()

    def can_leave(self, node: str, now_s: float) -> bool:
        """Return whether the job can continue without the node."""
        usable = self.preparation(self._policy, now_s).usable().keys() - {node}
        return size_for(self._settings, len(usable)) is not None

    def can_go_behind(self, step: int) -> bool:
        """Return whether there is something to restore from before the step, as far as is known now."""
        ledger = self._ledger
        known = self._nodes.known_checkpoints(ledger)
        if self._checkpoints is not None:
            known = self._checkpoints.known()
        # What has rested for too short a time to be trusted beside training can be restored after it.
        usable = [
            checkpoint
            for checkpoint in known
            if checkpoint.is_valid or checkpoint.hindrance is Hindrance.WRITING
        ]
        steps = [checkpoint.candidate.step for checkpoint in usable]
        began = None if ledger.started is None else ledger.started.choice
        if began is not None and began.restored_path is not None:
            steps.append(began.begins_at)
        if ledger.restorable is not None:
            steps.append(ledger.restorable.step)
        if any(item is not None and item < step for item in steps):
            return True
        return any(point.step < step for point in self._whole_snapshots())

    def damage_found(self, now_s: float) -> RestoreDamaged | None:
        """Return that what the running attempt began from, unchecked then, has proved damaged, or None."""
        if not is_unchecked(self._ledger) or now_s - self._damage_at_s < LOOK_S:
            return None
        self._damage_at_s = now_s
        known = self._nodes.known_checkpoints(self._ledger)
        if self._checkpoints is not None:
            known = self._checkpoints.known()
        return damage_found(self._ledger, self._policy, known, self._whole_snapshots())

    def _whole_snapshots(self) -> list[SnapshotPoint]:
        """Return the steps of which every rank has its part in some node's memory."""
        held: dict[SnapshotPoint, set[int]] = {}
        for report in self._nodes.reports:
            for snapshot in report.snapshots:
                if not snapshot.is_damaged:
                    held.setdefault(snapshot.point, set()).add(snapshot.rank)
        return [point for point, ranks in held.items() if len(ranks) == self._ledger.world_size]

    def restorable(self, now_s: float) -> list[Record]:
        """Return a record if a failure would now restore another checkpoint than the one noted last, or loses too much."""
        if now_s - self._known_at_s < LOOK_S:
            return []
        self._known_at_s = now_s
        known = self._nodes.known_checkpoints(self._ledger)
        if self._checkpoints is not None:
            known = self._checkpoints.known()
        saves = self._situation.saves
        saves.note_known(known, now_s)
        if any(checkpoint.is_valid or checkpoint.is_young for checkpoint in known):
            self._situation.has_checkpoint = True
        seen = None
        if now_s - self._noted_at_s >= NOTE_S:
            seen = checkpoint_seen(self._ledger, self._policy, known, saves)
        if seen is not None:
            self._noted_at_s = now_s
            return [seen]
        return self._unsaved(known, now_s)

    def _last_seen(self, kind: OutcomeKind) -> list[Record]:
        """Return a record of the last save of a job that has ended, whose writers are gone."""
        noted = self._ledger.restorable
        is_due = kind in {OutcomeKind.DONE, OutcomeKind.STOPPED, OutcomeKind.TIME_LIMIT}
        is_small = noted is None or noted.size_bytes <= _LAST_BYTES_MAX
        if self._checkpoints is None or not (is_due and is_small):
            return []
        try:
            found = self._checkpoints.candidates(False)
        except (SourceError, StorageError):
            return []
        seen = checkpoint_seen(self._ledger, self._policy, found, self._situation.saves)
        return [] if seen is None else [seen]

    def _unsaved(self, known: Sequence[CheckpointVerdict], now_s: float) -> list[Record]:
        """Return a record if the job has trained for long and saved nothing where checkpoints are looked for."""
        if self._checkpoints is None and not self._settings.has_checkpoints:
            return []
        has_snapshots = any(report.snapshots for report in self._nodes.reports)
        missing = self._missing.due(self._ledger, known, now_s, has_snapshots=has_snapshots)
        return [] if missing is None else [missing]

    # Gone?

    def gone(self, policy: Policy, now_s: float) -> Gone:
        """Return whether the newest attempt is proved gone from all its nodes."""
        return self._nodes.gone(self._ledger, policy, now_s)

    def fence_leftover(self, now_s: float) -> bool:
        """Wait until an attempt that has no incident and is not managed is gone."""
        attempt = self._ledger.attempt
        gone = self.gone(self._policy, now_s)
        if gone.is_proved:
            self._situation.record(AttemptEnded(attempt, AttemptResult.LOST, gone.proofs, gone.off))
            return True
        if self.tell_person(gone, now_s):
            return True
        if self._situation.since(now_s, "leftover", attempt) < self.fence_bound_s(self._policy):
            return False
        self._situation.record(
            ended_unstarted(shared_reasons.leftovers(attempt, self.fence_bound_s(self._policy)))
        )
        return True

    def watch_silence(self, now_s: float) -> bool:
        """Notify people when the whole attempt has been silent for long: only they can judge that.

        The ranks may still train behind a cut network. Only proofs end the attempt.
        """
        ledger, limit_s = self._ledger, self._policy.hung.ceil_s
        if self._nodes.is_any_heard(ledger, now_s - limit_s):
            return False
        gone = self.gone(self._policy, now_s)
        if gone.is_proved:
            reason = f"attempt {ledger.attempt} is gone: " + "; ".join(
                f"{proof.node} {proof.reason}" for proof in gone.proofs
            )
            self._situation.record(AttemptAbandoned(ledger.attempt, reason))
            return True
        if set(gone.silent) <= set(ledger.fence_waits):
            return False
        reason = f"no node of attempt {ledger.attempt} has reported for {limit_s:g} s"
        self._situation.record(FenceWaits(ledger.attempt, gone.silent, reason))
        return True

    def fence_bound_s(self, policy: Policy) -> float:
        """Return how long to wait for a proof; a person may still confirm a node meanwhile."""
        return policy.fence_timeout_s + policy.spare_wait_s

    def tell_person(self, gone: Gone, now_s: float) -> bool:
        """Journal once which nodes are still unproved after a while."""
        ledger = self._ledger
        waits = (*gone.silent, *gone.busy)
        if set(waits) <= set(ledger.fence_waits) or not self._policy.spare_wait_s:
            return False  # already journaled, or nothing is waiting for the proof
        if self._situation.since(now_s, "unproved", ledger.attempt) < self._policy.fence_timeout_s:
            return False
        reported = (
            f"silent: {', '.join(gone.silent) or 'none'}; busy: {', '.join(gone.busy) or 'none'}"
        )
        reason = (
            f"nothing proves that attempt {ledger.attempt} is gone ({reported}): reboot the node, or "
            f"`rankmend confirm-gone NODE --job {self._settings.name}` once it is powered off"
        )
        self._situation.record(FenceWaits(ledger.attempt, waits, reason))
        return True

    def close(self, now_s: float) -> bool:
        """End the job once no process of it is left, or once that takes too long."""
        ledger = self._ledger
        closing = ledger.closing
        assert closing is not None, "called while closing"
        gone = self.gone(self._policy, now_s)
        is_empty = gone.is_proved or not ledger.is_attempt_open
        bound_s = closing.grace_s + self._policy.fence_timeout_s
        if not is_empty and self._situation.since(now_s, "closing", ledger.revision) < bound_s:
            return False
        outcome = closing.outcome
        if not is_empty:
            left_on = ", ".join((*gone.silent, *gone.busy)) or "its nodes"
            reason = f"{outcome.reason}; ranks may be left on {left_on}: not proved gone after {bound_s:g} s"
            outcome = replace(outcome, reason=reason)
        records = [
            *self._watch.milestone(now_s, is_due=True),
            *self._watch.spent(now_s, is_due=True),
        ]
        if is_empty and ledger.is_attempt_open:
            records += self._last_seen(outcome.kind)
            records.append(
                AttemptEnded(ledger.attempt, _RESULTS[outcome.kind], gone.proofs, gone.off)
            )
        self._situation.record(*records, JobEnded(outcome, is_empty))
        return True
