"""Diagnoses a failed attempt from its observation. Decides, but does nothing. Pure.

A death by a signal is certain at once. An exit waits a moment for the ends of other ranks, so that
an exception on every rank, or the peer that brought this rank down, is known before any rank is
accused. A signal that people and schedulers send waits too: the launcher may have received it as
well and be about to report a requested stop.

Ranks that stand still and may go on get SIGCONT, are left alone, or get more time:

1. All ranks of a job stopped together: it is suspended (`scontrol suspend`, a person), as a watched job may be. It is left alone.
2. Ranks that a signal has stopped get SIGCONT, once. Only a rank that is stopped again within `AGAIN_S`, or a job that does not
   advance within its usual limit, is restarted. Nobody is blamed: another process has sent the signal.
3. A job without anything to restore would begin at step 0: for a stop, and for a hang that may end, it waits for the long
   limit (`ceil_s`), and a notice tells people.

A dead process never comes back, and PyTorch ends the ranks with a collective that it ends by
itself: there, waiting wins nothing. Before the second step there is nothing to lose.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from detectors.failed.error_text import ErrorText
from detectors.failed.failed_ranks import detect_failed, have_no_cause_of_their_own
from detectors.failed.lasting_errors import comes_again
from detectors.finding import (
    HOST_ALONE,
    HOST_ENDED,
    HOST_RESTARTED,
    HOST_SILENT,
    Blame,
    Evidence,
    Finding,
    Kind,
    Severity,
    Symptom,
    SymptomKind,
)
from detectors.hang.live import (
    Hang,
    HangCause,
    HungLimits,
    LimitRule,
    RankStand,
    are_suspended,
    detect_hung,
    hang_finding,
)
from detectors.node.job_libraries import say_shares
from detectors.wording import counted, ranks_in_words
from rankmend.rank_values import ScriptEnd
from recovery.controller.job.observation import Observation
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import Placement, StandKind, StandStill
from recovery.journal.faults import OF_CODE
from recovery.journal.incident_records import Failure
from recovery.journal.limits import Policy
from recovery.messages.exchange import RankError
from recovery.messages.outside import NodeEvidence

# A rank that trained this long after SIGCONT has another stop behind it: a scheduler's suspension of one host, a person's next look.
AGAIN_S: Final = 600.0
_NOTHING_TO_WAIT_FOR: Final = frozenset({LimitRule.COLLECTIVE, LimitRule.STARTUP})

EXIT_UNKNOWN: Final = 1  # if no rank's end gives another exit code
# Ranks import for tens of seconds, and reach one line within seconds of each other: on two busy cores within 2 s.
FIRST_SETTLE_S: Final = 3.0
# A script that has raised still unwinds its threads, its loaders and its device before its process ends and its error is known; its
# peers lose it at once. A core dump may take longer: then the peers' errors are the only evidence.
OWN_WORD_S: Final = 5.0
_WAITING: Final = (Blame.COMMUNICATION, Blame.USER)


@dataclass(frozen=True, slots=True)
class Patience:
    """What decides whether a job that stands still is restarted."""

    limits: HungLimits
    is_restorable: bool  # a restart would begin from a checkpoint or a snapshot
    may_continue: bool  # stopped ranks may get SIGCONT: not in observe mode
    continued: Collection[int] = ()  # ranks that have got it within `AGAIN_S`


def judge_standstill(
    attempt: int, hang: Hang, stands: Sequence[RankStand], patience: Patience
) -> StandStill | None:
    """Return what is done in place of a restart; None: a restart is due."""
    if are_suspended(stands):
        return StandStill(attempt, StandKind.SUSPENDED, (), "all its ranks are stopped by a signal")
    if hang.cause is HangCause.STOPPED and patience.may_continue:
        fresh = tuple(rank for rank in hang.suspects if rank not in patience.continued)
        if fresh:
            return StandStill(attempt, StandKind.CONTINUED, fresh, hang.why)
    may_end = hang.cause is not HangCause.GONE and hang.limit.rule not in _NOTHING_TO_WAIT_FOR
    if may_end and not patience.is_restorable and hang.stalled_s < patience.limits.ceil_s:
        reason = (
            f"{hang.reason}; {hang.why}. No checkpoint is known yet, so a restart would begin at step 0: it waits for one, "
            f"or until {patience.limits.ceil_s:g} s have passed (--hang-max)"
        )
        return StandStill(attempt, StandKind.WAITS, hang.suspects, reason)
    return None


def say_again(standing: StandStill | None, hang: Hang, patience: Patience) -> str | None:
    """Return what came of SIGCONT, for the evidence of the restart that follows; None: it was not sent."""
    again = [rank for rank in hang.suspects if rank in patience.continued]
    if hang.cause is HangCause.STOPPED and again:
        return f"SIGCONT was sent to {ranks_in_words(again)} before: it has stopped again"
    if standing is None or standing.kind is not StandKind.CONTINUED:
        return None
    who = ranks_in_words(standing.ranks)
    return f"SIGCONT was sent to {who}, which a signal had stopped, and no rank has advanced since"


@dataclass(frozen=True, slots=True)
class AccusedRanks:
    """Nodes that may be the cause of a stall, before the job's own limits have passed."""

    silent: tuple[str, ...] = ()  # their launchers are silent
    replaced: tuple[str, ...] = ()  # their launchers have been restarted since the attempt began
    rebooted: frozenset[str] = frozenset()  # ... with the node
    evidence: tuple[NodeEvidence, ...] = ()  # alerts that rule out a device that ranks use
    fresh: tuple[NodeEvidence, ...] = ()  # recent ones, whose ranks could have reported
    ended: tuple[str, ...] = ()  # their launchers reported their own end
    reported_through_s: float = inf  # every node that is not silent has reported up to here


