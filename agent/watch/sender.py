"""Reports to the controller the watched jobs on this node every few seconds while there are any, and which jobs of our own launchers run here.

Level-triggered: each report says all that is so now, so one that is lost does no harm, and nothing is queued. One thread,
which no collector waits for; a controller that is away costs a connection a minute.
"""

import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Final

import msgspec

from agent.collectors.ranks import WatchedSamples
from agent.sampling.collection import CollectorView
from agent.watch.evidence import EvidenceGatherer, RankKey, files_of
from agent.watch.job_logs import JobLogs
from agent.watch.present_jobs import NO_JOBS, JobsHere, JobsOnNode, PresentJobsFile
from agent.watch.report import make_report, places_of, told_by
from rankmend.alerting import AlertError, Ask
from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.watched_report import (
    PRESENT_S,
    REPORT_S,
    ReportedEvidence,
    ReportTaken,
    WatchedReport,
)

log = logging.getLogger(__name__)

BACKOFF: Final = Backoff(first_s=REPORT_S, cap_s=60.0)
# Of the samples that a report is made of. A collector that hangs must not make ranks look as if they stood still.
STALE_S: Final = 10.0
_PLACE_COLLECTORS: Final = ("gpu", "rank_nics")


class WatchSender:
    def __init__(
        self,
        node: str,
        url: str,
        clock: Clock,
        ask: Ask,
        newest: Callable[[], WatchedSamples],
        views: Callable[[], Sequence[CollectorView]],
        procfs_root: Path,
        interval_s: float = REPORT_S,
        owners: Callable[[], Sequence[tuple[uuid.UUID, int]]] = tuple,
        kept: PresentJobsFile | None = None,
        logs: JobLogs | None = None,
    ) -> None:
        """``owners``: the jobs of our own launchers on this node, with their users; ``kept``: where these are kept over a restart."""
        self._owners = owners
        self._present = JobsOnNode(kept)
        self._reported_here = NO_JOBS  # as the controller has it
        self._here_at_s = -math.inf  # when it was reported last
        self._evidence = EvidenceGatherer(procfs_root, logs=logs)
        self._node = node
        self._url = url
        self._clock = clock
        self._ask = ask
        self._newest = newest
        self._views = views
        self._procfs_root = procfs_root
        self._interval_s = interval_s
        self._told: dict[tuple[str, int, int], int] = {}  # step records that the controller has
        self._has_told = False  # its newest report named a job
        self._failures = 0
        self._should_stop = Event()
        self._thread = Thread(target=self._run, name="watched jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._should_stop.wait(wait_s):
            try:
                wait_s = self.send()
            except Exception:
                log.exception("watched jobs not reported")
                wait_s = BACKOFF.cap_s

    def send(self) -> float:
        """Report what is so now, and return after how long to do it again."""
        now_s = self._clock.now_s()
        here = self._present.look(self._owners(), now_s)
        is_news = self._is_news(here, now_s)
        try:
            return self._report(here, now_s, is_news=is_news)
        finally:
            if is_news:  # after the report, which must not wait for a disk that hangs
                self._present.save()

    def _report(self, here: JobsHere, now_s: float, *, is_news: bool) -> float:
        view = self._newest()
        if now_s - view.at_s > STALE_S or not (
            view.jobs or view.ended or self._has_told or is_news
        ):
            return self._interval_s
        evidence = self._evidence.found()
        report = self._make(view, now_s, evidence, here)
        try:
            answer = self._ask(self._url, msgspec.json.encode(report))
        except AlertError as error:
            self._failures += 1
            if self._failures == 1:
                fields = {"controller": self._url, "error": str(error)}
                log.warning("watched jobs not reported", extra=fields)
            return max(self._interval_s, BACKOFF.wait_s(self._failures))
        if self._failures:
            log.info("watched jobs are reported again", extra={"controller": self._url})
        self._failures = 0
        self._told, self._has_told = told_by(report), bool(report.jobs)
        self._reported_here, self._here_at_s = here, now_s
        self._evidence.forget(tuple(evidence))
        self._collect(answer, view, now_s)
        return self._interval_s

    def _is_news(self, here: JobsHere, now_s: float) -> bool:
        """Return whether the controller has to receive which of our own jobs run here: on a change, and now and then while there are any."""
        if here.names != self._reported_here.names:
            return True
        return bool(here.names) and now_s - self._here_at_s >= PRESENT_S

    def _collect(self, answer: bytes, view: WatchedSamples, now_s: float) -> None:
        """Collect the evidence that the controller has requested."""
        try:
            wanted = set(msgspec.json.decode(answer, type=ReportTaken).evidence_of)
        except msgspec.MsgspecError:  # of a controller of another version
            return
        ranks = []
        for sample in view.samples:
            key = str(sample.identity.job_id), sample.identity.rank
            if key[0] in wanted and key in view.files:
                ranks.append(files_of(sample, view.files[key], now_s))
        self._evidence.start([rank for rank in ranks if rank is not None], now_s, view.jobs)

    def _make(
        self,
        view: WatchedSamples,
        now_s: float,
        evidence: Mapping[RankKey, ReportedEvidence],
        here: JobsHere,
    ) -> WatchedReport:
        metrics = (
            metric
            for shown in self._views()
            if shown.name in _PLACE_COLLECTORS
            for metric in shown.metrics
        )
        places = places_of(metrics)
        return make_report(
            self._node, view, now_s, self._procfs_root, places, self._told, evidence, here
        )
