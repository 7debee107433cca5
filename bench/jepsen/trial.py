"""One run: stands the stage up, lets faults and jobs go for a while, waits for the end of what is open, and checks."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.jepsen.checker import Violation, check
from bench.jepsen.faults import Breaker, draw_faults
from bench.jepsen.history import History, WrittenEntry
from bench.jepsen.second import Second, check_again
from bench.jepsen.settling import LOOK_S, Standing, settle
from bench.jepsen.stage import CONTROLLERS, Stage, journals_of, standing
from bench.jepsen.workload import Workload
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.cluster_records import Spent
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.incident_machine import ENDED, step
from recovery.journal.incident_records import IncidentEvent, IncidentOpened
from recovery.journal.job_records import LauncherStarted
from recovery.journal.ledger import Ledger

_LOOK_S = 0.5
# Beside the controllers' lease: the longest pause of a launcher, which by then has told what it knows, and three looks.
_RETURN_S = 15.0 + 3 * LOOK_S


@dataclass(frozen=True, slots=True)
class Setting:
    """All of it is printed, so that a run can be repeated."""

    seed: int
    seconds: float  # with faults
    jobs: int = 40
    lease_s: float = 8.0
    deaths_per_job_s: float = 60.0
    alert_s: float = 5.0
    settle_s_max: float = 300.0  # after the last fault, until every incident must have ended
    restarts_max: int = 60
    stops_per_hour_max: int = 12
    deaths_min: int = (
        0  # of ranks, before the jobs are left alone: on a busy machine few train under faults
    )
    is_unfenced: bool = False  # the database refuses nothing: the checker must find it


@dataclass(frozen=True, slots=True)
class Trial:
    """What a run gave."""

    setting: Setting
    history: History
    violations: tuple[Violation, ...]
    second: Second  # what the other checker says of the same history
    counts: dict[str, int]
    settled_s: float
    problems: tuple[str, ...] = ()  # of the run itself: then it proves nothing
    faults: dict[str, int] = field(default_factory=dict)


def run(setting: Setting, folder: Path, say: Callable[[str], None]) -> Trial:
    """Run and check. Needs namespaces of its own (`__main__`), root, PostgreSQL, nft and cc."""
    with standing(
        folder,
        lease_s=setting.lease_s,
        restarts_max=setting.restarts_max,
        stops_per_hour_max=setting.stops_per_hour_max,
    ) as stage:
        if setting.is_unfenced:
            stage.unfence()
        # One each: a server whose disk is full takes long to start, or not to.
        keepers = [_Keeper(stage.servers.keep), _Keeper(stage.keep_controllers)]
        workload = Workload(
            setting.seed,
            setting.jobs,
            stage.urls,
            stage.authority,
            deaths_per_job_s=setting.deaths_per_job_s,
            alert_s=setting.alert_s,
        )
        workload.start()
        for keeper in keepers:
            keeper.start()
        planned = draw_faults(setting.seed, setting.seconds, CONTROLLERS, setting.lease_s)
        breaker = Breaker(stage, planned, say, workload.addresses)
        say(f"{setting}: {len(planned)} faults")
        began_s = time.monotonic()
        breaker.start()
        while time.monotonic() - began_s < setting.seconds:
            time.sleep(min(10.0, max(0.1, setting.seconds - (time.monotonic() - began_s))))
            say(_progress(workload, time.monotonic() - began_s))
        breaker.finish()
        until_s = time.monotonic() + setting.settle_s_max
        while workload.counts["deaths"] < setting.deaths_min and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        workload.calm()
        say("no more faults; waiting for the end of every incident")
        settled_s = settle(
            lambda: _look(stage, workload),
            time.monotonic,
            time.sleep,
            say,
            jobs=setting.jobs,
            calm_s=setting.lease_s + _RETURN_S,
            within_s=setting.settle_s_max,
        )
        workload.close()
        for keeper in keepers:
            keeper.over.set()
        for keeper in keepers:
            keeper.join(90)
        rows = stage.read_rows()
        journals, cluster = journals_of(rows)
        history = History(
            stage.limits, tuple(journals), cluster, tuple(workload.seen.orders), tuple(workload.seen.lives)
        )  # fmt: skip
        counts = count(history) | dict(workload.counts)
        counts["controller starts"] = sum(one.starts for one in stage.controllers)
        counts["database starts"] = stage.servers.starts
        counts["failovers of the database"] = stage.servers.failovers
        counts["connections cut in mid-commit"] = sum(one.wires.cuts for one in stage.controllers)
        counts["reports accepted"] = workload.seen.accepted
        counts["joins again"] = workload.seen.joins
        second = check_again(folder / "history.jsonl", rows, history)
    problems = list(breaker.errors)
    if not counts["stops of training"]:
        problems.append(
            "no job that trained was stopped: the budget of stops was checked against nothing"
        )
    return Trial(
        setting, history, check(history), second, counts, settled_s, tuple(problems), breaker.made
    )  # fmt: skip


class _Keeper(threading.Thread):
    """The service manager of the database, or of the controllers."""

    def __init__(self, keep: Callable[[], None]) -> None:
        super().__init__(name="keeper", daemon=True)
        self._keep = keep
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_LOOK_S):
            self._keep()


def _progress(workload: Workload, at_s: float) -> str:
    seen = workload.seen
    running = sum(one.running is not None for job in workload.jobs for one in job.launchers)
    return (
        f"{at_s:.0f} s: {running} nodes train, {seen.accepted} reports, {len(seen.orders)} orders, "
        f"{len(seen.lives)} starts of ranks, {dict(workload.counts)}"
    )


def _look(stage: Stage, workload: Workload) -> Standing:
    journals, _cluster = stage.read_journals()
    ledgers = (fold_all([one.entry for one in journal.entries]) for journal in journals)
    return Standing(
        len(journals),
        sum(ledger.incident is not None for ledger in ledgers),
        sum(job.has_unheard_deaths for job in workload.jobs),
    )


def count(history: History) -> dict[str, int]:
    """Return how much a history holds."""
    counts: Counter[str] = Counter()
    for journal in history.journals:
        counts["job journals"] += 1
        counts["records"] += len(journal.entries)
        counts["leases taken"] += len({one.lease_epoch for one in journal.entries})
        for one in journal.entries:
            record = one.entry.record
            counts["attempts"] += isinstance(record, AttemptStarted)
            counts["controllers of jobs"] += isinstance(record, LauncherStarted)
            counts["incidents"] += isinstance(record, IncidentOpened)
        ends = _phases(journal.entries)
        for phase in ENDED:
            counts[f"incidents {phase.value}"] += ends.get(phase.value, 0)
    counts["cluster records"] = len(history.cluster.entries)
    counts["budget spent"] = sum(
        isinstance(one.entry.record, Spent) for one in history.cluster.entries
    )
    counts["stops of training"] = sum(
        isinstance(one.entry.record, Spent) and one.entry.record.stops_training
        for one in history.cluster.entries
    )
    counts["orders seen"] = len(history.orders)
    counts["orders refused"] = sum(not one.is_followed for one in history.orders)
    counts["starts of ranks"] = len(history.lives)
    return dict(counts)


def _phases(entries: tuple[WrittenEntry, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    ledger = Ledger()
    for one in entries:
        before, ledger = ledger, fold(ledger, one.entry)
        if isinstance(one.entry.record, IncidentEvent) and before.incident is not None:
            phase = step(before.incident.state, one.entry.record.event).phase
            if phase in ENDED:
                found[phase.value] += 1
    return found
