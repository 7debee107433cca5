"""How long a dead rank waits for its restart where each commit takes long, beside other jobs that write, too.

    python bench/slow_disk.py                              # commits of 0, 0.02, 1 and 5 s, 8 jobs
    python bench/slow_disk.py --jobs 500 --commit 0.02 5   # 500 jobs that have all just been restarted

The deciding thread, journals in SQLite and simulated launchers, without HTTP. Each commit of a job's journal and of the cluster's sleeps,
as a disk that is slow would have it. Printed for each commit time: seconds from the report of the death to the order of the
next attempt, for how many commits the deciding thread waited meanwhile, and how many the job's journal took.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.slow_disk import JOIN_S_MAX, jobs_on

LIMIT_S = 150.0
NOTING_S = 12.0  # after the restart of all jobs: each of them notes much in the first minute


def wait(what: Callable[[], bool], limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    while not what() and time.monotonic() < until_s:
        time.sleep(0.01)
    return what()


def measure(count: int, commit_s: float, folder: Path) -> dict[str, object]:
    with jobs_on(folder, count) as jobs:
        if not wait(lambda: all(one.attempts for one in jobs.launchers), JOIN_S_MAX):
            raise SystemExit("the jobs did not start")
        disk, victim = jobs.disk, jobs.launchers[0]
        disk.commit_s = commit_s
        time.sleep(NOTING_S)
        before, path = len(disk.waits), jobs.journal_of(victim)
        cpu_s, began_s = time.process_time(), time.monotonic()
        victim.kill()
        is_back = wait(lambda: 2 in victim.attempts, LIMIT_S)
        waits = disk.waits[before:]
        return {
            "jobs": count,
            "commit_s": commit_s,
            "back_after_s": round(victim.attempts[2] - began_s, 2)
            if is_back
            else f"not within {LIMIT_S:g} s",
            "deciding_thread_waited_for": sum(thread == "controller" for thread, _path in waits),
            "of_the_job": sum(journal == path for _thread, journal in waits),
            "of_the_cluster": sum(journal == jobs.cluster.path for _thread, journal in waits),
            "cpu_s": round(time.process_time() - cpu_s, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--commit", type=float, nargs="+", default=[0.0, 0.02, 1.0, 5.0])
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # 500 jobs have 6 descriptors each
    for commit_s in options.commit:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(options.jobs, commit_s, Path(folder) / "state")
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
