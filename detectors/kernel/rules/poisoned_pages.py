"""Pages that the kernel takes out of use: tells what hardware reported from what software asked for.

The kernel says "Memory failure" of both. A page that hardware reports has a machine check, an error
record of the firmware or an error of a GPU before it. A test injects pages and the kernel says so; and the
kernel gives pages up that it can't take back from an encrypted VM (enarx#2263).
Source: mm/memory-failure.c, mm/madvise.c, mm/hwpoison-inject.c.
"""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.log import Record

INJECTING: Final = "Injecting memory failure"
UNREPORTED: Final = "no machine check"  # sub-code of a page that nothing reported and nobody lost
REPORT_S_MAX: Final = 60.0  # from the report to the page: a queue of the kernel, emptied at once
_PAGES_MAX: Final = 256
_INJECTED: Final = re.compile(INJECTING + r" (?:for|at) (?:page|pfn):? (0x[0-9a-f]{1,16})")
_PAGE: Final = re.compile(r"(?:Memory failure:|MCE:?) (0x[0-9a-f]{1,16}): ")
_IGNORED: Final = re.compile(r"recovery action for .{1,64}: Ignored")
_REPORTS: Final = frozenset(
    {
        *(EventKind.MACHINE_CHECK, EventKind.MACHINE_CHECK_CORRECTED, EventKind.XID),
        *(EventKind.MEMORY_CORRECTED, EventKind.MEMORY_UNCORRECTED),
    }
)


class PoisonedPages:
    """Follows the pages and their reports through a log."""

    def __init__(self) -> None:
        self._injected: dict[str, None] = {}
        self._is_reported = False
        self._reported_at_s: float | None = None

    def is_injection(self, record: Record) -> bool:
        """Keep the page that a test poisons; return whether the record says only that."""
        found = _INJECTED.search(record.text)
        if found is None:
            return False
        self._injected[found[1]] = None
        while len(self._injected) > _PAGES_MAX:
            del self._injected[next(iter(self._injected))]
        return True

    def note_report(self, record: Record) -> None:
        """Keep that hardware reported something."""
        self._is_reported, self._reported_at_s = True, record.at_s

    def judge(self, record: Record, event: KernelEvent) -> KernelEvent | None:
        """Return the event, marked where no hardware reported its page, or None for an injected page."""
        found = _PAGE.match(record.text)
        if found is None:
            if event.kind in _REPORTS:
                self.note_report(record)
            return event
        if found[1] in self._injected:
            return None
        if _IGNORED.search(record.text) and not self._has_report(record):
            return replace(event, sub_code=UNREPORTED)
        return event

    def _has_report(self, record: Record) -> bool:
        if record.at_s is None or self._reported_at_s is None:
            return self._is_reported
        return 0 <= record.at_s - self._reported_at_s <= REPORT_S_MAX
