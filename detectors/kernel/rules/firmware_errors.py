"""Hardware errors that firmware reports to the kernel (APEI, GHES): several lines are one error.

    {1}[Hardware Error]: event severity: recoverable
    {1}[Hardware Error]:   section_type: PCIe error
    {1}[Hardware Error]:   device_id: 0000:3b:00.0

The section decides which event it is, so a PCIe error becomes the same event that the kernel's own
AER would have reported. Source: drivers/firmware/efi/cper.c, cper_estatus_print.
"""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel.event import PCI, EventKind, KernelEvent, pci_bus_id
from detectors.kernel.log import Record

_LINE: Final = re.compile(r"(?:\{(\d{1,9})\})?\[Hardware Error\]: (.{0,200})")
_SEVERITY: Final = re.compile(r"event severity: (\w{1,20})")
_SECTION: Final = re.compile(r" *section[_ ]type: ([^,]{1,60})")
_DEVICE: Final = re.compile(r" *device_id: (" + PCI + ")")
OLD_RECORDS: Final = (
    "BERT: Error records from previous boot"  # drivers/acpi/apei/bert.c: what ended it
)
_OLD_S_MAX: Final = 2.0  # they are printed together
_OPEN_MAX: Final = 16  # errors whose lines are mixed with others
_CORRECTED, _RECOVERABLE = "corrected", "recoverable"
_KINDS: Final = {
    ("memory", _CORRECTED): EventKind.MEMORY_CORRECTED,
    ("memory", _RECOVERABLE): EventKind.MEMORY_UNCORRECTED,
    ("PCIe", _CORRECTED): EventKind.PCIE_CORRECTED,
    ("PCIe", _RECOVERABLE): EventKind.PCIE_UNCORRECTED,
}
_OTHER_KINDS: Final = {
    _CORRECTED: EventKind.MACHINE_CHECK_CORRECTED,
    _RECOVERABLE: EventKind.MACHINE_CHECK,
}
_CORRECTED_KINDS: Final = frozenset(
    {
        *(EventKind.MEMORY_CORRECTED, EventKind.PCIE_CORRECTED),
        EventKind.MACHINE_CHECK_CORRECTED,
    }
)


class FirmwareErrors:
    """Joins the lines of an error."""

    def __init__(self) -> None:
        self._severities: dict[str, str] = {}
        self._pcie: dict[str, KernelEvent] = {}  # awaiting their device's line
        self._is_after_old, self._old_at_s = False, 0.0

    def note_old(self, record: Record) -> None:
        """Keep that the records of the last boot come next."""
        self._is_after_old, self._old_at_s = True, record.at_s or 0.0

    def in_its_boot(self, event: KernelEvent) -> KernelEvent:
        """Return the event, of another kind where the last boot left it; this one's have a number in braces."""
        if not self._is_after_old or not event.text.startswith("[Hardware Error]: "):
            return event
        if event.kind in _CORRECTED_KINDS:  # what was corrected ended no boot
            return event
        if event.at_s is not None and not 0 <= event.at_s - self._old_at_s <= _OLD_S_MAX:
            return event
        return replace(event, kind=EventKind.MACHINE_CHECK_OLD)

    def match(self, record: Record) -> KernelEvent | None:
        """Return the event that this line completes."""
        found = _LINE.match(record.text)
        if found is None:
            return None
        number, line = found[1] or "", found[2]
        if severity := _SEVERITY.match(line):
            self._pcie.pop(number, None)
            self._severities.pop(number, None)
            if severity[1] in _OTHER_KINDS:
                self._severities[number] = severity[1]
            while len(self._severities) > _OPEN_MAX:
                oldest = next(iter(self._severities))
                self._pcie.pop(oldest, None)
                del self._severities[oldest]
            return None
        if number not in self._severities:
            return None
        if section := _SECTION.match(line):
            return self._section(record, number, section[1])
        if (device := _DEVICE.match(line)) and number in self._pcie:
            return replace(self._pcie.pop(number), device=pci_bus_id(device[1]))
        return None

    def _section(self, record: Record, number: str, section: str) -> KernelEvent | None:
        severity = self._severities[number]
        part = section.partition(" ")[0]
        event = KernelEvent(
            _KINDS.get((part, severity), _OTHER_KINDS[severity]),
            record.text,
            sub_code=f"firmware: {section.strip()}",
            at_s=record.at_s,
            stamp=record.stamp,
            level=record.level,
            facility=record.facility,
            seq=record.seq,
        )
        if part == "PCIe":
            self._pcie[number] = event
            return None
        return event
