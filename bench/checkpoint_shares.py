"""Checkpoints at scale: several launchers that each read a share, and what that costs training.

    python bench/checkpoint_shares.py throughput [--shards 1000] [--megabytes 8] [--readers 4] [--awaited]
    python bench/checkpoint_shares.py beside [--pairs 20] [--rate MB/s]

`throughput`: a DCP folder, read by launchers' finders and by plain readers of the same bytes, in
turns; with a cold page cache (POSIX_FADV_DONTNEED on each file before each round) and with a warm one
(all read before each round). It tells the CPU seconds of the readers, too, which other load on the
machine changes less. `--awaited`: as in a recovery, which reads through the page cache. Then the look of
a new launcher that finds the manifests. `beside`: pairs of runs of as many busy
processes as there are cores, one with a watch that reads all the time and one without, both cut into slices that
alternate.
"""

import argparse
import functools
import json
import math
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # as launchers have it: one busy process a core

import numpy as np

from rankmend.clock import SystemClock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.manifests import Manifests
from recovery.checkpoints.priority import check_rate
from recovery.messages.candidates import CheckpointSettings, Share

FORK = multiprocessing.get_context("fork")
CHUNK_BYTES = 1 << 20
MATRIX = 384
SLICE_S = 0.5  # shorter than the spells in which a shared machine is slow
SETTLE_S = 0.05  # of a slice, before its steps count
T_95 = {9: 2.262, 19: 2.093, 29: 2.045}  # Student's t, two-sided 95 %, by degrees of freedom


