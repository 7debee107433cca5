"""The bounds of pre-flight checks for the whole fleet: the table [preflight] of a TOML file, the same on every node."""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from rankmend.errors import ConfigError
from rankmend.toml_file import TomlFile, convert, refuse_unknown, table_of

PLACE: Final = Path("/etc/rankmend/preflight.toml")
_BYTES_MAX: Final = 100_000
TABLE: Final = "preflight"

_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class PreflightPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """0 and an empty text: no bound, not set."""

    # Nodes that are checked at once; each takes one of so many files in `slots_folder`, which all nodes see.
    nodes_at_once: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    slots_folder: str = ""
    # How fast the GPUs of one node take up their power: one after the other, by their power limits.
    ramp_watts_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    # Nodes begin at a moment within so long that differs by their names: a whole allocation doesn't start in one second.
    start_within_s: Annotated[float, msgspec.Meta(ge=0, le=20)] = 0.0
    # Of all nodes together on the checkpoints' storage, each way; a node gets its share by `nodes_at_once`.
    storage_bytes_per_s: _Rate = 0.0

    def __post_init__(self) -> None:
        if self.nodes_at_once and not self.slots_folder:
            raise ValueError("nodes_at_once needs slots_folder, a folder that all nodes see")

    @property
    def node_storage_bytes_per_s(self) -> float:
        """Return one node's share of the rate; 0: no bound."""
        return self.storage_bytes_per_s / max(1, self.nodes_at_once)


def read_policy(path: Path | None) -> PreflightPolicy:
    """Return the policy of a file, or of the usual place if there is one there; raise ConfigError."""
    if path is None and not PLACE.is_file():
        return PreflightPolicy()
    file = TomlFile(path or PLACE, _BYTES_MAX, "pre-flight policy")
    try:
        refuse_unknown("the file", (), file.tables, (TABLE,))
        values = table_of(file.tables, TABLE)
        refuse_unknown(f"[{TABLE}]", (TABLE,), values, PreflightPolicy.__struct_fields__)
        made: PreflightPolicy = convert(values, PreflightPolicy, (TABLE,), "the table")
        return made
    except ConfigError as error:
        raise file.named(error) from error
