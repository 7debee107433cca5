"""Errors that a test injects: the kernel names them as such, then reports them as if hardware had.

aer_inject names the device and the error's bits before AER reports it; mce-inject names the CPU before the machine
check. What follows within seconds is the test's. Pages that a test poisons: poisoned_pages.py.
Source: drivers/pci/pcie/aer_inject.c, arch/x86/kernel/cpu/mce/inject.c.
"""

import re
from typing import Final

from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.log import Record

INJECT_S_MAX: Final = 2.0  # both are handled by the interrupt that the injection raises
_PCIE: Final = frozenset(
    {EventKind.PCIE_CORRECTED, EventKind.PCIE_UNCORRECTED, EventKind.PCIE_FATAL}
)
_MACHINE_CHECKS: Final = frozenset(
    {
        *(EventKind.MACHINE_CHECK, EventKind.MACHINE_CHECK_CORRECTED, EventKind.MACHINE_CHECK_OLD),
        *(EventKind.MEMORY_CORRECTED, EventKind.MEMORY_UNCORRECTED),
    }
)
_FORMS: Final = (
    ("Injecting errors ", re.compile(r".{0,80}?\baer_inject: Injecting errors [0-9a-f]"), _PCIE),
    ("Starting machine check poll", re.compile(r".{0,32}?Starting machine check poll CPU \d"), _MACHINE_CHECKS),
    ("Triggering MCE exception", re.compile(r".{0,32}?Triggering MCE exception on CPU \d"), _MACHINE_CHECKS),
)  # fmt: skip
INJECTIONS: Final = tuple(literal for literal, _form, _kinds in _FORMS)


class InjectedErrors:
    """Remembers the last injection of each sort."""

    def __init__(self) -> None:
        self._injected: dict[EventKind, float | None] = {}

    def is_injection(self, record: Record) -> bool:
        """Keep which kinds of events come from a test now; return whether the record says only that."""
        for literal, form, kinds in _FORMS:
            if literal in record.text and form.match(record.text):
                self._injected.update(dict.fromkeys(kinds, record.at_s))
                return True
        return False

    def has_injected(self, event: KernelEvent) -> bool:
        """Return whether the event is what a test has just injected."""
        if event.kind not in self._injected:
            return False
        injected_at_s = self._injected[event.kind]
        if event.at_s is None or injected_at_s is None:
            return True
        return 0 <= event.at_s - injected_at_s <= INJECT_S_MAX
