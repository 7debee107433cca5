"""Matrix products by data type: throughput, and whether each result is exactly right.

The matrices hold -1, 0 and 1, so every partial sum is a whole number below 256 and each data type, library and order of
summation gives the same bits (bfloat16 has 8 bits of significand, IEEE 754 half precision 11). So a result is compared
with the first one, with other data types and devices by its digest, and with an independent product of whole numbers
(Freivalds: A(Bx) = Cx). On a GPU the throughput comes from random numbers instead: small whole numbers draw less power. Those products
are compared with the first one only (cuBLAS documentation, "Results reproducibility": one stream, equal hardware).
"""

import hashlib
import random
import time
from typing import Any, Callable, Dict, List

from rankmend.loads.arrays import open_arrays
from rankmend.loads.windows import timed_rates

_SIZE = 512  # of the exact matrices: sums of 512 terms of which a third is 0
_SEED = 20_240_229
_DENSE_SIZE = 8192
_EXACT_SHARE = 0.3  # of a data type's time on a GPU


def run(spec: Dict[str, Any], tell: Callable[[Dict[str, Any]], None]) -> None:
    arrays = open_arrays(spec["device"])
    part = spec.get("part", spec["device"])
    tell({"model": arrays.model, "part": part})
    left, right = _rows(_SEED), _rows(_SEED + 1)
    kinds = [kind for kind in arrays.kinds if kind in spec.get("kinds", arrays.kinds)]
    each_s = spec["seconds"] / max(1, len(kinds))
    name = "gpu_gemm" if getattr(arrays, "is_cuda", False) else "cpu_gemm"
    for kind in kinds:
        exact_s = each_s * _EXACT_SHARE if name == "gpu_gemm" else each_s
        rates = _multiply_exactly(arrays, left, right, kind, exact_s, part, tell)
        if name == "gpu_gemm":
            rates = _multiply_noise(arrays, kind, each_s - exact_s, part, tell)
        value = sorted(rates)[len(rates) // 2] if name == "gpu_gemm" else max(rates)
        figure = "%s_%s_flops_per_s" % (name, kind)
        tell({"figure": figure, "value": value, "part": part, "model": arrays.model})


def _rows(seed: int) -> List[List[int]]:
    source = random.Random(seed)  # noqa: S311 - the same numbers everywhere, no secret
    return [source.choices((-1, 0, 1), k=_SIZE) for _row in range(_SIZE)]


def _multiply_exactly(
    arrays: Any,
    left_rows: List[List[int]],
    right_rows: List[List[int]],
    kind: str,
    seconds: float,
    part: str,
    tell: Callable[[Dict[str, Any]], None],
) -> List[float]:
    left, right = arrays.signs(left_rows, kind), arrays.signs(right_rows, kind)
    first = arrays.multiply(left, right)
    bad = _count_wrong_rows(left_rows, right_rows, arrays.whole(first).tolist())
    counts = {"products": 1, "different": 0}

    def multiply() -> float:
        product = arrays.multiply(left, right)
        different = arrays.count_different(product, first)
        counts["products"] += 1
        counts["different"] += int(different > 0)
        return 2.0 * _SIZE**3

    rates = timed_rates(multiply, seconds)
    arrays.wait()
    digest = hashlib.sha256(arrays.bytes_of(first)).hexdigest()
    check = {"check": "gemm_bits", "part": part, "kind": kind, "digest": digest}
    text = "of %d products differ from the first; rows of the first that are wrong: %d"
    said = text % (counts["products"], bad)
    tell({**check, "bad": counts["different"] + bad, "text": said})
    return rates


def _count_wrong_rows(
    left: List[List[int]], right: List[List[int]], product: List[List[int]]
) -> int:
    """Return how many rows of a product are wrong, by whole numbers of Python: no library's arithmetic."""
    source = random.Random(_SEED + 2)  # noqa: S311
    vector = source.choices(range(1, 128), k=_SIZE)
    halfway = [sum(map(_times, row, vector)) for row in right]
    return sum(
        sum(map(_times, row, halfway)) != sum(map(_times, made, vector))
        for row, made in zip(left, product)
    )


def _times(number: int, other: int) -> int:
    return number * other


def _multiply_noise(
    arrays: Any, kind: str, seconds: float, part: str, tell: Callable[[Dict[str, Any]], None]
) -> List[float]:
    size = _DENSE_SIZE if kind != "float64" else _DENSE_SIZE // 4
    left, right = arrays.noise(size, kind, 1), arrays.noise(size, kind, 2)
    first = arrays.multiply(left, right)
    arrays.wait()
    counts = {"products": 0, "different": 0}
    checked_s = [time.monotonic()]

    def multiply() -> float:
        product = arrays.multiply(left, right)
        counts["products"] += 1
        arrays.wait()
        if time.monotonic() - checked_s[0] > 1.0:  # a comparison reads as much as a copy
            checked_s[0] = time.monotonic()
            counts["different"] += int(arrays.count_different(product, first) > 0)
        return 2.0 * size**3

    rates = timed_rates(multiply, seconds)
    counts["different"] += int(arrays.count_different(arrays.multiply(left, right), first) > 0)
    text = "comparisons of random products that differ from the first"
    check = {"check": "gemm_repeats", "part": part, "kind": kind}
    tell({**check, "bad": counts["different"], "text": text})
    return rates
