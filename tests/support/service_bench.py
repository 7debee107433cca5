"""What tests of a controller's service do to it and have it read: requests, failures, alerts, the time of a job."""

import re
from collections.abc import Sequence

import msgspec
import urllib3

from recovery.accounting.goodput.time_spent import TimeReading
from recovery.accounting.goodput.time_window import CatchUp
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import Order, RankExit, RankReport
from recovery.service import controller_config
from recovery.service.metrics.measures import Measures
from recovery.service.metrics.time_accounts import PastSizes, TimeAccounts
from tests.support.service import Running, Speaker, two_speakers

Timed = tuple[float, Record]
# An alert that fires, as Alertmanager tells of it.
ACTIVE = {
    "labels": {"alertname": "RankmendGpuLost", "node": "n1"},
    "annotations": {"summary": "GPU lost"},
    "startsAt": "2027-01-15T07:59:00.5Z",
    "endsAt": "2027-01-15T08:09:00Z",
    "updatedAt": "2027-01-15T08:05:00Z",
    "fingerprint": "f",
    "receivers": [{"name": "rankmend-controller"}],
    "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
}


def start_job(up: Running) -> tuple[str, Order]:
    """Have a job of two nodes join, and return its id and the first order to start."""
    first, _second = two_speakers(up.client())
    assert first.order is not None
    return first.job_id, first.order


def ask(
    up: Running, method: str, path: str, token: str = "admin", **options: object
) -> tuple[int, bytes]:
    """Ask without the client, for what it would not send."""
    headers = {"Authorization": f"Bearer {(up.folder / f'{token}.token').read_text().strip()}"}
    pool = urllib3.PoolManager(ca_certs=str(up.ca), retries=False)
    headers |= options.pop("headers", {})  # type: ignore[arg-type]
    try:
        answer = pool.request(method, up.url + path, headers=headers, redirect=False, **options)  # type: ignore[arg-type]
        return answer.status, answer.data
    finally:
        pool.clear()


def fail_rank(speaker: Speaker) -> None:
    """Say that the node's first rank was killed."""
    assert speaker.report is not None
    killed = RankExit(0.1, None, 9, False, False, None, ())
    first, *others = speaker.report.ranks
    dead = RankReport(first.rank, first.local_rank, first.pid, "", steps_done=3, exit=killed)
    speaker.say(ranks=(dead, *others))


def unlimited(one: controller_config.Config) -> controller_config.Config:
    limits = controller_config.Limits(
        reports_per_node=1e5, launches=1e5, alerts=1e5, reads=1e5, acts=1e5
    )
    discovery = msgspec.structs.replace(one.discovery, nodes=("n9", "x9"))
    return msgspec.structs.replace(one, limits=limits, discovery=discovery)


class SetClock:
    """A clock that tells what it was set to."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def unix_s(self) -> float:
        return 5000.0 + self.at_s


def told(entries: Sequence[Entry]) -> CatchUp:
    reading = None
    for entry in entries:
        yield
        reading = reading or TimeReading(entry)
        reading.take(entry)
    return reading


class Followed:
    """Accounts of one job whose entries come one by one."""

    def __init__(self, *before: Timed, past: PastSizes | None = None) -> None:
        self.clock = SetClock()
        self.accounts = TimeAccounts(self.clock, "boot-1", past=past)
        self.measures = Measures()
        self.measures.account(self.accounts)
        self.number = 0
        self.accounts.opened("job-1", "llama", told([self._entry(*timed) for timed in before]))

    def take(self, *records: Timed) -> None:
        for at_s, record in records:
            self.accounts.entry("job-1", self._entry(at_s, record))
            self.until(at_s)

    def until(self, at_s: float) -> None:
        self.clock.at_s = at_s
        self.accounts.turn()

    def series(self, name: str) -> dict[str, float]:
        text = self.measures.render().decode()
        found = re.findall(rf"^rankmend_controller_{name}(?:\{{(.*)\}})? (\S+)$", text, re.M)
        return {labels: float(value) for labels, value in found}

    def _entry(self, at_s: float, record: Record) -> Entry:
        self.number += 1
        return Entry(self.number, 5000.0 + at_s, at_s, "boot-1", record)