@dataclass(frozen=True, slots=True)
class Doctor:
    settings: JobSettings
    policy: Policy
    placement: tuple[Placement, ...]
    restored_step: int | None = None  # of the snapshot that the attempt began from
    is_first: bool = False  # the job's first attempt, which has made no step as far as is known
    # What may be done in place of a restart; None: nothing.
    patience: Patience | None = None
    standing: StandStill | None = None  # on record

    def find_failure(
        self,
        seen: Observation,
        now_s: float,
        *,
        waiting_s: float,
        reported_through_s: float,
        has_stepped_before: bool,
        looks_for_hang: bool = True,
    ) -> Failure | StandStill | None:
        """Return the attempt's failure, once it can be judged, or what is done in place of a restart.

        ``waiting_s`` is the time since its ranks were ordered. Missing progress is judged as of the
        newest reports: missing reports prove nothing.
        """
        if seen.launch_error is not None:
            text = f"the ranks can't be started: {seen.launch_error}"
            symptom = Symptom(SymptomKind.LAUNCH, seen.launch_fault)
            finding = self._finding(seen, text, symptom, Blame.PROGRAM)
        elif seen.failed:
            return self._find_failed_rank(seen, now_s, reported_through_s)
        elif seen.has_ended and not seen.is_done:
            text = "every rank has ended, some of them stopped by their launchers without an order"
            finding = self._finding(seen, text, Symptom(SymptomKind.STOPPED), Blame.NOBODY)
        elif seen.started_at_s is None:
            if waiting_s - (now_s - reported_through_s) < self.policy.start_timeout_s:
                return None
            text = f"some ranks had no process within {self.policy.start_timeout_s:g} s"
            finding = self._finding(seen, text, Symptom(SymptomKind.START_TIMEOUT), Blame.NOBODY)
        elif not looks_for_hang:
            return None
        else:
            return self._find_hang(seen, seen.started_at_s, reported_through_s, has_stepped_before)
        return self._failure(seen, finding)

    def explain(self, seen: Observation, failure: Failure, accused: AccusedRanks) -> Failure:
        """Return a failure that peers alone report, blamed on the launcher that took its ranks with it, if one did.

        A lost connection is a consequence, and so may a mere exit code be: of a program that catches the error, or of a library that
        ends the process. A launcher's own end, or a new launcher in its place, is a reason that somebody has seen; not where its
        ranks have reported how they ended, nor where a rank elsewhere recorded an error of its own.
        """
        ends = seen.ends(0.0)
        if failure.finding.kind is not Kind.RANK_FAILED or not have_no_cause_of_their_own(ends):
            return failure
        gone = (*accused.ended, *accused.replaced)
        lost = [place for place in self.placement if place.node in gone and _is_unseen(seen, place)]
        if not lost:
            return failure
        finding = failure.finding
        found = self._lost(seen, accused, lost[0].node, finding.evidence)
        victims = tuple(sorted(end.rank for end in ends if end.exit_code != 0))
        return replace(
            failure, finding=replace(found, victims=victims, since_age_s=finding.since_age_s)
        )

    def find_accused(
        self,
        seen: Observation,
        accused: AccusedRanks,
        now_s: float,
        *,
        waiting_s: float,
        has_stepped_before: bool,
    ) -> Failure | None:
        """Return the failure of an accused node whose peers have stalled.

        A launcher that has ended or was replaced took its ranks with it. Silence alone proves nothing: the other
        ranks must have stalled in the middle of a step as of their newest reports, or been stopped by their launchers.
        """
        finding = None
        if gone := (*accused.ended, *accused.replaced):
            finding = self._lost(seen, accused, gone[0])
        elif seen.stopped:
            text = f"launchers stopped {counted(seen.stopped, 'rank')} without an order"
            finding = self._finding(seen, text, HOST_ALONE, Blame.COMMUNICATION)
        elif seen.started_at_s is None and accused.silent:
            if waiting_s >= self.policy.start_timeout_s:
                text = f"{accused.silent[0]} is silent, and some ranks had no process in time"
                finding = self._silent(seen, accused.silent, text, ())
        elif seen.started_at_s is not None and (accused.silent or accused.evidence):
            # After an outage of the network that all nodes share, one falls silent before the others: until
            # these have reported, nobody knows whether their ranks have stalled.
            as_of_s = max(seen.started_at_s, min(now_s, accused.reported_through_s))
            stands = seen.stands(as_of_s, without=accused.silent)
            hang = detect_hung(
                stands,
                self._short_limits,
                attempt_age_s=as_of_s - seen.started_at_s,
                longest_gap_s=seen.longest_gap_s,
                has_stepped_before=has_stepped_before,
            )
            finding = self._accuse(seen, accused, hang)
            still_s = now_s - max(seen.started_at_s, seen.advanced_at_s or 0.0)
            if accused.silent and still_s >= self.policy.hung.ceil_s and _are_done(stands):
                text = f"{accused.silent[0]} is silent, and every rank elsewhere has ended with exit code 0"
                finding = self._silent(seen, accused.silent, text, ())
        return None if finding is None else self._failure(seen, finding)

    def _lost(
        self,
        seen: Observation,
        accused: AccusedRanks,
        node: str,
        evidence: tuple[Evidence, ...] = (),
    ) -> Finding:
        """Return the finding about a node whose launcher took its ranks with it.

        Only a new boot shows something of the machine: a launcher that ended, or came anew on the same boot, was perhaps killed.
        """
        if node in accused.ended:
            text, symptom = f"the launcher of {node} has ended, and its ranks with it", HOST_ENDED
        elif node in accused.rebooted:
            text, symptom = f"{node} was booted anew: its ranks are gone", HOST_RESTARTED
        else:
            text, symptom = f"the launcher of {node} was restarted: its ranks are gone", HOST_ENDED
        return self._host(seen, node, text, symptom, evidence)

    def _accuse(
        self, seen: Observation, accused: AccusedRanks, hang: Hang | None
    ) -> Finding | None:
        finding = None
        if hang is not None and accused.silent:
            text = f"{', '.join(accused.silent[:8])} silent, and the other ranks have stalled"
            finding = self._silent(seen, accused.silent, text, hang.evidence)
            finding = replace(finding, since_age_s=hang.stalled_s)  # the job trained until then
        elif hang is not None:
            finding = evidence_finding(self.settings, seen, accused.evidence[0])
        elif accused.fresh and seen.advanced_at_s is None:
            # A stall can't be seen in ranks that never report progress.
            finding = evidence_finding(self.settings, seen, accused.fresh[0])
        return finding

    @property
    def _short_limits(self) -> HungLimits:
        hung, floor_s = self.policy.hung, self.policy.node_silent_s
        floor_s = min(max(floor_s, hung.stopped_floor_s), hung.floor_s)
        multiple = min(self.policy.accused_steps, hung.multiple)
        return replace(hung, floor_s=floor_s, multiple=multiple)

    def _silent(
        self,
        seen: Observation,
        silent: Sequence[str],
        text: str,
        evidence: tuple[Evidence, ...],
    ) -> Finding:
        """Return the finding about silent nodes: the first of them is blamed.

        Where several are silent and they are most of the job, it may be this controller that is cut off: the network is blamed, and no node.
        """
        if len(silent) > 1 and 2 * len(silent) > len(self.placement):
            finding = self._finding(seen, text, HOST_SILENT, Blame.COMMUNICATION)
            return replace(finding, node="", evidence=evidence)
        return self._host(seen, silent[0], text, HOST_SILENT, evidence)

    def _host(
        self,
        seen: Observation,
        node: str,
        text: str,
        symptom: Symptom,
        evidence: tuple[Evidence, ...],
    ) -> Finding:
        ranks = next((place.ranks for place in self.placement if place.node == node), ())
        finding = self._finding(seen, text, symptom, Blame.RANK)
        return replace(finding, kind=Kind.HOST, node=node, ranks=ranks, evidence=evidence)

    def failure_of(self, seen: Observation, evidence: NodeEvidence) -> Failure:
        """Return an alert as the attempt's failure."""
        return self._failure(seen, evidence_finding(self.settings, seen, evidence))

    def _find_hang(
        self, seen: Observation, started_at_s: float, as_of_s: float, has_stepped_before: bool
    ) -> Failure | StandStill | None:
        stands = seen.stands(as_of_s)
        hang = detect_hung(
            stands,
            self.policy.hung,
            attempt_age_s=max(0.0, as_of_s - started_at_s),
            longest_gap_s=seen.longest_gap_s,
            has_stepped_before=has_stepped_before,
        )
        if hang is None:
            return None
        if self.patience is not None:
            standing = judge_standstill(seen.attempt, hang, stands, self.patience)
            if standing is not None:
                return standing
        node = self._node_of(hang.suspects)
        job_id = self.settings.job_id
        finding = hang_finding(hang, job_id=job_id, attempt=seen.attempt, node=node)
        reported = self.patience and say_again(self.standing, hang, self.patience)
        if reported:
            lines = (Evidence("launcher", reported), *finding.evidence)
            finding = replace(finding, blame=Blame.NOBODY, evidence=lines)
        return self._failure(seen, finding)

    def _find_failed_rank(
        self, seen: Observation, now_s: float, reported_through_s: float
    ) -> Failure | None:
        failed = seen.failed
        finding = detect_failed(
            seen.ends(now_s),
            job_id=self.settings.job_id,
            attempt=seen.attempt,
            node=failed[0].node,
            world_size=sum(len(place.ranks) for place in self.placement),
        )
        if finding is None:
            return None
        has_signal = any(view.exit and view.exit.signal is not None for view in failed)
        is_certain = has_signal and finding.blame not in _WAITING
        first_at_s = min(view.exit_reported_at_s for view in failed)
        is_one_quiet = reported_through_s < first_at_s
        settle_s = self._settle_s(seen, finding, is_one_quiet=is_one_quiet)
        if not (is_certain or seen.has_ended or now_s - first_at_s >= settle_s):
            return None
        if library := _crash_library(seen, finding.ranks):
            crashed = Evidence("kernel log", f"the process crashed in {library}")
            finding = replace(finding, evidence=(*finding.evidence, crashed))
        if finding.symptom.kind is SymptomKind.MIXED_NCCL and (shares := seen.nccl_shares()):
            loaded = Evidence("loaded libraries", f"NCCL {say_shares(shares)}")
            finding = replace(finding, evidence=(loaded, *finding.evidence))
        return self._failure(seen, replace(finding, node=self._node_of(finding.ranks)))

    def _settle_s(self, seen: Observation, finding: Finding, *, is_one_quiet: bool) -> float:
        """Return how long the ends of other ranks are waited for.

        A first attempt whose ranks all have the same error of code ends the job, so it is worth knowing whether they have.
        Where all errors report a lost peer, the cause is with a peer whose script has failed and whose process is still there, or with
        a node from which nothing has come since (``is_one_quiet``): its guardian reports the end of its launcher once all processes are gone.
        Exit codes without a word wait for such a node, too.
        """
        is_dying = any(
            view.exit is None and view.script_end is ScriptEnd.FAILED
            for view in seen.ranks.values()
        )
        is_mute = is_one_quiet and have_no_cause_of_their_own(seen.ends(0.0))
        if is_mute or (is_dying and _is_peers_word(finding)):
            return max(self.policy.settle_s, OWN_WORD_S)
        _code, _rank, error = first_failure(seen, finding.ranks)
        if not self.is_first or error is None or finding.symptom.kind not in OF_CODE:
            return self.policy.settle_s
        text = ErrorText(error.type_name, error.message, error.traceback)
        is_code = comes_again(text, has_state=self.restored_step is not None)
        return max(self.policy.settle_s, FIRST_SETTLE_S) if is_code else self.policy.settle_s

    def _node_of(self, ranks: Sequence[int]) -> str:
        for place in self.placement:
            if any(rank in place.ranks for rank in ranks):
                return place.node
        return self.placement[0].node if self.placement else ""

    def _finding(self, seen: Observation, text: str, symptom: Symptom, blame: Blame) -> Finding:
        return Finding(
            kind=Kind.RANK_FAILED,
            severity=Severity.CRITICAL,
            blame=blame,
            summary=text,
            job_id=self.settings.job_id,
            attempt=seen.attempt,
            node=self._node_of(()),
            ranks=(),
            victims=(),
            since_age_s=0.0,
            symptom=symptom,
        )

    def _failure(self, seen: Observation, finding: Finding) -> Failure:
        exit_code, rank, error = first_failure(seen, finding.ranks)
        view = seen.ranks.get(rank) if rank is not None else None
        step = view.step if view is not None and view.step is not None else seen.newest_step
        if step is None and view is not None and view.resumed_at_s is not None:
            step = self.restored_step  # it had its state back, and made no step with it
        return Failure(
            seen.attempt,
            finding,
            exit_code,
            rank,
            error,
            step,
            seen.is_relative,
            seen.telling_ranks,
            "" if view is None or view.exit is None else view.exit.crash_library,
        )


