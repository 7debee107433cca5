"""What happens to the jobs beside the faults: ranks die, losses become NaN, alerts accuse nodes of jobs that train, runs end and begin anew."""

import contextlib
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.jepsen.launchers import Job, Seen
from recovery.api.controller_errors import (
    ConflictError,
    ControllerError,
    JobEndedError,
    UnknownJobError,
    UnreachableError,
)
from recovery.api.operator_client import OperatorClient
from recovery.messages.outside import PersonAct

SPARE_EVERY = 4  # one job of so many has a spare, and so can leave a node
ALERT_S = 10.0  # for which an alert fires
ALERTS_MAX = 8  # at once
PATIENCE_S = 120.0  # of a person who takes a node back


class Workload:
    def __init__(
        self,
        seed: int,
        jobs: int,
        urls: list[str],
        authority: Path,
        *,
        deaths_per_job_s: float,
        alert_s: float,
    ) -> None:
        """``authority``: of the controllers' certificates. ``deaths_per_job_s``, ``alert_s``: seconds between two deaths of ranks of a job, and between two alerts, in the mean."""
        self.seen = Seen()
        self.jobs = [Job(n, n % SPARE_EVERY == 0, urls, authority, self.seen) for n in range(jobs)]
        self.counts: Counter[str] = Counter()
        self._urls, self._authority = urls, authority
        self._pause_s = deaths_per_job_s / jobs
        self._seed = seed
        self._alert_s = alert_s
        self._calm, self._over = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=act, name=act.__name__, daemon=True)
            for act in (self._kill_ranks, self._accuse, self._spoil_losses, self._begin_again)
        ]

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of all nodes."""
        return [address for job in self.jobs for address in job.addresses.values()]

    def start(self) -> None:
        for job in self.jobs:
            job.begin()
        for thread in self._threads:
            thread.start()

    def calm(self) -> None:
        """Let nothing more happen to the jobs; runs that have ended still begin anew."""
        self._calm.set()

    def close(self) -> None:
        self._calm.set()
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        for job in self.jobs:
            job.close()

    def _kill_ranks(self) -> None:
        draw = random.Random(self._seed + 1)
        while not self._calm.wait(draw.expovariate(1 / self._pause_s)):
            kind = draw.choice(["kill", "kill", "exit"])
            if draw.choice(self.jobs).fail_rank(kind, draw):
                self.counts["deaths"] += 1

    def _spoil_losses(self) -> None:
        """Losses that are no numbers, of jobs that train: each asks for a stop, which the budget of the cluster bounds."""
        draw = random.Random(self._seed + 3)
        while not self._calm.wait(draw.uniform(0.2, 1.8) * self._alert_s):
            if draw.choice(self.jobs).spoil_loss(draw):
                self.counts["losses that are no numbers"] += 1

    def _begin_again(self) -> None:
        while not self._over.wait(1.0):
            for job in self.jobs:
                if job.launchers and job.has_ended:
                    self.counts["ends"] += 1
                    for outcome in job.outcomes[-1:]:
                        self.counts[f"ended {outcome.kind.value}"] += 1
                    job.begin()

    def _accuse(self) -> None:
        """Alerts of devices on nodes that train: what the budget of the cluster is for."""
        draw = random.Random(self._seed + 2)
        with_spare = [job for job in self.jobs if len(job.nodes) > 2]
        with ThreadPoolExecutor(ALERTS_MAX) as pool:
            number = 0
            while with_spare and not self._calm.wait(draw.uniform(0.2, 1.8) * self._alert_s):
                job = draw.choice(with_spare)
                nodes = [one.node for one in job.launchers if one.running is not None]
                if nodes:
                    number += 1
                    pool.submit(self._accuse_one, draw.choice(nodes), job.job_id, number)

    def _accuse_one(self, node: str, job_id: str, number: int) -> None:
        """Post an alert to every controller, as Prometheus does, and its end; then a person takes the node back."""
        clients = [OperatorClient([url], ca_file=self._authority) for url in self._urls]
        draw = random.Random(number)
        draw.shuffle(clients)
        self._post(clients, node, number, is_over=False)
        self.counts["alerts"] += 1
        self._calm.wait(ALERT_S)
        self._post(clients, node, number, is_over=True)
        until_s = time.monotonic() + PATIENCE_S
        while not self._take_back(clients, job_id, node) and time.monotonic() < until_s:
            if self._over.wait(1.0):
                break
        for client in clients:
            client.close()

    def _take_back(self, clients: list[OperatorClient], job_id: str, node: str) -> bool:
        """Have a person take the node back at the controller that has the job; return whether that was done."""
        for client in clients:
            with contextlib.suppress(JobEndedError, ConflictError):
                try:
                    client.command(job_id, PersonAct.RESUME, node=node, reason="as a test")
                except (UnknownJobError, UnreachableError):
                    continue
            return True
        return False

    def _post(
        self, clients: list[OperatorClient], node: str, number: int, *, is_over: bool
    ) -> None:
        labels = {
            "alertname": "RankmendXidFatal", "node": node, "device": f"GPU-{number}",
            "severity": "critical", "action": "reset_gpu",
        }  # fmt: skip
        alert: dict[str, object] = {"labels": labels, "annotations": {"summary": "Xid 79"}}
        if is_over:
            alert["endsAt"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for client in clients:
            with contextlib.suppress(ControllerError):
                client.post_alerts([alert])
