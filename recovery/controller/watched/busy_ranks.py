"""Follows how busy the ranks of a watched job are, from report to report, and names those that the others wait for.

`detectors.slow.busy_shares` judges each look, `detectors.persistence` decides when looks become a finding and when it ends.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.persistence import Persistence, Track, look
from detectors.slow.busy_shares import BusyLook, BusyRank, BusyWindow, ShareLimits, judge_shares
from rankmend.watched_report import ReportedRank

# Looks are 10 s apart: 40 s of slowness raise a finding, longer than a cron job's start, and 30 good seconds end it.
RULES: Final = Persistence(bad_looks=4, of_looks=5, clear_looks=3)


@dataclass(frozen=True, slots=True)
class _Sample:
    age_s: float  # of the process since it attached
    steps: int
    running_s: float
    ready_s: float


@dataclass(slots=True)
class _Named:
    seen: BusyRank
    track: Track
    since_s: float


class BusyRanks:
    def __init__(self, limits: ShareLimits | None = None, rules: Persistence = RULES) -> None:
        self._limits = limits or ShareLimits()
        self._rules = rules
        self._begins: dict[int, _Sample] = {}  # of the window that is open
        self._windows: dict[int, BusyWindow] = {}  # closed since the last look
        self._shares: dict[int, float] = {}  # of each rank, between its newest reports
        self._newest: dict[int, _Sample] = {}
        self._named: dict[int, _Named] = {}
        self._looked_at_s: float | None = None
        self.abstention = ""

    def take(self, reported: ReportedRank) -> None:
        """Take in what a rank has used of a processor by now."""
        if (
            reported.running_s is None
            or reported.ready_s is None
            or reported.attached_age_s is None
        ):
            return
        # By the clock of the node: ours stands still while no report arrives.
        new = _Sample(
            reported.attached_age_s, reported.steps_done, reported.running_s, reported.ready_s
        )
        newest = self._newest.get(reported.rank)
        if newest is not None and new.age_s > newest.age_s:
            used_s = new.running_s - newest.running_s
            self._shares[reported.rank] = max(0.0, min(1.0, used_s / (new.age_s - newest.age_s)))
        self._newest[reported.rank] = new
        begin = self._begins.get(reported.rank)
        if begin is None or new.steps < begin.steps or new.running_s < begin.running_s:
            self._begins[reported.rank] = new
            return
        window_s = new.age_s - begin.age_s
        if window_s < self._limits.window_s:
            return
        if new.steps - begin.steps < self._limits.steps_min and new.steps > begin.steps:
            return  # long steps: a longer window
        self._begins[reported.rank] = new
        self._windows[reported.rank] = BusyWindow(
            reported.rank,
            window_s,
            new.steps - begin.steps,
            new.running_s - begin.running_s,
            new.ready_s - begin.ready_s,
            reported.step_s,
        )

    def running_share(self, rank: int) -> float | None:
        """Return the share of the time in which the rank's main thread ran, by its two newest reports."""
        return self._shares.get(rank)

    def look(self, ranks: Set[int], now_s: float) -> None:
        """Judge, once every living rank has a window, or the rest are late."""
        windows = [window for rank, window in self._windows.items() if rank in ranks]
        if not windows:
            return
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        is_late = now_s - self._looked_at_s >= 2 * max(self._limits.window_s, windows[0].window_s)
        if len(windows) < len(ranks) and not is_late:
            return
        self._windows.clear()
        self._looked_at_s = now_s
        seen = judge_shares(windows, self._limits)
        if seen is not None:
            self.abstention = seen.abstention
            self._settle(seen, now_s)

    def _settle(self, seen: BusyLook, now_s: float) -> None:
        slow = {item.rank: item for item in seen.slow}
        for rank in self._named.keys() | slow.keys():
            known = self._named.get(rank)
            track = look(
                known.track if known else None, self._rules, is_bad=rank in slow, at_s=now_s
            )
            assert track is not None, "a rank is followed since it was slow"
            has_ended = known is not None and known.track.is_active and not track.is_active
            if has_ended or not (track.is_active or any(track.looks)):
                self._named.pop(rank, None)
                continue
            since_s = now_s if known is None else known.since_s
            self._named[rank] = _Named(slow.get(rank) or self._named[rank].seen, track, since_s)

    def findings(
        self, job_id: str, attempt: int, node_of: Callable[[int], str], now_s: float
    ) -> tuple[Finding, ...]:
        """Return the ranks that are slow now, the slowest first."""
        active = [item for item in self._named.values() if item.track.is_active]
        active.sort(key=lambda item: -item.seen.factor)
        return tuple(
            _finding(item.seen, job_id, attempt, node_of(item.seen.rank), now_s - item.since_s)
            for item in active
        )


def _finding(seen: BusyRank, job_id: str, attempt: int, node: str, since_age_s: float) -> Finding:
    why = ""
    if seen.ready_share >= 0.25:
        why = f"; {seen.ready_share:.0%} of the time it is ready and has no processor"
    return Finding(
        kind=Kind.RANK_SLOW,
        severity=Severity.WARNING,
        blame=Blame.RANK,
        summary=(
            f"the other ranks wait for rank {seen.rank} on {node}: its main thread is busy {seen.share:.0%} of"
            f" the time, theirs {seen.peers_share:.0%}{why}"
        ),
        job_id=job_id,
        attempt=attempt,
        node=node,
        ranks=(seen.rank,),
        victims=(),
        since_age_s=max(0.0, since_age_s),
        symptom=Symptom(SymptomKind.SLOW, "compute"),
        evidence=(
            Evidence(
                "/proc/PID/schedstat",
                f"rank {seen.rank}: {seen.share:.2f} of each second running or ready, the middle of its peers"
                f" {seen.peers_share:.2f}; steps of {seen.step_s:.3g} s",
            ),
        ),
    )
