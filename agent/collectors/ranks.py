"""Where the training ranks of this node stand, from their progress files (contract 1), and what
their launchers have found about them.

Source: the files that launchers have shown through the agent's socket, and, as a fallback,
        those that a path pattern names (opened without following links, and only where file
        and folder have one owner).
Cost:   33 records of 64 bytes a rank and run, 0.15 ms.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from agent.jobs.processes import RankPods
from agent.metrics import Metric
from agent.ranks.progress_paths import PathSource
from agent.ranks.rank_processes import UNKNOWN_PID
from agent.ranks.series import checkpoint_metrics, rank_metrics, told_metrics
from agent.ranks.step_times import STEPS_MAX
from agent.ranks.table import RANKS_MAX, RankSample, RankTable, newest_attempts, read_rank
from agent.ranks.watched import EndedRank, FoundRanks, WatchedJob, WatchedRanks
from rankmend.clock import Clock

ENDED_TOLD_S: Final = 60.0  # a dozen reports to the controller


@dataclass(frozen=True, slots=True)
class RanksView:
    """All ranks as they stood at one time."""

    at_s: float
    samples: tuple[RankSample, ...]


@dataclass(frozen=True, slots=True)
class EndedSample:
    """The last that a rank told, read once its process had ended."""

    at_s: float  # when it was found to have ended
    job: WatchedJob
    sample: RankSample


@dataclass(frozen=True, slots=True)
class WatchedSamples:
    """The jobs of other launchers, and their ranks, as they stood at one time."""

    at_s: float
    jobs: tuple[WatchedJob, ...]
    samples: tuple[RankSample, ...]
    # Paths of their progress files, by job and rank.
    files: Mapping[tuple[str, int], str] = field(default_factory=dict)
    ended: tuple[EndedSample, ...] = ()


class RanksCollector:
    name = "ranks"
    interval_s = 1.0

    def __init__(
        self,
        table: RankTable,
        clock: Clock,
        pattern: str | None = None,
        watched: WatchedRanks | None = None,
        pods: RankPods | None = None,
    ) -> None:
        self._table = table
        self._pods = pods
        self._clock = clock
        self._files = PathSource(pattern) if pattern else None
        self._watched = watched
        self.newest = RanksView(clock.now_s(), ())  # for the page of ranks
        self.newest_watched = WatchedSamples(clock.now_s(), (), ())  # for the controller
        self._ended: tuple[EndedSample, ...] = ()

    def collect(self) -> Iterator[Metric]:
        files = self._files.ranks() if self._files else []
        look = self._watched.look() if self._watched else FoundRanks([], [], [])
        jobs, watched = look.jobs, look.ranks
        now_s = self._clock.now_s()
        samples = self._table.read(now_s, STEPS_MAX + 1)
        shown = {(sample.identity.job_id, sample.identity.rank) for sample in samples}
        for rank in islice(newest_attempts([*files, *watched]), RANKS_MAX):
            if (rank.identity.job_id, rank.identity.rank) not in shown:
                samples.append(read_rank(rank, now_s, STEPS_MAX + 1))
        self.newest = RanksView(now_s, tuple(samples))
        ids = {job.job_id for job in jobs}
        seen = tuple(sample for sample in samples if sample.identity.job_id in ids)
        paths = {
            (str(item.identity.job_id), item.identity.rank): item.reader.name for item in watched
        }
        self._note_ends(look.ended, now_s)
        self.newest_watched = WatchedSamples(now_s, tuple(jobs), seen, paths, self._ended)
        for sample in samples:
            yield from rank_metrics(sample, now_s)
            yield from self._pod_of(sample)
        for job in jobs:
            about = (("job_id", str(job.job_id)), ("job_name", job.name), ("user", job.user))
            started = (("launcher", job.launcher), ("slurm_job", job.slurm_job))
            yield Metric("rankmend_watched_job_info", 1, (*about, *started))
        for reported in self._table.told():
            yield from told_metrics(reported, now_s)
        for checkpoint in self._table.checkpoints():
            yield from checkpoint_metrics(checkpoint, now_s)

    def _note_ends(self, ended: Iterable[EndedRank], now_s: float) -> None:
        """Read the last that ranks told which have ended, and keep it for some reports: one may be lost."""
        retained = [item for item in self._ended if now_s - item.at_s < ENDED_TOLD_S]
        for rank in ended:
            sample = read_rank(rank.rank, now_s, STEPS_MAX + 1)
            if sample.progress is not None:
                retained.append(EndedSample(now_s, rank.job, sample))
        self._ended = tuple(retained[-RANKS_MAX:])

    def _pod_of(self, sample: RankSample) -> Iterator[Metric]:
        # A process's own word of its number is of its container, and another process here.
        if self._pods is None or sample.pid in (0, UNKNOWN_PID):
            return
        pod = self._pods.of(sample.pid)
        if pod is not None:
            identity = sample.identity
            about = (("job_id", str(identity.job_id)), ("rank", str(identity.rank)))
            reported = (("pod", pod.name), ("namespace", pod.namespace), ("pod_uid", pod.uid))
            yield Metric("rankmend_rank_pod_info", 1, (*about, *reported))
