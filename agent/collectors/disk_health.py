"""The disks' own health reports: SMART, and the health log of NVMe.

Source: ``smartctl --json`` for every disk and ``nvme smart-log`` for NVMe disks where there is no
        smartctl (detectors/formats/disk_health.py), asked of agent/root_helper. A disk that sleeps
        is not woken. Absent: no root helper, no such program, no disk with SMART.
Cost:   nothing here; the helper starts one program a disk.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.root_helper.client import Ask
from agent.root_helper.questions import HelperQuery, ProgramOutcome, ProgramResult
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

log = logging.getLogger(__name__)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "disk_health_info",
        "",
        ("device", "model", "serial", "firmware"),
        "What a disk is; always 1.",
    ),
    gauge(
        "disk_health_success",
        "",
        ("device",),
        "1 when the disk told of its health, 0 when it refused or made no sense; no series where it has no health log, or sleeps.",
    ),
    *(
        gauge(f"disk_{subject}", unit, ("device",), text)
        for subject, unit, text in (
            (
                "smart_passed",
                "",
                "1 when the disk judges itself healthy, 0 when it expects to fail.",
            ),
            ("temperature_celsius", "celsius", "Temperature of the disk."),
            ("reallocated_sectors", "", "Sectors that the disk has replaced (attribute 5)."),
            ("pending_sectors", "", "Sectors that wait to be replaced (attribute 197)."),
            ("uncorrectable_sectors", "", "Sectors that can't be read (attribute 198)."),
            (
                "nvme_critical_warning_id",
                "",
                "Bits: 1 spare, 2 temperature, 4 reliability, 8 read-only, 16 backup, 32 persistent memory.",
            ),
            ("nvme_spare_ratio", "ratio", "Spare blocks that are left."),
            ("nvme_spare_min_ratio", "ratio", "Spare blocks below which the disk warns."),
            ("nvme_used_ratio", "ratio", "Life that is used, by the maker's estimate; may pass 1."),
        )
    ),
    *(
        counter(f"disk_{subject}", unit, ("device",), text)
        for subject, unit, text in (
            ("power_on_seconds", "seconds", "Time that the disk has been switched on."),
            ("crc_errors", "", "Transfers on the cable that failed (attribute 199)."),
            ("nvme_media_errors", "", "Times that data could not be read back right."),
            ("nvme_error_log_entries", "", "Entries that the error log has had."),
            ("nvme_unsafe_shutdowns", "", "Times that power went without a warning."),
            ("nvme_written_bytes", "bytes", "Bytes that hosts have written."),
            ("nvme_read_bytes", "bytes", "Bytes that hosts have read."),
        )
    ),
)


class DiskHealthCollector:
    name = "disk_health"
    interval_s = 300.0

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._refusals: dict[str, str] = {}  # by disk, why it does not tell; logged on change

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[ProgramResult]] = {}
        for query in (HelperQuery.DISK_SMART, HelperQuery.NVME_SMART):  # the former knows more
            for result in self._results(query):
                found.setdefault(result.name, []).append(result)
        is_any = False
        for device, results in sorted(found.items()):
            labels = (("device", device),)
            try:
                health = self._first_health(device, results)
            except NoSourceError:
                continue
            is_any = True
            yield Metric("rankmend_disk_health_success", int(health is not None), labels)
            if health is not None:
                yield from _show(health, labels)
        if not is_any:
            raise NoSourceError("no disk whose health can be read")

    def _first_health(self, device: str, results: Sequence[ProgramResult]) -> DiskHealth | None:
        """Return what the first program learns; None where the disk has a health log and refuses it.

        Raises NoSourceError for a disk that has none, or sleeps.
        """
        refusal, has_none = "", False
        for result in results:
            try:
                health = _health(result)
            except NoSourceError:
                has_none = True
                continue
            except SourceError as error:
                refusal = refusal or str(error)
                continue
            if self._refusals.pop(device, None) is not None:
                log.info("disk reports its health again", extra={"device": device})
            return health
        if has_none or not refusal:  # nvme fails on a disk that has no health log
            self._refusals.pop(device, None)
            raise NoSourceError(f"{device} has no health log, or sleeps")
        if self._refusals.get(device) != refusal:
            self._refusals[device] = refusal
            log.warning("disk health not read", extra={"device": device, "error": refusal})
        return None

    def _results(self, query: HelperQuery) -> list[ProgramResult]:
        return [
            result
            for result in self._ask(query).results
            if result.outcome is not ProgramOutcome.ABSENT
        ]


def _health(result: ProgramResult) -> DiskHealth:
    if result.outcome is not ProgramOutcome.ANSWERED:
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
