"""Jobs whose launchers are simulated, on a disk that is slow or does not answer: the deciding thread without HTTP."""

import inspect
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankmend.clock import Clock, SystemClock, read_boot_id
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.journal.limits import Policy
from recovery.journal.open_journal import OpenJournal
from recovery.journal.store import Journal
from recovery.messages.exchange import Endpoint, RankExit, RankReport, Report
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.job_store import JobStore
from recovery.service.jobs.listening_clock import Hearing
from recovery.service.jobs.newest_orders import NewestOrders
from recovery.service.jobs.stored_jobs import FolderHold, StateFolder
from recovery.service.jobs.worker import Worker
from recovery.service.metrics.measures import Measures
from recovery.service.server import parts_of_service
from tests.support.eventually import DEADLINE_S, fault_lasts
from tests.support.service import join_of

REPORT_S = 1.0  # between two reports of a launcher
JOIN_S_MAX = 600.0  # on a loaded machine


class Disk:
    """How slow it is, and who waited for it."""

    def __init__(self) -> None:
        self.commit_s = 0.0
        self.stuck: dict[Path, threading.Event] = {}  # journals of which no commit ends before this
        self.waits: list[tuple[str, Path]] = []  # thread that waited, and journal

    def journal(self, path: Path, clock: Clock) -> Journal:
        disk = self

        class SlowJournal(Journal):
            def _insert(self, rows: Any) -> None:
                fault_lasts(disk.commit_s)
                if (until := disk.stuck.get(self.path)) is not None:
                    until.wait(JOIN_S_MAX)
                super()._insert(rows)

            def append_many(self, records: Any) -> Any:
                disk.waits.append((threading.current_thread().name, self.path))
                return super().append_many(records)

            def append_entries(self, entries: Any) -> None:
                disk.waits.append((threading.current_thread().name, self.path))
                super().append_entries(entries)

        return SlowJournal(path, clock, read_boot_id())


class SlowHold(FolderHold):
    disk: Disk

    def open_journal(self, clock: Clock, *, uses_snapshot: bool = False) -> Journal:
        return self.disk.journal(self.folder.journal, clock)


class SlowFolder(StateFolder):
    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path)
        self._disk = disk

    def open(self, *given: Any, **named: Any) -> FolderHold:
        held = SlowHold(super().open(*given, **named).folder)
        object.__setattr__(held, "disk", self._disk)
        return held


class Launcher:
    """The one launcher of a job with two ranks, that does at once what it is ordered."""

    def __init__(self, worker: Worker, board: NewestOrders, number: int) -> None:
        self._worker = worker
        self._board = board
        self.node = f"n{number}"
        join = join_of(self.node, key=f"k{number}", name=f"j{number}", nodes_min=1, nodes_max=1)
        self.job_id = worker.call(lambda: worker.jobs.join("alice", join)[0].job_id).result(
            JOIN_S_MAX
        )
        self.report = Report(
            version=1, node=self.node, boot_id="boot", job_id=self.job_id, revision=0, attempt=0, ranks=(),
            empty_through=0, launcher_id=join.launcher_id, slots=2,
            rendezvous=Endpoint("127.0.0.1", 20_001), peer_endpoint=Endpoint("127.0.0.1", 20_000 + number),
        )  # fmt: skip
        self.attempts: dict[int, float] = {}  # when each was ordered
        self.is_dead = False
        self._port = 20_001
        self._lock = threading.Lock()  # one says what it has read before another says something

    def turn(self) -> None:
        with self._lock:
            self._turn()

    def _turn(self) -> None:
        order = self._board.newest(self.job_id, self.node)
        report = self.report
        if order is not None and order.revision > report.revision:
            if order.ranks and order.attempt != report.attempt:
                self.attempts[order.attempt], self.is_dead = time.monotonic(), False
                ranks = tuple(
                    RankReport(rank, place, 1000 + rank, "R", steps_done=0, attached_age_s=0.1)
                    for place, rank in enumerate(order.ranks)
                )
                self._port += 1
                report = replace(
                    report,
                    attempt=order.attempt,
                    ranks=ranks,
                    rendezvous=Endpoint("127.0.0.1", self._port),
                )
            elif not order.ranks:
                report = replace(report, ranks=(), empty_through=max(order.attempt, report.attempt))
            report = replace(report, revision=order.revision)
        elif report.ranks and not self.is_dead:
            ranks = tuple(
                replace(
                    rank, step=(rank.step or 0) + 1, steps_done=rank.steps_done + 1, step_age_s=0.05,
                    first_section_age_s=1.0, attached_age_s=2.0,
                )
                for rank in report.ranks
            )  # fmt: skip
            report = replace(report, ranks=ranks)
        self._say(report)

    def is_ordered_anew(self) -> bool:
        order = self._board.newest(self.job_id, self.node)
        return order is not None and order.revision > self.report.revision

    def kill(self) -> None:
        with self._lock:
            self.is_dead = True
            first, *others = self.report.ranks
            first = replace(
                first, process_state="", exit=RankExit(0.1, None, 9, False, False, None, ())
            )
            self._say(replace(self.report, ranks=(first, *others)))

    def _say(self, report: Report) -> None:
        self.report = replace(report, number=self.report.number + 1)
        self._worker.inbox.put_report(self.report, 500)


