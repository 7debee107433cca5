"""The areas of the GPU report: what each claims, and how long it may take.

An area NAME is the module bench.gpu.areas.NAME with CLAIMS (row -> claim), LIMIT_S and ``run(telling)``.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, NamedTuple

from bench.gpu.rows import Telling

NAMES: Final = (
    "nvml",
    "sections",
    "snapshots",
    "recovery",
    "frameworks",
    "nccl",
    "repeat",
    "faults",
)


class Area(NamedTuple):
    name: str
    claims: Mapping[str, str]
    limit_s: float
    run: Callable[[Telling], None]


def load(name: str) -> Area:
    """Import an area. Its module imports PyTorch only where it runs."""
    module = import_module(f"bench.gpu.areas.{name}")
    return Area(name, module.CLAIMS, module.LIMIT_S, module.run)
