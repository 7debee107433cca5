"""What has gone wrong with an attempt, from what was observed of it. Decides, does nothing.

A death by a signal is certain at once. An exit waits a moment for what the other ranks say of
theirs, so that the same exception on every rank, or the peer that pulled this one down, is seen
before anybody is accused; so does a signal that people and schedulers send, since the launcher
then gets it too and says that a stop is wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.failed import detect_failed
from detectors.finding import Blame, Finding, Kind, Severity
from detectors.hung import detect_hung, hang_finding
from recovery.messages import RankError
from recovery.observation import Observation
from recovery.policy import Policy
from recovery.records import Failure
from recovery.settings import JobSettings

EXIT_UNKNOWN: Final = 1  # where no rank's end gives another exit code
_WAITING: Final = (Blame.COMMUNICATION, Blame.USER)


@dataclass(frozen=True, slots=True)
class Doctor:
    settings: JobSettings
    policy: Policy

    def find_failure(
        self,
        seen: Observation,
        now_s: float,
        *,
        waiting_s: float,
        heard_through_s: float,
        has_stepped_before: bool,
    ) -> Failure | None:
        """Return the attempt's failure, once it can be judged.

        ``waiting_s`` is how long its ranks have been ordered. What does not happen is judged as
        of the newest reports: from their absence nothing is concluded.
        """
        if seen.launch_error is not None:
            text = f"the ranks can't be started: {seen.launch_error}"
            finding = self._finding(seen, text, f"launch:{seen.launch_error}", Blame.PROGRAM)
        elif seen.failed:
            return self._find_failed_rank(seen, now_s)
        elif seen.has_ended and not seen.is_done:
            text = "every rank has ended, and some were stopped without an order"
            finding = self._finding(seen, text, "stopped", Blame.NOBODY)
        elif seen.started_at_s is None:
            if waiting_s - (now_s - heard_through_s) < self.policy.start_timeout_s:
                return None
            text = f"not every rank had a process within {self.policy.start_timeout_s:g} s"
            finding = self._finding(seen, text, "start timeout", Blame.NOBODY)
        else:
            return self._find_hang(seen, seen.started_at_s, heard_through_s, has_stepped_before)
        return self._failure(seen, finding)

    def _find_hang(
        self, seen: Observation, started_at_s: float, as_of_s: float, has_stepped_before: bool
    ) -> Failure | None:
        hang = detect_hung(
            seen.stands(as_of_s),
            self.policy.hung,
            attempt_age_s=max(0.0, as_of_s - started_at_s),
            longest_gap_s=seen.longest_gap_s,
            has_stepped_before=has_stepped_before,
        )
        if hang is None:
            return None
        node = self._node_of(hang.suspects)
        job_id = self.settings.job_id
        finding = hang_finding(hang, job_id=job_id, attempt=seen.attempt, node=node)
        return self._failure(seen, finding)

    def _find_failed_rank(self, seen: Observation, now_s: float) -> Failure | None:
        failed = seen.failed
        finding = detect_failed(
            seen.ends(now_s),
            job_id=self.settings.job_id,
            attempt=seen.attempt,
            node=failed[0].node,
            world_size=self.settings.world_size,
        )
        if finding is None:
            return None
        has_signal = any(view.exit and view.exit.signal is not None for view in failed)
        is_certain = has_signal and finding.blame not in _WAITING
        settled_s = now_s - min(view.exit_heard_at_s for view in failed)
        if not (is_certain or seen.has_ended or settled_s >= self.policy.settle_s):
            return None
        return self._failure(seen, replace(finding, node=self._node_of(finding.ranks)))

    def _node_of(self, ranks: Sequence[int]) -> str:
        for place in self.settings.placement:
            if any(rank in place.ranks for rank in ranks):
                return place.node
        return self.settings.placement[0].node

    def _finding(self, seen: Observation, text: str, signature: str, blame: Blame) -> Finding:
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
            signature=signature,
        )

    def _failure(self, seen: Observation, finding: Finding) -> Failure:
        exit_code, rank, error = first_failure(seen, finding.ranks)
        view = seen.ranks.get(rank) if rank is not None else None
        step = view.step if view is not None and view.step is not None else seen.newest_step
        return Failure(
            seen.attempt,
            finding,
            exit_code,
            rank,
            error,
            step,
            seen.is_relative,
            seen.telling_ranks,
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
