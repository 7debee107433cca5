"""How long the jobs of a controller that died wait until another one manages them, with a real PostgreSQL on this machine.

    python bench/postgres_takeover.py --jobs 500

Both controllers are services in this process, without launchers. The first one "dies": it renews its leases no more. Prints the seconds
from its last renewal until every job has a controller again, and what a durable decision costs meanwhile. Needs Debian's postgresql.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rankmend.clock import SystemClock
from recovery.journal.attempt_records import Milestone
from recovery.postgres.postgres_journal import PostgresJournal
from tests.recovery.service.test_postgres_jobs import configure
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected, running_server
from tests.support.service import join_of, running


def measure_takeover(server: PostgresServer, folder: Path, jobs: int, lease_s: float) -> float:
    url = server.url(server.make_database(), "controller")
    with running(configure(folder / "a", url, lease_s=lease_s)) as first:
        here = first.service.worker
        for number in range(jobs):
            join = join_of("n1", key=f"job:{number}", name=f"job-{number}")
            here.call(lambda join=join: here.jobs.join("alice", join)).result(60)
        with running(configure(folder / "b", url, lease_s=lease_s)) as second:
            there = second.service.worker.jobs
            first.service._store._leases._should_stop.set()  # type: ignore[attr-defined]
            died_at_s = time.monotonic()
            while sum(one.controller is not None for one in list(there.running.values())) < jobs:
                time.sleep(0.02)
            return time.monotonic() - died_at_s


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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--lease-s", type=float, default=8.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        times = sorted(measure_decision_s(server))
        print(
            f"a durable decision: median {statistics.median(times) * 1e3:.2f} ms, "
            f"99 % within {times[int(len(times) * 0.99)] * 1e3:.2f} ms"
        )
        took_s = measure_takeover(server, Path(folder), options.jobs, options.lease_s)
        print(f"{options.jobs} jobs taken over {took_s:.1f} s after the last sign of life")


if __name__ == "__main__":
    main()
