"""Tells people, through Alertmanager: posts what they must hear of for as long as it is so.

What that is, `recovery.cluster.notices` says; how it is sent, `rankmend.alerting`, as the agent does. Once a
second the deciding thread is asked, and a change goes out at once. A controller that dies resolves
nothing: its alerts run out, and the next start finds in the journals what is still so.
"""

import logging
import threading
from collections import Counter
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Final

from detectors.finding import Severity
from rankmend.alerting import Alert, AlertmanagerTarget, make_post, target_url
from rankmend.clock import Clock
from rankmend.errors import RankmendError
from rankmend.links import check_runbooks
from recovery.api.contact import read_token
from recovery.cluster.notices import (
    NOTICES_MAX,
    EndedJob,
    Notice,
    NoticeKind,
    RunningJob,
    find_notices,
)
from recovery.journal.job_records import OutcomeKind
from recovery.service.controller_config import Alertmanagers
from recovery.service.served_job import Job
from recovery.service.worker import Worker

LOOK_S: Final = 1.0  # people need no less; 500 jobs cost the deciding thread a millisecond
ANSWER_S_MAX: Final = 15.0  # for the deciding thread to answer
STOP_S_MAX: Final = 2.0
AUDIENCE: Final = ("to", "people")  # label by which Alertmanager routes these, and nothing else

log = logging.getLogger(__name__)


class Pager:
    def __init__(self, worker: Worker, clock: Clock, config: Alertmanagers) -> None:
        """Certificates and a token that can't be used are refused here."""
        self._worker = worker
        self._clock = clock
        self._runbooks = check_runbooks(config.runbooks)
        self._targets: list[AlertmanagerTarget] = []
        if config.urls:
            token = read_token(Path(config.token_file)) if config.token_file else None
            post = make_post(config.ca_file, config.cert_file, config.key_file, token)
            self._targets = [
                AlertmanagerTarget(target_url(url), clock, post) for url in config.urls
            ]
        self._since: dict[tuple[str, ...], float] = {}
        self._counts: Counter[str] = Counter()
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pager", daemon=True)

    def start(self) -> None:
        for target in self._targets:
            target.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; alerts already sent expire by themselves."""
        self._should_stop.set()
        for target in self._targets:
            target.stop()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(STOP_S_MAX)

    def counts(self) -> dict[str, int]:
        """Return how many notices of each kind there are now. For any thread."""
        counts = self._counts
        return {kind.value: counts[kind.value] for kind in NoticeKind}

    def told(self) -> dict[str, bool]:
        """Return for each Alertmanager whether it took the newest message. For any thread."""
        return {target.name: target.counts().is_taken for target in self._targets}

    def _run(self) -> None:
        while not self._should_stop.wait(LOOK_S):
            if not self._worker.is_taken_up:
                continue
            try:
                found = self._worker.call(lambda: look(self._worker)).result(ANSWER_S_MAX)
            except (RankmendError, FutureTimeoutError) as error:
                log.warning("cannot notify people now", extra={"error": str(error)})
                continue
            except Exception:
                log.exception("cannot find out what to notify people about")
                continue
            self.tell(found)

    def tell(self, found: tuple[Notice, ...]) -> None:
        """Send the notices that are active now."""
        now_s = self._clock.unix_s()
        self._since = {one.key: self._since.get(one.key, now_s) for one in found}
        self._counts = Counter(one.kind.value for one in found)
        alerts = [alert_of(one, self._since[one.key], self._runbooks) for one in found]
        for target in self._targets:
            target.update(alerts)


def look(worker: Worker) -> tuple[Notice, ...]:
    """Return the active notices. For the deciding thread."""
    desk = worker.desk
    running = [made for job in worker.jobs.running.values() if (made := _running(job)) is not None]
    now_s, nodes = desk.now_unix_s(), desk.nodes_active()
    found = find_notices(running, escalated(worker), desk.ledger, desk.policy, nodes, now_s)
    told = sorted(
        (*found, *worker.watched.notices()), key=lambda one: one.severity is not Severity.CRITICAL
    )
    return tuple(told[:NOTICES_MAX])


def escalated(worker: Worker) -> list[EndedJob]:
    """Return the jobs that rankmend has given up. For the deciding thread."""
    return [
        EndedJob(one.job_id, one.stored.join.name, one.ended.outcome, one.ended.unix_s)
        for one in worker.jobs.ended()
        if one.ended is not None and one.ended.outcome.kind is OutcomeKind.ESCALATED
    ]


def _running(job: Job) -> RunningJob | None:
    if job.controller is None:
        return None
    ledger, policy = job.controller.ledger, job.settings.policy
    silent_at_s = job.hearing.now_s() - policy.node_silent_s
    silent = {
        node for node in ledger.fence_waits if job.heard_at_s.get(node, silent_at_s) <= silent_at_s
    }
    return RunningJob(job.job_id, job.stored.join.name, ledger, policy, frozenset(silent))


def alert_of(notice: Notice, first_seen_unix_s: float, runbooks: str) -> Alert:
    """Return a notice as an alert."""
    labels = {
        "alertname": notice.kind.value,
        "severity": notice.severity.value,
        AUDIENCE[0]: AUDIENCE[1],
        "job_id": notice.job_id,
        "job_name": notice.job,
        "incident": notice.incident_id,
        "node": notice.node,
        "rank": notice.rank,
    }
    annotations = {
        "summary": notice.summary,
        "todo": notice.todo,
        "runbook_url": f"{runbooks}/controller.md#{notice.kind.value.lower()}",
    }
    started = first_seen_unix_s if notice.since_unix_s is None else notice.since_unix_s
    return Alert({name: value for name, value in labels.items() if value}, annotations, started)
