"""The same values asked a second way: pynvml's own functions, by the names of the agent's series.

The agent reads many values in batches of field values, with its own decoder; here each comes from a function of its own,
or as a single field that pynvml decodes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from agent.nvml import fields
from agent.nvml.groups import CLOCK_KINDS, THRESHOLDS
from bench.gpu.nvidia_smi import is_between

Query = Callable[[Any, Any], float]  # the module pynvml, a GPU's handle -> value in base units

# nvmlPerfPolicyType_t by the agent's reason
_POLICIES: Final = {
    **{"sw_power_cap": 0, "thermal": 1, "sync_boost": 2, "board_limit": 3, "low_utilization": 4},
    **{"reliability": 5, "application_clocks": 10, "base_clocks": 11},
}
# nvmlMemoryLocation_t
_PLACES: Final = {
    "l1": 0,
    "l2": 1,
    "dram": 2,
    "register_file": 3,
    "texture": 4,
    "cbu": 6,
    "sram": 7,
}
# what moves from one question to the next, in the series' unit; counters only grow, between the two questions
_RESOLUTION: Final = {
    **{"temperature_celsius": 1, "memory_temperature_celsius": 1, "temperature_margin_celsius": 1},
    **{"slowdown_margin_celsius": 1, "power_watts": 5, "utilization_ratio": 0.02},
    **{"memory_utilization_ratio": 0.02, "memory_used_bytes": 2 << 20, "clock_hertz": 15e6},
    **{"energy_joules_total": 0.001, "engine_utilization_ratio": 0.02},
    # The driver brings these counters up to date for fields and functions at different moments: 0.13 s apart on an H200.
    **{"clocks_limited_seconds_total": 0.5, "memory_reserved_bytes": 0},
}
_SHARE: Final = {"power_watts": 0.05, "clock_hertz": 0.02}
# on a sample of their own 20 ms, not comparable
SAMPLED: Final = frozenset({"pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second"})
COMPUTED: Final = frozenset({"pcie_replays_per_minute_max"})  # from other series


def field_query(field: fields.Field, scope: int = 0) -> Query:
    """Return the question for one field value, decoded by pynvml."""

    def ask(nvml: Any, handle: Any) -> float:
        wanted = (field.id, scope)
        value = nvml.nvmlDeviceGetFieldValues(handle, [wanted])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        return float(getattr(value.value, names[value.valueType])) * field.scale

    return ask


def _slowdown_margin(nvml: Any, handle: Any) -> float:
    """Return T.Limit less the T.Limit at which the GPU slows down, a signed number of 32 bits."""
    value = nvml.nvmlDeviceGetFieldValues(handle, [fields.SLOWDOWN_TLIMIT.id])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return float(nvml.nvmlDeviceGetMarginTemperature(handle) - value.value.siVal)


def _simple() -> Iterator[tuple[str, Query]]:
    yield "temperature_celsius", lambda n, h: n.nvmlDeviceGetTemperature(h, 0)
    yield "temperature_margin_celsius", lambda n, h: n.nvmlDeviceGetMarginTemperature(h)
    yield "slowdown_margin_celsius", _slowdown_margin
    yield "power_watts", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3
    yield "energy_joules_total", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3
    yield "power_limit_watts", lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3
    for place, end in enumerate(("min", "max")):
        yield (
            f"power_limit_{end}_watts",
            lambda n, h, p=place: n.nvmlDeviceGetPowerManagementLimitConstraints(h)[p] / 1e3,
        )
    yield (
        "power_limit_default_watts",
        lambda n, h: n.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1e3,
    )
    yield "performance_state_id", lambda n, h: n.nvmlDeviceGetPerformanceState(h)
    yield "utilization_ratio", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100
    yield "memory_utilization_ratio", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory / 100
    yield "memory_size_bytes", lambda n, h: n.nvmlDeviceGetMemoryInfo(h).total
    for part in ("used", "reserved"):
        yield (
            f"memory_{part}_bytes",
            lambda n, h, p=part: getattr(n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2), p),
        )
    yield "persistence_enabled", lambda n, h: n.nvmlDeviceGetPersistenceMode(h)
    for place, name in enumerate(("mig_enabled", "mig_pending_enabled")):
        yield name, lambda n, h, p=place: n.nvmlDeviceGetMigMode(h)[p]
    for place, name in enumerate(("ecc_enabled", "ecc_pending_enabled")):
        yield name, lambda n, h, p=place: n.nvmlDeviceGetEccMode(h)[p]
    for end, name in (("Curr", ""), ("Max", "_max")):
        yield (
            f"pcie_generation{name}",
            lambda n, h, e=end: getattr(n, f"nvmlDeviceGet{e}PcieLinkGeneration")(h),
        )
        yield (
            f"pcie_width{name}_lanes",
            lambda n, h, e=end: getattr(n, f"nvmlDeviceGet{e}PcieLinkWidth")(h),
        )
    yield "pcie_errors_total{replay}", lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h)
    for place, name in enumerate(
        (
            "remapped_rows_total{corrected}",
            "remapped_rows_total{uncorrected}",
            "remapped_rows_pending",
            "remapped_rows_failed",
        )
    ):
        yield name, lambda n, h, p=place: n.nvmlDeviceGetRemappedRows(h)[p]
    for spare in ("max", "high", "partial", "low", "none"):
        yield (
            f"remap_banks{{{spare}}}",
            lambda n, h, s=spare: getattr(n.nvmlDeviceGetRowRemapperHistogram(h), s),
        )
    for place, kind in enumerate(("channel", "tpc")):
        yield (
            f"repair_pending{{{kind}}}",
            lambda n, h, p=place: n.nvmlDeviceGetRepairStatus(h)[p],
        )
    yield "fan_ratio", lambda n, h: n.nvmlDeviceGetFanSpeed(h) / 100


def _numbered() -> Iterator[tuple[str, Query]]:
    for number, kind in enumerate(CLOCK_KINDS):
        for name, call in (
            ("clock_hertz", "nvmlDeviceGetClockInfo"),
            ("clock_max_hertz", "nvmlDeviceGetMaxClockInfo"),
            ("clock_application_hertz", "nvmlDeviceGetApplicationsClock"),
        ):
            yield (
                f"{name}{{{kind}}}",
                lambda n, h, c=call, k=number: getattr(n, c)(h, k) * 1e6,
            )
    for number, name in THRESHOLDS:
        yield name, lambda n, h, k=number: n.nvmlDeviceGetTemperatureThreshold(h, k)
    for unit, engine in (
        ("Encoder", "encoder"),
        ("Decoder", "decoder"),
        ("Jpg", "jpeg"),
        ("Ofa", "optical_flow"),
    ):
        yield (
            f"engine_utilization_ratio{{{engine}}}",
            lambda n, h, u=unit: getattr(n, f"nvmlDeviceGet{u}Utilization")(h)[0] / 100,
        )
    for reason, policy in _POLICIES.items():
        yield (
            f"clocks_limited_seconds_total{{{reason}}}",
            lambda n, h, p=policy: n.nvmlDeviceGetViolationStatus(h, p).violationTime / 1e9,
        )
    for number, kind in enumerate(("corrected", "uncorrected")):
        for counter_number, counter in enumerate(("volatile", "aggregate")):
            yield (
                f"ecc_errors_total{{{kind},{counter}}}",
                lambda n, h, k=number, c=counter_number: n.nvmlDeviceGetTotalEccErrors(h, k, c),
            )
            for place, location in _PLACES.items():
                yield (
                    f"ecc_place_errors_total{{{kind},{counter},{place}}}",
                    lambda n, h, k=number, c=counter_number, at=location: (
                        n.nvmlDeviceGetMemoryErrorCounter(h, k, c, at)
                    ),
                )


def _links(links_max: int) -> Iterator[tuple[str, Query]]:
    for link in range(links_max):
        yield f"nvlink_up{{{link}}}", lambda n, h, k=link: n.nvmlDeviceGetNvLinkState(h, k)
        for field in fields.LINK:
            labels = ",".join((str(link), *field.labels))
            yield f"{field.name}{{{labels}}}", field_query(field, link)


def _fields() -> Iterator[tuple[str, Query]]:
    for field in (*fields.FAST_CHECKED, *fields.FAST_SHOWN, *fields.MEDIUM, *fields.SLOW):
        labels = "{" + ",".join(field.labels) + "}" if field.labels else ""
        yield field.name + labels, field_query(field)


def queries(wanted: Mapping[str, float], links_max: int = 64) -> list[tuple[str, Query]]:
    """Return the questions for these series, several for some."""
    found = [*_simple(), *_numbered(), *_fields(), *_links(links_max)]
    return [(key, query) for key, query in found if key in wanted]


def answer(
    nvml: Any, handle: Any, questions: list[tuple[str, Query]]
) -> list[tuple[str, float | None]]:
    """Return each answer, None where the function is missing or does not answer."""
    answers: list[tuple[str, float | None]] = []
    for key, query in questions:
        try:
            value: float | None = float(query(nvml, handle))
        except (nvml.NVMLError, AttributeError, IndexError, TypeError, ValueError):
            value = None
        answers.append((key, value))
    return answers


def compare(
    values: Mapping[str, float],
    before: list[tuple[str, float | None]],
    after: list[tuple[str, float | None]],
) -> tuple[set[str], dict[str, str]]:
    """Return the keys that were compared and those that differ, in words."""
    compared, differing = set(), {}
    for (key, first), (_same, last) in zip(before, after, strict=True):
        if first is None or last is None:
            continue
        compared.add(key)
        name = key.partition("{")[0]
        room = _RESOLUTION.get(name, 0.0)
        if not is_between(values[key], first, last, room, _SHARE.get(name, 0.0)):
            differing[key] = f"{key} {values[key]:g}, pynvml {first:g} and {last:g}"
    return compared, differing
