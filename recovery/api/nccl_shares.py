"""Which NCCLs the ranks of a job have loaded, for the API. Pure."""

from collections.abc import Iterable

from detectors.node.job_libraries import LibraryShare
from recovery.api import wire


def to_wire(shares: Iterable[LibraryShare]) -> list[wire.NcclShare]:
    return [wire.NcclShare(share.version, list(share.nodes), list(share.ranks)) for share in shares]


def from_wire(reported: Iterable[wire.NcclShare]) -> tuple[LibraryShare, ...]:
    return tuple(
        LibraryShare(share.version, tuple(share.nodes), tuple(share.ranks)) for share in reported
    )
