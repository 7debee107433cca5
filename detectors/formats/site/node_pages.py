"""What agents tell of their nodes' GPUs and NICs: a metrics page of one node, or an answer of Prometheus about many."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from detectors.formats.page_samples import read_samples
from detectors.formats.prometheus import is_answer, parse_answer, read_answer
from detectors.network_topology import GPUS_MAX, NAME_CHARACTERS_MAX, NICS_MAX
from detectors.parts.node_facts import NO_CLUSTER, NodeFacts, ToldGpu, ToldNic
from rankmend.errors import SourceError
from rankmend.printable import is_printable

METRICS: Final = frozenset(
    f"rankmend_{name}"
    for name in (
        *("topology_info", "topology_affinity_info", "topology_plane_info"),
        *("nic_device_info", "nic_port_info", "nic_port_state_id"),
        *("nic_rate_bytes_per_second", "nic_rate_max_bytes_per_second"),
        *("ethernet_carrier", "ethernet_speed_bytes_per_second"),
        *("gpu_fabric_info", "gpu_fabric_state_id", "gpu_fabric_status_id"),
        *("gpu_nvlink_peer_links", "gpu_nvswitch_links", "gpu_platform_info"),
    )
)
_CLUSTER: Final = re.compile(r"[0-9a-f]{32}")
_RAILS_MAX: Final = 1024
_ACTIVE: Final = (4, 5)  # port states: sysfs-class-infiniband
_COMPLETED: Final = 3  # NVML_GPU_FABRIC_STATE_COMPLETED; its status is 0 where it went well

Labels: TypeAlias = Mapping[str, str]
_Sample: TypeAlias = tuple[str, Labels, float]


@dataclass(slots=True)
class _Told:
    """The samples of a node by what they are about."""

    places: list[Labels] = field(default_factory=list)
    closeness: dict[tuple[str, str], str] = field(default_factory=dict)
    planes: dict[tuple[str, str], Labels] = field(default_factory=dict)
    ports: dict[tuple[str, str], Labels] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    # The rest by metric: of a port, of a GPU's bus id.
    values: dict[tuple[str, str, str], float] = field(default_factory=dict)
    fabrics: dict[str, Labels] = field(default_factory=dict)
    chassis: dict[str, str] = field(default_factory=dict)  # serial numbers
    peers: dict[str, dict[str, int]] = field(default_factory=dict)


def read_node_pages(name: str, text: str) -> list[NodeFacts]:
    """Return what a page tells of the node ``name``, or an answer of Prometheus (/api/v1/query) of each of its nodes.

    Raises SourceError where neither tells of any GPU or NIC.
    """
    is_json = text.lstrip()[:1] in ("{", "[")
    samples = _of_answer(text) if is_json else {name: read_samples(text, METRICS)}
    found = [facts for node, own in samples.items() if (facts := _facts(node, own)) is not None]
    if not found:
        raise SourceError("it names no GPU and no network card: not a metrics page of an agent")
    return found


def _of_answer(text: str) -> Mapping[str, Iterable[_Sample]]:
    document = parse_answer(text)
    if not is_answer(document):
        raise SourceError("it is JSON, but no answer of Prometheus's /api/v1/query")
    samples: dict[str, list[_Sample]] = {}
    for reading in read_answer(document, METRICS):
        labels = {**dict(reading.labels), "device": reading.device}
        samples.setdefault(reading.node, []).append((reading.metric, labels, reading.value))
    return samples


def _facts(node: str, samples: Iterable[_Sample]) -> NodeFacts | None:
    reported = _sort(samples)
    nics = [
        nic
        for place in reported.places
        if place.get("kind") == "nic"
        for nic in _nics(place, reported)
    ]
    gpus = [_gpu(place, reported) for place in reported.places if place.get("kind") == "gpu"]
    # A page without sysfs's word still tells by NVML which GPUs are joined.
    known = {item.pci_bus_id for item in gpus}
    by_driver = dict.fromkeys((*reported.fabrics, *reported.chassis))
    gpus += [_gpu({"pci_bus_id": item}, reported) for item in by_driver if item not in known]
    if not nics and not gpus:
        return None
    if len(nics) > NICS_MAX or len(gpus) > GPUS_MAX:
        raise SourceError(
            f"node {node!r:.80} with {len(nics)} NICs and {len(gpus)} GPUs: at most {NICS_MAX} and {GPUS_MAX}"
        )
    _check_names([node, *(nic.device for nic in nics), *(nic.interface for nic in nics)])
    _check_names([*(nic.pci_bus_id for nic in nics), *(item.pci_bus_id for item in gpus)])
    _check_names([item.chassis for item in gpus])
    return NodeFacts(
        node,
        tuple(sorted(gpus, key=lambda item: item.pci_bus_id)),
        tuple(sorted(nics, key=lambda nic: (nic.pci_bus_id, nic.device, nic.port))),
        reported.closeness,
    )


def _check_names(names: Collection[str]) -> None:
    for name in names:
        if len(name) > NAME_CHARACTERS_MAX or not is_printable(name):
            raise SourceError(f"the name {name!r:.80}: at most {NAME_CHARACTERS_MAX} printable characters")  # fmt: skip


def _sort(samples: Iterable[_Sample]) -> _Told:
    reported = _Told()
    for metric, labels, value in samples:
        device, port = labels.get("device", ""), labels.get("port", "")
        gpu = labels.get("pci_bus_id", "")
        match metric.removeprefix("rankmend_"):
            case "topology_info":
                reported.places.append(labels)
            case "topology_affinity_info":
                reported.closeness[gpu, device] = labels.get("closeness", "")
            case "topology_plane_info":
                reported.planes[device, port] = labels
            case "nic_port_info":
                reported.ports[device, port] = labels
            case "nic_device_info":
                reported.models[device] = labels.get("model", "")
            case "gpu_fabric_info":
                reported.fabrics[gpu] = labels
            case "gpu_platform_info":
                reported.chassis[gpu] = labels.get("chassis", "")
            case "gpu_nvlink_peer_links":
                reported.peers.setdefault(gpu, {})[labels.get("peer_pci_bus_id", "")] = int(value)
            case name if name.startswith("gpu_"):
                reported.values[name, gpu, ""] = value
            case name:
                reported.values[name, device, port] = value
    return reported


def _nics(place: Labels, reported: _Told) -> Iterator[ToldNic]:
    device = place.get("device", "")
    if not device:
        return
    ports = [port for name, port in reported.planes if name == device]
    for port in ports or [""]:
        about = reported.ports.get((device, port))
        plane = reported.planes.get((device, port), {})
        rail = plane.get("rail", "")
        yield ToldNic(
            device=device,
            port=port,
            interface=about.get("network_device", "") if about is not None else "" if port else device,
            pci_bus_id=place.get("pci_bus_id", ""),
            numa_node=_numa_node(place),
            link_layer=about.get("link_layer", "") if about is not None else "" if port else "Ethernet",
            model=reported.models.get(device, ""),
            bytes_per_s=_rate(reported, device, port),
            is_up=_is_up(reported, device, port),
            is_rdma=bool(port),
            plane=plane.get("plane", "unknown"),
            rail=int(rail) if rail.isdecimal() and int(rail[:9]) < _RAILS_MAX else None,
            is_configured=plane.get("origin") == "configured",
        )  # fmt: skip


def _rate(reported: _Told, device: str, port: str) -> float | None:
    names = ("nic_rate_max_bytes_per_second", "nic_rate_bytes_per_second")
    if not port:
        names = ("ethernet_speed_bytes_per_second",) * 2
    found = [reported.values.get((name, device, port)) for name in names]
    return next((item for item in found if item is not None and item > 0), None)


def _is_up(reported: _Told, device: str, port: str) -> bool | None:
    if port:
        state = reported.values.get(("nic_port_state_id", device, port))
        return None if state is None else state in _ACTIVE
    carrier = reported.values.get(("ethernet_carrier", device, port))
    return None if carrier is None else carrier == 1


def _numa_node(place: Labels) -> int | None:
    text = place.get("numa_node", "")
    return int(text) if text.isdecimal() and len(text) < 5 else None


def _gpu(place: Labels, reported: _Told) -> ToldGpu:
    bus_id = place.get("pci_bus_id", "")
    switches = reported.values.get(("gpu_nvswitch_links", bus_id, ""), 0.0)
    return ToldGpu(
        bus_id,
        _numa_node(place),
        _clique(bus_id, reported),
        reported.peers.get(bus_id, {}),
        int(switches) if 0 < switches < 1024 else 0,
        reported.chassis.get(bus_id, ""),
    )


def _clique(bus_id: str, reported: _Told) -> tuple[str, str] | None:
    """Return the clique that a GPU has joined; a registration under way, or one that failed, says nothing yet."""
    labels = reported.fabrics.get(bus_id, {})
    cluster, clique = labels.get("cluster", ""), labels.get("clique", "")
    has_joined = reported.values.get(("gpu_fabric_state_id", bus_id, "")) == _COMPLETED
    has_failed = reported.values.get(("gpu_fabric_status_id", bus_id, ""), 0.0) != 0
    is_named = _CLUSTER.fullmatch(cluster) and cluster != NO_CLUSTER and clique.isdecimal()
    return (cluster, clique[:10]) if is_named and has_joined and not has_failed else None
