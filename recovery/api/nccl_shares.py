"""Which NCCLs the ranks of a job have loaded, for the API. Pure."""

from collections.abc import Iterable

from detectors.node.job_libraries import LibraryShare
from recovery.api import wire


def to_wire(shares: Iterable[LibraryShare]) -> list[wire.NcclShare]:
    return [wire.NcclShare(one.version, list(one.nodes), list(one.ranks)) for one in shares]


def from_wire(told: Iterable[wire.NcclShare]) -> tuple[LibraryShare, ...]:
    return tuple(LibraryShare(one.version, tuple(one.nodes), tuple(one.ranks)) for one in told)
