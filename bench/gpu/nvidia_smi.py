"""What `nvidia-smi -q -x` says of a GPU, by the names of the agent's series.

Source: `nvsmi_device_v12.dtd` and `_v13.dtd` as drivers 535 to 590 print them. "N/A" means that the card or driver has
no such value; other words ("Requested functionality has been deprecated") say nothing about it.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from bench.gpu.machine import smi_options
from bench.gpu.rows import NotTriedError

ASK_S_MAX: Final = 20.0
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?) ?([A-Za-z%/()]*)")
_UNITS: Final = {
    **{"": 1.0, "C": 1.0, "W": 1.0, "x": 1.0, "bank(s)": 1.0, "MHz": 1e6, "%": 0.01},
    **{"MiB": float(1 << 20), "us": 1e-6},
}
_WORDS: Final = {
    **{"enabled": 1.0, "disabled": 0.0, "yes": 1.0, "no": 0.0},
    **{"not started": 1.0, "in progress": 2.0, "completed": 3.0, "success": 0.0, "none": 0.0},
}
_STATE: Final = re.compile(r"P(\d{1,2})")


@dataclass(frozen=True, slots=True)
class SmiRow:
    """One series and its places in the XML; several places are summed."""

    key: str  # name{label,label} without rankmend_gpu_
    places: tuple[str, ...]
    resolution: float = 0.0  # of the sensor or of what is printed, in the series' unit
    share: float = 0.0  # of the value, where it moves by itself


def _row(key: str, *places: str, resolution: float = 0.0, share: float = 0.0) -> SmiRow:
    return SmiRow(key, places, resolution, share)


def _clocks() -> Iterable[SmiRow]:
    for kind, name in (
        ("graphics", "graphics"),
        ("sm", "sm"),
        ("memory", "mem"),
        ("video", "video"),
    ):
        yield _row(f"clock_hertz{{{kind}}}", f"clocks/{name}_clock", resolution=15e6, share=0.02)
        yield _row(f"clock_max_hertz{{{kind}}}", f"max_clocks/{name}_clock")
    for kind, name in (("graphics", "graphics"), ("memory", "mem")):
        yield _row(f"clock_application_hertz{{{kind}}}", f"applications_clocks/{name}_clock")


def _errors() -> Iterable[SmiRow]:
    for counter in ("volatile", "aggregate"):
        at = f"ecc_errors/{counter}"
        for kind, name in (("corrected", "correctable"), ("uncorrected", "uncorrectable")):
            yield _row(f"ecc_place_errors_total{{{kind},{counter},dram}}", f"{at}/dram_{name}")
        yield _row(f"ecc_place_errors_total{{corrected,{counter},sram}}", f"{at}/sram_correctable")
        parts = (f"{at}/sram_uncorrectable_parity", f"{at}/sram_uncorrectable_secded")
        yield _row(f"ecc_place_errors_total{{uncorrected,{counter},sram}}", *parts)
    for spare in ("max", "high", "partial", "low", "none"):
        place = f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{spare}"
        yield _row(f"remap_banks{{{spare}}}", place)
    at = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
    for reason, name in (
        ("sw_power_cap", "sw_power_cap"),
        ("sync_boost", "sync_boost"),
        ("sw_thermal_slowdown", "sw_therm_slowdown"),
        ("hw_thermal_slowdown", "hw_therm_slowdown"),
        ("hw_power_brake_slowdown", "hw_power_brake"),
    ):
        yield _row(f"clocks_limited_seconds_total{{{reason}}}", f"{at}{name}", resolution=0.01)


_LINK: Final = "pci/pci_gpu_link_info"
ROWS: Final[tuple[SmiRow, ...]] = (
    _row("temperature_celsius", "temperature/gpu_temp", resolution=1),
    _row("memory_temperature_celsius", "temperature/memory_temp", resolution=1),
    _row("temperature_margin_celsius", "temperature/gpu_temp_tlimit", resolution=1),
    _row("temperature_shutdown_celsius", "temperature/gpu_temp_max_threshold"),
    _row("temperature_slowdown_celsius", "temperature/gpu_temp_slow_threshold"),
    _row("temperature_max_celsius", "temperature/gpu_temp_max_gpu_threshold"),
    _row("memory_temperature_max_celsius", "temperature/gpu_temp_max_mem_threshold"),
    _row("power_watts", "gpu_power_readings/instant_power_draw", resolution=5, share=0.05),
    _row("power_limit_watts", "gpu_power_readings/current_power_limit", resolution=0.01),
    _row("power_limit_min_watts", "gpu_power_readings/min_power_limit", resolution=0.01),
    _row("power_limit_max_watts", "gpu_power_readings/max_power_limit", resolution=0.01),
    _row("power_limit_default_watts", "gpu_power_readings/default_power_limit", resolution=0.01),
    _row("performance_state_id", "performance_state"),
    _row("utilization_ratio", "utilization/gpu_util", resolution=0.02),
    _row("memory_utilization_ratio", "utilization/memory_util", resolution=0.02),
    _row("engine_utilization_ratio{encoder}", "utilization/encoder_util", resolution=0.02),
    _row("engine_utilization_ratio{decoder}", "utilization/decoder_util", resolution=0.02),
    _row("engine_utilization_ratio{jpeg}", "utilization/jpeg_util", resolution=0.02),
    _row("engine_utilization_ratio{optical_flow}", "utilization/ofa_util", resolution=0.02),
    _row("memory_size_bytes", "fb_memory_usage/total", resolution=1 << 20),
    _row("memory_reserved_bytes", "fb_memory_usage/reserved", resolution=1 << 20),
    _row("memory_used_bytes", "fb_memory_usage/used", resolution=2 << 20),
    _row("fan_ratio", "fan_speed", resolution=0.02),
    _row("ecc_enabled", "ecc_mode/current_ecc"),
    _row("ecc_pending_enabled", "ecc_mode/pending_ecc"),
    _row("remapped_rows_total{corrected}", "remapped_rows/remapped_row_corr"),
    _row("remapped_rows_total{uncorrected}", "remapped_rows/remapped_row_unc"),
    _row("remapped_rows_pending", "remapped_rows/remapped_row_pending"),
    _row("remapped_rows_failed", "remapped_rows/remapped_row_failure"),
    _row(
        "retired_pages_total{single_bit}",
        "retired_pages/multiple_single_bit_retirement/retired_count",
    ),
    _row("retired_pages_total{double_bit}", "retired_pages/double_bit_retirement/retired_count"),
    _row("retired_pages_pending", "retired_pages/pending_retirement"),
    _row("repair_pending{channel}", "ecc_errors/channel_repair_pending"),
    _row("repair_pending{tpc}", "ecc_errors/tpc_repair_pending"),
    _row("pcie_generation", f"{_LINK}/pcie_gen/current_link_gen"),
    _row("pcie_generation_max", f"{_LINK}/pcie_gen/max_link_gen"),
    _row("pcie_width_lanes", f"{_LINK}/link_widths/current_link_width"),
    _row("pcie_width_max_lanes", f"{_LINK}/link_widths/max_link_width"),
    _row("pcie_errors_total{replay}", "pci/replay_counter"),
    _row("pcie_errors_total{replay_rollover}", "pci/replay_rollover_counter"),
    _row("recovery_action_id", "gpu_recovery_action"),
    _row("persistence_enabled", "persistence_mode"),
    _row("mig_enabled", "mig_mode/current_mig"),
    _row("mig_pending_enabled", "mig_mode/pending_mig"),
    _row("fabric_state_id", "fabric/state"),
    _row("fabric_status_id", "fabric/status"),
    *_clocks(),
    *_errors(),
)

# labels of rankmend_gpu_info, in its order, with their places in the XML; None: from its head
IDENTITY: Final = (
    ("model", "product_name"),
    ("serial", "serial"),
    ("vbios", "vbios_version"),
    ("inforom", "inforom_version/img_version"),
    ("part", "board_part_number"),
)


@dataclass(frozen=True, slots=True)
class SmiAnswer:
    """One GPU of a `nvidia-smi -q -x`."""

    texts: Mapping[str, str]  # by place, below <gpu>
    driver: str
    cuda: str
    bus_id: str

    def value(self, row: SmiRow) -> float | None:
        """Return the number, or None where there is none or where it is in no known form."""
        numbers = [parse(self.texts.get(place, "")) for place in row.places]
        return None if None in numbers else sum(number for number in numbers if number is not None)

    def lacks(self, row: SmiRow) -> bool:
        """Return whether nvidia-smi says that the card or driver has no such value."""
        return all(is_absent(self.texts.get(place, "?")) for place in row.places)

    @property
    def reasons(self) -> frozenset[str]:
        """Return the clocks-event reasons that hold at this moment."""
        start = "clocks_event_reasons/clocks_event_reason_"
        return frozenset(
            place.removeprefix(start)
            for place, text in self.texts.items()
            if place.startswith(start) and text == "Active"
        )


def parse(text: str) -> float | None:
    """Return the number in one element, in base units: ``81559 MiB``, ``P0``, ``Enabled``."""
    if (word := _WORDS.get(text.lower())) is not None:
        return word
    if match := _STATE.fullmatch(text):
        return float(match[1])
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        return None
    return float(match[1]) * _UNITS[match[2]]


def is_absent(text: str) -> bool:
    return text in ("N/A", "[N/A]", "Not Supported", "[Not Supported]")


def read_answer(xml: str, index: int = 0) -> SmiAnswer:
    """Return one GPU of the XML. Raises ParseError or IndexError."""
    root = ElementTree.fromstring(xml)
    gpu = root.findall("gpu")[index]
    texts: dict[str, str] = {}

    def walk(element: ElementTree.Element, place: str) -> None:
        for child in element:
            below = f"{place}/{child.tag}" if place else child.tag
            if below == "supported_clocks":
                continue
            if len(child):
                walk(child, below)
            else:
                text = (child.text or "").strip()
                texts.setdefault(below, text)

    walk(gpu, "")
    # <remapped_rows>N/A</remapped_rows>: everything below is absent, too
    for place in [place for row in ROWS for place in row.places]:
        for end in range(place.count("/"), 0, -1):
            above = "/".join(place.split("/")[:end])
            if place not in texts and is_absent(texts.get(above, "")):
                texts[place] = texts[above]
    return SmiAnswer(
        texts,
        (root.findtext("driver_version") or "").strip(),
        (root.findtext("cuda_version") or "").strip(),
        gpu.get("id", ""),
    )


def ask(index: int = 0) -> SmiAnswer:
    """Return what nvidia-smi says now. Raises NotTriedError where it can't be asked."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", *smi_options(), "-q", "-x"],
            capture_output=True,
            text=True,
            check=False,
            timeout=ASK_S_MAX,
        )
        return read_answer(answer.stdout, index)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotTriedError(f"nvidia-smi -q -x does not answer: {error}") from error
    except (ElementTree.ParseError, IndexError) as error:
        raise NotTriedError(f"nvidia-smi -q -x: {error}: {answer.stdout[:80]!r}") from error


