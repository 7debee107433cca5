"""The MIG instances of a GPU: what there is of each, and how much of its memory is used.

Source: nvml.h of nvidia-ml-py 13.615, section MIG: handles of instances by index, up to
        nvmlDeviceGetMaxMigDeviceCount; an index without an instance answers NOT_FOUND.
"""

from typing import Any, Final, NamedTuple

INSTANCES_MAX: Final = 16  # seven on today's cards


class MigInstance(NamedTuple):
    """One compute instance, as `CUDA_VISIBLE_DEVICES` names it."""

    handle: Any
    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str  # 1g.10gb

    @property
    def labels(self) -> tuple[str, str]:
        return str(self.gpu_instance), str(self.compute_instance)


def profile_of(name: str) -> str:
    """Return the profile at the end of a name: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    return name.rpartition(" MIG ")[2] if " MIG " in name else ""
