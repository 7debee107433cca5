"""Temperature, power, clocks, load and memory of a GPU at this moment: what checks read, and what is only shown."""

import contextlib
import ctypes
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

from agent.nvml import fields
from agent.nvml.nvml_calls import NvmlCalls, is_all_ones, one
from agent.nvml.sampled_gpu import TEXT_CHARS_MAX, Profile, SampledGpu, Value, pci_bus_id

CLOCK_KINDS: Final = ("graphics", "sm", "memory", "video")  # NVML_CLOCK_*
TEMPERATURE_NONE_CELSIUS: Final = 255  # a byte of ones; a GPU switches itself off far below
_KILO: Final = 1000.0
_MHZ: Final = 1e6
_CHECKED_FIELDS: Final = [(field, 0) for field in fields.FAST_CHECKED]


def checked_values(calls: NvmlCalls, gpu: SampledGpu) -> list[Value]:
    """Return what a check of the shipped table reads (detectors/data/node_policy.toml).

    The same list as before while the driver answers the same, as an idle GPU does for hours: each second
    all GPUs are asked, and making the values took as long as the calls.
    """
    _add_reasons(calls, gpu)
    temperature = calls.read(gpu, "nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
    if temperature is not None and temperature >= TEMPERATURE_NONE_CELSIUS:
        temperature = None
    margins = _margins(calls, gpu, temperature)
    batch = [*calls.read_fields(gpu, "checked", _CHECKED_FIELDS)]
    used = calls.read(gpu, "nvmlDeviceGetUtilizationRates")
    busy = None if used is None else (used.gpu, used.memory)
    answers = (temperature, margins, batch, busy)
    if answers != gpu.checked_answers:
        values = [*one("temperature_celsius", temperature), *margins, *batch]
        if busy is not None:
            values += _share("utilization_ratio", busy[0])
            values += _share("memory_utilization_ratio", busy[1])
        gpu.checked_answers, gpu.checked_values = answers, values
    return gpu.checked_values


def read_shown(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Return the rest."""
    yield from calls.read_fields(gpu, "shown", [(field, 0) for field in fields.FAST_SHOWN])
    if calls.is_unsupported(gpu, (186, 0)):  # the momentary power; else an average
        milliwatts = calls.read(gpu, "nvmlDeviceGetPowerUsage")
        yield from one("power_watts", milliwatts, 1 / _KILO)
    for number, kind in enumerate(CLOCK_KINDS):
        mhz = calls.read(gpu, "nvmlDeviceGetClockInfo", number)
        yield from one("clock_hertz", mhz, _MHZ, kind)
    memory = calls.read(gpu, "nvmlDeviceGetMemoryInfo", calls.nvml.nvmlMemory_v2)
    if memory is not None:
        yield from _bytes("memory_reserved_bytes", memory.reserved)
    else:
        memory = calls.read(gpu, "nvmlDeviceGetMemoryInfo")
    if memory is not None:
        yield from _bytes("memory_size_bytes", memory.total)
        yield from _bytes("memory_used_bytes", memory.used)
    yield from one("performance_state_id", calls.read(gpu, "nvmlDeviceGetPerformanceState"))
    yield from one("fan_ratio", calls.read(gpu, "nvmlDeviceGetFanSpeed"), 0.01)


def _share(name: str, percent: int) -> Iterator[Value]:
    yield from one(name, None if is_all_ones(percent) else percent, 0.01)


def _bytes(name: str, size: int) -> Iterator[Value]:
    yield from one(name, None if is_all_ones(size) else size)


def _margins(calls: NvmlCalls, gpu: SampledGpu, temperature: int | None) -> list[Value]:
    """Return the distance to the slowdown, by the driver's margin or else by the threshold."""
    margin = calls.read(gpu, "nvmlDeviceGetMarginTemperature")
    if margin is not None:
        now_s = calls.now_s()
        if now_s >= gpu.tlimit_due_at_s:  # it changes only with the VBIOS
            gpu.tlimit_due_at_s = now_s + fields.PERIOD_S_BY_GROUP["slow"]
            gpu.tlimit = calls.read_field(gpu, fields.SLOWDOWN_TLIMIT)
        values: list[Value] = [("temperature_margin_celsius", (), margin)]
        if gpu.tlimit is not None:
            values.append(("slowdown_margin_celsius", (), margin - gpu.tlimit))
        return values
    limit = None
    if temperature is not None:
        limit = calls.read(gpu, "nvmlDeviceGetTemperatureThreshold", 1)
    if temperature is None or limit is None:
        return []
    return [("slowdown_margin_celsius", (), limit - temperature)]


def _add_reasons(calls: NvmlCalls, gpu: SampledGpu) -> None:
    """Add the time since the last sample to each active reason."""
    reasons = calls.read(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # its name before R535
        reasons = calls.read(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
    if reasons is None:
        gpu.reasons_at_s = None
        return
    now_s = calls.now_s()
    if gpu.reasons_at_s is None:  # each reason is there from the start
        gpu.seconds = dict.fromkeys(fields.CLOCKS_EVENT_REASONS, 0.0) | gpu.seconds
    elif reasons:
        since_s = now_s - gpu.reasons_at_s
        for bit, reason in enumerate(fields.CLOCKS_EVENT_REASONS):
            if reasons >> bit & 1:
                gpu.seconds[reason] = gpu.seconds.get(reason, 0.0) + since_s
    gpu.reasons_at_s = now_s


# The group "medium": memory errors, PCIe, NVLinks and the fabric of a GPU.

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


# The MIG instances of a GPU: what there is of each, and how much of its memory is used.
#
# Source: nvml.h of nvidia-ml-py 13.615, section MIG: handles of instances by index, up to
#         nvmlDeviceGetMaxMigDeviceCount; an index without an instance answers NOT_FOUND.

INSTANCES_MAX: Final = 16  # seven on today's cards


class MigInstance(NamedTuple):
    """One compute instance, as `CUDA_VISIBLE_DEVICES` names it."""

    handle: Any
    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str  # 1g.10gb

    @property
    def labels(self) -> tuple[str, str]:
        return str(self.gpu_instance), str(self.compute_instance)


def profile_of(name: str) -> str:
    """Return the profile at the end of a name: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    return name.rpartition(" MIG ")[2] if " MIG " in name else ""


# The group "activity": how busy the units of a GPU and its MIG instances have been.

_ENGINES: Final = {"Encoder": "encoder", "Decoder": "decoder", "Jpg": "jpeg", "Ofa": "optical_flow"}


def read_activity(calls: NvmlCalls, gpu: SampledGpu, *, has_profiling: bool) -> Iterator[Value]:
    """Return the values of the group. GPM is read only with ``has_profiling``."""
    for unit in ("Encoder", "Decoder", "Jpg", "Ofa"):
        used = calls.read(gpu, f"nvmlDeviceGet{unit}Utilization")
        if used is not None:
            yield "engine_utilization_ratio", (_ENGINES[unit],), used[0] / 100
    instances = _mig_instances(calls, gpu)
    for instance in instances:
        yield from _mig(calls, gpu, instance)
    if not has_profiling:
        return
    if not instances:
        yield from _profile(calls, gpu, None)
    numbers = {instance.gpu_instance for instance in instances}
    for number in [key for key in gpu.profiles if key is not None and key not in numbers]:
        close_profile(calls, gpu, number)
    for number in sorted(numbers):
        for name, labels, value in _profile(calls, gpu, number):
            yield f"mig_{name}", (str(number), *labels), value


def close_profile(calls: NvmlCalls, gpu: SampledGpu, instance: int | None) -> None:
    """Free the samples of a GPU or of one of its instances."""
    with contextlib.suppress(calls.nvml.NVMLError):
        gpu.profiles.pop(instance).close()


def _profile(calls: NvmlCalls, gpu: SampledGpu, instance: int | None) -> Iterator[Value]:
    """Return how busy the units of a GPU, or of one of its instances, have been."""
    support = calls.read(gpu, "nvmlGpmQueryDeviceSupport")
    if support is None or not support.isSupportedDevice:
        return
    profile = gpu.profiles.get(instance)
    if profile is None:
        call = partial(calls.about, gpu)
        profile = gpu.profiles[instance] = Profile(calls.nvml, call)

    def take(sample: Any) -> None:
        if instance is None:
            calls.in_call("nvmlGpmSampleGet", gpu.index, gpu.handle, sample)
        else:
            name = "nvmlGpmMigSampleGet"
            calls.in_call(name, gpu.index, gpu.handle, instance, sample)

    read = calls.attempt(gpu, ("gpm", instance), lambda: list(profile.read(take)))
    yield from read or ()


def _mig_instances(calls: NvmlCalls, gpu: SampledGpu) -> list[MigInstance]:
    mode = calls.read(gpu, "nvmlDeviceGetMigMode")
    if mode is None or not mode[0]:
        return []
    count = calls.read(gpu, "nvmlDeviceGetMaxMigDeviceCount") or 0
    found = []
    for number in range(min(count, INSTANCES_MAX)):
        handle = calls.read(gpu, "nvmlDeviceGetMigDeviceHandleByIndex", number)
        if handle is None:
            continue
        of_instance = partial(calls.read_instance, gpu, handle)
        ids = [of_instance(f"nvmlDeviceGet{kind}InstanceId", number) for kind in ("Gpu", "Compute")]
        if None in ids:
            continue
        uuid = str(of_instance("nvmlDeviceGetUUID", number) or "")[:TEXT_CHARS_MAX]
        name = str(of_instance("nvmlDeviceGetName", number) or "")[:TEXT_CHARS_MAX]
        found.append(MigInstance(handle, int(ids[0]), int(ids[1]), uuid, profile_of(name)))
    return found


def _mig(calls: NvmlCalls, gpu: SampledGpu, instance: MigInstance) -> Iterator[Value]:
    yield "mig_info", (*instance.labels, instance.uuid, instance.profile), 1
    memory = calls.read_instance(gpu, instance.handle, "nvmlDeviceGetMemoryInfo", instance.uuid)
    if memory is not None:
        yield "mig_memory_size_bytes", instance.labels, memory.total
        yield "mig_memory_used_bytes", instance.labels, memory.used


# The group "slow": a GPU's identity and set-up, which only an operator changes.

THRESHOLDS: Final = (  # NVML_TEMPERATURE_THRESHOLD_*
    (0, "temperature_shutdown_celsius"),
    (1, "temperature_slowdown_celsius"),
    (2, "memory_temperature_max_celsius"),
    (3, "temperature_max_celsius"),
)
# behind version and InfiniBand GUID: chassis serial, slot, tray, host, kind of peer, module
_PLATFORM: Final = Struct("<20x16s5B")


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
