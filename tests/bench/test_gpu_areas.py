"""The GPU report's own code, tried without a GPU: its figures prove nothing here, but every row runs and is told."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import areas

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 600.0
# Stands in for a device where PyTorch has none; an exception in a row ends the run.
TRY = """
import contextlib, sys, torch
from bench.gpu import areas
from bench.gpu.device import Cpu
from bench.gpu.rows import NotTriedError, Trial
from rankmend.hook.snapshots import tensors

tensors.CPU = "cuda"  # tensors take the way of those on a device
torch.cuda.is_current_stream_capturing = lambda: False

class Telling:
    @contextlib.contextmanager
    def row(self, name):
        with contextlib.suppress(NotTriedError):
            yield Trial()
        print("row", name)

areas.load(sys.argv[1]).run(Telling(), Cpu())
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
@pytest.mark.parametrize("name", ["sections", "snapshots", "nccl"])
def test_each_row_of_an_area_runs_without_a_gpu_and_is_told_once(name: str, tmp_path: Path) -> None:
    code = tmp_path / "area.py"
    code.write_text(TRY)

    done = subprocess.run(
        [sys.executable, str(code), name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    told = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("row ")]
    assert sorted(told) == sorted(areas.load(name).claims)