def _crash_library(seen: Observation, ranks: Sequence[int]) -> str:
    ends = [view.exit for rank in ranks if (view := seen.ranks.get(rank)) is not None]
    return next((end.crash_library for end in ends if end is not None and end.crash_library), "")


def _is_peers_word(finding: Finding) -> bool:
    """Return whether ranks have lost a peer and none has reported why."""
    return finding.blame is Blame.COMMUNICATION and not finding.ranks


def _is_unseen(seen: Observation, place: Placement) -> bool:
    """Return whether nobody has reported how some rank of the node ended."""
    return any((view := seen.ranks.get(rank)) is None or view.exit is None for rank in place.ranks)


def _are_done(stands: Sequence[RankStand]) -> bool:
    return bool(stands) and all(stand.is_done for stand in stands)


def evidence_finding(settings: JobSettings, seen: Observation, evidence: NodeEvidence) -> Finding:
    """Return an alert as a finding."""
    return Finding(
        kind=Kind.DEVICE if evidence.device else Kind.HOST,
        severity=evidence.severity,
        blame=Blame.RANK,
        summary=f"{evidence.alertname} on {evidence.node}: {evidence.summary}",
        job_id=settings.job_id,
        attempt=seen.attempt,
        node=evidence.node,
        ranks=evidence.ranks,
        victims=(),
        since_age_s=evidence.since_age_s,
        symptom=Symptom(SymptomKind.ALERT, evidence.alertname),
        evidence=evidence.evidence or (Evidence("alert", evidence.summary),),
    )


def first_failure(
    seen: Observation, culprits: Sequence[int] = ()
) -> tuple[int, int | None, RankError | None]:
    """Return exit code, rank and error of the first failure, preferably of a culprit."""
    failed = seen.failed
    first = next((view for view in failed if view.rank in culprits), None)
    first = first or next(iter(failed), None)
    if first is None or first.exit is None:
        return EXIT_UNKNOWN, culprits[0] if culprits else None, None
    if first.exit.signal is not None:
        return 128 + first.exit.signal, first.rank, first.exit.error
    return first.exit.exit_code or EXIT_UNKNOWN, first.rank, first.exit.error
