"""How long a dead rank waits for its restart where each commit takes long, beside other jobs that write, too.

    python bench/slow_disk.py                              # commits of 0, 0.02, 1 and 5 s, 8 jobs
    python bench/slow_disk.py --jobs 500 --commit 0.02 5   # 500 jobs that have all just been restarted
    python bench/slow_disk.py --postgresql --lease 30      # a real PostgreSQL whose disk is slow

The deciding thread, journals in SQLite and simulated launchers, without HTTP. Each commit of a job's journal and of the cluster's sleeps,
as a disk that is slow would have it. With PostgreSQL each fsync of the server sleeps (a library that `cc` makes). Printed for each commit
time: seconds from the report of the death to the order of the next attempt; with SQLite also for how many commits the deciding thread
waited meanwhile, and how many the job's journal took.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rankmend.clock import SystemClock
from recovery.journal.postgres.database import Database
from recovery.journal.postgres.database_url import DatabaseUrl
from recovery.journal.postgres.leases import Leases
from recovery.service.controller_config import Config, PostgresSection
from recovery.service.jobs.postgres_jobs import PostgresJobs, answer_s_of
from recovery.service.jobs.stored_jobs import StateFolder
from tests.support.postgres import running_server
from tests.support.slow_disk import JOIN_S_MAX, Disk, Jobs, jobs_on

LIMIT_S = 150.0
SLOW_FSYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_for_disk(void) {
    const char *name = getenv("SLOW_FILE");
    FILE *file = name ? fopen(name, "r") : NULL;
    double s = 0;
    if (!file) return;
    if (fscanf(file, "%lf", &s) != 1) s = 0;
    fclose(file);
    for (int left = (int)(s * 1000); left > 0; left -= 10) usleep(10000);
}
int fsync(int file) { wait_for_disk(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file); }
int fdatasync(int file) { wait_for_disk(); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file); }
"""
NOTING_S = 12.0  # after the restart of all jobs: each of them notes much in the first minute


def wait(what: Callable[[], bool], limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    while not what() and time.monotonic() < until_s:
        time.sleep(0.01)
    return what()


def restart(jobs: Jobs, slow: Callable[[], object]) -> float | None:
    """Return how long a dead rank waited for its restart; None: too long."""
    if not wait(lambda: all(one.attempts for one in jobs.launchers), JOIN_S_MAX):
        raise SystemExit("the jobs did not start")
    victim = jobs.launchers[0]
    slow()
    time.sleep(NOTING_S)
    began_s = time.monotonic()
    victim.kill()
    is_back = wait(lambda: 2 in victim.attempts, LIMIT_S)
    return victim.attempts[2] - began_s if is_back else None


def shown(count: int, commit_s: float, back_s: float | None) -> dict[str, object]:
    back = f"not within {LIMIT_S:g} s" if back_s is None else round(back_s, 2)
    return {"jobs": count, "commit_s": commit_s, "back_after_s": back}


def measure(count: int, commit_s: float, folder: Path) -> dict[str, object]:
    with jobs_on(folder, count) as jobs:
        disk, before = jobs.disk, 0

        def slow() -> None:
            disk.commit_s = commit_s

        back_s = restart(jobs, slow)
        path = jobs.journal_of(jobs.launchers[0])
        waits = disk.waits[before:]
        return {
            **shown(count, commit_s, back_s),
            "deciding_thread_waited_for": sum(thread == "controller" for thread, _path in waits),
            "of_the_job": sum(journal == path for _thread, journal in waits),
        }


@contextmanager
def slow_postgresql(folder: Path) -> Iterator[tuple[str, Path]]:
    """Give the URL of a database, and the file with the seconds that each fsync of its server takes."""
    folder.chmod(0o755)
    library, seconds = folder / "slow.so", folder / "seconds"
    (folder / "slow.c").write_text(SLOW_FSYNC)
    words = ["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "slow.c"), "-ldl"]
    subprocess.run(words, check=True)
    seconds.write_text("0")
    os.environ |= {"LD_PRELOAD": str(library), "SLOW_FILE": str(seconds)}
    try:
        with running_server(checkpoint_timeout="1d", wal_writer_delay="10s") as server:
            yield server.url(server.make_database(), "controller"), seconds
            seconds.write_text("0")
    finally:
        del os.environ["LD_PRELOAD"], os.environ["SLOW_FILE"]


def measure_postgresql(
    count: int, commit_s: float, folder: Path, lease_s: float
) -> dict[str, object]:
    with slow_postgresql(folder) as (url, seconds):
        clock = SystemClock()
        database = Database(DatabaseUrl(url), clock, answer_s_max=answer_s_of(lease_s))
        leases = Leases(database, clock, lease_s=lease_s)
        state = folder / "state"
        config = Config(state_dir=str(state), postgres=PostgresSection(lease_s=lease_s))
        store = PostgresJobs(StateFolder(state, keeps_jobs=False), config, clock, leases)
        jobs = Jobs(Disk(), store, store.open_cluster(leases.clock), count)
        try:
            back_s = restart(jobs, lambda: seconds.write_text(str(commit_s)))
            return {**shown(count, commit_s, back_s), "lease_s": lease_s}
        finally:
            seconds.write_text("0")
            jobs.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--commit", type=float, nargs="+", default=[0.0, 0.02, 1.0, 5.0])
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--lease", type=float, default=8.0, help="[postgres] lease_s")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # 500 jobs have 6 descriptors each
    for commit_s in options.commit:
        with tempfile.TemporaryDirectory() as folder:
            if options.postgresql:
                found = measure_postgresql(options.jobs, commit_s, Path(folder), options.lease)
            else:
                found = measure(options.jobs, commit_s, Path(folder) / "state")
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
