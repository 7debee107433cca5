"""How long a dead rank waits for its restart where each commit takes long, beside other jobs that write, too.

    python bench/slow_disk.py                              # commits of 0, 0.02, 1 and 5 s, 8 jobs
    python bench/slow_disk.py --jobs 500 --commit 0.02 5   # 500 jobs that have all just been restarted

The deciding thread, journals in SQLite and simulated launchers, without HTTP. Each commit of a job's journal and of the cluster's sleeps,
as a disk that is slow would have it. Printed for each commit time: seconds from the report of the death to the order of the
next attempt, for how many commits the deciding thread waited meanwhile, and how many the job's journal took.
"""

import argparse
import inspect
import json
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rankmend.clock import Clock, SystemClock, read_boot_id
from recovery.cluster.cluster import ClusterController
from recovery.cluster.cluster_limits import ClusterPolicy
from recovery.journal.limits import Policy
from recovery.journal.store import Journal
from recovery.messages.exchange import Endpoint, RankExit, RankReport, Report
from recovery.service.job_registry import JobRegistry
from recovery.service.listening_clock import Hearing
from recovery.service.measures import Measures
from recovery.service.newest_orders import NewestOrders
from recovery.service.server import parts_of_service
from recovery.service.stored_jobs import FolderHold, StateFolder
from recovery.service.worker import Worker
from tests.support.service import join_of

REPORT_S = 1.0  # of a launcher; with 500 jobs each second one
LIMIT_S = 150.0
START_S = 600.0  # of all jobs, on a loaded machine


class Disk:
    """How slow it is, and who waited for it."""

    def __init__(self) -> None:
        self.commit_s = 0.0
        self.waits: list[tuple[str, Path]] = []  # thread that waited, and journal

    def journal(self, path: Path, clock: Clock) -> Journal:
        disk = self

        class SlowJournal(Journal):
            def _insert(self, rows: Any) -> None:
                time.sleep(disk.commit_s)
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

    def open_journal(self, clock: Clock, *, uses_snapshot: bool = False) -> Journal:  # noqa: ARG002
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
        self.job_id = worker.call(lambda: worker.jobs.join("alice", join)[0].job_id).result(START_S)
        self.report = Report(
            version=1, node=self.node, boot_id="boot", job_id=self.job_id, revision=0, attempt=0, ranks=(),
            empty_through=0, launcher_id=join.launcher_id, slots=2,
            rendezvous=Endpoint("127.0.0.1", 20_001), peer_endpoint=Endpoint("127.0.0.1", 20_000 + number),
        )  # fmt: skip
        self.attempts: dict[int, float] = {}  # when each was ordered
        self.is_dead = False
        self._port = 20_001

    def turn(self) -> None:
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
        self.is_dead = True
        first, *others = self.report.ranks
        first = replace(
            first, process_state="", exit=RankExit(0.1, None, 9, False, False, None, ())
        )
        self._say(replace(self.report, ranks=(first, *others)))

    def _say(self, report: Report) -> None:
        self.report = replace(report, number=self.report.number + 1)
        self._worker.inbox.put_report(self.report, 500)


def measure(jobs: int, commit_s: float, folder: Path) -> dict[str, object]:
    clock, disk = SystemClock(), Disk()
    store = SlowFolder(folder, disk)
    cluster = disk.journal(store.cluster / "journal.db", clock)
    desk = ClusterController(cluster, ClusterPolicy(), clock, lambda job_id: job_id)
    board, measures, hearing = NewestOrders(), Measures(), Hearing(clock)
    named: dict[str, Any] = {"jobs_max": jobs + 1, "of_subject_percent": 100.0}
    if "committer" in inspect.signature(JobRegistry.__init__).parameters:
        named["committer"] = store.committer(clock, lambda _took_s: None)
    registry = JobRegistry(
        store, board, measures, clock, hearing, lambda _name: Policy(),
        lambda join: parts_of_service(desk, join), **named,
    )  # fmt: skip
    worker = Worker(registry, desk, board, measures, clock, hearing)
    worker.start()
    launchers = [Launcher(worker, board, number) for number in range(jobs)]
    should_stop = threading.Event()

    def drive() -> None:
        due_s = dict.fromkeys(launchers, 0.0)
        while not should_stop.is_set():
            now_s = time.monotonic()
            for one in launchers:
                if due_s[one] <= now_s or one.is_ordered_anew():
                    due_s[one] = now_s + REPORT_S
                    one.turn()
            hearing.beat()
            time.sleep(0.02)

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()

    def wait(what: Any, limit_s: float) -> bool:
        until_s = time.monotonic() + limit_s
        while not what() and time.monotonic() < until_s:
            time.sleep(0.01)
        return bool(what())

    if not wait(lambda: all(one.attempts for one in launchers), START_S):
        raise SystemExit("the jobs did not start")
    # All jobs are restarted: each of them notes much in the next minute.
    disk.commit_s = commit_s
    time.sleep(12.0)
    victim = launchers[0]
    before, victim_path = len(disk.waits), registry.running[victim.job_id].hold.path / "journal.db"
    cpu_s, began_s = time.process_time(), time.monotonic()
    victim.kill()
    is_back = wait(lambda: 2 in victim.attempts, LIMIT_S)
    took_s = (victim.attempts[2] if is_back else time.monotonic()) - began_s
    waits = disk.waits[before:]
    found = {
        "jobs": jobs,
        "commit_s": commit_s,
        "back_after_s": round(took_s, 2) if is_back else f"not within {LIMIT_S:g} s",
        "deciding_thread_waited_for": sum(thread == "controller" for thread, _path in waits),
        "of_the_job": sum(path == victim_path for _thread, path in waits),
        "of_the_cluster": sum(path == cluster.path for _thread, path in waits),
        "cpu_s": round(time.process_time() - cpu_s, 2),
    }
    disk.commit_s = 0.0
    should_stop.set()
    driver.join()
    worker.stop(60.0)
    cluster.close()
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--commit", type=float, nargs="+", default=[0.0, 0.02, 1.0, 5.0])
    options = parser.parse_args()
    for commit_s in options.commit:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(options.jobs, commit_s, Path(folder) / "state")), flush=True)


if __name__ == "__main__":
    main()
