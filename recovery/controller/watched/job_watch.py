"""One watched job: what its nodes' agents have reported of it, and what that means.

The detectors are those of our own jobs: `recovery.controller.job.observation` keeps the ranks' stands, `detectors.hang.live` judges a
stand-still, `recovery.controller.job.watch.slow_ranks` the steps of ranks that tell sections; of ranks that tell steps alone
`recovery.controller.watched.busy_ranks` judges who works while the others wait. What differs:

- Nobody reports how a rank ended. One that its node no longer names has ended, and a job of which others go on may be ending.
- A node that reports nothing says nothing of its ranks: the job's state is unknown, and it is not hung.
- A stopped process is reported after `STOPPED_S` at the latest, however long the steps are: people are notified, and
  nothing is restarted.
- Launchers may start ranks again under the same number of attempt. A rank in another process begins a new run of the job.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from detectors.finding import Evidence, Finding
from detectors.hang.live import (
    Hang,
    HungLimits,
    LimitRule,
    RankStand,
    are_suspended,
    detect_hung,
    hang_finding,
)
from detectors.wording import ranks_in_words
from rankmend.printable import printable
from rankmend.watched_report import ReportedJob, ReportedRank
from recovery.controller.job.observation import Observation
from recovery.controller.job.watch.meters import StepMeter, WorkMeter
from recovery.controller.job.watch.slow_ranks import SlowRanks
from recovery.controller.watched.busy_ranks import BusyRanks
from recovery.controller.watched.hang_evidence import HangEvidence
from recovery.controller.watched.verdict import WatchedState, WatchedVerdict
from recovery.messages.exchange import RankReport, RankWork, Report, StepTiming

log = logging.getLogger(__name__)

SILENT_S: Final = 30.0  # six reports of an agent
STOPPED_S: Final = 30.0
STEPS_MIN: Final = 2  # before that the job starts
WORLD_MAX: Final = 131_072  # ranks of a job that is judged
_DEAD: Final = frozenset({"Z", "X"})
_STATE_UNKNOWN: Final = "?"  # not empty: that would be a process that is gone
_BUSY_SHOWN: Final = 4


@dataclass(slots=True)
class Seat:
    """Where one rank runs."""

    node: str
    process: tuple[int, int]  # pid, and when it began
    step_s: float | None = None
    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    error: str = ""


class JobWatch:
    def __init__(self, told: ReportedJob, now_s: float) -> None:
        self.job_id = told.job_id
        self.begun_at_s = now_s
        self.looked_at_s = now_s - SILENT_S  # by the caller that has it judged
        self.reported_at_s: dict[str, float] = {}  # by node
        self.seats: dict[int, Seat] = {}
        self.living: set[int] = set()
        self._of_node: dict[str, set[int]] = {}  # its living ranks
        self._broken: set[int] = set()  # ranks whose progress can't be read
        self.attempt = 0
        self.world_size = 0
        self.run = 0  # counts the sets of processes
        self.verdict = WatchedVerdict(WatchedState.STARTING, "no rank has made two steps")
        self.since_s = now_s  # when the verdict's state began
        self.act = ""  # what is done about it, or why nothing is
        self.trouble = 0  # counts hangs and times of slowness
        self.observation = Observation(0, 1)
        self.evidence = HangEvidence()  # of the present hang
        self.highest_before: int | None = None  # step of processes before these
        self._begin(0, 1)
        self._about(told)

    def _about(self, reported: ReportedJob) -> None:
        """Take over what its ranks say of the job: text from outside."""
        self.name = printable(reported.name)
        self.user = printable(reported.user)
        self.launcher = printable(reported.launcher)
        self.slurm_job = printable(reported.slurm_job)
        self.restarter = printable(reported.restarter)

    def _begin(self, attempt: int, world_size: int) -> None:
        gap_s = self.observation.proved_gap_s
        highest = self.observation.highest_step
        if highest is not None:
            self.highest_before = max(highest, self.highest_before or 0)
        self.run += 1
        self.attempt, self.world_size = attempt, world_size
        self.seats.clear()
        self.living.clear()
        self._of_node.clear()
        self._broken.clear()
        self.most_steps = 0
        self.observation = Observation(self.run, world_size, gap_s)
        self.slow = SlowRanks(self.job_id)
        self.slow.begin(self.run, world_size)
        self.busy = BusyRanks()
        self.work, self.steps = WorkMeter(), StepMeter()
        self.work.begin(self.run)
        self.steps.begin(self.run)

    # What comes in.

    def take(self, node: str, reported: ReportedJob, now_s: float) -> None:
        """Take in what a node reports of its ranks of this job."""
        self._about(reported)
        self.reported_at_s[node] = now_s
        for rank in reported.ranks:
            self._take_run(rank)
        ranks = [rank for rank in reported.ranks if self._is_of_this_run(rank)]
        for rank in ranks:
            seat = self.seats.setdefault(rank.rank, Seat(node, _process(rank)))
            if seat.node != node:  # it has moved, and the other node has not reported so yet
                self._of_node.get(seat.node, set()).discard(rank.rank)
                seat.node = node
            self.most_steps = max(self.most_steps, rank.steps_done)
            seat.step_s, seat.error = rank.step_s, rank.error
            seat.gpus, seat.nics = rank.gpus, rank.nics
            self.busy.take(rank)
        self._set_living(node, {rank.rank for rank in ranks})
        self._broken = {rank for rank in self._broken if self.seats[rank].node != node}
        self._broken.update(rank.rank for rank in ranks if rank.error)
        self.evidence.take(node, ((rank.rank, rank.evidence) for rank in ranks))
        ended = [rank for rank in reported.ended if self._has_seen(rank)]
        report = _report_of(
            node, self.job_id, self.run, [r for r in [*ended, *ranks] if not r.error]
        )
        self.observation.observe(report, now_s)
        self.work.note_report(report, now_s)
        self.steps.note_report(report, now_s)
        if any(rank.steps for rank in ranks) and 2 * len(self.seats) >= self.world_size:
            self.slow.note_report(report)  # keeps arrays of the job's size

    def _take_run(self, rank: ReportedRank) -> None:
        """Begin a new run where this rank belongs to a later one than what is known."""
        if rank.world_size > WORLD_MAX or rank.rank >= rank.world_size or rank.error:
            return
        seat = self.seats.get(rank.rank)
        is_another = seat is not None and seat.process != _process(rank) and seat.process[0] > 0
        is_newer = rank.attempt > self.attempt
        if is_newer or (is_another and rank.attempt == self.attempt):
            self._begin(rank.attempt, rank.world_size)

    def _is_of_this_run(self, rank: ReportedRank) -> bool:
        is_dead = rank.process_state in _DEAD  # its parent has not read how it ended
        return not is_dead and rank.attempt == self.attempt and rank.rank < self.world_size

    def _has_seen(self, ended: ReportedRank) -> bool:
        """Return whether the process was one of this run's, and no other has taken its place."""
        seat = self.seats.get(ended.rank)
        return seat is not None and seat.process == _process(ended)

    def wants_evidence(self, node: str) -> bool:
        """Return whether to ask this node for stacks and dumps of its ranks, and count that."""
        return self.verdict.state is WatchedState.HUNG and self.evidence.wants(node)

    def miss(self, node: str, now_s: float) -> None:
        """Hear that a node reports, and has no rank of this job any more."""
        self.reported_at_s[node] = now_s
        self._set_living(node, set())

    def _set_living(self, node: str, ranks: set[int]) -> None:
        self.living -= self._of_node.get(node, set()) - ranks
        self.living |= ranks
        self._of_node[node] = ranks

    # What it means.

    @property
    def nodes(self) -> list[str]:
        """Return the nodes on which the job has ranks, or had them until they ended."""
        return sorted({seat.node for seat in self.seats.values()})

    def silent(self, now_s: float) -> list[str]:
        """Return the nodes with living ranks that have reported nothing lately."""
        nodes = [node for node, ranks in self._of_node.items() if ranks]
        return sorted(node for node in nodes if now_s - self.reported_at_s[node] >= SILENT_S)

    def node_of(self, rank: int) -> str:
        seat = self.seats.get(rank)
        return seat.node if seat is not None else ""

    def judge(self, limits: HungLimits, now_s: float) -> None:
        """Look at the job, and keep what there is to say."""
        before = self.verdict
        self.verdict = self._judge(limits, now_s)
        if self.verdict.state is not before.state:
            self.since_s = now_s
            self.evidence = HangEvidence()
            self.trouble += self.verdict.state.is_trouble
            fields = {
                "job": self.name,
                "slurm_job": self.slurm_job,
                "state": self.verdict.state.value,
                "reason": self.verdict.reason,
            }
            log.info("watched job", extra=fields)

    def _judge(self, limits: HungLimits, now_s: float) -> WatchedVerdict:
        unseen = self._unseen(now_s)
        if unseen is not None:
            return unseen
        return self._stand_still(limits, now_s) or self._slow(now_s)

    def _stand_still(self, limits: HungLimits, now_s: float) -> WatchedVerdict | None:
        """Return the verdict on a job of which no rank advances, or None while it trains, or may."""
        advanced_s = self.observation.advanced_at_s
        if advanced_s is not None and now_s - advanced_s < limits.stopped_floor_s:
            return None
        stands = self._stands(now_s)
        if are_suspended(stands):
            return WatchedVerdict(WatchedState.SUSPENDED, "all its ranks are stopped by a signal")
        hang = self._find_hang(stands, limits, now_s)
        return None if hang is None else self._hung(hang)

    def _unseen(self, now_s: float) -> WatchedVerdict | None:
        """Return the verdict where ranks that can't be seen keep the job from being judged."""
        if not self.living:
            return WatchedVerdict(WatchedState.ENDED, "its nodes have no rank of it any more")
        if silent := self.silent(now_s):
            return WatchedVerdict(WatchedState.UNKNOWN, f"no report from {', '.join(silent[:8])}")
        if broken := self._broken & self.living:
            error = printable(self.seats[min(broken)].error)
            return WatchedVerdict(WatchedState.UNKNOWN, f"{ranks_in_words(broken)}: {error}")
        return None

    def _stands(self, now_s: float) -> list[RankStand]:
        found = []
        for stand in self.observation.stands(now_s):
            seat = self.seats.get(stand.rank)
            if seat is None:
                continue
            times_s = (seat.step_s,) if seat.step_s is not None else ()
            found.append(
                replace(
                    stand,
                    is_done=stand.rank not in self.living,
                    knows_exit=False,
                    step_times_s=times_s,
                )
            )
        return found

    def _find_hang(self, stands: list[RankStand], limits: HungLimits, now_s: float) -> Hang | None:
        floor_s = min(limits.stopped_floor_s, STOPPED_S)
        soon = replace(limits, stopped_floor_s=floor_s, floor_s=STOPPED_S, ceil_s=STOPPED_S)
        rules = {"attempt_age_s": now_s - self.begun_at_s, "has_stepped_before": True}
        hang = detect_hung(stands, soon, **rules)  # type: ignore[arg-type]
        if hang is not None and hang.limit.rule is LimitRule.STOPPED:
            return hang
        gap_s = self.observation.longest_gap_s
        return detect_hung(stands, limits, longest_gap_s=gap_s, **rules)  # type: ignore[arg-type]

    def _hung(self, hang: Hang) -> WatchedVerdict:
        nodes = sorted({self.node_of(rank) for rank in hang.suspects})
        node = nodes[0] if len(nodes) == 1 else ""
        found = hang_finding(hang, job_id=self.job_id, attempt=self.attempt, node=node)
        finding = self.evidence.judge(found)
        if finding.ranks != found.ranks:
            return self._hung_by_evidence(finding)
        lines = [*finding.evidence, *self._busy_lines(), *self._place_lines(hang.suspects)]
        unseen = self.world_size - len(self.seats)
        if unseen > 0:
            text = f"{len(self.seats)} of {self.world_size} ranks are seen: the rest run without an agent"
            lines.append(Evidence("rankmend", text))
        finding = replace(finding, evidence=tuple(lines))
        where = f" on {', '.join(nodes[:8])}" if nodes else ""
        if not finding.ranks:
            return WatchedVerdict(WatchedState.HUNG, f"{hang.why}; {hang.reason}", (finding,))
        who = ranks_in_words(hang.suspects)
        return WatchedVerdict(
            WatchedState.HUNG, f"it waits for {who}{where}: {hang.reason}; {hang.why}", (finding,)
        )

    def _hung_by_evidence(self, finding: Finding) -> WatchedVerdict:
        """Return the verdict where stacks or dumps name other ranks, or others than nobody."""
        nodes = sorted({self.node_of(rank) for rank in finding.ranks})
        node = nodes[0] if len(nodes) == 1 else ""
        lines = [*finding.evidence, *self._busy_lines(), *self._place_lines(finding.ranks)]
        finding = replace(finding, node=node, evidence=tuple(lines))
        where = f"; on {', '.join(nodes[:8])}" if finding.ranks else ""
        return WatchedVerdict(WatchedState.HUNG, f"{finding.summary}{where}", (finding,))

    def _busy_lines(self) -> Iterable[Evidence]:
        """Return how busy the ranks are that stand out: a rank that works while the others sleep is waited for."""
        shares = {
            rank: share
            for rank in self.living
            if (share := self.busy.running_share(rank)) is not None
        }
        if len(shares) < 2:
            return
        ordered = sorted(shares, key=lambda rank: -shares[rank])
        shown = ordered[:_BUSY_SHOWN]
        text = ", ".join(f"rank {rank} {shares[rank]:.2f}" for rank in shown)
        rest = f"; the least busy, rank {ordered[-1]}, {shares[ordered[-1]]:.2f}"
        yield Evidence("/proc/PID/schedstat", f"main threads run for {text} of each second{rest}")

    def _place_lines(self, ranks: Iterable[int]) -> Iterable[Evidence]:
        for rank in list(ranks)[:_BUSY_SHOWN]:
            seat = self.seats.get(rank)
            if seat is not None and (seat.gpus or seat.nics):
                text = f"rank {rank} on {seat.node}: GPU {', '.join(seat.gpus) or '?'}"
                nics = f", NIC {', '.join(seat.nics)}" if seat.nics else ""
                yield Evidence("agent", printable(text + nics))

    def _slow(self, now_s: float) -> WatchedVerdict:
        if self.most_steps < STEPS_MIN:
            return WatchedVerdict(WatchedState.STARTING, "no rank has made two steps")
        findings: tuple[Finding, ...]
        self.slow.due(now_s)
        self.slow.forget()
        findings = tuple(replace(finding, attempt=self.attempt) for finding in self.slow.findings)
        if not findings:
            self.busy.look(self.living, now_s)
            findings = self.busy.findings(self.job_id, self.attempt, self.node_of, now_s)
        if not findings:
            return WatchedVerdict(WatchedState.TRAINING, self.busy.abstention)
        return WatchedVerdict(WatchedState.SLOW, findings[0].summary, findings)

    def step(self) -> int | None:
        """Return the newest step of the job."""
        return self.observation.newest_step

    def youngest_age_s(self, now_s: float) -> float | None:
        """Return for how long the youngest of its processes has been attached; None: not known. Looks at every rank."""
        began = [rank.attached_at_s for rank in self.observation.ranks.values()]
        newest_s = max((at_s for at_s in began if at_s is not None), default=None)
        return None if newest_s is None else max(0.0, now_s - newest_s)

    def step_s(self) -> float | None:
        """Return the usual step time."""
        times_s = sorted(s.step_s for s in self.seats.values() if s.step_s is not None)
        return times_s[len(times_s) // 2] if times_s else None


def _process(rank: ReportedRank) -> tuple[int, int]:
    return rank.pid, rank.start_ticks


def _report_of(node: str, job_id: str, run: int, ranks: Iterable[ReportedRank]) -> Report:
    """Return the report as launchers of our own jobs would make it."""
    return Report(
        version=1,
        node=node,
        boot_id="",
        job_id=job_id,
        revision=0,
        attempt=run,
        ranks=tuple(_rank_of(rank) for rank in ranks),
        empty_through=0,
    )


def _rank_of(rank: ReportedRank) -> RankReport:
    return RankReport(
        rank=rank.rank,
        local_rank=rank.local_rank,
        pid=rank.pid,
        process_state=rank.process_state or _STATE_UNKNOWN,
        attached_age_s=rank.attached_age_s,
        step=rank.step,
        step_age_s=rank.step_age_s,
        steps_done=rank.steps_done,
        is_relative=rank.is_relative,
        section=rank.section,
        section_age_s=rank.section_age_s,
        sections_entered=rank.sections_entered,
        collectives_entered=rank.collectives_entered,
        collective_timeout_s=rank.collective_timeout_s,
        has_pairs=rank.has_pairs,
        work=None
        if rank.work is None
        else RankWork(
            rank.work.flops,
            rank.work.tokens,
            rank.work.samples,
            printable(rank.work.data_type),
            printable(rank.work.device),
        ),
        hidden=rank.hidden,
        place=rank.place,
        nccl=tuple(printable(item) for item in rank.nccl),
        timings=tuple(
            StepTiming(
                number=step.number,
                step=step.step,
                age_s=step.age_s,
                compute_s=step.compute_s,
                communication_s=step.communication_s,
                io_s=step.io_s,
                checkpoint_s=step.checkpoint_s,
                waited_s=step.waited_s,
                duration_s=step.duration_s,
            )
            for step in rank.steps
        ),
    )
