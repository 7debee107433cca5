"""The jobs under `rankmend watch env` whose ranks run on this machine, read from their progress files.

A controller learns of such jobs from agents. `rankmend status` and `rankmend console` of one machine have neither, and the
files are readable by everybody: they are read and judged here by the agent's and the controller's own code.

A user sees the jobs that are his own, root sees all: so nobody fills another's screen.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from agent.collectors.ranks import RanksCollector
from agent.ranks.table import RankSample, RankTable
from agent.ranks.watched import WatchedRanks
from agent.watch.report import RankDevices, make_report, told_by
from detectors.hang.live import HungLimits
from rankmend.clock import Clock, SystemClock
from rankmend.hook.watched_layout import ROOT
from rankmend.node import node_name
from recovery.api import wire
from recovery.controller.watched.watched_jobs import WatchedJobs
from recovery.local.report.overview import LocalWatchedView, StoredRankView, view_progress

_PROCFS: Final = Path("/proc")


class WatchedHere:
    """Any thread may ask; one look is made at a time."""

    def __init__(
        self,
        root: Path = Path(ROOT),
        node: str | None = None,
        uid: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        uid = os.geteuid() if uid is None else uid
        clock = clock or SystemClock()
        self._ranks = WatchedRanks(root, only_uid=None if uid == 0 else uid)
        self._collector = RanksCollector(RankTable(), clock, watched=self._ranks)
        self._jobs = WatchedJobs(clock.now_s, lambda _name: HungLimits())
        self._clock = clock
        self._node = node or node_name()
        self._told: dict[tuple[str, int, int], int] = {}
        self._lock = Lock()

    def close(self) -> None:
        """Close the ranks' files."""
        self._ranks.close()

    def views(self) -> list[LocalWatchedView]:
        """Look at all ranks, and return their jobs as they stand, those in trouble first."""
        with self._lock:
            for _metric in self._collector.collect():
                pass  # a page's; what it is made of is kept
            seen, now_s = self._collector.newest_watched, self._clock.now_s()
            report = make_report(self._node, seen, now_s, _PROCFS, RankDevices(), self._told)
            self._told = told_by(report)
            self._jobs.take(report)
            self._jobs.tick()
            ranks = _by_job(seen.samples, now_s)
            return [_view(job, ranks.get(job.job_id, [])) for job in self._jobs.views()]


def _by_job(samples: Iterable[RankSample], now_s: float) -> dict[str, list[StoredRankView]]:
    found: dict[str, list[StoredRankView]] = {}
    for sample in samples:
        identity, reported = sample.identity, sample.progress
        found.setdefault(str(identity.job_id), []).append(
            StoredRankView(identity.rank, identity.local_rank, sample.pid, problem=sample.error)
            if reported is None
            else view_progress(identity.rank, identity.local_rank, sample.pid, reported, now_s)
        )
    return found


def _view(job: wire.WatchedView, ranks: list[StoredRankView]) -> LocalWatchedView:
    return LocalWatchedView(**msgspec.structs.asdict(job), ranks=tuple(ranks))
