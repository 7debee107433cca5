"""What `make stress` runs: chosen tests many times, beside a load that keeps the cores busy.

    python -m tests.stress --times 20 --load 8 [--workers 4] [--stalls] FILE ...

Each round is a run of its own without second chances. Prints which tests failed in how many rounds, and their last output.
With `--stalls` (root) single processes of the tests get no processor for up to 5 s, and all of them stand still for up to
3 s, as on a virtual machine whose host is busy: what a test claims of an order must hold all the same.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final
from xml.etree import ElementTree

from tests.support.eventually import fault_lasts

ROOT = Path(__file__).resolve().parents[1]
BUSY = "while True: pass"


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep this many processes busy, which end with this one."""
    tied = ("setpriv", "--pdeathsig=KILL", "--", sys.executable, "-I", "-S", "-c", BUSY)
    started = [subprocess.Popen(tied) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class Stalls:
    """Takes the processor from the processes of one cgroup: of single ones for a while, of all at once for less.

    Source of the durations: runs on shared virtual machines stood still for 1 to 3 s.
    """

    _EACH_S: Final = 0.25
    _AT_ONCE: Final = 3
    _STARVED_S: Final = (0.5, 5.0)
    _BETWEEN_S: Final = (10.0, 30.0)
    _ALL_S: Final = (0.3, 1.0, 1.5, 2.0, 3.0)

    def __init__(self) -> None:
        self.cgroup = _new_cgroup()
        self._until_s: dict[int, float] = {}  # of each process that is starved
        self._end = Event()
        self._thread = Thread(target=self._run)

    def enter(self) -> None:
        """Run in a child before it executes a program: all that it starts is stalled, too."""
        (self.cgroup / "cgroup.procs").write_text(str(os.getpid()))

    def __enter__(self) -> "Stalls":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()
        for pid in self._until_s:
            _schedule(pid, os.SCHED_OTHER)
        with suppress(OSError):  # something that outlives the tests
            self.cgroup.rmdir()

    def _run(self) -> None:
        next_s = time.monotonic() + random.uniform(*self._BETWEEN_S)
        while not self._end.wait(self._EACH_S):
            self._starve(time.monotonic())
            if time.monotonic() >= next_s:
                self._stand_still(random.choice(self._ALL_S))
                next_s = time.monotonic() + random.uniform(*self._BETWEEN_S)

    def _starve(self, now_s: float) -> None:
        pids = [int(line) for line in (self.cgroup / "cgroup.procs").read_text().split()]
        for pid, until_s in list(self._until_s.items()):
            if now_s >= until_s:
                del self._until_s[pid]
        for pid in pids:  # what a starved process has started is of its class, too
            if pid not in self._until_s and _is_idle(pid):
                _schedule(pid, os.SCHED_OTHER)
        others = [pid for pid in pids if pid not in self._until_s]
        if others and len(self._until_s) < self._AT_ONCE:
            pid = random.choice(others)
            self._until_s[pid] = now_s + random.uniform(*self._STARVED_S)
            _schedule(pid, os.SCHED_IDLE)

    def _stand_still(self, seconds: float) -> None:
        name, on, off = _FREEZERS[(self.cgroup / "cgroup.freeze").exists()]
        try:
            (self.cgroup / name).write_text(on)
            fault_lasts(seconds)
        finally:
            (self.cgroup / name).write_text(off)


_FREEZERS: Final = {
    True: ("cgroup.freeze", "1", "0"),  # version 2
    False: ("freezer.state", "FROZEN", "THAWED"),
}


def _new_cgroup() -> Path:
    root = Path("/sys/fs/cgroup")
    freezer = root / "freezer" if (root / "freezer").is_dir() else root
    cgroup = freezer / f"rankmend-stalls-{os.getpid()}"
    cgroup.mkdir()
    return cgroup


def _is_idle(pid: int) -> bool:
    with suppress(OSError):
        return os.sched_getscheduler(pid) == os.SCHED_IDLE
    return False


def _schedule(pid: int, policy: int) -> None:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                os.sched_setscheduler(int(task.name), policy, os.sched_param(0))


@contextmanager
def stalls(is_wanted: bool) -> Iterator[Stalls | None]:
    if not is_wanted:
        yield None
        return
    with Stalls() as made:
        yield made


def failures(report: Path) -> Iterator[tuple[str, str]]:
    """Yield each test that a JUnit report has as failed, with what it printed."""
    # The report is pytest's own, of this run.
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                yield f"{case.get('classname')}::{case.get('name')}", found.text or ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--stalls", action="store_true")
    parser.add_argument("tests", nargs="+")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    printed: dict[str, str] = {}
    broken = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        load(options.load),
        stalls(options.stalls) as stalled,
    ):
        for number in range(1, options.times + 1):
            report = Path(folder) / "report.xml"
            report.unlink(missing_ok=True)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}"),
                    *(f"--numprocesses={options.workers}", *options.tests),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                preexec_fn=None if stalled is None else stalled.enter,
            )
            last = next(iter(done.stdout.strip().splitlines()[-1:]), "")
            print(f"{number:3} of {options.times}: {last}", flush=True)
            failed = list(failures(report)) if report.exists() else []
            if done.returncode != 0 and not failed:
                broken += 1
                sys.stdout.write(done.stdout[-4000:] + done.stderr[-2000:])
            for test, text in failed:
                counts[test] += 1
                printed[test] = text
    for test, text in printed.items():
        print(f"\n=== {test}\n{text}")
    print(f"\n{'rounds':>6}  test that failed")
    for test, count in counts.most_common():
        print(f"{count:6}  {test}")
    if broken:
        print(f"{broken:6}  (the run itself)")
    return 1 if counts or broken else 0


if __name__ == "__main__":
    sys.exit(main())
