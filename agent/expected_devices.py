"""The table [expect] of the agent's configuration: what this node is meant to have."""

from typing import Final

import msgspec

from agent.sources.pci_topology import Plane
from rankmend.errors import ConfigError

COUNT_MAX: Final = 1024
MEMORY_GIB_MAX: Final = 1 << 20
ALL_PLANES: Final = ""


class ExpectedDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What this node should have. docs/reference/inventory.md"""

    gpus: int | None = None
    nics: int | dict[str, int] | None = None  # in all, or by plane
    disks: int | None = None
    dimms: int | None = None
    memory_gib: float | None = None  # at least, as MemTotal of /proc/meminfo has it

    def nics_by_plane(self) -> dict[str, int]:
        if self.nics is None:
            return {}
        return self.nics if isinstance(self.nics, dict) else {ALL_PLANES: self.nics}


def check(expect: ExpectedDevices) -> None:
    """Raise ConfigError for what the types alone don't refuse."""
    planes = [plane.value for plane in Plane]
    for plane in expect.nics_by_plane():
        if plane not in (*planes, ALL_PLANES):
            raise ConfigError(f"expect.nics: no plane {plane!r}; there are {', '.join(planes)}")
    counts = {
        "gpus": expect.gpus,
        "disks": expect.disks,
        "dimms": expect.dimms,
        **{f"nics.{plane}": count for plane, count in expect.nics_by_plane().items()},
    }
    for name, count in counts.items():
        if count is not None and not 0 <= count <= COUNT_MAX:
            raise ConfigError(f"expect.{name} of {count}: 0 to {COUNT_MAX}")
    if expect.memory_gib is not None and not 0 < expect.memory_gib <= MEMORY_GIB_MAX:
        raise ConfigError(f"expect.memory_gib of {expect.memory_gib}: above 0, to {MEMORY_GIB_MAX}")
