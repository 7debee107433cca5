"""Tells the controller of the watched jobs on this node, every few seconds, while there are any.

Level-triggered: each report says all that is so now, so one that is lost does no harm, and nothing is queued. One thread,
which no collector waits for; a controller that is away costs a connection a minute.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Final

import msgspec

from agent.collectors.ranks import WatchedSamples
from agent.sampling.collection import CollectorView
from agent.watch.report import make_report, places_of, told_by
from rankmend.alerting import AlertError, Post
from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.watched_report import REPORT_S, WatchedReport

BACKOFF: Final = Backoff(first_s=REPORT_S, cap_s=60.0)
# Of the samples that a report is made of. A collector that hangs must not make ranks look as if they stood still.
STALE_S: Final = 10.0
_PLACE_COLLECTORS: Final = ("gpu", "rank_nics")

log = logging.getLogger(__name__)


class WatchSender:
    def __init__(
        self,
        node: str,
        url: str,
        clock: Clock,
        post: Post,
        newest: Callable[[], WatchedSamples],
        views: Callable[[], Sequence[CollectorView]],
        procfs_root: Path,
        interval_s: float = REPORT_S,
    ) -> None:
        self._node = node
        self._url = url
        self._clock = clock
        self._post = post
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
        view, now_s = self._newest(), self._clock.now_s()
        if now_s - view.at_s > STALE_S or not (view.jobs or self._has_told):
            return self._interval_s
        report = self._make(view, now_s)
        try:
            self._post(self._url, msgspec.json.encode(report))
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
        return self._interval_s

    def _make(self, view: WatchedSamples, now_s: float) -> WatchedReport:
        metrics = (
            metric
            for shown in self._views()
            if shown.name in _PLACE_COLLECTORS
            for metric in shown.metrics
        )
        places = places_of(metrics)
        return make_report(self._node, view, now_s, self._procfs_root, places, self._told)
