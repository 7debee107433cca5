"""A disk's report of its own health: ``smartctl --json`` and ``nvme smart-log -o json``.

Forms: smartmontools 7 (json.cpp; ATA, SCSI and NVMe disks); nvme-cli 1 and 2, which print large
       counters as number, as 1.2e+06 or as text, and temperatures in kelvin. NVM Express Base
       Specification 2.0, figure 207: data units are 1000 x 512 bytes.

What a disk does not tell is None and never zero.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rankmend.errors import NoSourceError, SourceError

_DATA_UNIT_BYTES: Final = 512_000
_KELVIN_AT_ZERO_CELSIUS: Final = 273  # nvme-cli and smartctl count whole degrees
_TEXT_CHARS_MAX: Final = 64
_CANNOT_OPEN: Final = 0b11  # exit bits 0 and 1 of smartctl(8): bad command line, no device
_COMMAND_FAILED: Final = 0b100  # exit bit 2: the disk refused a command, or its data make no sense


# PCI vendors of virtual NVMe disks. The health log is mandatory, but hypervisors and clouds leave it
# out. linux/pci_ids.h, the PCI ID Repository: VMware, Red Hat (QEMU), Amazon, Google, Microsoft
# (Azure), VirtualBox (InnoTek).
_VIRTUAL_VENDORS: Final = frozenset({0x15AD, 0x1B36, 0x1AF4, 0x1D0F, 0x1AE0, 0x1414, 0x80EE})


@dataclass(frozen=True, slots=True)
class NvmeHealth:
    critical_warning: int | None
    spare_ratio: float | None
    spare_min_ratio: float | None
    used_ratio: float | None
    media_errors: int | None
    error_log_entries: int | None
    unsafe_shutdowns: int | None
    read_bytes: int | None
    written_bytes: int | None


@dataclass(frozen=True, slots=True)
class DiskHealth:
    model: str
    serial: str
    firmware: str
    is_passed: bool | None
    temperature_celsius: float | None
    power_on_s: float | None
    reallocated_sectors: int | None
    pending_sectors: int | None
    uncorrectable_sectors: int | None
    crc_errors: int | None
    nvme: NvmeHealth | None


def parse_smartctl(text: str, exit_code: int) -> DiskHealth:
    """Return a disk's health; NoSourceError: it has no SMART, or sleeps and is not woken."""
    page = _object(text, "smartctl")
    if exit_code & _CANNOT_OPEN:
        raise SourceError(f"smartctl can't read the disk: {_messages(page)}")
    nvme_log = _section(page, "nvme_smart_health_information_log")
    attributes = _attributes(page)
    passed = _section(page, "smart_status").get("passed")
    grown = _whole(page.get("scsi_grown_defect_list"))
    if not isinstance(passed, bool) and not nvme_log and not attributes and grown is None:
        if _must_tell(page, exit_code):
            raise SourceError(f"the disk refuses its health log: {_messages(page)}")
        raise NoSourceError("the disk has no SMART, or it sleeps")
    hours = _number(_section(page, "power_on_time").get("hours"))
    return DiskHealth(
        model=_text(page.get("model_name")) or _text(page.get("scsi_model_name")),
        serial=_text(page.get("serial_number")),
        firmware=_text(page.get("firmware_version")) or _text(page.get("scsi_revision")),
        is_passed=passed if isinstance(passed, bool) else None,
        temperature_celsius=_number(_section(page, "temperature").get("current")),
        power_on_s=hours * 3600 if hours is not None else None,
        reallocated_sectors=attributes.get(5, grown),
        pending_sectors=attributes.get(197),
        uncorrectable_sectors=attributes.get(198),
        crc_errors=attributes.get(199),
        nvme=_nvme(
            nvme_log,
            spare="available_spare",
            spare_min="available_spare_threshold",
            used="percentage_used",
        )
        if nvme_log
        else None,
    )


