"""All processors of this process hash one block: how fast, whether right, and what held them back.

Needs no package. hashlib lets other threads run meanwhile (Python documentation, hashlib: more than 2,047 bytes).
"""

import hashlib
import os
import time
from typing import Any, Callable, Dict

from rankmend.loads.windows import best_rate

_BLOCK = bytes(range(256)) * 4096
# sha256sum of coreutils over the same bytes.
DIGEST = "fbbab289f7f94b25736c58be46a994c441fd02552cc6022352e3d86d2fab7c83"


def run(spec: Dict[str, Any], tell: Callable[[Dict[str, Any]], None]) -> None:
    processors = len(os.sched_getaffinity(0))
    wrong = [0] * processors

    def hash_block(number: int) -> float:
        if hashlib.sha256(_BLOCK).hexdigest() != DIGEST:
            wrong[number] += 1
        return float(len(_BLOCK))

    throttled_s, stolen_s = cpu_throttled_s(), cpu_stolen_s()
    began_s, used_s, blocks = time.monotonic(), time.process_time(), [0]

    def hash_and_count(number: int) -> float:
        done = hash_block(number)
        blocks[0] += 1  # a count lost between threads is one block of thousands
        return done

    rate = best_rate(hash_and_count, processors, spec["seconds"])
    took_s, used_s = time.monotonic() - began_s, time.process_time() - used_s
    each = {"part": "cpu", "model": "%d CPUs" % processors}
    tell({"figure": "cpu_hash_bytes_per_s", "value": rate, **each})
    # By its own CPU time a processor shows its clock, whatever else runs; by the throttled time, a quota.
    done = blocks[0] * len(_BLOCK)
    tell({"figure": "cpu_hash_bytes_per_cpu_s", "value": done / max(1e-3, used_s), **each})
    held_s = cpu_throttled_s() - throttled_s
    free = max(0.0, 1 - held_s / (took_s * processors))
    tell({"figure": "cpu_unthrottled_ratio", "value": free, **each})
    tell({"check": "cpu_bits", "part": "cpu", "bad": sum(wrong), "text": "hashes that were wrong"})
    tell({"sign": "cpu_throttled_s", "value": held_s})
    stolen_s = cpu_stolen_s() - stolen_s
    tell({"sign": "cpu_stolen_s", "value": stolen_s})
    # Every thread wants a processor all the time: what it did not get, others had.
    waited_s = took_s * processors - used_s - held_s - stolen_s
    tell({"sign": "cpu_waited_s", "value": max(0.0, waited_s)})


def cpu_throttled_s() -> float:
    """Return how long the CPU quota of our control groups held us back; 0 where there is none."""
    total_s = 0.0
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return 0.0
    for _number, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        roots = ("cpu", "cpu,cpuacct", "cpuacct,cpu") if controllers else ("", "unified")
        for root in roots:
            found_s = _throttled_of(os.path.join("/sys/fs/cgroup", root), path)
            if found_s is not None:
                total_s = max(total_s, found_s)
                break
    return total_s


def _throttled_of(root: str, path: str) -> Any:
    """Return the largest throttled time from a group up to its root: a limit may sit on any."""
    worst = None
    parts = [part for part in path.split("/") if part]
    for depth in range(len(parts), -1, -1):
        try:
            with open(os.path.join(root, *parts[:depth], "cpu.stat")) as file:
                values = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue
        found = max(
            int(values.get("throttled_usec", 0)) / 1e6, int(values.get("throttled_time", 0)) / 1e9
        )
        worst = found if worst is None else max(worst, found)
    return worst


def cpu_stolen_s() -> float:
    """Return the time that the host of this virtual machine gave to others (proc(5), /proc/stat: steal)."""
    try:
        with open("/proc/stat") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
