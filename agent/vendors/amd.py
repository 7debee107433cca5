"""AMD GPUs, through AMD's own library. Unproved on hardware: written by its documentation.

Source: amdsmi (rocm.docs.amd.com/projects/amdsmi, Python API; read against the package 7.0.2).
Cost:   one call a reading in the agent's own process: a call that hangs in the driver leaves the
        collector stale, and nothing else; the process can't end before the driver lets go.

A reading that a GPU does not support is absent, never zero. Units by the documentation: percent, W
(the cap uW), MB of 2^20 bytes, uJ, and degrees Celsius, before ROCm 7 thousandths of them.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from agent.metrics import Family, Metric, MetricType
from agent.plugins import PluginContext
from rankmend.errors import NoSourceError, SourceError

GPUS_MAX: Final = 64
TEMPERATURE_NONE_CELSIUS: Final = 511  # 9 bits of ones: no sensor (ROCm/legacy-rocm-build#426)
TEMPERATURE_CELSIUS_MAX: Final = 1000  # above it is thousandths: nothing there melts so late
# AMDSMI_STATUS_ of amdsmi.h: NOT_SUPPORTED, NOT_YET_IMPLEMENTED, NO_DATA
_ABSENT_CODES: Final = frozenset({2, 3, 40})
_MIB: Final = 1 << 20
_GPU: Final = ("gpu", "uuid", "pci_bus_id")
_SENSORS: Final = ("EDGE", "HOTSPOT", "VRAM")
_THROTTLES: Final = {  # key of amdsmi_get_violation_status to the reason
    "active_prochot_thrm": "prochot",
    "active_ppt_pwr": "power",
    "active_socket_thrm": "socket_thermal",
    "active_vr_thrm": "regulator_thermal",
    "active_hbm_thrm": "memory_thermal",
}
_PAGE_STATES: Final = ("reserved", "pending", "unreservable")  # AmdSmiMemoryPageStatus 0, 1, 2

Labels = tuple[tuple[str, str], ...]
Values = Iterator[tuple[str, float | None, Labels]]  # None: the GPU does not have it


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(f"rankmend_amd_{name}", MetricType.GAUGE, unit, (*_GPU, *labels), text)


def _counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    name = f"rankmend_amd_{name}_total"
    return Family(name, MetricType.COUNTER, unit, (*_GPU, *labels), text)


class AmdCollector:
    """The plugin `amd`."""

    name = "amd"
    interval_s = 10.0
    is_proved_on_hardware = False
    families = (
        _gauge("info", "", ("model", "serial", "driver", "vbios"), "What the GPU is; always 1."),
        _gauge("success", "", (), "1 when at least one reading of the GPU succeeded, 0 when none."),
        _gauge(
            "reading_success",
            "",
            ("reading",),
            "1 when the reading succeeded, 0 when the library refused it; no series when the GPU does not support it.",
        ),
        _gauge(
            "busy_ratio", "ratio", ("engine",), "Share of time in use: gfx, memory, multimedia."
        ),
        _gauge("memory_size_bytes", "bytes", (), "Memory of the GPU."),
        _gauge("memory_used_bytes", "bytes", (), "Memory in use."),
        _gauge(
            "temperature_celsius", "celsius", ("sensor",), "Temperature: edge, hotspot or vram."
        ),
        _gauge(
            "temperature_critical_celsius", "celsius", ("sensor",), "The sensor's critical limit."
        ),
        _gauge("power_watts", "watts", (), "Power of the socket."),
        _gauge("power_cap_watts", "watts", (), "The power cap in force."),
        _counter("energy_joules", "joules", (), "Energy used since the GPU's last reset."),
        _gauge("throttled", "", ("reason",), "1 while this reason holds the clocks down."),
        _counter("ecc_errors", "", ("kind",), "ECC errors: correctable, uncorrectable, deferred."),
        _gauge("bad_pages", "", ("state",), "Bad memory pages: reserved, pending or unreservable."),
        _gauge("pcie_width", "", (), "PCIe lanes in use."),
        _gauge("pcie_width_max", "", (), "PCIe lanes that the link supports."),
        _counter("pcie_replays", "", (), "Replayed PCIe packets."),
    )

    def __init__(
        self, context: PluginContext, import_library: Callable[[], Any] | None = None
    ) -> None:
        if context.settings:
            raise SourceError(f"[plugins.amd] has no {', '.join(context.settings)}")
        if not context.is_live:
            raise NoSourceError("AMD GPUs are not read with a recorded tree")
        if not (context.sysfs_root / "module" / "amdgpu").is_dir():
            raise NoSourceError(f"the driver amdgpu is not at {context.sysfs_root}/module")
        self._smi = (import_library or _import_library)()
        try:
            self._smi.amdsmi_init()
        except self._smi.AmdSmiException as error:
            raise SourceError(f"amdsmi_init failed: {_text_of(error)}") from error

    def collect(self) -> Iterator[Metric]:
        try:
            handles = self._smi.amdsmi_get_processor_handles()
        except self._smi.AmdSmiException as error:
            raise SourceError(f"the GPUs can't be listed: {_text_of(error)}") from error
        if not handles:
            raise NoSourceError("amdsmi lists no GPU")
        if len(handles) > GPUS_MAX:
            raise SourceError(f"amdsmi lists {len(handles)} GPUs, at most {GPUS_MAX}")
        for number, handle in enumerate(handles):
            yield from self._describe(number, handle)

    def stop(self) -> None:
        """Let go of the library."""
        with contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()

    def _describe(self, number: int, handle: Any) -> Iterator[Metric]:
        labels = (
            ("gpu", str(number)),
            ("uuid", self._text(self._smi.amdsmi_get_gpu_device_uuid, handle)),
            ("pci_bus_id", self._text(self._smi.amdsmi_get_gpu_device_bdf, handle).lower()),
        )
        succeeded = 0
        for reading in READINGS:
            name = reading.name
            try:
                values = [
                    (metric, value, about)
                    for metric, value, about in reading.read(self._smi, handle)
                    if value is not None
                ]
            except self._smi.AmdSmiException as error:
                if _code_of(error) in _ABSENT_CODES:
                    continue
                yield Metric("rankmend_amd_reading_success", 0, (*labels, ("reading", name)))
                continue
            except AttributeError:
                continue  # a function that this version of the library has not yet, or no more
            if not values:
                continue
            succeeded += 1
            yield Metric("rankmend_amd_reading_success", 1, (*labels, ("reading", name)))
            for metric, value, about in values:
                yield Metric(f"rankmend_amd_{metric}", value, (*labels, *about))
        yield Metric("rankmend_amd_success", int(succeeded > 0), labels)

    def _text(self, call: Callable[[Any], str], handle: Any) -> str:
        try:
            return str(call(handle))
        except self._smi.AmdSmiException:
            return ""  # a GPU that is going; its readings say so


def _import_library() -> Any:
    """Return amdsmi. Where its C library is missing, the import prints so, and fails anyhow."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the page of --once
            import amdsmi  # noqa: PLC0415 - not a dependency: only nodes with AMD GPUs have it
    except ImportError as error:
        raise NoSourceError(f"the package amdsmi is not installed: {error}") from error
    except (OSError, KeyError, AttributeError) as error:
        raise NoSourceError(f"amdsmi finds no libamd_smi.so: {error!r}") from error
    return amdsmi


