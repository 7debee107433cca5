"""One reading of a node's agent: which of its metrics are kept, and how much of them. Pure.

A page comes from another host, so it is data to distrust: only lines of known metrics reach the parser, only known labels are
kept, and both lines and texts are bounded.
"""

import math
from collections.abc import Iterator
from enum import Enum
from typing import Final

import msgspec

from detectors.formats.prometheus import read_page
from detectors.slow.hardware_reading import HardwareReading
from rankmend.errors import SourceError
from rankmend.printable import printable

SAMPLES_MAX: Final = 2_000  # a GPU has about 40 of them, a NIC port 10
KEPT_CHARACTERS_MAX: Final = 256 * 1024  # of all names, labels and values of one reading
_LINES_MAX: Final = 100_000  # of a page: 0.1 s. One of a node with 72 GPUs has 20,000
_LINE_CHARACTERS_MAX: Final = 2_000
_LINE_LABELS_MAX: Final = 16  # the agent's own have 9 at most; the parser takes 15 us for each
_LINE_ESCAPES_MAX: Final = 64  # in its labels; the parser looks back from each quote
# of the lines of one page: two seconds at the worst, 0.1 s of a real one
_READ_CHARACTERS_MAX: Final = 512 * 1024
_LABEL_CHARACTERS_MAX: Final = 100

METRICS: Final = frozenset(
    {
        *(
            f"rankmend_gpu_{name}"
            for name in (
                *("success", "lost", "reset_required", "info", "temperature_celsius"),
                *("memory_temperature_celsius", "power_watts", "power_limit_watts", "clock_hertz"),
                *("clock_max_hertz", "clocks_event_seconds_total", "clocks_limited_seconds_total"),
                *("utilization_ratio", "memory_used_bytes", "memory_size_bytes"),
                *("ecc_errors_total", "remapped_rows_pending", "remapped_rows_failed"),
                *("xid_total", "xid_events_total", "pcie_width_lanes", "pcie_width_max_lanes"),
            )
        ),
        *(
            f"rankmend_nic_{name}"
            for name in (
                *("port_state_id", "rate_bytes_per_second", "rate_max_bytes_per_second"),
                *("symbol_errors_total", "link_error_recoveries_total", "link_downed_total"),
                *("receive_errors_total", "transmit_discards_total"),
                *("local_link_integrity_errors_total", "excessive_buffer_overrun_errors_total"),
            )
        ),
        *(
            f"rankmend_ethernet_{name}"
            for name in ("carrier", "speed_bytes_per_second", "carrier_downs_total", "errors_total")
        ),
        *(
            f"rankmend_network_{way}_{what}_total"
            for way in ("receive", "transmit")
            for what in ("errors", "drops")
        ),
        *(
            f"rankmend_host_{name}"
            for name in (
                *("load_processes", "cpus", "memory_size_bytes", "memory_available_bytes"),
                *("uptime_seconds", "oom_kills_total", "tasks_blocked"),
            )
        ),
        "rankmend_thermal_temperature_celsius",
    }
)
_LABELS: Final = frozenset(
    {
        *("gpu", "pci_bus_id", "model", "port", "sensor", "clock", "reason", "kind", "counter"),
        *("xid", "window"),
    }
)


class ReadAt(Enum):
    """When in an incident's life."""

    OPENED = "opened"
    CLOSED = "closed"


class Sample(msgspec.Struct, frozen=True):
    """The value of one series."""

    metric: str
    value: float
    device: str = ""  # UUID of a GPU, name of a NIC; empty: the node itself, or see `labels`
    labels: dict[str, str] = {}


class NodeReading(msgspec.Struct, frozen=True):
    """What a node's agent answered once, or why it did not."""

    node: str
    at: ReadAt
    unix_s: float  # by the controller's clock, when the answer was there
    problem: str = ""  # why there are no samples
    samples: tuple[Sample, ...] = ()
    is_cut: bool = False  # the page had more than is kept


def pick_samples(page: bytes, node: str) -> tuple[tuple[Sample, ...], bool]:
    """Return what is kept of an agent's page, and whether that is less than was there; raise SourceError."""
    try:
        text = page.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"its page is not UTF-8: {error.reason}") from error
    if (count := text.count("\n")) > _LINES_MAX:
        raise SourceError(f"its page has {count} lines, and at most {_LINES_MAX} are read")
    lines = [line for line in text.split("\n") if _name_of(line) in METRICS]
    if not lines:
        raise SourceError("its page has no metrics of a rankmend agent")
    is_cut = len(lines) > SAMPLES_MAX
    known = []
    left = _READ_CHARACTERS_MAX
    for line in lines[:SAMPLES_MAX]:
        is_short = len(line) <= min(_LINE_CHARACTERS_MAX, left)
        is_plain = line.count("=") <= _LINE_LABELS_MAX and line.count("\\") <= _LINE_ESCAPES_MAX
        if is_short and is_plain:
            known.append(line)
            left -= len(line)
    is_cut = is_cut or len(known) < len(lines)
    samples: list[Sample] = []
    left = KEPT_CHARACTERS_MAX
    for sample in _samples(read_page("\n".join(known) + "\n", METRICS, node, 0.0)):
        left -= len(msgspec.json.encode(sample))
        if left < 0:
            return tuple(samples), True
        samples.append(sample)
    return tuple(samples), is_cut


def _name_of(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def _samples(readings: list[HardwareReading]) -> Iterator[Sample]:
    for reading in readings:
        # A counter by kind that stands at zero tells nothing, and there are many of them.
        is_idle = reading.value == 0 and any(
            name in ("reason", "kind", "xid") for name, _ in reading.labels
        )
        if math.isfinite(reading.value) and not is_idle:
            labels = {name: _tame(text) for name, text in reading.labels if name in _LABELS}
            yield Sample(reading.metric, reading.value, _tame(reading.device), labels)


def _tame(text: str) -> str:
    return printable(text[:_LABEL_CHARACTERS_MAX])
