"""The dump that the installed PyTorch writes is read."""

import os
from pathlib import Path

import pytest

from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import OperationState
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.mark.torch
def test_a_dump_that_this_pytorch_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import subprocess
    import sys

    code = (
        "import os, torch, torch.distributed as dist\n"
        "import torch._C._distributed_c10d as c10d\n"
        "from pathlib import Path\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(2))\n"
        "import json, time\n"
        "end = time.monotonic() + 100\n"
        "def is_done(): return all(e['retired'] for e in json.loads(c10d._dump_fr_trace_json())['entries'])\n"
        "while not is_done() and time.monotonic() < end: time.sleep(0.05)\n"
        f"Path('{tmp_path}/dump_0').write_bytes(c10d._dump_fr_trace())\n"
    )
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=DEADLINE_S)

    read = parse_dump((tmp_path / "dump_0").read_bytes())

    assert [(op.kind, op.state) for op in read.operations] == [("all_reduce", OperationState.DONE)]
