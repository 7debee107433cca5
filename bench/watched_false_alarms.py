"""How often undisturbed jobs of another launcher are called hung or slow: a real agent, a real controller, torchrun on gloo.

    python bench/watched_false_alarms.py [--jobs 12] [--ranks 2] [--minutes 60] [--ease 1] [--json]

The jobs (bench/jobs/watched_ddp.py) compile at first, evaluate, and save by one rank alone. Nothing is done to them, so each
verdict but `training` is a false alarm. The machine may be as busy as it likes: that is part of it. All watched jobs of the machine count,
so give it a /dev/shm of its own where others run:

    unshare --mount sh -c 'mount -t tmpfs tmpfs /dev/shm && python bench/watched_false_alarms.py --ease 5'
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402

from rankmend.watch.hook_folder import make_hook_folder  # noqa: E402
from recovery.controller.watched.watched_jobs import WatchedJobs  # noqa: E402
from recovery.service.setup import make_node_files  # noqa: E402
from tests.support.agent import running_agent  # noqa: E402
from tests.support.service import make_folder, running  # noqa: E402

LOOK_S = 1.0
TELL_S = 60.0
STOP_S_MAX = 60.0


def start_job(folder: Path, number: int, ranks: int, ease: float) -> "subprocess.Popen[bytes]":
    """Start one job; their steps take 0.1 to 0.6 s (the rest in them ``ease`` times), and they pause each 20 to 60 steps."""
    work_s, rest_s, pauses = (
        0.02 + 0.01 * (number % 4),
        ease * (0.05 + 0.1 * (number % 5)),
        20 + 10 * (number % 5),
    )
    words = [
        "RANK",
        "WORLD_SIZE",
        str(folder / f"meet-{number}"),
        "-1",
        str(work_s),
        str(rest_s),
        str(pauses),
    ]
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(folder / "hook"),
        "RANKMEND_WATCH": "1",
    }
    with (folder / f"job-{number}.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *launch, str(ROOT / "bench/jobs/watched_ddp.py"), *words],
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def stop_job(job: "subprocess.Popen[bytes]") -> None:
    if job.poll() is None:
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def watch(watched: WatchedJobs, jobs: int, minutes: float, console: Console) -> Counter[str]:
    """Look until the time is over; return for how many looks jobs were in each state."""
    states: Counter[str] = Counter()
    until_s, told_s = time.monotonic() + 60 * minutes, 0.0
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        states.update(job.verdict.state.value for job in list(watched.jobs.values()))
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            left = (until_s - told_s) / 60
            console.print(
                f"{left:.0f} min left, {len(watched.jobs)} of {jobs} jobs seen, alarms {dict(watched.found)}"
            )
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--ease",
        type=float,
        default=1.0,
        help="ranks rest so many times as long in a step, where cores are few",
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and the jobs with us
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="rankmend-watched-") as name:
        folder = Path(name)
        make_folder(folder / "controller")
        cert, key = make_node_files(folder / "controller", "n1", folder / "node")
        make_hook_folder(folder / "hook")
        with running(folder / "controller") as up:
            (folder / "agent.toml").write_text(
                f'node = "n1"\nsocket = "{folder}/agent.sock"\n[alerts]\nca_file = "{up.ca}"\n'
                f'cert_file = "{cert}"\nkey_file = "{key}"\n[watch]\ncontroller = "{up.url}"\n'
            )
            with running_agent("--config", str(folder / "agent.toml")):
                jobs = [
                    start_job(folder, number, given.ranks, given.ease)
                    for number in range(given.jobs)
                ]
                try:
                    watched = up.service.worker.watched
                    states = watch(watched, given.jobs, given.minutes, console)
                    steps = [job.step() for job in watched.jobs.values()]
                finally:
                    for job in jobs:
                        stop_job(job)
            alarms = dict(up.service.worker.watched.found)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[2]:.1f}",
        "jobs": given.jobs,
        "ranks": given.ranks,
        "minutes": given.minutes,
        "ease": given.ease,
        "steps": steps,
        "looks_by_state": dict(states),
        "false_alarms": alarms,
    }
    if given.json:
        print(json.dumps(result))
    else:
        for what, value in result.items():
            print(f"{what:16} {value}")
    if alarms:
        sys.exit(1)


if __name__ == "__main__":
    main()
