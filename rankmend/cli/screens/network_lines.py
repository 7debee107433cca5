"""Lines about a job's networks: planes that are degraded, and ranks that have not all loaded the same NCCL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detectors.wording import names_in_words
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.api import wire


def say_nccl(shares: "Sequence[wire.NcclShare]") -> list[str]:
    """Return what was loaded by whom; nothing where all ranks have the same."""
    if not shares:
        return []
    from detectors.node.job_libraries import say_shares
    from recovery.api.nccl_shares import from_wire

    said = say_shares(from_wire(shares))
    return [printable(f"its ranks have loaded {len(shares)} versions of NCCL: {said}")]


def say_plane(reported: "wire.PlaneView") -> str:
    by = f": {reported.part}" if reported.part else ""
    return f"{reported.plane} network degraded on {names_in_words(reported.nodes)}{by}"
