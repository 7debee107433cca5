"""The group "medium": memory errors, PCIe, NVLinks and the fabric of a GPU."""

import ctypes
import math
from collections.abc import Iterator
from functools import partial
from typing import Final

from agent.nvml import fields
from agent.nvml.nvml_calls import NvmlCalls, one
from agent.nvml.sampled_gpu import SampledGpu, Value

# NVML_MEMORY_LOCATION_*. Up to Ampere field values tell the places; Hopper answers for these two only, and by function.
_ECC_PLACES: Final = {2: "dram", 7: "sram"}


_PCIE_LINK: Final = (
    ("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_generation"),
    ("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_generation_max"),
    ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width_lanes"),
    ("nvmlDeviceGetMaxPcieLinkWidth", "pcie_width_max_lanes"),
)
# GT/s of a lane by generation; one bit in 1e12 may be wrong (PCI Express Base Specification).
_PCIE_GIGABITS_PER_S: Final = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_BIT_ERRORS: Final = 1e-12


def pcie_replays_max(generation: int | None, lanes: int | None) -> int | None:
    """Return how many replays a minute a healthy link of this kind may have, or None if it is not known.

    Source: DCGM modules/health/DcgmHealthWatch.cpp (72fa3fe), GetExpectedPcieReplayRate: a rate per lane and generation
    times the lanes, rounded up: 16 for 4.0 x16, 31 for 5.0 x16, 62 for 6.0 x16. By the most that GPU and slot can do: a
    link that saves power at this moment had its errors at full speed.
    """
    gigabits = _PCIE_GIGABITS_PER_S.get(generation or 0)
    if gigabits is None or not lanes:
        return None
    return math.ceil(gigabits * 1e9 * 60 * _BIT_ERRORS * lanes)


def read_medium(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Return the values of the group."""
    yield from calls.read_fields(gpu, "medium", [(field, 0) for field in fields.MEDIUM])
    for number, kind in enumerate(("corrected", "uncorrected")):
        for counter_number, counter in enumerate(("volatile", "aggregate")):
            for location, place in _ECC_PLACES.items():
                errors = calls.read(
                    gpu, "nvmlDeviceGetMemoryErrorCounter", number, counter_number, location
                )
                yield from one("ecc_place_errors_total", errors, 1, kind, counter, place)
    banks = calls.read(gpu, "nvmlDeviceGetRowRemapperHistogram")
    if banks is not None:
        for spare in ("max", "high", "partial", "low", "none"):
            yield "remap_banks", (spare,), getattr(banks, spare)
    link = {name: calls.read(gpu, call) for call, name in _PCIE_LINK}
    for name, answer in link.items():
        yield from one(name, answer)
    replays = pcie_replays_max(link["pcie_generation_max"], link["pcie_width_max_lanes"])
    yield from one("pcie_replays_per_minute_max", replays)
    repair = calls.read(gpu, "nvmlDeviceGetRepairStatus")
    if repair is not None:
        yield "repair_pending", ("channel",), repair[0]
        yield "repair_pending", ("tpc",), repair[1]
    yield from _memory_flags(calls, gpu)
    yield from _links(calls, gpu)
    yield from _fabric(calls, gpu)


def _memory_flags(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Return the two flags by which NVIDIA takes a GPU out; older bindings and drivers have neither."""
    nvml, name = calls.nvml, "nvmlDeviceGetSramEccErrorStatus"
    if (make := getattr(nvml, "c_nvmlEccSramErrorStatus_v1_t", None)) is not None:
        status = make()
        call = partial(calls.in_call, name, gpu.index, gpu.handle, ctypes.byref(status))
        if calls.attempt(gpu, (name,), call) is not None:
            yield "sram_threshold_exceeded", (), int(status.bThresholdExceeded != 0)
    name = "nvmlDeviceGetUnrepairableMemoryFlag_v1"
    if hasattr(nvml, name):
        flag = calls.read(gpu, name)
        yield from one("memory_unrepairable", None if flag is None else int(flag != 0))


def _links(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    count = calls.read_field(gpu, fields.LINK_COUNT)
    links_max = int(count) if count is not None else calls.nvml.NVML_NVLINK_MAX_LINKS
    links: list[int] = []
    for link in range(min(links_max, calls.nvml.NVML_NVLINK_MAX_LINKS)):
        is_up = calls.read(gpu, "nvmlDeviceGetNvLinkState", link)
        if is_up is None and count is None:
            break  # there are no more
        if is_up is not None:
            links.append(link)
            yield "nvlink_up", (str(link),), is_up
    if not links:
        return
    wanted = [(field, link) for link in links for field in fields.LINK]
    yield from calls.read_fields(gpu, "links", wanted, is_scoped=True)
    if calls.is_unsupported(gpu, (161, links[0])):
        for link in links:
            for number, kind in enumerate(fields.LINK_ERROR_COUNTERS):
                errors = calls.read(gpu, "nvmlDeviceGetNvLinkErrorCounter", link, number)
                yield from one("nvlink_errors_total", errors, 1, str(link), kind)


def _fabric(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    nvml = calls.nvml
    for info in (nvml.c_nvmlGpuFabricInfo_v3_t(), nvml.c_nvmlGpuFabricInfo_v2_t()):
        known_as = ("nvmlDeviceGetGpuFabricInfoV", info.version)
        call = partial(calls.in_call, known_as[0], gpu.index, gpu.handle, ctypes.byref(info))
        if calls.attempt(gpu, known_as, call) is not None:
            break
    else:
        return
    if info.state & 0xFF == nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return
    yield "fabric_state_id", (), info.state & 0xFF  # one byte, and three that are not set
    yield "fabric_status_id", (), info.status
    for kind, shift in fields.FABRIC_HEALTH.items():
        answer = info.healthMask >> shift & 3
        if answer:
            yield "fabric_unhealthy", (kind,), int(answer == 1)
    wrong = info.healthMask >> nvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
    if wrong & 15:
        yield "fabric_unhealthy", ("incorrect_configuration",), int(wrong & 15 > 1)
    cluster = bytes(info.clusterUuid).hex()
    yield "fabric_info", (cluster, str(info.cliqueId)), 1
