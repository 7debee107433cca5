"""Which counters of network drivers tell of pauses, and which of `ethtool -S` these are. Pure.

A pause received stops this port: the switch, or what is behind it, can't take more. A pause sent stops the switch: this node takes too slowly.
Sources: the drivers' own tables of names in Linux (drivers/net/ethernet), as the comments name them. An xoff frame is one that pauses, an xon frame
one that ends it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_WAY: Final = "(?P<way>[rt]x)"
_PRIORITY: Final = "(?P<priority>[0-7])"
# Patterns; their groups: way (rx, tx), and of priority flow control the priority.
PRIORITY_PAUSE_FRAMES: Final = (
    f"{_WAY}_prio{_PRIORITY}_pause",  # mlx5
    f"{_WAY}_pause_prio_{_PRIORITY}",  # mlx4, mlxsw
    f"{_WAY}_pfc_ena_frames_pri{_PRIORITY}",  # bnxt_en
    rf"(port\.)?{_WAY}_priority_{_PRIORITY}_xoff(\.nic)?",  # i40e, ice
    f"{_WAY}_pb_{_PRIORITY}_pxoff",  # ixgbe
    f"mac_{_WAY}_pfc_pri{_PRIORITY}_pkt_num",  # hns3
)
PRIORITY_PAUSE_US: Final = (
    f"{_WAY}_prio{_PRIORITY}_pause_duration",  # mlx5
    f"pfc_pri{_PRIORITY}_{_WAY}_duration_us",  # bnxt_en
)
LINK_PAUSE_FRAMES: Final = (
    f"{_WAY}_pause_ctrl_phy",  # mlx5
    f"{_WAY}_pause_frames",  # bnxt_en
    rf"(port\.)?link_xoff_{_WAY}(\.nic)?",  # i40e, ice
    f"{_WAY}_flow_control_xoff",  # ixgbe
    f"mac_{_WAY}_mac_pause_num",  # hns3
)
LINK_PAUSE_US: Final = (f"{_WAY}_global_pause_duration",)  # mlx5
_LINE: Final = re.compile(r"\s+([^\s:]+):\s*(\d{1,20})")
_FRAMES: Final = tuple(
    re.compile(pattern) for pattern in (*PRIORITY_PAUSE_FRAMES, *LINK_PAUSE_FRAMES)
)


@dataclass(frozen=True, slots=True)
class PauseKind:
    """Which pauses: of a priority (PFC) or, with "", of the whole link; received or sent."""

    priority: str
    is_received: bool


def parse_pauses(text: str) -> Mapping[PauseKind, int]:
    """Return the pause frames in the output of `ethtool -S`; none where the driver counts none."""
    found: dict[PauseKind, int] = {}
    for line in text.splitlines():
        counter = _LINE.fullmatch(line)
        if counter is None:
            continue
        for pattern in _FRAMES:
            if match := pattern.fullmatch(counter[1]):
                groups = match.groupdict()
                kind = PauseKind(groups.get("priority") or "", groups["way"] == "rx")
                found[kind] = found.get(kind, 0) + int(counter[2])
                break
    return found
