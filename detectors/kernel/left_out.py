"""Lines by which a log admits that messages are missing from it. Pure.

Sources: lib/ratelimit.c and kernel/printk/printk.c of Linux; systemd's journald-kmsg.c ("Missed 81 kernel messages", systemd#11104), before v209
"/dev/kmsg buffer overrun"; rsyslog's imjournal ("406 messages lost due to rate-limiting", Red Hat's solution 1417483).

Three things look alike and are not. The kernel's own limit leaves out what one place in its code goes on to print, after ten lines of it in
5 s. A log that lost messages may lack any. What journald leaves out of a service ("Suppressed 97 messages from ...") is not the kernel's: its
limit counts by unit, and what it reads from /dev/kmsg has none (journald-kmsg.c). It is a gap in the log all the same, and reported; and
a fault may be among them where the unit passes on what we judge, or journald names no unit.
"""

import re
from enum import Enum
from typing import Final

from detectors.kernel.log import Record

_COUNT_MAX: Final = 1_000_000_000


class LogGap(Enum):
    """Why messages are missing."""

    RATE = "rate"  # the kernel's own limit of one place that prints
    LOST = "lost"  # a buffer was full, or a reader too slow: any message
    SERVICE = "service"  # journald's limit of one service, which says nothing that we judge


_RULES: Final = (
    (LogGap.RATE, "callbacks suppressed", re.compile(r"[\w.:-]{1,80}: (\d{1,9}) callbacks suppressed")),
    (LogGap.RATE, "messages suppressed", re.compile(r"printk: (\d{1,9}) messages suppressed")),
    (LogGap.LOST, "printk messages dropped", re.compile(r"\*\* (\d{1,9}) printk messages dropped")),
    (LogGap.LOST, "kernel messages", re.compile(r"Missed (\d{1,9}) kernel messages")),
    (LogGap.LOST, "messages lost due to rate-limiting", re.compile(r"imjournal: (\d{1,9}) messages lost due to rate-limiting")),
    (LogGap.LOST, "kmsg buffer overrun", re.compile(r"/dev/kmsg buffer overrun")),
)  # fmt: skip
_OF_UNIT: Final = "messages from "
_SUPPRESSED: Final = re.compile(r"Suppressed (\d{1,9}) messages from (\S{1,300})")
# Units that pass the kernel's messages on, or write the log that we judge, too; "/" is no unit.
_JUDGED: Final = re.compile(r"/$|[^/]*(?:syslog|klog|journal|fabricmanager|nvidia)", re.IGNORECASE)
LITERALS: Final = (*(literal for _why, literal, _form in _RULES), _OF_UNIT)
# What the kernel itself writes of itself; the others are programs that write the log.
_OF_KERNEL: Final = frozenset({"callbacks suppressed", "messages suppressed", "printk messages dropped"})  # fmt: skip


def find_left_out(record: Record) -> tuple[LogGap, int] | None:
    """Return why and how many messages a record says are missing; 1 where it gives no number."""
    for why, literal, form in _RULES:
        if literal not in record.text:
            continue
        match = form.match(record.text)
        if match is None or (literal in _OF_KERNEL and record.is_from_user):
            continue
        count = int(match[1]) if form.groups else 1
        return why, min(count, _COUNT_MAX)
    if _OF_UNIT in record.text and (match := _SUPPRESSED.match(record.text)):
        last = match[2].rpartition("/")[2] or "/"
        why = LogGap.LOST if _JUDGED.match(last) else LogGap.SERVICE
        return why, min(int(match[1]), _COUNT_MAX)
    return None
