"""What becomes of ranks that stand still and may go on: told to go on, left alone, or waited for. Pure.

1. All ranks of a job stopped together: it is suspended (`scontrol suspend`, a person), as watched jobs have it. It is left alone.
2. Ranks that a signal has stopped get SIGCONT, once. Only a rank that is stopped again within `AGAIN_S`, or a job that does not
   advance within its usual limit, is restarted. Nobody is blamed: another process has sent the signal.
3. A job of which nothing could be restored would begin at step 0: for a stop, and for a hang that may end, it waits for the long
   limit (`ceil_s`), and people are told.

A process that is gone never comes back, and a collective that PyTorch ends by itself ends the ranks: there nothing is won by waiting.
Before the second step there is nothing to lose.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.hang.live import Hang, HangCause, HungLimits, LimitRule, RankStand, are_suspended
from detectors.wording import ranks_in_words
from recovery.journal.attempt_records import StandKind, StandStill

# A rank that trained this long after SIGCONT has another stop behind it: a scheduler's suspension of one host, a person's next look.
AGAIN_S: Final = 600.0
_NOTHING_TO_WAIT_FOR: Final = frozenset({LimitRule.COLLECTIVE, LimitRule.STARTUP})


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
