"""Cable cages of network cards: tells a pulled cable from a cage that was always empty.

mlx5's driver prints each cage's state when it starts and then each change, in the same words: "Port
module event: module 1, Cable unplugged". A cage that is empty at the start is no fault.
Source: drivers/net/ethernet/mellanox/mlx5/core/events.c, port_module. Slingshot's driver prints
only that a cage is empty: shs-cxi-driver, cass_cable.c, cass_cable_scan.
"""

import re
from typing import Final

from detectors.kernel.event import PCI, pci_bus_id
from detectors.kernel.log import Record

START_S_MAX: Final = 120.0  # from the driver's start to its cages' state; measured: 1 to 4 s
BOOT_S_MAX: Final = 300.0  # the same, after boot, if the log begins after the driver's start
_CAGES_MAX: Final = 256  # per node; the oldest are forgotten
_STATE: Final = re.compile(
    r"mlx5_core (" + PCI + r"): .{0,40}?Port module event: module (\d{1,3}), "
    r"Cable (plugged|unplugged)"
)
_NO_HSN: Final = re.compile(
    r"cxi_\w{2,8} (" + PCI + r"): cxi\d{1,4}\[[\w.-]{0,32}\]:? HSN cable is not plugged"
)
_START: Final = re.compile(r"mlx5_core (" + PCI + r"): firmware version: ")


class Cages:
    """Follows the cages through a log."""

    def __init__(self) -> None:
        self._plugged: dict[tuple[str, str], bool] = {}
        self._started: dict[str, float | None] = {}

    def is_empty(self, record: Record) -> bool:
        """Return whether the record is only about a cage that has been empty since the start."""
        text = record.text
        if "firmware version: " in text and (found := _START.match(text)):
            card = pci_bus_id(found[1])
            self._started[card] = record.at_s
            self._plugged = {cage: now for cage, now in self._plugged.items() if cage[0] != card}
            _bound(self._started)
            return False
        if "HSN cable is not plugged" in text and (found := _NO_HSN.match(text)):
            return self._is_starting(pci_bus_id(found[1]), record)
        if "Port module event" not in text or (found := _STATE.match(text)) is None:
            return False
        card, cage = pci_bus_id(found[1]), (pci_bus_id(found[1]), found[2])
        was_plugged = self._plugged.pop(cage, None)
        self._plugged[cage] = found[3] == "plugged"
        _bound(self._plugged)
        if self._plugged[cage]:
            return False
        if was_plugged is not None:
            return not was_plugged  # reported before
        return self._is_starting(card, record)

    def _is_starting(self, card: str, record: Record) -> bool:
        if card in self._started:
            started_s = self._started[card]
            if started_s is None or record.at_s is None:
                return True
            return 0 <= record.at_s - started_s <= START_S_MAX
        return record.at_s is not None and 0 <= record.at_s <= BOOT_S_MAX


def _bound(states: dict) -> None:  # type: ignore[type-arg]
    while len(states) > _CAGES_MAX:
        del states[next(iter(states))]
