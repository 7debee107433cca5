"""How often a pre-flight check names a node that is held back, and how often it accuses a sound one.

    python -m bench.preflight                      # 100 sound nodes, 20 of each fault: 20 minutes on 2 cores
    python -m bench.preflight --sound 4 --faulty 1 --nodes 5

Every node is this machine under another name. Faults: a CPU quota (control group), memory bandwidth that another program
takes (stress-ng), a slow disk (FUSE), one wrong bit of one product (a stand-in of NumPy's matmul). Needs root, fuse3, mfusepy,
stress-ng. The loads are those of level quick, for `--seconds` each in place of 1.5 s, so that the whole takes minutes.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agent.preflight import baseline_file
from agent.preflight.children import LoadChildren
from agent.preflight.flight import Flight, FlightSetup, environment_for_loads
from detectors.preflight.baseline import EMPTY, add, merge
from detectors.preflight.figures import LoadFigure
from detectors.preflight.levels import (
    INTENSITY,
    FlightLevel,
    NodeParts,
    TestedStorage,
    plan_round,
)
from rankmend.clock import SystemClock

FAULTS: Final = ("cpu_quota", "memory_taken", "slow_disk", "wrong_result")
QUOTA_SHARE: Final = 0.25  # of the processors
SLOW_WRITE_S: Final = 0.2
_PERIOD_US: Final = 100_000
_WRONG: Final = """
import runpy, sys
import numpy
right, calls = numpy.matmul, [0]
def matmul(left, other):
    made = right(left, other)
    calls[0] += 1
    if calls[0] == 3:
        made.view("u4" if made.dtype.itemsize == 4 else "u8")[17, 4] ^= 1 << 22
    return made
numpy.matmul = matmul
sys.argv = sys.argv[2:]  # without -u
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def fly(node: str, disk: Path, baseline: Path, python: str, seconds: float) -> dict[str, Any]:
    """Return the result of one check in this process."""
    much = replace(INTENSITY[FlightLevel.QUICK], host_s=seconds, disk_s=1.0)
    storage = TestedStorage(str(disk), "disk", 8_000_000)
    plan = plan_round(FlightLevel.QUICK, NodeParts(0, (storage,)), intensity=much)
    known = baseline_file.load([baseline]) if baseline.is_file() else EMPTY
    setup = FlightSetup(
        node, FlightLevel.QUICK, 60.0, python, environment_for_loads(os.environ), "bench", known
    )
    children = LoadChildren()
    flight = Flight(setup, plan, children, SystemClock(), None, lambda: False)
    try:
        return flight.run(time.monotonic()).to_json()
    finally:
        children.stop()


