"""The networks of a job's nodes that are degraded, in words."""

from typing import TYPE_CHECKING

from detectors.wording import names_in_words

if TYPE_CHECKING:
    from recovery.api import wire


def say_plane(reported: "wire.PlaneView") -> str:
    by = f": {reported.part}" if reported.part else ""
    return f"{reported.plane} network degraded on {names_in_words(reported.nodes)}{by}"
