"""A kernel log as records: one shape for /dev/kmsg, dmesg, journalctl -k and syslog.

Sources: Linux Documentation/ABI/testing/dev-kmsg, dmesg(1), journalctl(1), syslog(3), RFC 5424.
A log is text from outside: it is bounded, parsed by patterns without nested repeats, and never
raises. Any process may write to /dev/kmsg, so a record includes its writer.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Final

from detectors.formats.journal_fields import journal_text

TEXT_CHARS_MAX: Final = 2_048  # PRINTK_MESSAGE_MAX in kernel/printk/internal.h
KERN: Final = 0  # the kernel's own facility (syslog(3)); all others are processes
USER: Final = 1
_FIELDS_MAX: Final = 16  # dictionary lines of one record; the kernel writes two
_FACILITIES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp", "ntp", "security", "console", "solaris-cron"),
    *(f"local{number}" for number in range(8)),
)
_LEVELS: Final = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


class LogWriter(Enum):
    """Which program's log a record is from, by the form of its line."""

    KERNEL = "kernel"
    FABRIC_MANAGER = "fabric_manager"  # NVIDIA's, /var/log/fabricmanager.log
    CONTAINER = "container"  # what a container printed, as its runtime keeps it


@dataclass(frozen=True, slots=True)
class Record:
    """One message of a log."""

    text: str
    at_s: float | None = None  # on the log's own axis: since boot, or since 1970 where it has dates
    stamp: str = ""  # the time as the log writes it; empty in /dev/kmsg, whose times are at_s
    level: int | None = None  # 0 emergency to 7 debug; None: the log doesn't say
    facility: int | None = None  # None: the log doesn't say
    seq: int | None = None  # only /dev/kmsg numbers its records
    fields: tuple[tuple[str, str], ...] = ()  # the dictionary: SUBSYSTEM, DEVICE
    source: LogWriter = LogWriter.KERNEL
    has_year: bool = True  # False: at_s is the time within a year that the log does not name
    boot_stamp: str = ""  # the kernel's own time behind another one, of whoever wrote the line
    has_writer: bool = True  # False: a time as in syslog, and no program behind it

    @property
    def is_dated(self) -> bool:
        """Return whether the log's own prefix came before the text, so that the text is whole."""
        return self.at_s is not None or bool(self.stamp) or self.facility is not None

    @property
    def has_form(self) -> bool:
        """Return whether the log's own prefix was read.

        A program that was guessed from a bare line is none, nor is a time alone: any program begins its lines with one.
        """
        is_guess = self.at_s is None and not self.stamp and self.level is None
        return self.is_dated and self.has_writer and not (self.facility == USER and is_guess)

    @property
    def is_from_user(self) -> bool:
        """Return whether a process wrote it, not the kernel; False if the log can't say."""
        return self.facility is not None and self.facility != KERN


_KMSG: Final = re.compile(r"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;\n]{0,200};(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\x([0-9a-fA-F]{2})")

