"""How soon a death is known, and what watching for it costs.

    python bench/death.py

Prints, each as median and worst: SIGKILL of a small rank until its `Exited` event; SIGKILL of
a big one (4 KiB pages) until `Exiting` and until `Exited`; `kill_through` of four ranks until
`Emptied`; and the guardian's memory, and its CPU share beside small and beside big ranks.
"""

import os
import platform
import select
import signal
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from recovery.launcher.guardian.guardian_client import Guardian, Spawn  # noqa: E402
from recovery.launcher.guardian.packets import Emptied, Event, Exited, Exiting, Spawned  # noqa: E402

Kind = TypeVar("Kind", bound=Event)

DEATHS = 50
BIG_DEATHS = 10
RANKS = 4
CPU_S = 10.0
BIG_MB = 1000
BIG = f"""
import mmap, os, time
memory = mmap.mmap(-1, {BIG_MB} << 20)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _mb in range(len(memory) >> 20):
    memory.write(bytes(1 << 20))
os.write(1, b"x")
time.sleep(600)
"""


class Bench:
    def __init__(self) -> None:
        self.job_id = str(uuid.uuid4())
        self.guardian = Guardian.start(self.job_id)
        self.attempt = 0
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        self.seen: list[Event] = []

    def start(self, ranks: int, *argv: str) -> list[Spawned]:
        self.attempt += 1
        marks = {"RANKMEND_JOB_ID": self.job_id, "RANKMEND_ATTEMPT": str(self.attempt)}
        for rank in range(ranks):
            fds = (self.write_end, 2)
            spawn = Spawn(self.attempt, rank, argv, {**os.environ, **marks}, "/", *fds)
            self.guardian.spawn(spawn)
        return [self.wait(Spawned)[0] for _rank in range(ranks)]

    def start_big(self, ranks: int) -> list[Spawned]:
        spawned = self.start(ranks, sys.executable, "-I", "-S", "-c", BIG)
        for _rank in range(ranks):
            os.read(self.read_end, 1)
        time.sleep(1.5)  # the guardian looks at sizes once a second
        return spawned

    def wait(self, kind: type[Kind]) -> tuple[Kind, float]:
        """Return the next event of a kind, and when it was read."""
        while True:
            for event in self.seen:
                if isinstance(event, kind):
                    self.seen.remove(event)
                    return event, time.perf_counter()
            poll = select.poll()
            poll.register(self.guardian.fileno(), select.POLLIN)
            if not poll.poll(30_000):
                raise TimeoutError(f"no {kind.__name__} in 30 s")
            self.seen += self.guardian.read_events()

    def end(self) -> float:
        """Kill the attempt and return how long the proof took."""
        started = time.perf_counter()
        self.guardian.kill_through(self.attempt)
        _event, at = self.wait(Emptied)
        self.seen.clear()
        return at - started

    def cpu_share(self) -> float:
        before_s = cpu_s(self.guardian.pid)
        time.sleep(CPU_S)
        return (cpu_s(self.guardian.pid) - before_s) / CPU_S


def cpu_s(pid: int) -> float:
    """Return processor seconds of a process, from its scheduler statistics in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def tell(what: str, values_s: list[float]) -> None:
    median_ms, worst_ms = statistics.median(values_s) * 1e3, max(values_s) * 1e3
    print(f"{what:58} {median_ms:8.2f} {worst_ms:8.2f}  n={len(values_s)}")


def main() -> None:
    bench = Bench()
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, load "
        f"{os.getloadavg()[0]:.1f}, {len(list(Path('/proc').glob('[0-9]*')))} processes"
    )
    print(f"{'':58} {'median':>8} {'worst':>8}  ms")

    small = []
    for _death in range(DEATHS):
        (rank,) = bench.start(1, "sleep", "600")
        started = time.perf_counter()
        os.kill(rank.pid, signal.SIGKILL)
        small.append(bench.wait(Exited)[1] - started)
    tell("SIGKILL of a small rank -> Exited", small)

    exiting, exited = [], []
    for _death in range(BIG_DEATHS):
        (rank,) = bench.start_big(1)
        started = time.perf_counter()
        os.kill(rank.pid, signal.SIGKILL)
        exiting.append(bench.wait(Exiting)[1] - started)
        exited.append(bench.wait(Exited)[1] - started)
    tell(f"SIGKILL of a rank of {BIG_MB} MB -> Exiting", exiting)
    tell(f"SIGKILL of a rank of {BIG_MB} MB -> Exited", exited)

    emptied = []
    for _end in range(DEATHS):
        bench.start(RANKS, "sleep", "600")
        emptied.append(bench.end())
    tell(f"kill_through of {RANKS} small ranks -> Emptied", emptied)

    bench.start(RANKS, "sleep", "600")
    print(f"guardian CPU beside {RANKS} small ranks: {bench.cpu_share():.2%}")
    bench.end()
    bench.start_big(RANKS)
    print(f"guardian CPU beside {RANKS} big ranks: {bench.cpu_share():.2%}")
    bench.end()
    rollup = Path(f"/proc/{bench.guardian.pid}/smaps_rollup").read_text().splitlines()
    print(
        "guardian memory:", *(line for line in rollup if line.startswith(("Rss", "Private_Dirty")))
    )
    bench.guardian.close()


if __name__ == "__main__":
    main()
