"""How long a controller that starts takes to resume its jobs, and to know where their time went.

    python bench/controller_start.py                        # 500 jobs of 3 hours, some minutes
    python bench/controller_start.py --jobs 20 --hours 168  # 20 jobs of a week

The journals are those of `bench/report_time.py`. Starts the service of `rankmend controller` in a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from report_time import GPUS, NODES, Job, write_job

from rankmend.clock import SystemClock
from recovery.api.wire import Join
from recovery.service.daemon import read
from recovery.service.jobs.stored_jobs import StoredJob, job_key
from recovery.service.server import Service, ServiceThread
from recovery.service.setup import init

HOUR_S = 3600.0


def write_state(folder: Path, jobs: int, hours: float) -> int:
    """Write what a controller of these jobs has on disk; return the number of records."""
    made = init(folder, ["127.0.0.1", "localhost"], folder / "state", None)
    text = made.config.read_text().replace('listen = ":9477"', 'listen = "127.0.0.1:0"')
    made.config.write_text(text)
    records = 0
    for number in range(jobs):
        job = Job(number, hours * HOUR_S, 2 * HOUR_S)
        records += write_job(folder / "state", job)
        join = Join(
            key=f"job:{number}",
            name=f"job-{number}",
            node=job.nodes[0],
            launcher_id=f"launcher-{job.nodes[0]}",
            nodes_min=NODES,
            nodes_max=NODES,
            slots=GPUS,
        )
        path = folder / "state" / "jobs" / job_key("launch", join).folder_name
        path.with_name(f"job-{number}").rename(path)
        stored = StoredJob("launch", "secret", join)
        (path / "service.json").write_bytes(msgspec.json.encode(stored))
    return records


def start(folder: Path, jobs: int) -> dict[str, float]:
    """Start a controller on the state; return what that took."""
    config, tokens, policy = read(folder / "controller.toml")
    service = Service(config, SystemClock(), tokens, policy)
    thread = ServiceThread(service)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    thread.start()
    while not service.worker.is_taken_up:
        time.sleep(0.01)
    found = {"resumed_s": time.monotonic() - began_s}
    found["resumed_cpu_s"] = time.process_time() - began_cpu_s
    running = len(service.worker.jobs.running)
    if running != jobs or service.worker.jobs.problems:
        sys.exit(f"{running} of {jobs} jobs resumed: {service.worker.jobs.problems[:3]}")
    accounts = service.measures.accounts
    assert accounts is not None
    while len(accounts.standings) < jobs:
        time.sleep(0.1)
    found["accounted_s"] = time.monotonic() - began_s
    found["accounted_cpu_s"] = time.process_time() - began_cpu_s
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    thread.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--hours", type=float, default=3.0, help="that each has run")
    parser.add_argument("--output", type=Path, help="JSON file of the figures")
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start is not None:
        print(json.dumps(start(options.start, options.jobs)))
        return
    with tempfile.TemporaryDirectory() as name:
        records = write_state(Path(name), options.jobs, options.hours)
        command = [sys.executable, __file__, "--jobs", str(options.jobs), "--start", name]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found = {"jobs": options.jobs, "records": records, **json.loads(ended.stdout)}
    print(json.dumps(found, indent=2))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