_MONTHS: Final = (
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
)
_MONTH: Final = "(" + "|".join(_MONTHS) + ")"
_CLOCK: Final = r"(\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
_PRIORITY: Final = re.compile(r"<(\d{1,3})>")
_DECODED: Final = re.compile(r"(\w[\w-]{2,12}) {0,9}:(\w{3,7}) {0,9}: ")  # dmesg -x
# [ 12.345678], [ 12.345678][ T123], [12.345678] [ C3]: dmesg, the console, short-monotonic
_SINCE_BOOT: Final = re.compile(  # with dmesg -d also the time since the line before
    r"\[ {0,9}(\d{1,12}\.\d{1,9})(?: < {0,12}\d{1,9}\.\d{1,9}>)?\]"
)
_INNER: Final = re.compile(r" ?\[ {0,9}\d{1,12}\.\d{1,9}\]")
_CALLER: Final = re.compile(r" ?\[ {0,9}[TC]\d{1,10}\]")
_DELTA: Final = re.compile(  # dmesg -e and -H: since the line before, or the minute
    r"\[(?: {0,9}\+ {0,9}\d{1,9}\.\d{1,9}|[A-Z][a-z]{2} ?\d{1,2} \d{2}:\d{2}(?::\d{2})?)\]"
)
_CTIME: Final = re.compile(  # dmesg -T
    r"\[\w{3} " + _MONTH + r" {1,2}(\d{1,2}) " + _CLOCK + r" (\d{4})\]"
)
_ISO: Final = re.compile(  # dmesg --time-format=iso, journalctl -o short-iso, RFC 5424, Go, svlogd
    r"(\d{4})-(\d{2})-(\d{2})[T _]"
    + _CLOCK
    + r"(?:(Z|[+-]\d{2}:?\d{2})|( [+-]\d{4})(?: [A-Z]{3,5})?)?(?= )"
)
_SHORT: Final = re.compile(  # journalctl, syslog; some sites have the year behind it
    _MONTH + r" {1,2}(\d{1,2}) " + _CLOCK + r"(?: (\d{4}))?(?= )"
)
_FULL: Final = re.compile(  # journalctl -o short-full
    r"\w{3} (\d{4})-(\d{2})-(\d{2}) " + _CLOCK + r" (?:[A-Z]{2,5}|[+-]\d{2,4})(?= )"
)
_UNIX: Final = re.compile(r"(\d{9,10}\.\d{1,9})(?= )")  # journalctl -o short-unix
_TAG: Final = re.compile(  # BusyBox has facility and level before the tag, SONiC the level
    r" ?([\w.:%-]{0,254}[\w.%-] )?(?:(?:(?:"
    + "|".join(_FACILITIES)
    + r")\.\w{3,7}|EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG) )?"
    r"([\w./()@-]{1,128}?)(\[\d{1,10}\])?: ?"
)
_BARE_TAG: Final = re.compile(r"(?:[\w.%-]{1,64} )?kernel: ")  # of a report that left out the times
_WALL: Final = re.compile(r" ?kernel:(?=\S)")  # as rsyslog writes it to everybody's terminal
_TALOS: Final = re.compile(  # talosctl dmesg, with the node's address where it asked several
    r"(?:[\w.:-]{1,64}: )?("
    + "|".join(_FACILITIES)
    + r"): {1,9}(emerg|alert|crit|err|warn|notice|info|debug)[a-z]{0,5}: \[([^\]]{20,40})\]: "
)
_CRI: Final = re.compile(r" std(?:out|err) [FP] ")  # a container's log on its node
_FABRIC: Final = re.compile(  # fabricmanager.log: [Jul 23 2024 07:53:55] [ERROR] [tid 841]
    r"\["
    + _MONTH
    + r" {1,2}(\d{1,2}) (\d{4}) "
    + _CLOCK
    + r"\] \[(FATAL|CRITICAL|ERROR|WARNING|NOTICE|INFO|DEBUG)\d?\] ?(?:\[tid \d{1,10}\] ?)?"
)
_FABRIC_LEVELS: Final = {
    **{"FATAL": 2, "CRITICAL": 2, "ERROR": 3, "WARNING": 4},
    **{"NOTICE": 5, "INFO": 6, "DEBUG": 7},
}
# a program with its pid before the text, in lines whose time has another form or none
_NO_CRASH: Final = r"\[\d{1,10}\]: (?!segfault at|unhandled exc)"  # in which the kernel names one
_PROGRAM: Final = re.compile(r"(?:[^\s\[\]]{1,64} ){0,5}([\w./@-]{1,64})" + _NO_CRASH)
# syslog-ng's older settings say vmunix, socklog the facility and level
_KERNELS: Final = frozenset({"kernel", "vmunix", *(f"kern.{level}" for level in _LEVELS)})
_QUOTED: Final = re.compile(  # torchrun's prefix of a rank, or the place in a program's source
    r"\[[A-Za-z_]{1,32}\d{1,6}\]:|.{0,80}?\b[\w/-]{1,64}\.(?:py|go|cc|cpp|rs|java):\d{1,6}\b"
)
# where a quoted line of the kernel begins, and what a program says of it before
_QUOTE: Final = re.compile(r"\[ {0,9}\d{1,12}\.\d{1,9}\] |NVRM: ")
_FINDS: Final = re.compile(
    r"\b(?:(?:CRITICAL|ERROR|WARNING)\b|[Cc]heck (?:failed|FAILED)|(?:detected|found):)"
)
_HOST_TAG: Final = re.compile(  # after journalctl's short-monotonic; reports may lack the host
    r" (?:(?:[\w.%-]{1,255} )?(kernel): |[\w.%-]{1,255} ([\w./@-]{1,128})" + _NO_CRASH + ")"
)
# RFC 5424 behind its time: host, program, its pid, kind, structured data
_RFC5424: Final = re.compile(
    r" [\w.:%-]{1,255} ([\w./()@-]{1,128}) [\w-]{1,128} [\w-]{1,32} "
    r"(?:-|(?:\[[^\]\n]{0,1024}\]){1,4}) ?"
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")  # dmesg -L
_INDENT: Final = "        "  # the width of the shortest time and more
_BYTE_ORDER_MARK: Final = "\ufeff"


def parse_kmsg(raw: str) -> Record | None:
    """Return one record in the form of a read of /dev/kmsg, or None if it has another form."""
    head, *rest = raw.rstrip("\n").split("\n")
    match = _KMSG.fullmatch(head)
    if match is None:
        return None
    number = int(match[1])
    return Record(
        text=_unescape(match[4])[:TEXT_CHARS_MAX],
        at_s=int(match[3]) / 1e6,
        level=number & 7,
        facility=number >> 3,
        seq=int(match[2]),
        fields=tuple(field for line in rest[:_FIELDS_MAX] if (field := _field(line)) is not None),
    )


def parse_line(line: str) -> Record:  # noqa: PLR0912 - one branch for each part of a line
    """Return one line of a log as a record; a line in no known form is all text.

    Knows /dev/kmsg, dmesg with -r, -x, -T, -d, -e, -L, --time-format=iso, caller ids and without
    times, journalctl's short forms, and syslog files (RFC 3164 and 5424).
    """
    if line.startswith("{") and (record := _json_record(line)) is not None:
        return record
    line = line[: 2 * TEXT_CHARS_MAX].rstrip("\r\n").removeprefix(_BYTE_ORDER_MARK)
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if line[:1].isdigit() and (record := parse_kmsg(line)) is not None:
        return record
    if line.startswith("[") and (match := _FABRIC.match(line)):
        return _fabric_record(line, match)
    place, level, facility = 0, None, None
    if match := _PRIORITY.match(line):
        place, level, facility = match.end(), int(match[1]) & 7, int(match[1]) >> 3
        if line.startswith("1 ", place):  # RFC 5424, version 1
            place += 2
    elif (match := _DECODED.match(line)) and match[1] in _FACILITIES and match[2] in _LEVELS:
        place = match.end()
        level, facility = _LEVELS.index(match[2]), _FACILITIES.index(match[1])
    elif ": [" in line and (match := _TALOS.match(line)):
        return _talos_record(line, match)
    stamped = _stamp_at(line, place)
    if stamped is None and facility is None and (match := _WALL.match(line, place)):
        place, facility = match.end(), KERN
        stamped = _stamp_at(line, place)
    if stamped is None:
        if facility is None and (match := _BARE_TAG.match(line, place)):
            place, facility = match.end(), KERN
        elif facility is None and (match := _PROGRAM.match(line, place)):
            facility = _facility_of(match[1], None)
        elif facility is None and _is_quoted(line, place):
            facility = USER
        return Record(line[place:][:TEXT_CHARS_MAX], level=level, facility=facility)
    end, at_s, is_syslog = stamped
    short = _SHORT.match(line, place)
    is_yearless = short is not None and short[7] is None
    stamp = line[place:end].strip("[] ")
    source, boot_stamp = LogWriter.KERNEL, ""
    if match := _CRI.match(line, end):
        inner = _SINCE_BOOT.match(line, match.end())
        end, is_syslog = (inner or match).end(), False
        boot_stamp = inner[0] if inner else ""
        if inner is None:  # dmesg's own time would be there if a container had copied the log
            source = LogWriter.CONTAINER
    if line[end : end + 1] in ("[", " ") and (match := _CALLER.match(line, end)):
        end = match.end()
    tag, tag_end = _tag_at(line, end, is_syslog)
    if tag and (is_syslog or facility is None):
        end = tag_end
        facility = _facility_of(tag, facility)
        if facility == KERN and (match := _INNER.match(line, end)):
            boot_stamp = match[0]
            end = match.end()  # rsyslog keeps the kernel's own time behind its own
    text = line[end:].removeprefix(" ")[:TEXT_CHARS_MAX]
    return Record(
        text,
        at_s=at_s,
        stamp=stamp,
        level=level,
        facility=facility,
        source=source,
        has_year=not (is_yearless and at_s is not None),
        boot_stamp=boot_stamp.strip(),
        has_writer=facility is not None or not is_syslog or bool(_SINCE_BOOT.match(text)),
    )


def _is_quoted(line: str, place: int) -> bool:
    """Return whether a program wrote a line without a time, whatever it quotes."""
    if _QUOTED.match(line, place):
        return True
    quote = _QUOTE.search(line, place)
    if quote is not None and line[max(place, quote.start() - 1)] in "\"'`":
        return True
    return quote is not None and _FINDS.search(line, place, quote.start()) is not None


def _talos_record(line: str, match: re.Match[str]) -> Record:
    """Return a line as Talos shows /dev/kmsg: facility and level in words, then a date."""
    stamped = _stamp_at(f"{match[3]} ", 0)
    return Record(
        line[match.end() :][:TEXT_CHARS_MAX],
        at_s=None if stamped is None else stamped[1],
        stamp=match[3],
        level=_LEVELS.index(match[2]),
        facility=_FACILITIES.index(match[1]),
    )


def _fabric_record(line: str, match: re.Match[str]) -> Record:
    """Return a line of the fabric manager's own log; its clock is the node's, with a year."""
    month, day, year, *clock, level = match.groups()
    at_s = _seconds(year, _MONTHS.index(month) + 1, day, tuple(clock))
    return Record(
        line[match.end() :][:TEXT_CHARS_MAX],
        at_s=at_s,
        stamp=line[1 : match.start(4)].rstrip() + " " + ":".join(clock[:3]),
        level=_FABRIC_LEVELS[level],
        source=LogWriter.FABRIC_MANAGER,
    )


def _json_record(line: str) -> Record | None:
    """Return a line of ``journalctl -o json`` or of a container's JSON log, or None.

    journald knows the writer: _TRANSPORT is `kernel` for the kernel's own lines only. Docker keeps a
    container's output as log, stream and time.
    """
    try:
        fields = json.loads(line.rstrip("\r\n ,"))
    except (ValueError, RecursionError):  # also one that was cut
        return None
    if not isinstance(fields, dict):
        return None
    if isinstance(text := fields.get("msg"), str) and "pri" in fields:  # dmesg -J
        return Record(text[:TEXT_CHARS_MAX], facility=KERN)
    if isinstance(text := fields.get("log"), str) and "stream" in fields:
        stamp = str(fields.get("time", ""))[:64]
        return Record(text.rstrip("\n")[:TEXT_CHARS_MAX], stamp=stamp, source=LogWriter.CONTAINER)
    text = journal_text(fields.get("MESSAGE"))
    if text is None:  # a log shipper's: who wrote it is not known
        return Record(line[:TEXT_CHARS_MAX], source=LogWriter.CONTAINER)
    writer = journal_text(fields.get("_TRANSPORT")) or journal_text(fields.get("SYSLOG_IDENTIFIER"))
    stamp = str(fields.get("__REALTIME_TIMESTAMP", ""))[:20]
    at_s = int(stamp) / 1e6 if stamp.isascii() and stamp.isdigit() else None
    record = Record(
        _COLOUR.sub("", text)[:TEXT_CHARS_MAX],
        at_s=at_s,
        stamp="" if at_s is None else f"{at_s:.6f}",
        facility=KERN if writer == "kernel" else USER,
    )
    # `journalctl --output-fields=MESSAGE` leaves the writer out: that is not known, and no proof of a program.
    return replace(record, source=LogWriter.CONTAINER) if writer is None else record


def parse_log(lines: Iterable[str]) -> Iterator[Record]:
    """Return the records of a log, each with its continuation lines.

    In /dev/kmsg those are its dictionary; in dmesg and journalctl the further lines of a message
    that has several, which both indent.
    """
    pending: Record | None = None
    for line in lines:
        if pending is not None and pending.seq is not None and line[:1] == " ":
            field = _field(line.rstrip("\r\n"))
            if field is not None and len(pending.fields) < _FIELDS_MAX:
                pending = replace(pending, fields=(*pending.fields, field))
            continue
        if pending is not None and pending.stamp and line.startswith(_INDENT):
            more = line[: 2 * TEXT_CHARS_MAX].strip()
            text = f"{pending.text}\n{more}"
            pending = replace(pending, text=text[:TEXT_CHARS_MAX])
            continue
        if pending is not None:
            yield pending
        pending = parse_line(line)
    if pending is not None:
        yield pending


def _field(line: str) -> tuple[str, str] | None:
    name, equals, value = line[:TEXT_CHARS_MAX].partition("=")
    return (name.strip(), _unescape(value)) if equals and line[:1] == " " else None


def _unescape(text: str) -> str:
    """Return the text without the kernel's ``\\xNN``: bytes outside of printable ASCII."""
    if "\\x" not in text:
        return text
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    try:  # the escaped bytes of one character are adjacent
        return raw.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return raw


def _stamp_at(  # noqa: PLR0911 - one return for each form
    line: str, place: int
) -> tuple[int, float | None, bool] | None:
    """Return where the time at ``place`` ends, the time, and whether host and tag follow."""
    if match := _SINCE_BOOT.match(line, place):
        return match.end(), float(match[1]), False
    if match := _CTIME.match(line, place):
        month, day, hour, minute, second, fraction, year = match.groups()
        at_s = _seconds(year, _MONTHS.index(month) + 1, day, (hour, minute, second, fraction))
        return match.end(), at_s, False
    if match := _DELTA.match(line, place):
        return match.end(), None, False
    if match := _ISO.match(line, place) or _FULL.match(line, place):
        groups = match.groups()
        zone = (groups[7] or groups[8]) if len(groups) > 7 else None
        at_s = _seconds(groups[0], int(groups[1]), groups[2], groups[3:7], zone)
        is_dmesg = "," in match[0]  # dmesg writes the fraction after a comma, and no host
        return match.end(), at_s, not is_dmesg
    if match := _SHORT.match(line, place):
        month, day, *clock, year = match.groups()
        # without a year a leap year, so that 29 February is a day
        return (
            match.end(),
            _seconds(year or "2000", _MONTHS.index(month) + 1, day, tuple(clock)),
            True,
        )
    if match := _UNIX.match(line, place):
        return match.end(), float(match[1]), True
    return None


def _tag_at(line: str, place: int, is_syslog: bool) -> tuple[str, int]:
    """Return the program that wrote a line, "" if none is named, and where its name ends."""
    if not is_syslog:
        match = _HOST_TAG.match(line, place)
        return (match[1] or match[2], match.end()) if match else ("", place)
    if match := _RFC5424.match(line, place):
        return match[1], match.end()
    match = _TAG.match(line, place)
    if match is None:
        return "", place
    is_named = match[1] or match[3] or match[2] in _KERNELS
    # "<time> NVRM: ...": a time put before dmesg's text (ts(1), a container's log) and no syslog
    return (match[2], match.end()) if is_named else ("", place)


def _facility_of(tag: str, known: int | None) -> int:
    """Return who wrote a line with this tag; only ``kernel`` and its other name are the kernel."""
    if tag in _KERNELS:
        return KERN if known is None else known
    return known or USER


def _seconds(
    year: str, month: int, day: str, clock: tuple[str | None, ...], zone: str | None = None
) -> float | None:
    hour, minute, second, fraction = clock
    try:
        at = datetime(
            int(year), month, int(day), int(hour or 0), int(minute or 0), tzinfo=timezone.utc
        )
    except ValueError:  # a 31 February
        return None
    at_s = at.timestamp() + int(second or 0) + (float(f"0.{fraction}") if fraction else 0.0)
    if zone is None or zone == "Z":
        return at_s
    zone = zone.strip()
    offset_s = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
    return at_s - offset_s if zone[0] == "+" else at_s + offset_s
