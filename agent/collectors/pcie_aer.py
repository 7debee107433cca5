"""PCI Express errors of each device, as Advanced Error Reporting counts them.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer (before 6.16 -aer_stats).
Files:  <root>/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal} (a line a kind and a total),
        aer_rootport_total_err_{cor,nonfatal,fatal} of root ports and event collectors: one number.
Cost:   3 to 6 small reads a device that has them; no configuration space is touched.

A device has 8 to 20 kinds of error and hardly any happens: a kind gets a series when it has.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.collectors.host import parse_number
from agent.metrics import Family, Metric, counter, gauge
from rankmend.errors import NoSourceError, SourceError

_SEVERITIES: Final = ("correctable", "nonfatal", "fatal")
_ROOT_PORT_FILES: Final = (("correctable", "cor"), ("nonfatal", "nonfatal"), ("fatal", "fatal"))
_KINDS_MAX: Final = 64  # a register has 32 bits

Labels = tuple[tuple[str, str], ...]

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "pcie_aer_success",
        "",
        ("pci_bus_id", "severity"),
        "1 when the device's error counts could be understood, 0 when not.",
    ),
    counter(
        "pcie_aer_errors",
        "",
        ("pci_bus_id", "severity"),
        "PCIe errors of a device since boot: correctable, nonfatal, fatal.",
    ),
    counter(
        "pcie_aer_kind_errors",
        "",
        ("pci_bus_id", "severity", "kind"),
        "The same by kind; a kind that has not happened has no series.",
    ),
    counter(
        "pcie_aer_messages",
        "",
        ("pci_bus_id", "severity"),
        "Error messages that a root port has taken from the devices below it.",
    ),
)


def parse_errors(text: str) -> tuple[int, dict[str, int]]:
    """Return the total and the counts by kind of lines such as ``BadTLP 0``, ``TOTAL_ERR_COR 0``."""
    kinds: dict[str, int] = {}
    total = None
    for line in text.splitlines():
        kind, _, count = line.rpartition(" ")
        if not kind.strip():
            raise SourceError(f"line is not '<kind> <count>': {line[:80]!r}")
        if kind.startswith("TOTAL_"):
            total = parse_number(count)
        else:
            kinds[kind.strip()] = parse_number(count)
        if len(kinds) > _KINDS_MAX:
            raise SourceError(f"more than {_KINDS_MAX} kinds of error")
    return sum(kinds.values()) if total is None else total, kinds


class PcieAerCollector:
    name = "pcie_aer"
    interval_s = 10.0

    def __init__(self, sysfs_root: Path) -> None:
        self._root = sysfs_root / "bus" / "pci" / "devices"

    def collect(self) -> Iterator[Metric]:
        try:
            devices = sorted(self._root.iterdir())
        except FileNotFoundError as error:
            raise NoSourceError(f"no PCI devices at {self._root}") from error
        except OSError as error:
            raise SourceError(f"cannot list {self._root}") from error
        is_present = False
        for device in devices:
            for metric in _read_device(device):
                is_present = True
                yield metric
        if not is_present:
            raise NoSourceError(f"no device under {self._root} reports errors (AER is off)")


def _read_device(device: Path) -> Iterator[Metric]:
    for severity in _SEVERITIES:
        labels = (("pci_bus_id", device.name), ("severity", severity))
        try:
            text = _read(device / f"aer_dev_{severity}")
            if text is None:
                continue
            total, kinds = parse_errors(text)
        except SourceError:
            yield Metric("rankmend_pcie_aer_success", 0, labels)
            continue
        yield Metric("rankmend_pcie_aer_success", 1, labels)
        yield Metric("rankmend_pcie_aer_errors_total", total, labels)
        for kind, count in kinds.items():
            if count:
                named = (*labels, ("kind", kind))
                yield Metric("rankmend_pcie_aer_kind_errors_total", count, named)
    for severity, ending in _ROOT_PORT_FILES:
        labels = (("pci_bus_id", device.name), ("severity", severity))
        try:
            text = _read(device / f"aer_rootport_total_err_{ending}")
            if text is not None:
                yield Metric("rankmend_pcie_aer_messages_total", parse_number(text), labels)
        except SourceError:
            continue  # the device's own three files say whether it answers


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}") from error