class Bed:
    """Where nodes are checked: their disk, the fleet's baseline, the faults."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.disk = folder / "disk"
        self.faults = folder / "faults"
        self.baseline = folder / "fleet.json"
        self.folder = folder
        self.seconds = seconds
        self.wrong_python = folder / "python"
        double = folder / "wrong_product.py"
        double.write_text(_WRONG)
        self.wrong_python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{double}" "$@"\n')
        self.wrong_python.chmod(0o755)

    def check(
        self, node: str, python: str = sys.executable, share: float | None = None
    ) -> dict[str, Any]:
        words = ["one", node, str(self.disk), str(self.baseline), python, str(self.seconds)]
        with _group("checked", share) as join:
            done = subprocess.run(
                [sys.executable, "-m", "bench.preflight", *words],
                stdout=subprocess.PIPE,
                check=True,
                preexec_fn=join,
            )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def learn(self, nodes: int, times: int) -> None:
        found = EMPTY
        for number in range(nodes * times):
            result = self.check(f"n{number % nodes}")
            figures = [LoadFigure(**one) for one in result["figures"]]
            added = add(EMPTY, result["node"], result["began_unix_s"], figures)
            found = merge(found, added)
        baseline_file.save(self.baseline, found)

    def check_with(self, fault: str, number: int) -> dict[str, Any]:
        node = f"bad-{fault}-{number}"
        if fault == "cpu_quota":
            return self.check(node, share=QUOTA_SHARE)
        if fault == "memory_taken":
            with _taken_memory():
                return self.check(node)
        if fault == "slow_disk":
            (self.faults / "slow").write_text(str(SLOW_WRITE_S))
            try:
                return self.check(node)
            finally:
                (self.faults / "slow").unlink()
        return self.check(node, python=str(self.wrong_python))


@contextmanager
def _group(name: str, share: float | None = None) -> Iterator[Callable[[], None]]:
    """Give what puts a process into a control group with a large weight and, if given, a share of all processors.

    The weight keeps other load of this machine away, which would be a fault of the node.
    """
    v1 = Path("/sys/fs/cgroup/cpu")
    is_v1 = v1.is_dir()
    folder = (v1 if is_v1 else Path("/sys/fs/cgroup")) / f"rankmend-bench-{os.getpid()}-{name}"
    folder.mkdir()
    try:
        weight = ("cpu.shares", "65536") if is_v1 else ("cpu.weight", "10000")
        (folder / weight[0]).write_text(weight[1])
        amount = int(_PERIOD_US * (share or 1) * len(os.sched_getaffinity(0)))
        if share and is_v1:
            (folder / "cpu.cfs_quota_us").write_text(str(amount))
        elif share:
            (folder / "cpu.max").write_text(f"{amount} {_PERIOD_US}")

        def join() -> None:
            (folder / "cgroup.procs").write_text("0")

        yield join
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    until_s = time.monotonic() + 20
    while True:  # a process that has just ended leaves its group a moment later
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
        else:
            return


@contextmanager
def _taken_memory() -> Iterator[None]:
    count = str(4 * len(os.sched_getaffinity(0)))
    words = ["stress-ng", "--quiet", "--stream", count, "--timeout", "120"]
    with _group("taker") as join:
        taker = subprocess.Popen(words, start_new_session=True, preexec_fn=join)  # noqa: PLW1509
        try:
            time.sleep(0.5)  # its buffers are to be there
            yield
        finally:
            taker.terminate()
            taker.wait(20)


@contextmanager
def _mounted(bed: Bed) -> Iterator[None]:
    served = bed.folder / "served"
    for path in (bed.disk, bed.faults, served):
        path.mkdir()
    words = ["-m", "tests.support.faults.slow_disk", str(bed.disk), str(served), str(bed.faults)]
    # It complains at its end of the lazy unmount.
    server = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
    try:
        while not os.path.ismount(bed.disk):
            time.sleep(0.05)
            assert server.poll() is None, "the file system could not be mounted"
        yield
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(bed.disk)], check=False)
        server.terminate()
        server.wait(20)


def failed_of(result: Mapping[str, Any]) -> list[str]:
    return [one["name"] for one in result["checks"] if one["standing"] == "failed"]


def run(sound: int, faulty: int, nodes: int, times: int, seconds: float) -> dict[str, Any]:
    """Return how many of each were named, and by which checks."""
    told: dict[str, Any] = {"sound": sound, "accused": 0, "faulty": faulty, "named": {}, "by": {}}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="preflight-")))
        bed = Bed(folder, seconds)
        stack.enter_context(_mounted(bed))
        bed.learn(nodes, times)
        for fault in FAULTS:
            named, by = 0, set[str]()
            for number in range(faulty):
                failed = failed_of(bed.check_with(fault, number))
                named += bool(failed)
                by |= set(failed)
            told["named"][fault], told["by"][fault] = named, sorted(by)
            print(f"{fault}: {named} of {faulty} named, by {', '.join(sorted(by))}", flush=True)
        for number in range(sound):
            failed = failed_of(bed.check(f"sound-{number}"))
            told["accused"] += bool(failed)
            if failed:
                print(f"sound-{number} accused: {failed}", flush=True)
    print(f"sound: {told['accused']} of {sound} accused", flush=True)
    return told


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        node, disk, baseline, python, seconds = sys.argv[2:]
        print(json.dumps(fly(node, Path(disk), Path(baseline), python, float(seconds))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sound", type=int, default=100)
    parser.add_argument("--faulty", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=8, help="of the baseline")
    parser.add_argument("--times", type=int, default=3, help="that each of them is measured")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each load")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    told = run(asked.sound, asked.faulty, asked.nodes, asked.times, asked.seconds)
    if asked.output:
        asked.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
