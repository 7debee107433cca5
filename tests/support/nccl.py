"""Stand-ins of NCCL: libraries with the one function that tells its version, and what its RAS subsystem answers."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support.eventually import DEADLINE_S

COMPILER = shutil.which("cc")
WHY_NOT = "" if COMPILER else "no C compiler (cc)"


def make_nccl(folder: Path, version: int, name: str = "libnccl.so.2", code: int = 0) -> Path:
    """Make a library that tells this version, as ncclGetVersion of nccl.h does; ``code``: its result."""
    body = f"int ncclGetVersion(int *version) {{ *version = {version}; return {code}; }}"
    return make_library(folder / name, body)


def make_library(path: Path, body: str) -> Path:
    assert COMPILER is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=body, text=True, check=True, timeout=DEADLINE_S)
    return path


RAS_TEXT = b"""NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 7 has launched up to operation 6648 -- GPU 7 managed by process 483079 on node 172.16.64.210
  Rank 9 has not launched any operations -- GPU 1 (NVML 3) managed by process 5 on node fd00::7

"""


def ras_answer(counts: list[int], **changes: Any) -> bytes:
    """Return what `ncclras -f json` prints of one communicator of all ranks, and one of two."""

    def communicator(ranks: list[int], missing: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "hash": "0x27a079b828ff1a75",
            "secondary_hash": "0x1:0x2",
            "size": len(ranks) + len(missing),
            "ranks_count": len(ranks),
            "missing_ranks_count": len(missing),
            "ranks": [
                {
                    "rank": rank,
                    "host": f"10.0.0.{rank}",
                    "pid": 100 + rank,
                    "cuda_dev": rank,
                    "nvml_dev": rank,
                    "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                    "collective_counts": {"Broadcast": 1, "AllReduce": count},
                }
                for rank, count in enumerate(ranks)
            ],
            "missing_ranks": missing,
        }

    told = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 12090,
        "communicators_count": 2,
        "communicators": [
            communicator([1, 9], []),
            communicator(counts, changes.pop("missing", [])),
        ],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    return json.dumps({**told, **changes}).encode()
