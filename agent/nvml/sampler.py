"""Reads GPUs through NVML. Runs in the collector child: any call may block for ever.

Three answers of the driver are never merged: a value; not supported by this card or driver (the
call is left out from then on and its value is absent); an error (counted, the value is absent
this time). A GPU that is lost is read no further.

`nvml` is the module pynvml, or what a test puts in its place.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

from agent.nvml import fields
from agent.nvml.child_protocol import CallPage
from agent.nvml.driver_call import NO_GPU
from agent.nvml.mig import INSTANCES_MAX, MigInstance, profile_of
from agent.nvml.profiling import Profile

PERIOD_S_BY_GROUP: Final = {  # "fast" has the interval of the collector
    "processes": 3.0,  # a restarted rank is found on its GPU after so long
    "activity": 10.0,  # means over that time: how busy the units of the GPU are
    "medium": 10.0,  # errors and links: about 200 values a GPU
    "slow": 60.0,  # what only an operator changes
}
PROCESSES_MAX: Final = 256  # a GPU; more are not listed
UNSUPPORTED_S: Final = 3600.0  # then asked again: a driver can learn
CLOCK_KINDS: Final = ("graphics", "sm", "memory", "video")  # NVML_CLOCK_*
THRESHOLDS: Final = (  # NVML_TEMPERATURE_THRESHOLD_*
    (0, "temperature_shutdown_celsius"),
    (1, "temperature_slowdown_celsius"),
    (2, "memory_temperature_max_celsius"),
    (3, "temperature_max_celsius"),
)
_ENGINES: Final = {"Encoder": "encoder", "Decoder": "decoder", "Jpg": "jpeg", "Ofa": "optical_flow"}
_KILO: Final = 1000.0
_MHZ: Final = 1e6
_SRAM: Final = 7  # NVML_MEMORY_LOCATION_SRAM
TEXT_CHARS_MAX: Final = 96

Key = tuple[Any, ...]  # a call with its arguments, or a field with its scope
Value = tuple[str, tuple[str, ...], float]  # metric without rankmend_gpu_, labels, value


class GpuLostError(Exception):
    """The GPU does not answer any more."""


class NvmlGoneError(Exception):
    """NVML as a whole does not answer any more: begin anew."""


class GpuProcess(NamedTuple):
    pid: int
    memory_bytes: int | None


class GpuIdentity(NamedTuple):
    uuid: str
    pci_bus_id: str  # as sysfs writes it: 0000:1b:00.0


class Batch:
    """Some fields of one GPU, read with one call and unpacked at once.

    A kept array and one unpack cost 5 us for 111 fields; reading `value.ullVal` of each 104 us.
    """

    def __init__(self, nvml: Any, wanted: list[tuple[fields.Field, int]]) -> None:
        self.wanted = wanted
        self._array = (nvml.c_nvmlFieldValue_t * len(wanted))()
        for place, (field, scope) in enumerate(wanted):
            self._array[place].fieldId = field.id
            self._array[place].scopeId = scope
        self._layout = Struct("<" + fields.VALUE.format[1:] * len(wanted))
        self._size = ctypes.c_int(len(wanted))
        assert ctypes.sizeof(self._array) == self._layout.size, "nvmlFieldValue_t has changed"

    def read(self, get_field_values: Callable[..., int], handle: Any) -> int:
        """Fill the array; return NVML's code."""
        return int(get_field_values(handle, self._size, ctypes.byref(self._array)))

    def values(self) -> Iterator[tuple[fields.Field, int, int, int, bytes]]:
        """Return field, scope, code, type and bytes of each."""
        flat = self._layout.unpack(bytes(self._array))
        for place, (field, scope) in enumerate(self.wanted):
            value_type, code, raw = flat[7 * place + 4 : 7 * place + 7]
            yield field, scope, code, value_type, raw