def write_checkpoint(folder: Path, shards: int, shard_bytes: int) -> int:
    """Write a DCP folder with the layout of torch's files, on stable storage; return its size."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    names = [f"__{rank}_0.distcp" for rank in range(shards)]
    for name in names:
        with (folder / name).open("wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
                for number in range(4):
                    archive.writestr(f"archive/data/{number}", generator.bytes(shard_bytes // 4))
            file.flush()
            os.fsync(file.fileno())
    (folder / ".metadata").write_bytes(pickle.dumps({"storage": names}, protocol=4))
    return sum(one.stat().st_size for one in folder.iterdir())


def drop_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def fill_cache(folder: Path) -> None:
    read_plainly(folder, Share())


def read_plainly(folder: Path, share: Share) -> None:
    """Read a share of the files as `cat` does, into one buffer that begins with a page."""
    buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES))
    for name in sorted(share.pick(one.name for one in folder.iterdir())):
        with (folder / name).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def read_as_launcher(folder: Path, share: Share, *, is_awaited: bool = False) -> None:
    settings = CheckpointSettings(grace_s=0.0)
    finder = CheckpointFinder(
        folder.parent, settings, None, Manifests(folder.parent, is_writer=True)
    )
    finder.share = share
    for verdicts in finder.look(Deadline(SystemClock(), 3600, is_awaited=is_awaited), 1):
        latest = verdicts
    assert latest[0].is_valid, latest


def time_readers(
    read: Callable[[Path, Share], None], folder: Path, readers: int
) -> tuple[float, float]:
    """Return the seconds from the start until the last reader is done, and their CPU seconds."""
    barrier = FORK.Barrier(readers + 1)

    def work(number: int) -> None:
        barrier.wait()
        read(folder, Share(number, readers))

    processes = [FORK.Process(target=work, args=(number,)) for number in range(readers)]
    for process in processes:
        process.start()
    began_cpu_s = children_cpu_s()
    barrier.wait()
    began_s = time.perf_counter()
    for process in processes:
        process.join()
    spent_s = time.perf_counter() - began_s
    assert not any(process.exitcode for process in processes), "a reader failed"
    return spent_s, children_cpu_s() - began_cpu_s


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def remove_manifests(root: Path) -> None:
    for path in (root / ".rankmend").rglob("*.json"):
        path.unlink()


def measure_throughput(options: argparse.Namespace) -> dict[str, Any]:
    told: dict[str, Any] = {}
    read_ours = functools.partial(read_as_launcher, is_awaited=options.awaited)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch) / "step-1"
        size_bytes = write_checkpoint(folder, options.shards, options.megabytes * 1_000_000)
        print(f"{options.shards} shards, {size_bytes / 1e9:.2f} GB, {options.readers} readers")
        for is_cold in (True, False):
            spent: dict[str, list[float]] = {"plain": [], "launchers": []}
            cpu: dict[str, list[float]] = {"plain": [], "launchers": []}
            for _ in range(options.rounds):
                for name, read in (("plain", read_plainly), ("launchers", read_ours)):
                    remove_manifests(Path(scratch))
                    (drop_cache if is_cold else fill_cache)(folder)
                    spent_s, cpu_s = time_readers(read, folder, options.readers)
                    spent[name].append(spent_s)
                    cpu[name].append(cpu_s / size_bytes * 1e9)
            rates = {name: size_bytes / 1e6 / statistics.median(it) for name, it in spent.items()}
            cpu_s_per_gb = {name: statistics.median(it) for name, it in cpu.items()}
            ratio = statistics.median(
                plain / ours for plain, ours in zip(spent["plain"], spent["launchers"], strict=True)
            )
            kind = "cold" if is_cold else "warm"
            told[kind] = {
                "seconds": spent,
                "megabytes_per_s": rates,
                "ratio": ratio,
                "cpu_s_per_gb": cpu_s_per_gb,
            }
            print(
                f"{kind}: plain {rates['plain']:,.0f} MB/s, launchers {rates['launchers']:,.0f} MB/s, "
                f"ratio {ratio:.3f} (median of {options.rounds} pairs); CPU seconds per GB: plain "
                f"{cpu_s_per_gb['plain']:.3f}, launchers {cpu_s_per_gb['launchers']:.3f}"
            )
        told["restore"] = measure_restore(folder)
    return told


def measure_restore(folder: Path) -> dict[str, float]:
    drop_cache(folder)
    finder = CheckpointFinder(folder.parent, None, None, Manifests(folder.parent))
    deadline = Deadline(SystemClock(), 600)
    began_s = time.perf_counter()
    for verdicts in finder.look(deadline, 1):
        latest = verdicts
    spent_s = time.perf_counter() - began_s
    assert latest[0].is_valid, latest
    print(f"restore by a new launcher: {spent_s:.2f} s, {deadline.read_bytes / 1e6:.1f} MB read")
    print(f"  {latest[0].reason}")
    return {"seconds": spent_s, "read_bytes": deadline.read_bytes}


class Training:
    """As many processes as cores that step together, as ranks do: all wait for the slowest."""

    def __init__(self) -> None:
        cpus = len(os.sched_getaffinity(0))
        self._steps = FORK.RawArray("q", cpus)
        pipes = [os.pipe() for _ in range(cpus)]
        self._processes = [
            FORK.Process(
                target=self._train, args=(rank, pipes[rank - 1][0], pipes[rank][1]), daemon=True
            )
            for rank in range(cpus)
        ]
        for process in self._processes:
            process.start()

    def _train(self, rank: int, before: int, behind: int) -> None:
        values = np.random.default_rng(1).random((MATRIX, MATRIX), dtype=np.float32)
        while True:
            values = values @ values
            values /= np.abs(values).max()
            os.write(behind, b"1")  # ring: none is more than a lap ahead of its neighbour
            os.read(before, 1)
            self._steps[rank] += 1

    def steps_per_s(self, seconds: float) -> float:
        """Return the pace of the slowest process over this time."""
        steps, began_s = int(min(self._steps)), time.perf_counter()
        time.sleep(seconds)
        taken = int(min(self._steps)) - steps
        return taken / (time.perf_counter() - began_s)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def watch_until_told(folder: Path, rate_bytes_per_s: float, pipe: Any) -> None:
    """Watch the folder as a launcher does, until told to stop; tell CPU seconds and bytes read."""
    settings = CheckpointSettings(check_rate_bytes_per_s=rate_bytes_per_s)
    finder = _CountingFinder(folder, settings, SystemClock(), Manifests(folder, is_writer=True))
    watch = CheckpointWatch(finder, SystemClock())
    began = resource.getrusage(resource.RUSAGE_SELF)
    watch.start()
    pipe.send("started")
    pipe.recv()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    read_bytes = finder.deadline.read_bytes if finder.deadline is not None else 0
    watch.stop()
    cpu_s = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    pipe.send((cpu_s, read_bytes))


class _CountingFinder(CheckpointFinder):
    """Keeps the deadline of its only look, which counts what is read."""

    deadline: Deadline | None = None

    def look(self, deadline: Deadline, enough: int) -> Any:
        self.deadline = deadline
        return super().look(deadline, enough)


class Watcher:
    """A watch in a process of its own, which reads while it may; it makes up for no pause."""

    def __init__(self, folder: Path, rate_bytes_per_s: float) -> None:
        self._here, there = FORK.Pipe()
        self._process = FORK.Process(
            target=watch_until_told, args=(folder, rate_bytes_per_s, there)
        )
        self._process.start()
        self._here.recv()
        self.pause()

    def pause(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGCONT)

    def stop(self) -> tuple[float, int]:
        """Return its CPU seconds and the bytes that it read."""
        self.go_on()
        self._here.send("stop")
        cpu_s, read_bytes = self._here.recv()
        self._process.join()
        return cpu_s, read_bytes


def measure_beside(options: argparse.Namespace) -> dict[str, Any]:
    """Pairs of runs, each cut into slices that alternate: what else the machine does hits both alike."""
    cpus = len(os.sched_getaffinity(0))
    rate_bytes_per_s = check_rate(cpus) if options.rate is None else options.rate * 1e6
    slices = math.ceil(options.seconds / SLICE_S)
    slowdowns, cpu_ratios, read_rates = [], [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        shards = math.ceil(rate_bytes_per_s * options.seconds * 1.5 / 8e6)
        write_checkpoint(folder / "step-1", shards, 8_000_000)
        training = Training()
        training.steps_per_s(1.0)  # the start does not count
        for _ in range(options.pairs):
            remove_manifests(folder)
            drop_cache(folder)
            watcher = Watcher(folder, rate_bytes_per_s)
            paces: dict[bool, list[float]] = {True: [], False: []}
            for number in range(slices):
                for is_watched in (number % 2 == 0, number % 2 == 1):
                    (watcher.go_on if is_watched else watcher.pause)()
                    time.sleep(SETTLE_S)
                    paces[is_watched].append(training.steps_per_s(SLICE_S))
            watcher.pause()
            cpu_s, read_bytes = watcher.stop()
            watched_s = slices * (SLICE_S + SETTLE_S)
            cpu_ratios.append(cpu_s / watched_s)
            read_rates.append(read_bytes / watched_s)
            slowdowns.append(statistics.fmean(paces[False]) / statistics.fmean(paces[True]) - 1)
        training.stop()
    mean = statistics.fmean(slowdowns)
    t = T_95.get(options.pairs - 1, 2.1)
    half = t * statistics.stdev(slowdowns) / math.sqrt(options.pairs)
    print(
        f"{options.pairs} pairs of {options.seconds:g} s on {cpus} cores, in slices of {SLICE_S:g} s: slowdown "
        f"{mean:.2%}, 95 % interval {mean - half:.2%} to {mean + half:.2%}, median {statistics.median(slowdowns):.2%}"
    )
    print(
        f"read {statistics.median(read_rates) / 1e6:.1f} MB/s (most {max(read_rates) / 1e6:.1f}) of "
        f"{rate_bytes_per_s / 1e6:.0f} MB/s, {statistics.median(cpu_ratios):.1%} of one core"
    )
    return {"slowdowns": slowdowns, "cpu_ratios": cpu_ratios, "read_bytes_per_s": read_rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mode", choices=["throughput", "beside"])
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=8, help="of a shard")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--awaited", action="store_true", help="read as while somebody waits")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a training run")
    parser.add_argument("--rate", type=float, default=None, help="MB/s beside training")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    measure = measure_throughput if options.mode == "throughput" else measure_beside
    told = measure(options)
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
