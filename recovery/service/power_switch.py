"""Switches lost nodes off: what a service adds to `recovery.job.node_power` before a BMC is asked.

The BMC must have answered `On` in the node's present silence, no other job may hear the node, and the
cluster's rules and budget must allow it. For the deciding thread.
"""

from collections.abc import Callable
from typing import Protocol

from recovery.journal.cluster_records import PowerOffAsked
from recovery.service.bmc_power import BmcPower


class PowerDesk(Protocol):
    """The cluster's rules (`recovery.cluster.cluster.ClusterController`)."""

    def allow_power_off(self, asked: PowerOffAsked) -> bool: ...


class ServicePowerSwitch:
    def __init__(
        self,
        power: BmcPower,
        desk: PowerDesk,
        is_heard: Callable[[str], bool],
        ask_heard: Callable[[str], bool],
    ) -> None:
        """``is_heard`` tells whether any job hears the node; ``ask_heard`` asks the same from another thread."""
        self._power = power
        self._desk = desk
        self._is_heard = is_heard
        self._ask_heard = ask_heard

    def allow_off(self, asked: PowerOffAsked, /) -> bool:
        if not self._power.is_on(asked.node) or self._is_heard(asked.node):
            return False
        return self._desk.allow_power_off(asked)

    def switch_off(self, node: str, /) -> None:
        self._power.switch_off(node, lambda: not self._ask_heard(node))
