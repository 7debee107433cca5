"""The networks of a job's nodes that are degraded, in words."""

from typing import TYPE_CHECKING

from detectors.wording import names_in_words

if TYPE_CHECKING:
    from recovery.api import wire


def say_plane(told: "wire.PlaneView") -> str:
    by = f": {told.part}" if told.part else ""
    return f"{told.plane} network degraded on {names_in_words(told.nodes)}{by}"