def _code_of(error: BaseException) -> int | None:
    code = getattr(error, "err_code", None)
    return code if isinstance(code, int) else None


def _text_of(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _number(value: object) -> float | None:
    """Return a number, or None for what the library writes where there is none ("N/A")."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _scaled(value: object, factor: float) -> float | None:
    number = _number(value)
    return None if number is None else number * factor


def _info(smi: Any, handle: Any) -> Values:
    asic = smi.amdsmi_get_gpu_asic_info(handle)
    driver = smi.amdsmi_get_gpu_driver_info(handle)
    vbios = smi.amdsmi_get_gpu_vbios_info(handle)
    about = (
        ("model", str(asic.get("market_name", ""))),
        ("serial", str(asic.get("asic_serial", ""))),
        ("driver", str(driver.get("driver_version", ""))),
        ("vbios", str(vbios.get("version", ""))),
    )
    yield "info", 1, about


def _activity(smi: Any, handle: Any) -> Values:
    busy = smi.amdsmi_get_gpu_activity(handle)
    for key, engine in (("gfx", "gfx"), ("umc", "memory"), ("mm", "multimedia")):
        percent = busy.get(f"{key}_activity")
        yield "busy_ratio", _scaled(percent, 0.01), (("engine", engine),)


def _memory(smi: Any, handle: Any) -> Values:
    memory = smi.amdsmi_get_gpu_vram_usage(handle)
    yield "memory_size_bytes", _scaled(memory.get("vram_total"), _MIB), ()
    yield "memory_used_bytes", _scaled(memory.get("vram_used"), _MIB), ()


def _temperature(sensor: str, metric: str, name: str) -> Callable[[Any, Any], Values]:
    def read(smi: Any, handle: Any) -> Values:
        kind = getattr(smi.AmdSmiTemperatureType, sensor)
        which = getattr(smi.AmdSmiTemperatureMetric, metric)
        value = _number(smi.amdsmi_get_temp_metric(handle, kind, which))
        if value is not None and abs(value) > TEMPERATURE_CELSIUS_MAX:
            value = value / 1000
        if value is not None and value >= TEMPERATURE_NONE_CELSIUS:
            value = None
        yield name, value, (("sensor", sensor.lower()),)

    return read


def _power(smi: Any, handle: Any) -> Values:
    power = smi.amdsmi_get_power_info(handle)
    # MI300 gives the current and later, older ones the average; what is not there is N/A or 0
    keys = ("current_socket_power", "socket_power", "average_socket_power")
    found = [number for key in keys if (number := _number(power.get(key)))]
    yield "power_watts", found[0] if found else None, ()


def _power_cap(smi: Any, handle: Any) -> Values:
    yield (
        "power_cap_watts",
        _scaled(smi.amdsmi_get_power_cap_info(handle).get("power_cap"), 1e-6),
        (),
    )


def _energy(smi: Any, handle: Any) -> Values:
    energy = smi.amdsmi_get_energy_count(handle)
    count = _number(energy.get("energy_accumulator", energy.get("power")))
    if count is not None:  # its unit is that of the resolution, in uJ
        joules = _scaled(energy.get("counter_resolution"), 1e-6 * count)
        yield "energy_joules_total", joules, ()


def _throttle(smi: Any, handle: Any) -> Values:
    status = smi.amdsmi_get_violation_status(handle)
    for key, reason in _THROTTLES.items():
        active = status.get(key)
        if isinstance(active, bool) or active in (0, 1):
            yield "throttled", int(active), (("reason", reason),)


def _ecc(smi: Any, handle: Any) -> Values:
    errors = smi.amdsmi_get_gpu_total_ecc_count(handle)
    for kind in ("correctable", "uncorrectable", "deferred"):
        yield "ecc_errors_total", _number(errors.get(f"{kind}_count")), (("kind", kind),)


def _bad_pages(smi: Any, handle: Any) -> Values:
    states = [int(page["status"]) for page in smi.amdsmi_get_gpu_bad_page_info(handle)]
    for number, state in enumerate(_PAGE_STATES):
        yield "bad_pages", states.count(number), (("state", state),)


def _pcie(smi: Any, handle: Any) -> Values:
    pcie = smi.amdsmi_get_pcie_info(handle)
    now, most = pcie.get("pcie_metric", {}), pcie.get("pcie_static", {})
    yield "pcie_width", _number(now.get("pcie_width")), ()
    yield "pcie_width_max", _number(most.get("max_pcie_width")), ()
    yield "pcie_replays_total", _number(now.get("pcie_replay_count")), ()


@dataclass(frozen=True, slots=True)
class AmdReading:
    name: str
    read: Callable[[Any, Any], Values]


READINGS: Final = (
    AmdReading("info", _info),
    AmdReading("activity", _activity),
    AmdReading("memory", _memory),
    *(
        AmdReading(
            f"temperature_{sensor.lower()}", _temperature(sensor, "CURRENT", "temperature_celsius")
        )
        for sensor in _SENSORS
    ),
    *(
        AmdReading(
            f"limit_{sensor.lower()}",
            _temperature(sensor, "CRITICAL", "temperature_critical_celsius"),
        )
        for sensor in _SENSORS
    ),
    AmdReading("power", _power),
    AmdReading("power_cap", _power_cap),
    AmdReading("energy", _energy),
    AmdReading("throttle", _throttle),
    AmdReading("ecc", _ecc),
    AmdReading("bad_pages", _bad_pages),
    AmdReading("pcie", _pcie),
)