def _must_tell(page: Mapping[str, Any], exit_code: int) -> bool:
    """Return whether a disk that told nothing has a health log.

    A real NVMe disk always has one. smartctl before 7.4 gives no `smart_support` for NVMe; for ATA and
    SCSI its absence means that smartctl could not find out.
    """
    has_smart = _section(page, "smart_support").get("available")
    if has_smart is False:
        return False
    match _section(page, "device").get("protocol"):
        case "NVMe":
            return _whole(_section(page, "nvme_pci_vendor").get("id")) not in _VIRTUAL_VENDORS
        case "SCSI":  # virtual disks refuse the mode page in which SMART is announced
            return has_smart is True
    return has_smart is True or bool(exit_code & _COMMAND_FAILED)


def parse_nvme_smart_log(text: str) -> DiskHealth:
    """Return an NVMe disk's health."""
    log = _object(text, "nvme")
    nvme = _nvme(log, spare="avail_spare", spare_min="spare_thresh", used="percent_used")
    if nvme.critical_warning is None and nvme.used_ratio is None:
        raise SourceError(f"nvme shows no health, but {sorted(log)[:4]}")
    kelvin = _number(log.get("temperature"))
    hours = _number(log.get("power_on_hours"))
    return DiskHealth(
        model="",
        serial="",
        firmware="",
        is_passed=nvme.critical_warning == 0 if nvme.critical_warning is not None else None,
        temperature_celsius=kelvin - _KELVIN_AT_ZERO_CELSIUS if kelvin else None,
        power_on_s=hours * 3600 if hours is not None else None,
        reallocated_sectors=None,
        pending_sectors=None,
        uncorrectable_sectors=None,
        crc_errors=None,
        nvme=nvme,
    )


def _nvme(log: Mapping[str, Any], spare: str, spare_min: str, used: str) -> NvmeHealth:
    warning = log.get("critical_warning")
    if isinstance(warning, dict):  # nvme-cli 2 with -v
        warning = warning.get("value")
    return NvmeHealth(
        critical_warning=_whole(warning),
        spare_ratio=_percent(log.get(spare)),
        spare_min_ratio=_percent(log.get(spare_min)),
        used_ratio=_percent(log.get(used)),
        media_errors=_whole(log.get("media_errors")),
        error_log_entries=_whole(log.get("num_err_log_entries")),
        unsafe_shutdowns=_whole(log.get("unsafe_shutdowns")),
        read_bytes=_units(log.get("data_units_read")),
        written_bytes=_units(log.get("data_units_written")),
    )


def _attributes(page: Mapping[str, Any]) -> dict[int, int]:
    """Return the raw values of an ATA disk's attributes by id."""
    table = _section(page, "ata_smart_attributes").get("table")
    attributes = {}
    for row in table if isinstance(table, list) else []:
        if not isinstance(row, dict):
            continue
        number, value = _whole(row.get("id")), _whole(_section(row, "raw").get("value"))
        if number is not None and value is not None:
            attributes[number] = value
    return attributes


def _messages(page: Mapping[str, Any]) -> str:
    messages = _section(page, "smartctl").get("messages")
    texts = [
        _text(item.get("string"))
        for item in (messages if isinstance(messages, list) else [])
        if isinstance(item, dict)
    ]
    return "; ".join(texts)[:200] or "it gives no reason"


def _object(text: str, program: str) -> dict[str, Any]:
    try:
        page = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise SourceError(f"{program} prints no JSON, but {text[:60]!r}") from error
    if not isinstance(page, dict):
        raise SourceError(f"{program} prints no object, but {text[:60]!r}")
    return page


def _section(page: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = page.get(name)
    return section if isinstance(section, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value.replace(",", ""))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 2.0**128 and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 0 else None


def _percent(value: Any) -> float | None:
    number = _number(value)
    return number / 100 if number is not None and number >= 0 else None


def _units(value: Any) -> int | None:
    number = _whole(value)
    return number * _DATA_UNIT_BYTES if number is not None else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(char if char.isprintable() else " " for char in text).strip()[:_TEXT_CHARS_MAX]