class SampledGpu:
    """What the sampler remembers of one GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle: Any = None
        self.identity = GpuIdentity("", "")
        self.is_lost = False
        self.needs_reset = False
        self.error_count = 0  # since the last report
        self.last_error = ""
        self.unsupported_since_s: dict[Key, float] = {}
        self.batches: dict[str, Batch | None] = {}
        self.link_count = 0
        self.tlimit: float | None = None  # the margin at which it slows down
        self.tlimit_due_at_s = float("-inf")
        self.reasons_at_s: float | None = None
        self.seconds: dict[str, float] = {}  # since the last report
        self.profiles: dict[int | None, Profile] = {}  # by GPU instance; None: the whole GPU


class GpuSampler:
    """Reads all GPUs of the node, group by group."""

    def __init__(
        self,
        nvml: Any,
        page: CallPage,
        now_s: Callable[[], float] = time.monotonic,
        *,
        has_profiling: bool = True,
    ) -> None:
        """``has_profiling``: read GPM, whose counters a profiler may want for itself."""
        self._has_profiling = has_profiling
        self._nvml = nvml
        self._page = page
        self._now_s = now_s
        self._unsupported_codes = {
            nvml.NVML_ERROR_INVALID_ARGUMENT,  # a field or a link that this driver doesn't know
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            nvml.NVML_ERROR_DEPRECATED,
        }
        self._passing_codes = {  # no value now, and nothing wrong
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_NO_DATA,
            nvml.NVML_ERROR_NOT_READY,
        }
        self._lost_codes = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND}
        self._gone_codes = {
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        }
        self.driver = ""
        self.cuda = ""
        self.nvml_version = ""
        self.driver_major = 0
        self.count = 0  # GPUs that the driver lists, with those that are left out
        self.gpus: list[SampledGpu] = []
        self._event_set: Any = None
        self.event_mask = 0  # union over all GPUs

    # ---- beginning and end

    def open(self, skipped: frozenset[int]) -> None:
        """Take up NVML and all GPUs but ``skipped``. Raises pynvml's NVMLError."""
        self._plain("nvmlInitWithFlags", 0)
        self.driver = str(self._plain("nvmlSystemGetDriverVersion"))
        self.nvml_version = str(self._quiet("nvmlSystemGetNVMLVersion") or "")
        cuda = self._quiet("nvmlSystemGetCudaDriverVersion")
        self.cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        major = self.driver.partition(".")[0]
        self.driver_major = int(major) if major.isdigit() else 0
        self.count = int(self._plain("nvmlDeviceGetCount"))
        self.gpus = [self._open_gpu(i) for i in range(self.count) if i not in skipped]
        self._open_events()

    def close(self) -> None:
        """Let go of the GPUs, as far as NVML lets us."""
        if self._event_set is not None:
            self._quiet("nvmlEventSetFree", self._event_set)
            self._event_set = None
        for gpu in self.gpus:
            for instance in list(gpu.profiles):
                self._close_profile(gpu, instance)
        self._quiet("nvmlShutdown")

    def _open_gpu(self, index: int) -> SampledGpu:
        gpu = SampledGpu(index)
        self.reopen(gpu)
        return gpu

    def reopen(self, gpu: SampledGpu) -> None:
        """Take up a GPU. One that can't be taken up is lost, and keeps the identity it had."""
        try:
            gpu.handle = self._in_call("nvmlDeviceGetHandleByIndex", gpu.index, gpu.index)
            pci = self._in_call("nvmlDeviceGetPciInfo_v3", gpu.index, gpu.handle)
            uuid = self._in_call("nvmlDeviceGetUUID", gpu.index, gpu.handle)
        except self._nvml.NVMLError as error:
            gpu.is_lost = True
            gpu.last_error = f"cannot be opened: {error}"[:TEXT_CHARS_MAX]
            return
        bus_id = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        gpu.is_lost, gpu.identity = False, GpuIdentity(str(uuid), bus_id)

    def _open_events(self) -> None:
        self._event_set = self._quiet("nvmlEventSetCreate")
        if self._event_set is None:
            return
        known = sum(fields.EVENT_TYPES)
        for gpu in self.gpus:
            if gpu.is_lost:
                continue
            supported = self._read(gpu, "nvmlDeviceGetSupportedEventTypes")
            mask = (supported or 0) & known
            try:
                if mask:
                    self._in_call(
                        "nvmlDeviceRegisterEvents", gpu.index, gpu.handle, mask, self._event_set
                    )
                    self.event_mask |= mask
            except self._nvml.NVMLError as error:
                gpu.last_error = f"no events: {error}"[:TEXT_CHARS_MAX]
        if not self.event_mask:
            self._quiet("nvmlEventSetFree", self._event_set)
            self._event_set = None

    # ---- events

    def wait_event(self, timeout_s: float) -> tuple[int, str, int] | None:
        """Wait for an event; return GPU index, type and code, or None when there was none.

        Sleeps where no GPU can report events.
        """
        if self._event_set is None:
            time.sleep(timeout_s)
            return None
        name = "nvmlEventSetWait_v2"
        try:
            data = self._in_call(name, NO_GPU, self._event_set, int(timeout_s * 1000))
        except self._nvml.NVMLError as error:
            if error.value in self._gone_codes:
                raise NvmlGoneError(f"{name}: {error}") from error
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                time.sleep(timeout_s)  # for example the lost GPU: do not spin
            return None
        address = ctypes.cast(data.device, ctypes.c_void_p).value
        for gpu in self.gpus:
            if ctypes.cast(gpu.handle, ctypes.c_void_p).value == address:
                kind = fields.EVENT_TYPES.get(data.eventType)
                if kind is None:
                    return None
                return gpu.index, kind, int(data.eventData) if data.eventType == fields.XID else 0
        return None

    # ---- reading

    def sample(self, gpu: SampledGpu, group: str) -> list[Value]:
        """Return the values of one group, or raise GpuLostError."""
        read = {
            "fast": self._fast,
            "processes": lambda _gpu: iter(()),
            "activity": self._activity,
            "medium": self._medium,
            "slow": self._slow,
        }[group]
        found: dict[tuple[str, tuple[str, ...]], float] = {}
        for name, labels, value in read(gpu):
            found.setdefault((name, labels), value)  # the first of two sources wins
        return [(name, labels, value) for (name, labels), value in found.items()]

    def processes(self, gpu: SampledGpu) -> list[GpuProcess] | None:
        """Return who has a compute context on the GPU, or None where it can't be said."""
        listed = self._read(gpu, "nvmlDeviceGetComputeRunningProcesses")
        if listed is None:
            return None
        memory_by_pid: dict[int, int | None] = {}
        for process in listed:  # one entry for each MIG instance
            before = memory_by_pid.get(process.pid)
            used = process.usedGpuMemory
            if before is not None or used is not None:
                used = (before or 0) + (used or 0)
            memory_by_pid[process.pid] = used
        return [GpuProcess(pid, used) for pid, used in memory_by_pid.items()][:PROCESSES_MAX]

    def _fast(self, gpu: SampledGpu) -> Iterator[Value]:
        self._add_reasons(gpu)
        temperature = self._read(gpu, "nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
        yield from _one("temperature_celsius", temperature)
        yield from self._margins(gpu, temperature)
        yield from self._fields(gpu, "fast", [(field, 0) for field in fields.FAST])
        if self._is_unsupported(gpu, (186, 0)):  # the power at this moment; else an average
            milliwatts = self._read(gpu, "nvmlDeviceGetPowerUsage")
            yield from _one("power_watts", milliwatts, 1 / _KILO)
        for number, kind in enumerate(CLOCK_KINDS):
            mhz = self._read(gpu, "nvmlDeviceGetClockInfo", number)
            yield from _one("clock_hertz", mhz, _MHZ, kind)
        used = self._read(gpu, "nvmlDeviceGetUtilizationRates")
        if used is not None:
            yield "utilization_ratio", (), used.gpu / 100
            yield "memory_utilization_ratio", (), used.memory / 100
        memory = self._read(gpu, "nvmlDeviceGetMemoryInfo", self._nvml.nvmlMemory_v2)
        if memory is not None:
            yield "memory_reserved_bytes", (), memory.reserved
        else:
            memory = self._read(gpu, "nvmlDeviceGetMemoryInfo")
        if memory is not None:
            yield "memory_size_bytes", (), memory.total
            yield "memory_used_bytes", (), memory.used
        yield from _one("performance_state_id", self._read(gpu, "nvmlDeviceGetPerformanceState"))
        yield from _one("fan_ratio", self._read(gpu, "nvmlDeviceGetFanSpeed"), 0.01)

    def _margins(self, gpu: SampledGpu, temperature: int | None) -> Iterator[Value]:
        """Return the distance to the slowdown, by the driver's margin or else by the threshold."""
        margin = self._read(gpu, "nvmlDeviceGetMarginTemperature")
        if margin is not None:
            yield "temperature_margin_celsius", (), margin
            now_s = self._now_s()
            if now_s >= gpu.tlimit_due_at_s:  # it stays as it is for as long as the VBIOS does
                gpu.tlimit_due_at_s = now_s + PERIOD_S_BY_GROUP["slow"]
                gpu.tlimit = self._field(gpu, fields.SLOWDOWN_TLIMIT)
            limit = gpu.tlimit
            yield from _one("slowdown_margin_celsius", None if limit is None else margin - limit)
        elif temperature is not None:
            limit = self._read(gpu, "nvmlDeviceGetTemperatureThreshold", 1)
            if limit is not None:
                yield "slowdown_margin_celsius", (), limit - temperature

    def _add_reasons(self, gpu: SampledGpu) -> None:
        """Add the time since the last sample to each reason that holds now."""
        reasons = self._read(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before R535
            reasons = self._read(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is None:
            gpu.reasons_at_s = None
            return
        now_s = self._now_s()
        since_s = 0.0 if gpu.reasons_at_s is None else now_s - gpu.reasons_at_s
        gpu.reasons_at_s = now_s
        for bit, reason in enumerate(fields.CLOCKS_EVENT_REASONS):
            held_s = since_s if reasons >> bit & 1 else 0.0
            gpu.seconds[reason] = gpu.seconds.get(reason, 0.0) + held_s

    def _activity(self, gpu: SampledGpu) -> Iterator[Value]:
        for unit in ("Encoder", "Decoder", "Jpg", "Ofa"):
            used = self._read(gpu, f"nvmlDeviceGet{unit}Utilization")
            if used is not None:
                yield "engine_utilization_ratio", (_ENGINES[unit],), used[0] / 100
        instances = self._mig_instances(gpu)
        for instance in instances:
            yield from self._mig(gpu, instance)
        if not self._has_profiling:
            return
        if not instances:
            yield from self._profile(gpu, None)
        numbers = {instance.gpu_instance for instance in instances}
        for number in [one for one in gpu.profiles if one is not None and one not in numbers]:
            self._close_profile(gpu, number)
        for number in sorted(numbers):
            for name, labels, value in self._profile(gpu, number):
                yield f"mig_{name}", (str(number), *labels), value

    def _close_profile(self, gpu: SampledGpu, instance: int | None) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            gpu.profiles.pop(instance).close()

    def _profile(self, gpu: SampledGpu, instance: int | None) -> Iterator[Value]:
        """Return how busy the units of a GPU, or of one of its instances, have been."""
        support = self._read(gpu, "nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return
        profile = gpu.profiles.get(instance)
        if profile is None:
            call = partial(self._call_about, gpu)
            profile = gpu.profiles[instance] = Profile(self._nvml, call)

        def take(sample: Any) -> None:
            if instance is None:
                self._in_call("nvmlGpmSampleGet", gpu.index, gpu.handle, sample)
            else:
                name = "nvmlGpmMigSampleGet"
                self._in_call(name, gpu.index, gpu.handle, instance, sample)

        read = self._attempt(gpu, ("gpm", instance), lambda: list(profile.read(take)))
        yield from read or ()

    def _mig_instances(self, gpu: SampledGpu) -> list[MigInstance]:
        mode = self._read(gpu, "nvmlDeviceGetMigMode")
        if mode is None or not mode[0]:
            return []
        count = self._read(gpu, "nvmlDeviceGetMaxMigDeviceCount") or 0
        found = []
        for number in range(min(count, INSTANCES_MAX)):
            handle = self._read(gpu, "nvmlDeviceGetMigDeviceHandleByIndex", number)
            if handle is None:
                continue
            of_instance = partial(self._read_instance, gpu, handle)
            ids = [
                of_instance(f"nvmlDeviceGet{kind}InstanceId", number) for kind in ("Gpu", "Compute")
            ]
            if None in ids:
                continue
            uuid = str(of_instance("nvmlDeviceGetUUID", number) or "")[:TEXT_CHARS_MAX]
            name = str(of_instance("nvmlDeviceGetName", number) or "")[:TEXT_CHARS_MAX]
            found.append(MigInstance(handle, int(ids[0]), int(ids[1]), uuid, profile_of(name)))
        return found

    def _mig(self, gpu: SampledGpu, instance: MigInstance) -> Iterator[Value]:
        yield "mig_info", (*instance.labels, instance.uuid, instance.profile), 1
        memory = self._read_instance(gpu, instance.handle, "nvmlDeviceGetMemoryInfo", instance.uuid)
        if memory is not None:
            yield "mig_memory_size_bytes", instance.labels, memory.total
            yield "mig_memory_used_bytes", instance.labels, memory.used

    def _read_instance(self, gpu: SampledGpu, handle: Any, name: str, known_as: Any) -> Any:
        """Return what a call about an instance of a GPU answers, or None where it has no answer."""
        call = partial(self._in_call, name, gpu.index, handle)
        return self._attempt(gpu, (name, "instance", known_as), call)

    def _call_about(self, gpu: SampledGpu, name: str, *arguments: Any) -> Any:
        return self._in_call(name, gpu.index, *arguments)

    def _medium(self, gpu: SampledGpu) -> Iterator[Value]:
        yield from self._fields(gpu, "medium", [(field, 0) for field in fields.MEDIUM])
        for number, kind in enumerate(("corrected", "uncorrected")):
            for counter_number, counter in enumerate(("volatile", "aggregate")):
                errors = self._read(
                    gpu, "nvmlDeviceGetMemoryErrorCounter", number, counter_number, _SRAM
                )
                yield from _one("ecc_place_errors_total", errors, 1, kind, counter, "sram")
        banks = self._read(gpu, "nvmlDeviceGetRowRemapperHistogram")
        if banks is not None:
            for spare in ("max", "high", "partial", "low", "none"):
                yield "remap_banks", (spare,), getattr(banks, spare)
        for call, name in (
            ("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_generation"),
            ("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_generation_max"),
            ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width_lanes"),
            ("nvmlDeviceGetMaxPcieLinkWidth", "pcie_width_max_lanes"),
        ):
            yield from _one(name, self._read(gpu, call))
        repair = self._read(gpu, "nvmlDeviceGetRepairStatus")
        if repair is not None:
            yield "repair_pending", ("channel",), repair[0]
            yield "repair_pending", ("tpc",), repair[1]
        yield from self._links(gpu)
        yield from self._fabric(gpu)

    def _links(self, gpu: SampledGpu) -> Iterator[Value]:
        count = self._field(gpu, fields.LINK_COUNT)
        links_max = int(count) if count is not None else self._nvml.NVML_NVLINK_MAX_LINKS
        states: list[int] = []
        for link in range(min(links_max, self._nvml.NVML_NVLINK_MAX_LINKS)):
            is_up = self._read(gpu, "nvmlDeviceGetNvLinkState", link)
            if is_up is None and count is None:
                break  # there are no more
            if is_up is not None:
                states.append(link)
                yield "nvlink_up", (str(link),), is_up
        gpu.link_count = len(states)
        if not states:
            return
        wanted = [(field, link) for link in states for field in fields.LINK]
        yield from self._fields(gpu, "links", wanted, is_scoped=True)
        if self._is_unsupported(gpu, (161, states[0])):
            for link in states:
                for number, kind in enumerate(fields.LINK_ERROR_COUNTERS):
                    errors = self._read(gpu, "nvmlDeviceGetNvLinkErrorCounter", link, number)
                    yield from _one("nvlink_errors_total", errors, 1, str(link), kind)

    def _fabric(self, gpu: SampledGpu) -> Iterator[Value]:
        nvml = self._nvml
        for info in (nvml.c_nvmlGpuFabricInfo_v3_t(), nvml.c_nvmlGpuFabricInfo_v2_t()):
            known_as = ("nvmlDeviceGetGpuFabricInfoV", info.version)
            call = partial(self._in_call, known_as[0], gpu.index, gpu.handle, ctypes.byref(info))
            if self._attempt(gpu, known_as, call) is not None:
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

    def _slow(self, gpu: SampledGpu) -> Iterator[Value]:
        names = (
            "nvmlDeviceGetName",
            "nvmlDeviceGetSerial",
            "nvmlDeviceGetVbiosVersion",
            "nvmlDeviceGetInforomImageVersion",
            "nvmlDeviceGetBoardPartNumber",
        )
        minor = self._read(gpu, "nvmlDeviceGetMinorNumber")
        texts = [str(self._read(gpu, name) or "")[:TEXT_CHARS_MAX] for name in names]
        device = "" if minor is None else f"nvidia{minor}"
        yield "info", (*texts, device, self.driver, self.cuda), 1
        yield from _one("persistence_enabled", self._read(gpu, "nvmlDeviceGetPersistenceMode"))
        mig = self._read(gpu, "nvmlDeviceGetMigMode")
        if mig is not None:
            yield "mig_enabled", (), mig[0]
            yield "mig_pending_enabled", (), mig[1]
        limit = self._read(gpu, "nvmlDeviceGetEnforcedPowerLimit")
        yield from _one("power_limit_watts", limit, 1 / _KILO)
        yield from self._fields(gpu, "slow", [(field, 0) for field in fields.SLOW])
        for number, name in THRESHOLDS:
            yield from _one(name, self._read(gpu, "nvmlDeviceGetTemperatureThreshold", number))
        for number, kind in enumerate(CLOCK_KINDS):
            mhz = self._read(gpu, "nvmlDeviceGetMaxClockInfo", number)
            yield from _one("clock_max_hertz", mhz, _MHZ, kind)
            mhz = self._read(gpu, "nvmlDeviceGetApplicationsClock", number)
            yield from _one("clock_application_hertz", mhz, _MHZ, kind)
        yield from self._throughput(gpu)

    def _throughput(self, gpu: SampledGpu) -> Iterator[Value]:
        """Sample PCIe throughput where the card does not count bytes: 20 ms a call."""
        if not self._is_unsupported(gpu, (197, 0)):
            return
        for number, name in enumerate(
            ("pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second")
        ):
            kilobytes = self._read(gpu, "nvmlDeviceGetPcieThroughput", number)
            yield from _one(name, kilobytes, _KILO)

    # ---- fields

    def _field(self, gpu: SampledGpu, field: fields.Field) -> float | None:
        """Return one field that is no metric of its own."""
        for _name, _labels, value in self._fields(gpu, field.name, [(field, 0)]):
            return value
        return None

    def _fields(
        self,
        gpu: SampledGpu,
        key: str,
        wanted: list[tuple[fields.Field, int]],
        is_scoped: bool = False,
    ) -> Iterator[Value]:
        """Read fields in one call; those that this GPU doesn't have are left out from then on."""
        if key not in gpu.batches:
            usable = [
                (field, scope)
                for field, scope in wanted
                if self.driver_major >= field.driver_min
                and not self._is_unsupported(gpu, (field.id, scope))
            ]
            gpu.batches[key] = Batch(self._nvml, usable) if usable else None
        batch = gpu.batches[key]
        if batch is None:
            return
        known_as = ("nvmlDeviceGetFieldValues", key)
        if self._attempt(gpu, known_as, partial(self._read_batch, gpu, batch)) is None:
            if self._is_unsupported(gpu, known_as):  # then none of its fields is
                for field, scope in batch.wanted:
                    gpu.unsupported_since_s[field.id, scope] = self._now_s()
            return
        has_learned = False
        for field, scope, code, value_type, raw in batch.values():
            if code in self._unsupported_codes:
                gpu.unsupported_since_s[field.id, scope] = self._now_s()
                has_learned = True
                continue
            if code != self._nvml.NVML_SUCCESS:
                self._note(gpu, f"field {field.id}", code)
                continue
            value = fields.decode_value(value_type, raw, field.is_signed)
            if value is None or (field.is_never_zero and value == 0):
                continue
            labels = (str(scope), *field.labels) if is_scoped else field.labels
            yield field.name, labels, value * field.scale
        if has_learned:
            del gpu.batches[key]

    # ---- calls

    def _read(self, gpu: SampledGpu, name: str, *arguments: Any) -> Any:
        """Return what a call about a GPU answers, or None where it has no answer."""
        call = partial(self._in_call, name, gpu.index, gpu.handle, *arguments)
        return self._attempt(gpu, (name, *arguments), call)

    def _attempt(self, gpu: SampledGpu, known_as: Key, call: Callable[[], Any]) -> Any:
        if self._is_unsupported(gpu, known_as):
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            if error.value in self._unsupported_codes:
                gpu.unsupported_since_s[known_as] = self._now_s()
            else:
                self._note(gpu, str(known_as[0]), error.value)
            return None

    def _read_batch(self, gpu: SampledGpu, batch: Batch) -> bool:
        get = self._nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
        self._page.begin(b"nvmlDeviceGetFieldValues", gpu.index, self._now_s())
        try:
            code = batch.read(get, gpu.handle)
        finally:
            self._page.end()
        if code != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(code)
        return True

    def _note(self, gpu: SampledGpu, what: str, code: int) -> None:
        """Take note of an error, or raise where it is the end of the GPU or of NVML."""
        if code in self._lost_codes:
            raise GpuLostError(f"{what}: {code}")
        if code in self._gone_codes:
            raise NvmlGoneError(f"{what}: {code}")
        if code == self._nvml.NVML_ERROR_RESET_REQUIRED:
            gpu.needs_reset = True
        elif code not in self._passing_codes:
            gpu.error_count += 1
            gpu.last_error = f"{what}: NVML error {code}"

    def _is_unsupported(self, gpu: SampledGpu, key: Key) -> bool:
        since_s = gpu.unsupported_since_s.get(key)
        if since_s is None:
            return False
        if self._now_s() - since_s < UNSUPPORTED_S:
            return True
        del gpu.unsupported_since_s[key]
        gpu.batches.clear()  # made again with what is to be asked again
        return False

    def _plain(self, name: str, *arguments: Any) -> Any:
        return self._in_call(name, NO_GPU, *arguments)

    def _quiet(self, name: str, *arguments: Any) -> Any:
        try:
            return self._plain(name, *arguments)
        except self._nvml.NVMLError:
            return None

    def _in_call(self, name: str, gpu: int, *arguments: Any) -> Any:
        """Call pynvml, with the call on the page for as long as it takes."""
        self._page.begin(name.encode(), gpu, self._now_s())
        try:
            return getattr(self._nvml, name)(*arguments)
        finally:
            self._page.end()


def _one(name: str, value: float | None, scale: float = 1.0, *labels: str) -> Iterator[Value]:
    """Return a value where there is one."""
    if value is not None:
        yield name, labels, value * scale
