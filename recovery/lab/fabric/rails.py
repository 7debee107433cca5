"""The rails of this node: an interface or RDMA port each, with its address and whether tests over RDMA can go by it."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from rankmend.errors import ConfigError, RankmendError
from recovery.lab.fabric.fabric_messages import TransportWish
from recovery.lab.fabric.rdma_ports import (
    SYSFS,
    Perftest,
    RailPort,
    active_ports,
    find_perftest,
    find_port,
    interface_of,
    is_device,
)
from recovery.launcher.run.route import route_address


@dataclass(frozen=True, slots=True)
class LocalRail:
    """``address``: for connections with other nodes, over the rail itself where ``has_tcp``."""

    name: str
    address: str
    has_tcp: bool = (
        True  # else it is an RDMA port without an IP address, and nodes talk over another interface
    )
    rdma: RailPort | None = None
    rdma_problem: str = ""  # why there is none


@dataclass(frozen=True, slots=True)
class LocalRails:
    rails: tuple[LocalRail, ...]
    perftest: Perftest | None = None


def needs_route(names: tuple[str, ...], sysfs: Path = SYSFS) -> bool:
    """Return whether some rail has no address of its own, so that the way to another node gives it."""
    return not names or any(_own_address(name, sysfs) is None for name in names)


def find_rails(
    names: tuple[str, ...], host: str, port: int, sysfs: Path = SYSFS
) -> list[LocalRail]:
    """Return the rails: those named, else the interface that leads to ``host``, the coordinator or another node."""
    if not names:
        routed = route_address(host, port or 9)
        return [LocalRail(_interface_with(routed), routed)]
    rails = []
    for name in names:
        address = _own_address(name, sysfs)
        if address is not None:
            rails.append(LocalRail(name, address))
        elif is_device(sysfs, name):
            rails.append(LocalRail(name, route_address(host, port or 9), has_tcp=False))
        else:
            raise ConfigError(
                f"--rail {name}: no such interface or RDMA device, or it has no address"
            )
    return rails


def with_rdma(rails: list[LocalRail], wish: TransportWish, sysfs: Path = SYSFS) -> LocalRails:
    """Return the rails with their RDMA ports, or why a rail has none; raises nothing."""
    if wish is TransportWish.TCP:
        return LocalRails(tuple(_without(rail, "the node was asked for TCP") for rail in rails))
    try:
        perftest = find_perftest()
    except RankmendError as error:
        return LocalRails(tuple(_without(rail, str(error)) for rail in rails))
    return LocalRails(tuple(_with_port(rail, perftest, sysfs) for rail in rails), perftest)


def _with_port(rail: LocalRail, perftest: Perftest, sysfs: Path) -> LocalRail:
    if ":" in rail.address and not perftest.has_ipv6:
        return _without(rail, f"ib_write_bw can't meet at {rail.address}: it knows IPv6 from perftest 23.07 on")  # fmt: skip
    try:
        port = find_port(sysfs, rail.name, rail.address)
    except RankmendError as error:
        active = ", ".join(active_ports(sysfs)[:16])
        return _without(rail, f"{error} (active here: {active or 'no RDMA port'})")
    return LocalRail(rail.name, rail.address, rail.has_tcp, port)


def _without(rail: LocalRail, problem: str) -> LocalRail:
    return LocalRail(rail.name, rail.address, rail.has_tcp, None, problem)


def _own_address(name: str, sysfs: Path) -> str | None:
    known = psutil.net_if_addrs()
    interface = name if name in known else interface_of(sysfs, name)
    addresses = [
        item.address
        for item in known.get(interface or "", ())
        if item.family.name in ("AF_INET", "AF_INET6") and not item.address.startswith("fe80")
    ]
    return addresses[0] if addresses else None


def _interface_with(address: str) -> str:
    known = psutil.net_if_addrs().items()
    return next(
        (name for name, found in known if any(item.address == address for item in found)), "net"
    )
