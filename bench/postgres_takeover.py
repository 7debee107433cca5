"""How long the jobs of a controller that died wait until another one manages them, with a real PostgreSQL on this machine.

    python bench/postgres_takeover.py                        # 500 jobs whose journals are of half an hour
    python bench/postgres_takeover.py --jobs 50 --hours 24
    python bench/postgres_takeover.py --runs 5 --hours 0     # journals without progress

The controller that died is the row and the leases that it leaves; the one that takes over is a service in this process, without launchers.
Prints the seconds from the dead one's last renewal until every job has a controller again, the CPU time of this process
and of PostgreSQL from the end of the lease on, and what a durable decision costs meanwhile. Needs Debian's postgresql.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from controller_start import write_state
from yardstick import measure_yardstick

from rankmend.clock import SystemClock
from recovery.journal.attempt_records import Milestone
from recovery.journal.postgres.leases import Leases
from recovery.journal.postgres.postgres_journal import PostgresJournal
from recovery.service.daemon import Cycles
from recovery.service.jobs.journal_move import JournalMove
from recovery.service.jobs.stored_jobs import StateFolder
from tests.recovery.service.test_postgres_jobs import configure
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected, running_server
from tests.support.service import Running, running


@dataclass(frozen=True)
class Takeover:
    jobs: int
    records: int
    lease_s: float
    took_s: float  # from the last renewal
    after_lease_s: float  # from the end of the lease
    cpu_s: float  # of the controller, since the last renewal
    database_cpu_s: float
    reports_waited_s: float  # longest time that the deciding thread was away


def fill(server: PostgresServer, folder: Path, jobs: int, hours: float) -> tuple[str, int]:
    """Make a database with jobs as a controller left them; return its name and the number of their records."""
    records = write_state(folder, jobs, hours)
    name = server.make_database()
    with connected(server.url(name, "controller"), lease_s=600.0) as (database, leases):
        state = StateFolder(folder / "state")
        JournalMove(state, database, leases, is_dry=False).run()
        state.close()
    server.ask(name, "ANALYZE")
    return name, records


@contextmanager
def dying(server: PostgresServer, name: str, lease_s: float) -> Iterator[Leases]:
    """Have a controller hold all jobs that renews its leases until it is told to stop."""
    with connected(server.url(name, "controller"), lease_s=lease_s) as (database, leases):
        for (journal,) in database.read(
            "SELECT name FROM rankmend.journal WHERE job_id IS NOT NULL"
        ):
            leases.take(journal)
        yield leases


def measure_takeover(
    server: PostgresServer, name: str, folder: Path, jobs: int, records: int, lease_s: float
) -> Takeover:
    url = server.url(name, "controller")
    service = running(configure(folder, url, lease_s=lease_s))
    with dying(server, name, lease_s) as dead, service as up:
        time.sleep(2.0)
        assert not up.service.worker.jobs.running, "the dead one still has them"
        dead._should_stop.set()
        dead._thread.join()
        died_at_s, cpu_s, database_cpu_s = time.monotonic(), time.process_time(), cpu_of(server)
        ((left_s,),) = server.ask(
            name,
            "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM rankmend.controller"
            " WHERE controller_id = %s",
            dead.controller_id,
        )
        waited_s = wait_until_taken(up, jobs)
        now_s = time.monotonic()
        return Takeover(
            jobs,
            records,
            lease_s,
            now_s - died_at_s + lease_s - left_s,
            now_s - died_at_s - left_s,
            time.process_time() - cpu_s,
            cpu_of(server) - database_cpu_s,
            waited_s,
        )


def wait_until_taken(up: Running, jobs: int) -> float:
    """Return, once all are managed, the longest time for which the deciding thread did nothing else."""
    worker, longest_s = up.service.worker, 0.0
    cycles = Cycles()  # as the daemon does
    while True:
        cycles.look()
        longest_s = max(longest_s, time.monotonic() - worker.turned_at_s)
        running = list(worker.jobs.running.values())
        if sum(one.controller is not None for one in running) == jobs:
            return longest_s
        time.sleep(0.02)


def cpu_of(server: PostgresServer) -> float:
    """Return the CPU seconds of the server and of its processes that live."""
    assert server.process is not None
    total_s = 0.0
    parent = psutil.Process(server.process.pid)
    for one in (parent, *parent.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total_s += times.user + times.system
    return total_s


def measure_decision_s(server: PostgresServer, count: int = 500) -> list[float]:
    place = PostgresPlace.make(server)
    times = []
    with connected(server.url(place.database, "controller")) as (database, leases):
        journal = PostgresJournal(database, leases, leases.take(place.name), SystemClock(), "boot")
        for step in range(1, count + 1):
            began_s = time.perf_counter()
            journal.append(Milestone(1, step))
            times.append(time.perf_counter() - began_s)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--hours", type=float, default=0.5, help="that each job has run")
    parser.add_argument("--lease-s", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        times = sorted(measure_decision_s(server))
        name, records = fill(server, Path(folder) / "filled", options.jobs, options.hours)
        runs = [
            measure_takeover(
                server, name, Path(folder) / str(run), options.jobs, records, options.lease_s
            )
            for run in range(options.runs)
        ]
    yardstick = measure_yardstick()
    decision_ms = [round(times[int(len(times) * share)] * 1e3, 2) for share in (0.5, 0.99)]
    if options.json:
        told = {"decision_ms": decision_ms, "runs": [asdict(run) for run in runs]}
        print(json.dumps({**told, "yardstick": yardstick.as_dict()}))
        return
    print(
        f"a durable decision: median {decision_ms[0]:.2f} ms, 99 % within {decision_ms[1]:.2f} ms"
    )
    for run in runs:
        print(
            f"{run.jobs} jobs with {run.records} records taken over {run.took_s:.1f} s after the last sign of life, "
            f"{run.after_lease_s:.1f} s after the end of the lease; CPU {run.cpu_s:.2f} s, "
            f"PostgreSQL's {run.database_cpu_s:.2f} s; reports waited for {run.reports_waited_s:.2f} s at most"
        )
    print(yardstick)


if __name__ == "__main__":
    main()
