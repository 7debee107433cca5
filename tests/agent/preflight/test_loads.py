"""The loads themselves, in processes as a check starts them: right results pass, one flipped bit does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankmend
from tests.support.eventually import DEADLINE_S
from tests.support.faults.fuse_mount import fuse_mount

pytestmark = pytest.mark.process

START = Path(rankmend.__file__).parent / "loads" / "start.py"
# Stands for a processor that computes wrongly: one bit of one element of one product.
WRONG_PRODUCT = """
import runpy, sys
import numpy
right, calls = numpy.matmul, [0]
def matmul(left, right_matrix):
    made = right(left, right_matrix)
    calls[0] += 1
    if calls[0] == {call}:
        made.view("u4" if made.dtype.itemsize == 4 else "u8")[17, 4] ^= 1 << 22
    return made
numpy.matmul = matmul
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_loads(*loads: dict[str, Any], before: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    spec = json.dumps({"loads": list(loads), "alone_s": 100})
    words = [sys.executable, *before, str(START), spec]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def bad_of(lines: list[dict[str, Any]]) -> dict[str, int]:
    return {
        f"{one['check']} {one.get('kind', '')}".strip(): one["bad"]
        for one in lines
        if "check" in one
    }


def figures_of(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {one["figure"]: one["value"] for one in lines if "figure" in one}


def test_sound_parts_give_figures_and_no_wrong_result(tmp_path: Path) -> None:
    lines = run_loads(
        {"load": "processor", "seconds": 0.3},
        {"load": "memory", "seconds": 0.4, "device": "cpu", "share": 0.001, "part": "memory"},
        {"load": "gemm", "seconds": 0.2, "device": "cpu", "part": "cpu"},
        {"load": "disk", "seconds": 1, "folder": str(tmp_path), "part": "disk", "bytes": 8_000_000},
    )

    assert set(bad_of(lines).values()) == {0}
    assert set(figures_of(lines)) == {
        *("cpu_hash_bytes_per_s", "memory_copy_bytes_per_s", "disk_write_bytes_per_s"),
        *("cpu_hash_bytes_per_cpu_s", "cpu_unthrottled_ratio"),
        *("cpu_gemm_float32_flops_per_s", "cpu_gemm_float64_flops_per_s"),
        *("disk_read_bytes_per_s", "disk_sync_s"),
    }
    assert all(value > 0 for value in figures_of(lines).values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [1, 2])
def test_one_flipped_bit_of_a_product_is_found(tmp_path: Path, call: int) -> None:
    """In the first product, which the others are compared with, and in a later one."""
    double = tmp_path / "wrong_product.py"
    double.write_text(WRONG_PRODUCT.format(call=call))
    load = {"load": "gemm", "seconds": 0.01, "device": "cpu", "part": "cpu", "kinds": ["float32"]}

    lines = run_loads(load, before=(str(double),))

    assert bad_of(lines)["gemm_bits float32"] > 0


def test_data_types_give_equal_bits() -> None:
    lines = run_loads({"load": "gemm", "seconds": 0.01, "device": "cpu", "part": "cpu"})

    digests = {one["digest"] for one in lines if "digest" in one}
    assert len(digests) == 1


@pytest.mark.torch
def test_pytorch_gives_the_bits_that_numpy_gives_and_copies_right() -> None:
    pytest.importorskip("torch")
    load = {"load": "gemm", "seconds": 0.01, "kinds": ["float32"]}
    lines = run_loads(
        {**load, "device": "cpu", "part": "a"},
        {**load, "device": "torch:cpu", "part": "b"},
        {"load": "memory", "seconds": 0.1, "device": "torch:cpu", "share": 0.001, "part": "b"},
        {"load": "transfers", "seconds": 0.1, "device": "torch:cpu", "bytes": 1 << 20},
        {
            "load": "transfers",
            "seconds": 0.1,
            "device": "torch:cpu",
            "peer": "torch:cpu",
            "part": "b-c",
            "bytes": 1 << 20,
        },
    )

    assert len({one["digest"] for one in lines if "digest" in one}) == 1
    assert set(bad_of(lines).values()) == {0}
    names = {"gpu_from_host_bytes_per_s", "gpu_to_host_bytes_per_s", "gpu_pair_bytes_per_s"}
    assert names < set(figures_of(lines))


def test_a_load_that_can_not_run_says_why_and_the_next_one_runs() -> None:
    lines = run_loads(
        {"load": "gemm", "seconds": 0.1, "device": "cuda:99", "part": "cuda:99"},
        {"load": "nonsense"},
        {"load": "processor", "seconds": 0.1},
    )

    assert [one["load"] for one in lines if "error" in one] == ["gemm", "nonsense"]
    assert bad_of(lines) == {"cpu_bits": 0}


def test_a_disk_that_returns_other_data_is_found(tmp_path: Path) -> None:
    point, faults = tmp_path / "point", tmp_path / "faults"
    with fuse_mount(
        "tests.support.faults.slow_disk", point, tmp_path / "served", faults, lambda: None
    ):
        (faults / "flip").touch()
        load = {"load": "disk", "seconds": 2, "folder": str(point), "part": "disk"}
        lines = run_loads({**load, "bytes": 4 << 20})

    assert bad_of(lines)["disk_bits"] == 1


def test_a_rate_bounds_what_a_disk_is_given(tmp_path: Path) -> None:
    load = {"load": "disk", "seconds": 30, "folder": str(tmp_path), "part": "disk"}

    lines = run_loads({**load, "bytes": 8 << 20, "rate": 20e6})

    assert figures_of(lines)["disk_write_bytes_per_s"] <= 20e6
    assert figures_of(lines)["disk_read_bytes_per_s"] <= 20e6


def test_a_full_or_missing_folder_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    load = {"load": "disk", "seconds": 1, "part": "disk", "bytes": 1 << 60}

    lines = run_loads({**load, "folder": str(tmp_path)}, {**load, "folder": "/nonexistent"})

    assert [one["skip"] for one in lines if "skip" in one] == ["disk_io"]
    assert [one["load"] for one in lines if "error" in one] == ["disk"]
