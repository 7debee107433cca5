"""Nodes of a watched job, whose agents report every five seconds."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from detectors.hang.live import HungLimits
from rankmend.rank_values import ToldHidden
from rankmend.watched_report import (
    ReportedEvidence,
    ReportedFrame,
    ReportedJob,
    ReportedRank,
    ReportedStep,
    ReportedWork,
    WatchedReport,
    decode,
)
from recovery.controller.watched.verdict import WatchedState
from recovery.controller.watched.watched_jobs import WatchedJobs

JOB = "6d0c4b1e-0000-4000-8000-000000000001"
EVERY_S = 5.0
LOAD = ReportedFrame("/job/train.py", 12, "load")
REDUCE = ReportedFrame(
    "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2, "all_reduce"
)


@dataclass
class Cluster:
    """Two nodes with two ranks each, whose agents report every five seconds."""

    now_s: float = 1000.0
    nodes: dict[str, list[int]] = field(default_factory=lambda: {"n1": [0, 1], "n2": [2, 3]})
    ended: dict[str, list[int]] = field(default_factory=dict)  # lately, by node
    nccl: dict[int, tuple[str, ...]] = field(default_factory=dict)
    step_s: float = 0.5
    world_size: int = 4
    attempt: int = 1
    restarter: str = ""
    paused_at_s: float | None = None  # since when no rank steps
    states: dict[int, str] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)  # steps that a rank has not made
    began_at_s: float = 1000.0
    stood_s: float = 0.0
    pids: int = 100
    evidence: dict[int, ReportedEvidence] = field(default_factory=dict)  # told where it is wanted
    works: tuple[float, str] | None = None  # FLOPs of a step of a rank, and its accelerator
    has_sections: bool = False  # half of a step is communication, and as much again is hidden
    wanted: dict[str, int] = field(default_factory=dict)  # reports whose answer wanted it, by node

    def __post_init__(self) -> None:
        self.jobs = WatchedJobs(lambda: self.now_s, lambda _name: HungLimits())
        self.used = dict.fromkeys(range(64), 0.0)
        self.is_wanted = dict.fromkeys(self.nodes, False)

    def rank(self, rank: int) -> ReportedRank:
        at_s = self.now_s if self.paused_at_s is None else self.paused_at_s
        steps = int((at_s - self.began_at_s - self.stood_s) / self.step_s)
        last_s = self.began_at_s + self.stood_s + steps * self.step_s
        made = steps - self.behind.get(rank, 0)
        return ReportedRank(
            rank=rank,
            world_size=self.world_size,
            attempt=self.attempt,
            pid=self.pids + rank,
            start_ticks=7,
            process_state=self.states.get(rank, "S"),
            attached_age_s=self.now_s - self.began_at_s,
            steps_done=made,
            step=made or None,
            step_age_s=self.now_s - last_s if made else None,
            step_s=self.step_s,
            running_s=self.used[rank],
            ready_s=0.0,
            work=self._work(steps),
            nccl=self.nccl.get(rank, ()),
            **(self._sections(steps, self.now_s - last_s) if self.has_sections else {}),
        )

    def _work(self, steps: int) -> ReportedWork | None:
        if self.works is None:
            return None
        flops, device = self.works
        return ReportedWork(flops * steps, 10.0 * steps, 0.0, "bf16", device)

    def _sections(self, steps: int, age_s: float) -> dict[str, Any]:
        half_s = steps * self.step_s / 2
        step = ReportedStep(steps, steps, age_s, self.step_s, 0.0, half_s, half_s, 0.0, 0.0)
        hidden = ToldHidden(works=steps, works_least_s=half_s, works_most_s=half_s)
        return {"sections_entered": steps, "steps": (step,), "hidden": hidden}

    def told(self, node: str) -> WatchedReport:
        ranks = tuple(self.rank(rank) for rank in self.nodes[node])
        if self.is_wanted.get(node):
            ranks = tuple(
                msgspec.structs.replace(one, evidence=self.evidence.get(one.rank)) for one in ranks
            )
        ended = tuple(
            msgspec.structs.replace(self.rank(rank), process_state="X")
            for rank in self.ended.get(node, [])
        )
        job = ReportedJob(
            job_id=JOB, name="llama", user="ann", launcher="srun", slurm_job="41",
            restarter=self.restarter, ranks=ranks, ended=ended,
        )  # fmt: skip
        report = WatchedReport(node=node, jobs=(job,) if ranks or ended else ())
        return decode(msgspec.json.encode(report))

    def run(
        self, for_s: float, silent: tuple[str, ...] = (), every_s: float = EVERY_S
    ) -> WatchedState:
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += every_s
            for rank in self.used:
                self.used[rank] += every_s * self.busy.get(rank, 0.4)
            for node in self.nodes:
                if node not in silent:
                    self.jobs.take(self.told(node))
                    self.is_wanted[node] = self.jobs.wanted(node) == (JOB,)
                    self.wanted[node] = self.wanted.get(node, 0) + self.is_wanted[node]
            self.jobs.tick()
        return self.state

    def pause(self) -> None:
        self.paused_at_s = self.now_s

    def end(self) -> None:
        """Let every rank end, as its agents tell for a while."""
        self.ended, self.nodes = self.nodes, {node: [] for node in self.nodes}

    def go_on(self) -> None:
        assert self.paused_at_s is not None
        self.stood_s += self.now_s - self.paused_at_s
        self.paused_at_s = None

    @property
    def job(self):  # type: ignore[no-untyped-def]
        return self.jobs.jobs[JOB]

    @property
    def state(self) -> WatchedState:
        state = self.job.verdict.state
        assert isinstance(state, WatchedState)
        return state


def stand_still(cluster: Cluster) -> None:
    """Have the job hang, and none of its processes stopped."""
    cluster.run(60)
    cluster.pause()
    cluster.run(2000)
