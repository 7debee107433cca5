"""Devices of this node by what other collectors have answered: GPUs, memory modules, the size of the memory."""

from collections.abc import Mapping

from agent.collectors.edac import EdacCollector
from agent.collectors.gpu import GpuCollector, GpuStateCollector
from agent.collectors.host import HostCollector
from agent.metrics import Metric
from agent.sampling.collection import CollectorOutcome, CollectorView
from detectors.node.inventory import Device, DeviceKind, each_once

Views = Mapping[str, CollectorView]  # by collector


def answered_memory_bytes(views: Views) -> int | None:
    """Return the size of the memory as the kernel counts it, or None while that can't be told."""
    sizes = _series(views, HostCollector.name, "rankmend_host_memory_size_bytes")
    return int(sizes[0].value) if sizes else None


def answered_dimms(views: Views) -> list[Device] | None:
    """Return the memory modules that have an EDAC driver, or None where there is none."""
    modules = _series(views, EdacCollector.name, "rankmend_edac_module_info")
    found = []
    for about in (dict(series.labels) for series in modules):
        place = f"{about['controller']}/{about['module']}"
        found.append(Device(DeviceKind.DIMM, place, about["label"] or place, is_permanent=False))
    return found or None


def answered_gpus(views: Views) -> list[Device] | None:
    """Return the GPUs that the driver lists, or None while that can't be told."""
    readings = views.get(GpuCollector.name)
    if readings is None or readings.is_stale:
        return None
    if readings.outcome is CollectorOutcome.ABSENT:
        return []
    states = {
        name: _series(views, GpuStateCollector.name, f"rankmend_gpu_{name}")
        for name in ("success", "lost", "collector_stuck", "collector_released")
    }
    is_held_up = any(
        series.value
        for name in ("collector_stuck", "collector_released")
        for series in states[name]
    )
    if readings.outcome is not CollectorOutcome.MEASURED or not states["success"] or is_held_up:
        return None
    # one that is lost has a finding of its own; one that is neither is no longer listed
    listed = {
        series.labels for name in ("success", "lost") for series in states[name] if series.value
    }
    found = [
        Device(DeviceKind.GPU, about["uuid"], f"gpu{about['gpu']}", about["pci_bus_id"])
        for about in (dict(labels) for labels in sorted(listed))
        if about["uuid"]
    ]
    return each_once(found)


def _series(views: Views, collector: str, metric: str) -> list[Metric]:
    view = views.get(collector)
    if view is None or view.is_stale or view.outcome is not CollectorOutcome.MEASURED:
        return []
    return [series for series in view.metrics if series.name == metric]
