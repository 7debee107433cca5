"""An operator's commands to the inventory: forget devices that are gone for good."""

import logging
from collections.abc import Mapping
from typing import Any

from agent.collectors.inventory import InventoryCollector
from agent.control_socket import Command
from rankmend.errors import SourceError

log = logging.getLogger(__name__)


def inventory_commands(inventory: InventoryCollector) -> dict[str, Command]:
    """Return the commands by name."""

    def forget_devices(request: Mapping[str, Any]) -> str:
        names = request.get("devices")
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if names is not None and not is_list:
            raise SourceError(f"devices is not a list of names: {str(names)[:80]!r}")
        gone = inventory.forget(names)
        if not gone:
            wanted = "of these names " if names else ""
            raise SourceError(
                f"no device {wanted}is missing; 'rankmend check node' names those that are"
            )
        log.warning("devices forgotten", extra={"devices": "; ".join(gone)})
        return "forgotten: " + "; ".join(gone)

    return {"forget": forget_devices}
