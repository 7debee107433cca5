"""The health of the newest attempt: whether it has failed, and how far it has come.

Reads the situation and returns the records that are due; decides and writes nothing.
"""

from typing import Final

from detectors.finding import Finding
from recovery.controller.job.alert_intake import fatal
from recovery.controller.job.attempt_diagnosis import (
    AGAIN_S,
    EXIT_UNKNOWN,
    AccusedRanks,
    Doctor,
    Patience,
)
from recovery.controller.job.membership import has_launcher_of_attempt
from recovery.controller.job.observation import Observation
from recovery.controller.job.situation import Situation
from recovery.journal.attempt_records import (
    AttemptVerified,
    Milestone,
    RelativeMilestone,
    StandKind,
    StandStill,
)
from recovery.journal.fold.budget_fold import RESTARTS
from recovery.journal.incident_records import CaughtUp, Failure
from recovery.journal.ledger import Ledger, Reach, farther, is_farther
from recovery.journal.limits import Policy
from recovery.journal.records import Record

# Between two looks at all ranks: a look costs 3 us a rank, 5 % of the time, in a long stall 0.25 %.
_FIRST_STEP: Final = 1  # at the latest: loops count from 0 or 1
_LOOK_S_PER_RANK: Final = 6e-5
_LOOK_S_MAX_PER_RANK: Final = 20 * _LOOK_S_PER_RANK
_LOOK_RATIO: Final = 0.05  # pause between two looks, as a share of the time without progress
_LOOK_S_PER_NODE: Final = (
    1e-4  # before ranks have started: a look costs 2 us a node, 2 % of the time
)
# Between two sums of what the ranks spent, for the account of time: one costs 3 us a rank, 1.5 % of the time.
_SPENT_S_PER_RANK: Final = 2e-4


