"""Health and load of each network of the node as a whole: compute, storage, service, management, out-of-band.

Source: the newest answers of the collectors `topology`, `nic`, `ethernet`, `network` and `ranks`; nothing is read.

A port counts once it has carried traffic since the agent's start or the card's: a socket that nobody uses is no loss. What is
available is the rate of the ports that are up, against the rate that they ought to have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.metrics import Family, Metric, gauge
from agent.sampling.collection import CollectorView
from agent.sources.pci_topology import Plane
from rankmend.clock import Clock
from rankmend.errors import NoSourceError

_SOURCES: Final = frozenset({"topology", "nic", "ethernet", "network", "ranks"})
_ACTIVE: Final = (
    4  # state id of an RDMA port: Linux Documentation/ABI/stable/sysfs-class-infiniband
)
_DIRECTIONS: Final = ("receive", "transmit")

_PLANE: Final = "rankmend_topology_plane_info"
_WANTED: Final = frozenset(
    {
        _PLANE,
        "rankmend_nic_port_state_id",
        "rankmend_nic_receive_packets_total",
        "rankmend_nic_rate_bytes_per_second",
        "rankmend_nic_rate_max_bytes_per_second",
        "rankmend_nic_receive_bytes_total",
        "rankmend_nic_transmit_bytes_total",
        "rankmend_ethernet_carrier",
        "rankmend_ethernet_speed_bytes_per_second",
        "rankmend_network_receive_bytes_total",
        "rankmend_network_transmit_bytes_total",
    }
)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "plane_ports", "", ("plane",), "Ports of a network of this node that have carried traffic."
    ),
    gauge("plane_ports_up", "", ("plane",), "Of these, ports whose link is up."),
    gauge(
        "plane_available_ratio",
        "",
        ("plane",),
        "Rate of the ports that are up, against the rate that all ought to have: 1 is healthy.",
    ),
    gauge(
        "plane_load_ratio",
        "",
        ("plane", "direction"),
        "Traffic of a network, against the rate of its ports that are up, since the run before.",
    ),
    gauge(
        "plane_job_available_ratio",
        "",
        ("plane", "job_id"),
        "The same as rankmend_plane_available_ratio, for each job with ranks on this node.",
    ),
)

Port = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PortHealth:
    plane: str
    is_up: bool
    rate_bytes_per_s: float | None  # now; None: not known
    rate_max_bytes_per_s: float | None
    totals: tuple[float | None, float | None]  # received and sent bytes


def read_ports(metrics: Iterable[Metric]) -> dict[Port, PortHealth]:
    """Return the ports that have carried traffic, with their planes."""
    values: dict[str, dict[Port, float]] = {}
    planes: dict[Port, str] = {}
    for metric in metrics:
        if metric.name not in _WANTED:
            continue
        labels = dict(metric.labels)
        port = labels.get("device", ""), labels.get("port", "")
        if metric.name == _PLANE:
            planes[port] = labels["plane"]
        else:
            values.setdefault(metric.name, {})[port] = metric.value
    found = {}
    for port, plane in planes.items():
        if plane in (Plane.UNKNOWN.value, Plane.UPLINK.value):
            continue
        health = _rdma_port(port, plane, values) or _ethernet_port(port, plane, values)
        if health is not None:
            found[port] = health
    return found


def _rdma_port(
    port: Port, plane: str, values: Mapping[str, Mapping[Port, float]]
) -> PortHealth | None:
    state = values.get("rankmend_nic_port_state_id", {}).get(port)
    packets = values.get("rankmend_nic_receive_packets_total", {}).get(port, 0.0)
    if state is None or packets <= 0:
        return None
    rate = values.get("rankmend_nic_rate_bytes_per_second", {}).get(port)
    rate_max = values.get("rankmend_nic_rate_max_bytes_per_second", {}).get(port)
    received = values.get("rankmend_nic_receive_bytes_total", {}).get(port)
    sent = values.get("rankmend_nic_transmit_bytes_total", {}).get(port)
    return PortHealth(plane, state >= _ACTIVE, rate, rate_max, (received, sent))


def _ethernet_port(
    port: Port, plane: str, values: Mapping[str, Mapping[Port, float]]
) -> PortHealth | None:
    device = (port[0], "")
    carrier = values.get("rankmend_ethernet_carrier", {}).get(device)
    received = values.get("rankmend_network_receive_bytes_total", {}).get(device)
    if carrier is None or not received:
        return None
    speed = values.get("rankmend_ethernet_speed_bytes_per_second", {}).get(device)
    sent = values.get("rankmend_network_transmit_bytes_total", {}).get(device)
    return PortHealth(plane, carrier == 1, speed, None, (received, sent))


def available_ratio(ports: Sequence[PortHealth]) -> float:
    """Return the share of a plane's rate that is there, 0 to 1; where rates are not known, the share of its ports."""
    rates = [
        (port.rate_bytes_per_s or 0.0 if port.is_up else 0.0, port.rate_max_bytes_per_s)
        for port in ports
    ]
    if any(rate_max is None or (rate == 0 and port.is_up) for (rate, rate_max), port in zip(rates, ports, strict=True)):  # fmt: skip
        return sum(port.is_up for port in ports) / len(ports)
    return min(1.0, sum(rate for rate, _max in rates) / sum(most or 0.0 for _rate, most in rates))


class PlanesCollector:
    name = "planes"
    interval_s = 5.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._views: Callable[[], Sequence[CollectorView]] = lambda: ()
        self._before: tuple[float, dict[Port, PortHealth]] | None = None

    def watch(self, views: Callable[[], Sequence[CollectorView]]) -> None:
        """Take what the other collectors have answered from here."""
        self._views = views

    def collect(self) -> Iterator[Metric]:
        metrics = [
            metric for view in self._views() if view.name in _SOURCES for metric in view.metrics
        ]
        ports, now_s = read_ports(metrics), self._clock.now_s()
        before, self._before = self._before, (now_s, ports)
        if not ports:
            raise NoSourceError("no port of a known network has carried traffic")
        jobs = sorted(
            {
                dict(metric.labels)["job_id"]
                for metric in metrics
                if metric.name == "rankmend_rank_info"
            }
        )
        by_plane: dict[str, dict[Port, PortHealth]] = {}
        for port, item in ports.items():
            by_plane.setdefault(item.plane, {})[port] = item
        for plane, own in sorted(by_plane.items()):
            labels = (("plane", plane),)
            health = list(own.values())
            available = available_ratio(health)
            yield Metric("rankmend_plane_ports", len(health), labels)
            yield Metric("rankmend_plane_ports_up", sum(item.is_up for item in health), labels)
            yield Metric("rankmend_plane_available_ratio", available, labels)
            for job_id in jobs:
                more = (*labels, ("job_id", job_id))
                yield Metric("rankmend_plane_job_available_ratio", available, more)
            if before is not None:
                yield from _load(plane, own, before[1], now_s - before[0])


def _load(
    plane: str, ports: Mapping[Port, PortHealth], before: Mapping[Port, PortHealth], passed_s: float
) -> Iterator[Metric]:
    rate = sum(item.rate_bytes_per_s or 0.0 for item in ports.values() if item.is_up)
    if passed_s <= 0 or rate <= 0:
        return
    for place, direction in enumerate(_DIRECTIONS):
        moved = 0.0
        for port, item in ports.items():
            new, old = item.totals[place], before[port].totals[place] if port in before else None
            if new is not None and old is not None and new >= old:  # else the counter began anew
                moved += new - old
        labels = (("plane", plane), ("direction", direction))
        yield Metric("rankmend_plane_load_ratio", moved / passed_s / rate, labels)
