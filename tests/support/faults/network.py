"""Faults between test hosts, as nftables rules for the bridges of `tests.support.hosts.network`."""

from collections.abc import Sequence
from typing import Protocol

_LOSS_STEPS = 10_000


class Address(Protocol):
    """What a rule needs of a host's cable: its ports on the bridge, as an nftables set, and its MAC."""

    @property
    def bridge_ports(self) -> str: ...

    @property
    def mac(self) -> str: ...


def partition_rules(
    sources: Sequence[Address], targets: Sequence[Address], *, passes_arp: bool
) -> list[tuple[str, str]]:
    """Return rules that lose what the sources send to the targets, at the sources' own ports.

    One direction alone works only with ARP: nobody sends to an address that does not answer for itself.
    """
    macs = ", ".join(each.mac for each in targets)
    kinds = "ether type != arp " if passes_arp else ""
    return [
        ("prerouting", f"iifname {each.bridge_ports} {kinds}ether daddr {{ {macs} }}")
        for each in sources
    ]


def loss_rules(addresses: Sequence[Address], ratio: float) -> list[tuple[str, str]]:
    """Return rules that lose this share of what goes over the cables, in each direction."""
    if not 0 < ratio <= 1:
        raise ValueError(f"loss is a share of 1, not {ratio}")
    chance = f"numgen random mod {_LOSS_STEPS} < {round(ratio * _LOSS_STEPS)}"
    ends = (("prerouting", "iifname"), ("postrouting", "oifname"))
    return [
        (hook, f"{end} {each.bridge_ports} {chance}") for each in addresses for hook, end in ends
    ]