class AttemptHealth:
    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._settings = situation.settings
        self._policy = situation.settings.policy
        self._nodes = situation.nodes
        self._milestone_at_s = 0.0
        self._spent_at_s = 0.0
        self._looked_at_s = 0.0  # the newest look at every rank for a stall
        self._standing: StandStill | None = None  # found by the newest look
        self._stood_at_s: float | None = None  # when the standstill on record was seen first

    @property
    def _ledger(self) -> Ledger:
        return self._situation.ledger

    @property
    def _seen(self) -> Observation:
        return self._situation.observation

    # Failed?

    def find_failure(self, now_s: float, policy: Policy) -> Failure | None:
        """Return the attempt's failure, once it can be judged."""
        ledger, seen, nodes = self._ledger, self._seen, self._nodes
        started = ledger.started
        is_first = started is not None and started.cause not in RESTARTS and not ledger.is_verified
        doctor = Doctor(
            self._settings,
            policy,
            ledger.placement,
            ledger.restored_step,
            is_first,
            self._patience(policy),
            ledger.standing,
        )
        self._standing = None
        is_due = self._is_look_due(now_s, policy)
        waiting_s = self._situation.since(now_s, "ordered", ledger.attempt)
        has_stepped_before = bool(ledger.telling_ranks)
        accused = self._accused(now_s, policy) if seen.failed else None
        reported_through_s = nodes.reported_through_s(ledger) if is_due or seen.failed else 0.0
        if accused is not None and (accused.ended or accused.replaced or accused.silent):
            reported_through_s = now_s  # what is missing needs no wait
        found = doctor.find_failure(
            seen,
            now_s,
            waiting_s=waiting_s,
            reported_through_s=reported_through_s,
            has_stepped_before=has_stepped_before,
            looks_for_hang=is_due,
        )
        if isinstance(found, StandStill):
            self._standing = found
            if found.kind is StandKind.SUSPENDED:
                seen.held_at_s = now_s
        elif found is not None:
            return found if accused is None else doctor.explain(seen, found, accused)
        elif seen.failed:
            return None
        if not (is_due or seen.stopped or ledger.replaced_number > ledger.started_number):
            return None
        return doctor.find_accused(
            seen,
            self._accused(now_s, policy),
            now_s,
            waiting_s=waiting_s,
            has_stepped_before=has_stepped_before,
        )

    def _patience(self, policy: Policy) -> Patience:
        ledger, situation = self._ledger, self._situation
        is_dry = policy.observe or situation.pool.is_dry_for(self._settings.job_id)
        return Patience(
            policy.hung,
            is_restorable=ledger.restorable_path is not None
            or situation.has_checkpoint
            or any(report.snapshots for report in self._nodes.reports),
            may_continue=not is_dry and ledger.paused_by is None,
            continued=[
                rank for rank, at in ledger.continued if situation.since_record_s(at) < AGAIN_S
            ],
        )

    def standing(self, now_s: float) -> StandStill | None:
        """Return the record that is due about ranks that stand still, or have gone on."""
        found, known = self._standing, self._ledger.standing
        seen = self._seen
        if found is not None:
            self._standing = None
            if known is not None and (known.kind, known.ranks) == (found.kind, found.ranks):
                return None
            self._stood_at_s = now_s
            if found.kind is not StandKind.WAITS:
                seen.held_at_s = now_s
            return found
        if known is None:
            self._stood_at_s = None
            return None
        if self._stood_at_s is None:  # by another process
            self._stood_at_s = seen.held_at_s = now_s
        if seen.advanced_at_s is None or seen.advanced_at_s <= self._stood_at_s:
            return None
        after_s = seen.advanced_at_s - self._stood_at_s
        return StandStill(known.attempt, StandKind.ENDED, known.ranks, "", after_s)

    def _is_look_due(self, now_s: float, policy: Policy) -> bool:
        """Return whether to look at every rank for a stall.

        Not before any limit can have passed, and less often the more ranks there are and the longer the stall
        lasts: a delay of a twentieth does no harm.
        """
        seen = self._seen
        moved_at_s = seen.advanced_at_s or seen.started_at_s
        if moved_at_s is None:  # before the ranks have started, only nodes are judged
            if now_s - self._looked_at_s < _LOOK_S_PER_NODE * len(self._ledger.placement):
                return False
            self._looked_at_s = now_s
            return True
        still_s = now_s - moved_at_s
        if still_s < min(policy.hung.stopped_floor_s, policy.node_silent_s):
            return False
        least_s, most_s = (
            per_rank_s * self._ledger.world_size
            for per_rank_s in (_LOOK_S_PER_RANK, _LOOK_S_MAX_PER_RANK)
        )
        if now_s - self._looked_at_s < max(least_s, min(_LOOK_RATIO * still_s, most_s)):
            return False
        self._looked_at_s = now_s
        return True

    def _accused(self, now_s: float, policy: Policy) -> AccusedRanks:
        ledger = self._ledger
        replaced = tuple(
            place.node
            for place in ledger.placement
            if (member := ledger.members.get(place.node)) is not None
            and not has_launcher_of_attempt(ledger, member)
        )
        rebooted = frozenset(
            node for node in replaced if ledger.members[node].boot_since > ledger.started_number
        )
        ended = tuple(
            place.node
            for place in ledger.placement
            if (member := ledger.members.get(place.node)) is not None
            and member.ended_through is not None
        )
        silent = self._nodes.silent(ledger, now_s, policy.node_silent_s)
        reported = fatal(ledger)
        fresh = tuple(
            retained.evidence
            for retained in reported
            if policy.evidence_wait_s <= (age_s := self._situation.age_s(retained.at))
            and age_s + retained.evidence.since_age_s < policy.evidence_fresh_s
        )
        evidence = tuple(retained.evidence for retained in reported)
        quiet = set(silent)
        reported_through_s = min(
            (self._nodes.reported_at_s(p.node) for p in ledger.placement if p.node not in quiet),
            default=now_s,
        )
        return AccusedRanks(
            tuple(silent), replaced, rebooted, evidence, fresh, ended, reported_through_s
        )

    def name_failure(self, finding: Finding) -> Failure:
        """Return another detector's finding as the attempt's failure."""
        seen = self._seen
        return Failure(
            self._ledger.attempt,
            finding,
            EXIT_UNKNOWN,
            None,
            None,
            seen.newest_step,
            seen.is_relative,
            seen.telling_ranks,
        )

    # How far?

    def progress(self, now_s: float) -> list[Record]:
        """Return the records that are due about a running attempt."""
        ledger, seen = self._ledger, self._seen
        records: list[Record] = []
        if not ledger.is_verified and seen.is_verified(self._policy, ledger.telling_ranks, now_s):
            records.append(self.verified(now_s))
        records += self.milestone(now_s, is_due=False)
        records += self.spent(now_s, is_due=False)
        records += self._caught_up(now_s)
        records += self._situation.slow.due(now_s)
        parts = self._situation.pool.parts
        records += self._situation.causes.due(ledger, ledger.placement, now_s, parts)
        return records

    def verified(self, now_s: float) -> AttemptVerified:
        """Return the record that every rank trains."""
        seen = self._seen
        marks = seen.marks(now_s)
        return AttemptVerified(
            seen.attempt,
            seen.highest_step is not None,
            seen.telling_ranks,
            marks.attached_age_s,
            marks.resumed_age_s,
            marks.first_section_age_s,
            marks.first_step_age_s,
            marks.first_step,
            marks.rendezvous_began_age_s,
            marks.rendezvous_ended_age_s,
            self._unused_step(marks.first_step),
            self._own_choice_step(marks.first_step),
        )

    def _unused_step(self, first_step: int | None) -> int | None:
        """Return the step that the attempt was given, if its ranks began at the very first one all the same."""
        started = self._ledger.started
        given = None if started is None else started.choice.begins_at
        if given is None or first_step is None or self._seen.is_relative:
            return None
        return given if first_step <= _FIRST_STEP < given else None

    def _own_choice_step(self, first_step: int | None) -> int | None:
        """Return the step of the passed-over checkpoint that the ranks began from in place of the given one.

        They did where their first step fits one of those and not the given one: a script that looks for the newest itself.
        """
        started = self._ledger.started
        given = None if started is None else started.choice.begins_at
        if started is None or given is None or first_step is None or self._seen.is_relative:
            return None
        others = {verdict.step for verdict in started.choice.passed_over} - {None, given}
        fits = (first_step - 1, first_step)
        if given in fits or started.choice.snapshot is not None:
            return None
        return next((step for step in fits if step in others), None)

    def milestone(self, now_s: float, *, is_due: bool) -> list[Record]:
        """Return a record of the ranks' progress if there is new progress and a record is due."""
        seen, ledger = self._seen, self._ledger
        step = seen.newest_step
        if step is None or seen.attempt != ledger.attempt:
            return []
        known = ledger.reach
        if not seen.is_relative:
            known = Reach(ledger.highest_step, ledger.floor_step)
        is_raised = known.highest is None or step > known.highest
        pause_s = self._pause_s(now_s)
        counts = ledger.is_base_known or not seen.is_relative
        is_news = known.highest is None or (counts and ledger.restarts_without_progress > 0)
        is_time = is_due or now_s - self._milestone_at_s >= pause_s
        if not (is_time or (is_news and is_raised)):
            return []
        self._milestone_at_s = now_s
        floor = seen.floor_step(ledger.telling_ranks)
        reached = farther(known, step, floor)
        if not is_farther(known, reached):
            return []
        if seen.is_relative:
            return [RelativeMilestone(ledger.attempt, step, floor)]
        return [Milestone(ledger.attempt, step, floor)]

    def _pause_s(self, now_s: float) -> float:
        """Return the pause between two records of progress."""
        started_at_s = self._seen.started_at_s
        age_s = now_s - (now_s if started_at_s is None else started_at_s)
        return max(self._policy.milestone_s, self._policy.milestone_ratio * age_s)

    def spent(self, now_s: float, *, is_due: bool) -> list[Record]:
        """Return records of the ranks' work and of the saves that stopped it, if any are due."""
        pause_s = spent_pause_s(self._pause_s(now_s), self._ledger.world_size)
        if not is_due and now_s - self._spent_at_s < pause_s:
            return []
        situation = self._situation
        records: list[Record] = []
        if (work := situation.work.take(now_s)) is not None:
            records.append(work)
        if (stalls := situation.saves.take_stalls(now_s)) is not None:
            records.append(stalls)
        if (steps := situation.steps.take()) is not None:
            records.append(steps)
        if records:
            self._spent_at_s = now_s
        return records

    def _caught_up(self, now_s: float) -> list[Record]:
        behind, step = self._ledger.behind, self._seen.highest_step
        if behind is None or behind.highest_before is None or step is None:
            return []
        if step <= behind.highest_before:
            return []
        first_step, age_s = self._seen.first_new(now_s) or (step, 0.0)
        return [CaughtUp(behind.state.incident_id, self._ledger.attempt, first_step, age_s)]


def spent_pause_s(progress_s: float, ranks: int) -> float:
    """Return the pause between two sums of what the ranks spent; ``progress_s``: that between two records of progress."""
    return max(progress_s, _SPENT_S_PER_RANK * ranks)
