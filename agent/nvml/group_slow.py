"""The group "slow": a GPU's identity and set-up, which only an operator changes."""

import ctypes
from collections import Counter
from collections.abc import Iterator
from functools import partial
from struct import Struct
from typing import Final

from agent.nvml import fields
from agent.nvml.group_fast import CLOCK_KINDS
from agent.nvml.nvml_calls import NvmlCalls, one
from agent.nvml.sampled_gpu import TEXT_CHARS_MAX, SampledGpu, Value, pci_bus_id

THRESHOLDS: Final = (  # NVML_TEMPERATURE_THRESHOLD_*
    (0, "temperature_shutdown_celsius"),
    (1, "temperature_slowdown_celsius"),
    (2, "memory_temperature_max_celsius"),
    (3, "temperature_max_celsius"),
)
# behind version and InfiniBand GUID: chassis serial, slot, tray, host, kind of peer, module
_PLATFORM: Final = Struct("<20x16s5B")
_KILO: Final = 1000.0
_MHZ: Final = 1e6


def read_slow(calls: NvmlCalls, gpu: SampledGpu, driver: str, cuda: str) -> Iterator[Value]:
    """Return the values of the group; ``driver`` and ``cuda`` are versions."""
    names = (
        "nvmlDeviceGetName",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetVbiosVersion",
        "nvmlDeviceGetInforomImageVersion",
        "nvmlDeviceGetBoardPartNumber",
    )
    minor = calls.read(gpu, "nvmlDeviceGetMinorNumber")
    texts = [str(calls.read(gpu, name) or "")[:TEXT_CHARS_MAX] for name in names]
    device = "" if minor is None else f"nvidia{minor}"
    yield "info", (*texts, device, driver, cuda), 1
    yield from one("persistence_enabled", calls.read(gpu, "nvmlDeviceGetPersistenceMode"))
    mig = calls.read(gpu, "nvmlDeviceGetMigMode")
    if mig is not None:
        yield "mig_enabled", (), mig[0]
        yield "mig_pending_enabled", (), mig[1]
    limit = calls.read(gpu, "nvmlDeviceGetEnforcedPowerLimit")
    yield from one("power_limit_watts", limit, 1 / _KILO)
    yield from calls.read_fields(gpu, "slow", [(field, 0) for field in fields.SLOW])
    for number, name in THRESHOLDS:
        yield from one(name, calls.read(gpu, "nvmlDeviceGetTemperatureThreshold", number))
    for number, kind in enumerate(CLOCK_KINDS):
        mhz = calls.read(gpu, "nvmlDeviceGetMaxClockInfo", number)
        yield from one("clock_max_hertz", mhz, _MHZ, kind)
        mhz = calls.read(gpu, "nvmlDeviceGetApplicationsClock", number)
        yield from one("clock_application_hertz", mhz, _MHZ, kind)
    yield from _platform(calls, gpu)
    yield from _throughput(calls, gpu)
    yield from _peers(calls, gpu)


def _platform(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Yield where in its rack the GPU is: nvmlPlatformInfo_v2_t of nvml.h, which GB200 and newer fill."""
    make = getattr(calls.nvml, "c_nvmlPlatformInfo_v2_t", None)
    if make is None:  # nvidia-ml-py before 12.570
        return
    info = make()
    name = "nvmlDeviceGetPlatformInfo"
    call = partial(calls.in_call, name, gpu.index, gpu.handle, ctypes.byref(info))
    if calls.attempt(gpu, (name, info.version), call) is None:
        return
    serial, slot, tray, host, _peer, module = _PLATFORM.unpack_from(bytes(info))
    chassis = serial.partition(b"\0")[0].decode("ascii", "replace").strip()
    if chassis:
        yield "platform_info", (chassis, str(slot), str(tray), str(host), str(module)), 1


def _throughput(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Sample PCIe throughput if the card does not count bytes: 20 ms a call."""
    if not calls.is_unsupported(gpu, (197, 0)):
        return
    for number, name in enumerate(
        ("pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second")
    ):
        kilobytes = calls.read(gpu, "nvmlDeviceGetPcieThroughput", number)
        yield from one(name, kilobytes, _KILO)


def _peers(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Yield to which other GPUs how many links lead that are up. Where they lead to switches, every GPU is a peer."""
    if calls.read_field(gpu, fields.NVSWITCH_LINKS):
        return
    count = calls.read_field(gpu, fields.LINK_COUNT)
    links_max = calls.nvml.NVML_NVLINK_MAX_LINKS
    links: Counter[str] = Counter()
    for link in range(links_max if count is None else min(int(count), links_max)):
        is_up = calls.read(gpu, "nvmlDeviceGetNvLinkState", link)
        if is_up is None and count is None:
            break  # there are no more
        if not is_up:
            continue
        kind = calls.read(gpu, "nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind not in (None, calls.nvml.NVML_NVLINK_DEVICE_TYPE_GPU):  # a driver may not tell it
            continue
        far = calls.read(gpu, "nvmlDeviceGetNvLinkRemotePciInfo", link)
        if far is not None:
            links[pci_bus_id(far)] += 1
    for peer, found in sorted(links.items()):
        yield "nvlink_peer_links", (peer,), found
