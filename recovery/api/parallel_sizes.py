"""Turns declared parallel sizes into what the API sends, and back."""

import msgspec

from detectors.replicas.layout import ParallelLayout
from recovery.api.wire import ParallelSizes


def to_wire(layout: ParallelLayout | None) -> ParallelSizes | None:
    return None if layout is None else msgspec.convert(layout, ParallelSizes, from_attributes=True)


def from_wire(sizes: ParallelSizes | None) -> ParallelLayout | None:
    return None if sizes is None else msgspec.convert(sizes, ParallelLayout, from_attributes=True)
