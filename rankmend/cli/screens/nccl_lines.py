"""The line of a job whose ranks have not all loaded the same NCCL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
