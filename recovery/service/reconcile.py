"""Reads what fires: webhooks that came while the controller was down are not sent again for hours.

At the start, when a webhook says that it left alerts out, and when one fires that has just ended, each configured Alertmanager is
asked once, in the background, until it has answered. What it says goes the way of a webhook: an alert
that began long ago is held against what the job does now. Silenced and inhibited ones are not read, as
a webhook would not have told them.
"""

import logging
import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final
from urllib.parse import quote

from rankmend.alerting import BACKOFF, Get, make_get, target_url
from rankmend.errors import RankmendError
from recovery.controller.cluster.incoming_alerts import decode_active
from recovery.service.controller_config import Alertmanagers
from recovery.service.jobs.worker import Worker

log = logging.getLogger(__name__)

BYTES_MAX: Final = 64 * 1024 * 1024  # 100,000 alerts of 640 bytes
ANSWER_S_MAX: Final = 15.0  # for the deciding thread to answer
_LOOK_S: Final = 0.05
_PAUSE_S: Final = 2.0  # between two questions, however many messages call for one
QUERY: Final = "active=true&silenced=false&inhibited=false&unprocessed=false"


class AlertReader:
    """One thread per Alertmanager: one that hangs delays no other."""

    def __init__(self, worker: Worker, config: Alertmanagers, get: Get | None = None) -> None:
        self._readers: list[_Reader] = []
        if not config.urls:
            return
        get = get or make_get(config.ca_file, config.cert_file, config.key_file, config.token_file)
        query = QUERY + (f"&receiver={quote(config.receiver)}" if config.receiver else "")
        for url in config.urls:
            self._readers.append(_Reader(worker, f"{target_url(url)}?{query}", get))

    def start(self) -> None:
        for reader in self._readers:
            reader.start()

    def wake(self) -> None:
        """Ask all of them once more."""
        for reader in self._readers:
            reader.wake()

    def stop(self) -> None:
        for reader in self._readers:
            reader.stop()


class _Reader(threading.Thread):
    def __init__(self, worker: Worker, url: str, get: Get) -> None:
        super().__init__(name="alert-reader", daemon=True)
        self._worker = worker
        self._url = url
        self._get = get
        self._wanted = threading.Event()
        self._wanted.set()
        self._should_stop = threading.Event()

    def wake(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        self._should_stop.set()
        self._wanted.set()

    def run(self) -> None:
        while not (self._worker.is_taken_up or self._should_stop.wait(_LOOK_S)):
            pass
        failures = 0
        while True:
            self._wanted.wait()
            if self._should_stop.is_set():
                return
            self._wanted.clear()
            try:
                self._read()
            except Exception as error:  # logged and retried: it must not fail the others
                failures += 1
                self._wanted.set()
                if failures == 1:
                    is_expected = isinstance(error, RankmendError | FutureTimeoutError)
                    fields = {"error": str(error) or "no answer from the deciding thread"}
                    log.warning("active alerts not read", extra=fields, exc_info=not is_expected)
                pause_s = BACKOFF.wait_s(failures)
                self._should_stop.wait(pause_s)
            else:
                failures = 0
                self._should_stop.wait(_PAUSE_S)

    def _read(self) -> None:
        alerts = decode_active(self._get(self._url, BYTES_MAX))
        self._worker.call(lambda: self._worker.alerts.take(alerts)).result(ANSWER_S_MAX)
        log.info("active alerts read", extra={"count": len(alerts)})