def is_between(value: float, before: float, after: float, resolution: float, share: float) -> bool:
    """Return whether a value lies between two others, give or take the sensor's resolution."""
    room = 1.001 * resolution + share * max(abs(before), abs(after)) + 1e-9
    return min(before, after) - room <= value <= max(before, after) + room


@dataclass(frozen=True, slots=True)
class Comparison:
    compared: frozenset[str]  # keys
    differing: Mapping[str, str]  # key -> in words
    missing: frozenset[str]  # nvidia-smi has a value and the agent none
    invented: Mapping[str, float]  # nvidia-smi says N/A and the agent has a value


def compare(
    values: Mapping[str, float], before: SmiAnswer, after: SmiAnswer, share: float = 0.0
) -> Comparison:
    """Compare the agent's values with what nvidia-smi said before and after them."""
    compared, missing = set(), set()
    differing, invented = {}, {}
    for row in ROWS:
        value, first, last = values.get(row.key), before.value(row), after.value(row)
        if value is not None and before.lacks(row) and after.lacks(row):
            invented[row.key] = value
        if first is None or last is None:
            continue
        if value is None:
            missing.add(row.key)
            continue
        compared.add(row.key)
        if not is_between(value, first, last, row.resolution, max(share, row.share)):
            differing[row.key] = f"{row.key} {value:g}, nvidia-smi {first:g} and {last:g}"
    return Comparison(frozenset(compared), differing, frozenset(missing), invented)