class Jobs:
    """Jobs that run, and their launchers."""

    def __init__(self, disk: Disk, store: JobStore, cluster: OpenJournal, count: int) -> None:
        clock, self.disk = SystemClock(), disk
        self._store = store
        self.cluster = cluster
        desk = ClusterController(self.cluster, ClusterPolicy(), clock, lambda job_id: job_id)
        board, self.measures, self._hearing = NewestOrders(), Measures(), Hearing(clock)
        named: dict[str, Any] = {"jobs_max": count + 1, "of_subject_percent": 100.0}
        if "committer" in inspect.signature(JobRegistry.__init__).parameters:  # of older code, too
            named["committer"] = store.committer(clock, self.measures.commit_s.observe)
        self.registry = JobRegistry(
            store, board, self.measures, clock, self._hearing, lambda _name: Policy(),
            lambda join: parts_of_service(desk, join), **named,
        )  # fmt: skip
        self.worker = Worker(self.registry, desk, board, self.measures, clock, self._hearing)
        self.worker.start()
        self.launchers = [Launcher(self.worker, board, number) for number in range(count)]
        self._should_stop = threading.Event()
        self._driver = threading.Thread(target=self._drive, daemon=True)
        self._driver.start()

    def journal_of(self, launcher: Launcher) -> Path:
        hold = self.registry.running[launcher.job_id].hold
        assert isinstance(hold, FolderHold), "of SQLite"
        return hold.path / "journal.db"

    def _drive(self) -> None:
        due_s = dict.fromkeys(self.launchers, 0.0)
        while not self._should_stop.is_set():
            now_s = time.monotonic()
            for one in self.launchers:
                if due_s[one] <= now_s or one.is_ordered_anew():
                    due_s[one] = now_s + REPORT_S
                    one.turn()
            self._hearing.beat()
            fault_lasts(0.02)  # between two turns of the simulated launchers

    def close(self) -> None:
        self._should_stop.set()
        self._driver.join()
        self.worker.stop(DEADLINE_S)
        self.cluster.close()
        self._store.close()


@contextmanager
def jobs_on(folder: Path, count: int) -> Iterator[Jobs]:
    disk = Disk()
    store = SlowFolder(folder, disk)
    cluster = disk.journal(store.cluster / "journal.db", SystemClock())
    jobs = Jobs(disk, store, cluster, count)
    try:
        yield jobs
    finally:
        disk.commit_s = 0.0
        for stuck in disk.stuck.values():
            stuck.set()
        jobs.close()
