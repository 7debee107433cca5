"""What disks say of their own health: SMART, and the health log of NVMe.

Source: ``smartctl --json`` for every disk and ``nvme smart-log`` for NVMe disks where there is no
        smartctl (detectors/formats/disk_health.py), asked of agent/root_helper. A disk that sleeps
        is not woken. Absent: no root helper, no such program, no disk with SMART.
Cost:   nothing here; the helper starts one program a disk.
"""

from collections.abc import Iterator
from typing import Final

from agent.metrics import Metric
from agent.root_helper.client import Ask
from agent.root_helper.protocol import Outcome, Query, Result
from detectors.formats.disk_health import DiskHealth, parse_nvme_smart_log, parse_smartctl
from rankmend.errors import NoSourceError, SourceError

_NVME_GAUGES: Final = (
    ("nvme_critical_warning_id", "critical_warning"),
    ("nvme_spare_ratio", "spare_ratio"),
    ("nvme_spare_min_ratio", "spare_min_ratio"),
    ("nvme_used_ratio", "used_ratio"),
    ("nvme_media_errors_total", "media_errors"),
    ("nvme_error_log_entries_total", "error_log_entries"),
    ("nvme_unsafe_shutdowns_total", "unsafe_shutdowns"),
    ("nvme_read_bytes_total", "read_bytes"),
    ("nvme_written_bytes_total", "written_bytes"),
)
_GAUGES: Final = (
    ("smart_passed", "is_passed"),
    ("temperature_celsius", "temperature_celsius"),
    ("power_on_seconds_total", "power_on_s"),
    ("reallocated_sectors", "reallocated_sectors"),
    ("pending_sectors", "pending_sectors"),
    ("uncorrectable_sectors", "uncorrectable_sectors"),
    ("crc_errors_total", "crc_errors"),
)


class DiskHealthCollector:
    name = "disk_health"
    interval_s = 300.0

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Result] = {}
        for query in (Query.NVME_SMART, Query.DISK_SMART):  # the latter knows more
            for result in self._results(query):
                if result.outcome is Outcome.ANSWERED or result.name not in found:
                    found[result.name] = result
        is_any = False
        for device, result in sorted(found.items()):
            labels = (("device", device),)
            try:
                health = _health(result)
            except NoSourceError:
                continue
            except SourceError:
                is_any = True
                yield Metric("rankmend_disk_health_success", 0, labels)
                continue
            is_any = True
            yield Metric("rankmend_disk_health_success", 1, labels)
            yield from _show(health, labels)
        if not is_any:
            raise NoSourceError("no disk whose health can be read")

    def _results(self, query: Query) -> list[Result]:
        return [
            result for result in self._ask(query).results if result.outcome is not Outcome.ABSENT
        ]


def _health(result: Result) -> DiskHealth:
    if result.outcome is not Outcome.ANSWERED:
        raise SourceError(f"health of {result.name}: {result.error}")
    if result.output.lstrip().startswith("{") and '"smartctl"' in result.output:
        return parse_smartctl(result.output, result.exit_code or 0)
    if result.exit_code:
        raise SourceError(f"health of {result.name}: {result.error[:200]}")
    return parse_nvme_smart_log(result.output)


def _show(health: DiskHealth, labels: tuple[tuple[str, str], ...]) -> Iterator[Metric]:
    if health.model:
        names = (("model", health.model), ("serial", health.serial), ("firmware", health.firmware))
        yield Metric("rankmend_disk_health_info", 1, (*labels, *names))
    for name, field in _GAUGES:
        if (value := getattr(health, field)) is not None:
            yield Metric(f"rankmend_disk_{name}", float(value), labels)
    for name, field in _NVME_GAUGES if health.nvme else ():
        if (value := getattr(health.nvme, field)) is not None:
            yield Metric(f"rankmend_disk_{name}", float(value), labels)
