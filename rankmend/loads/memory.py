"""Memory of the host or of a GPU: how fast it copies, and whether patterns come back as they were written.

Patterns: all bits off and on, both checkerboards, and each word's own place, which finds words that answer for one another
(the moving patterns of memtest86+ without its order of addresses).
"""

import os
import time
from typing import Any, Callable, Dict

from rankmend.loads.arrays import open_arrays
from rankmend.loads.windows import best_rate, timed_rates

_PATTERNS = (0x00000000, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA)
_WORD_BYTES = 4
_CHUNK_WORDS = 1 << 24
_THREADS_MAX = 64
_COPY_BYTES_MAX = 64 << 20  # a thread: beyond the caches of a core
_COPY_BYTES_MIN = 4 << 20


def run(spec: Dict[str, Any], tell: Callable[[Dict[str, Any]], None]) -> None:
    arrays = open_arrays(spec["device"])
    part = spec.get("part", "memory")
    is_gpu = getattr(arrays, "is_cuda", False)
    available = _free_bytes(arrays, is_gpu)
    most = max(2 * _COPY_BYTES_MIN, int(available * spec["share"]))
    copy_s = spec["seconds"] * 0.5
    if is_gpu:
        rate = _copy_on_gpu(arrays, min(most, 4 << 30), copy_s)
        tell(
            {
                "figure": "gpu_memory_size_bytes",
                "value": _size(arrays),
                "part": part,
                "model": arrays.model,
            }
        )
    else:
        rate = _copy_on_host(arrays, most, copy_s)
    name = "gpu_memory_copy_bytes_per_s" if is_gpu else "memory_copy_bytes_per_s"
    tell({"figure": name, "value": rate, "part": part, "model": arrays.model})
    bad, tested = _write_patterns(arrays, most, spec["seconds"] - copy_s)
    text = "words that came back changed, of %d MB" % (tested // 1_000_000)
    tell({"check": "memory_bits", "part": part, "bad": bad, "text": text, "tested_bytes": tested})


def _copy_on_host(arrays: Any, most: int, seconds: float) -> float:
    threads = min(_THREADS_MAX, len(os.sched_getaffinity(0)))
    each = max(_COPY_BYTES_MIN, min(_COPY_BYTES_MAX, most // (2 * threads)))
    pairs = [
        (arrays.words(each // _WORD_BYTES), arrays.words(each // _WORD_BYTES))
        for _thread in range(threads)
    ]
    for source, target in pairs:  # touched once: a page that is new costs a fault
        arrays.fill(source, 1)
        arrays.fill(target, 2)

    def copy(number: int) -> float:
        source, target = pairs[number]
        arrays.copy(target, source)
        return 2.0 * each  # read and written

    return best_rate(copy, threads, seconds)


def _copy_on_gpu(arrays: Any, most: int, seconds: float) -> float:
    each = most // 2 // _WORD_BYTES * _WORD_BYTES
    source, target = arrays.words(each // _WORD_BYTES), arrays.words(each // _WORD_BYTES)

    def copy() -> float:
        arrays.copy(target, source)
        arrays.wait()
        return 2.0 * each

    rates = timed_rates(copy, seconds)
    return sorted(rates)[len(rates) // 2]


def _write_patterns(arrays: Any, most: int, seconds: float) -> Any:
    """Return how many words were wrong, and how many bytes were written and read at least once."""
    end_s = time.monotonic() + seconds
    blocks = []
    left = most // _WORD_BYTES
    while left > 0:
        count = min(left, _CHUNK_WORDS)
        blocks.append(arrays.words(count))
        left -= count
    bad = 0
    tested = 0
    for (
        pattern
    ) in _PATTERNS:  # all blocks are written before the first is read: no cache holds them
        done = 0
        for block in blocks:
            arrays.fill(block, pattern)
            done += 1
            if time.monotonic() > end_s:
                break
        for block in blocks[:done]:
            bad += arrays.count_unlike(block, pattern)
        tested = max(tested, sum(len(block) for block in blocks[:done]) * _WORD_BYTES)
        if time.monotonic() > end_s:
            return bad, tested
    for number, block in enumerate(blocks):
        arrays.fill_places(block, number * 7)
    for number, block in enumerate(blocks):
        bad += arrays.count_misplaced(block, number * 7)
    return bad, tested


def _free_bytes(arrays: Any, is_gpu: bool) -> int:
    if is_gpu:
        return int(arrays.torch.cuda.mem_get_info(arrays.device)[0])
    try:
        with open("/proc/meminfo") as file:
            values = dict(line.split(":", 1) for line in file)
        return int(values["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 1 << 30


def _size(arrays: Any) -> int:
    return int(arrays.torch.cuda.get_device_properties(arrays.device).total_memory)
