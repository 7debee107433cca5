"""Which event a kernel message reports: one table of forms, each with its source.

A rule names a literal that its lines contain; the matcher looks for that first, so a line without
any of them costs 2 us. The kernel prints some faults as several lines, and each fault counts once:
an announcement ("AER: Corrected error received: 0000:3b:00.0") counts only if no detail follows,
and an XID, SXID or OOM kill counts by one of its lines. What is kept between lines is bounded.
"""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel.event import (
    CODE_MAX,
    PCI,
    EventKind,
    KernelEvent,
    Rule,
    pci_bus_id,
)
from detectors.kernel.log import LogWriter, Record
from detectors.kernel.rules.cages import Cages
from detectors.kernel.rules.controllers import CONTROLLER_RULES
from detectors.kernel.rules.fabric_manager import FABRIC_RULES
from detectors.kernel.rules.firmware_errors import OLD_RECORDS, FirmwareErrors
from detectors.kernel.rules.gpu import GPU_RULES, SEVERITIES
from detectors.kernel.rules.host import HOST_RULES
from detectors.kernel.rules.injected import INJECTIONS, InjectedErrors
from detectors.kernel.rules.nic import NIC_RULES
from detectors.kernel.rules.poisoned_pages import INJECTING, PoisonedPages
from detectors.kernel.rules.slingshot import SLINGSHOT_RULES
from detectors.kernel.rules.storage import STORAGE_RULES
from detectors.kernel.rules.volumes import VOLUME_RULES

PAIR_S_MAX: Final = 2.0  # from an announcement to its detail: one interrupt and its printing
REMOVAL_S_MAX: Final = 5.0  # for requests that fail because nvme disconnect removed their disk
UNMOUNT_S_MAX: Final = 60.0  # from the unmount of a file system to its disk's removal; seen: 33 s
_UNMOUNTED_MAX: Final = 64  # disks
_PENDING_MAX: Final = 64  # announcements that await their detail
_RESTARTED: Final = frozenset({EventKind.NVME_DOWN, EventKind.GPU_RESET_FAILED})
_STARTS: Final = frozenset({"GPU reset", "poll queues"})
_FOUND_MAX: Final = 256  # texts whose meaning is remembered

# The first rule whose pattern matches decides. Each form comes from the source of the kernel or a
# driver. "link becomes ready" is no rule: it is printed for every container's veth.
RULES: Final = (
    *GPU_RULES,
    *HOST_RULES,
    *NIC_RULES,
    *SLINGSHOT_RULES,
    *STORAGE_RULES,
    *VOLUME_RULES,
    *CONTROLLER_RULES,
)

Literals = tuple[tuple[str, tuple[Rule, ...]], ...]

# what `Matcher` looks for besides rules, in lines that say what the next ones mean
_CONTEXTS: Final = (
    *("oom-kill:constraint=", "killed as a result of limit of", "Kill process "),
    *(
        "firmware version: ",
        "Port module event",
        "Removing ctrl: NQN",
        "available path - failing I/O",
    ),
    *("unmounting filesystem", "Unmounting Filesystem"),
    *("[Hardware Error]", "The NVIDIA GPU ", "installed in this system", "NVRM: Xid ("),
    OLD_RECORDS,
    INJECTING,
    *INJECTIONS,
)

_OOM_CONTEXT: Final = re.compile(
    r"oom-kill:constraint=(\w{1,40}),.{0,1500}?task_memcg=([^,]{0,512}),"
    r"task=.{0,64}?,pid=(\d{1,10}),"
)
# before 4.19: "Task in C killed as a result of limit of D", then "... Kill process 7 (x) score 9"
_OOM_TASK: Final = re.compile(r"Task in (\S{1,512}) killed as a result of limit of \S")
_OOM_OLD: Final = re.compile(
    r"(Memory cgroup o|O)ut of memory(?: \([^)]{0,40}\))?: Kill process (\d{1,10}) "
)
_UNMOUNTED: Final = re.compile(
    r"(?:EXT4-fs|XFS) \((nvme\d{1,4}(?:c\d{1,4})?n\d{1,6})\): [uU]nmounting [fF]ilesystem\b"
)
_NO_PATH: Final = re.compile(r"block ([\w.-]{1,64}): no available path - failing I/O")
_GPU_HEAD: Final = re.compile(
    r"NVRM: The NVIDIA (?:probe routine failed for )?GPU ("
    + PCI
    + r")(?: \(PCI ID: [\w:]{1,16}\))? ?"
)
_GPU_OTHER_END: Final = re.compile(r"NVRM: installed in this system (?:is not|requires)")
_DICTIONARY_PCI: Final = re.compile(r"\+pci:(" + PCI + ")")

# A line without any of these changes nothing: it is only counted.
LITERALS: Final = tuple(
    dict.fromkeys((*_CONTEXTS, *(text for rule in (*RULES, *FABRIC_RULES) for text in rule.sought)))
)


def _by_literal(rules: tuple[Rule, ...]) -> Literals:
    literals = dict.fromkeys(rule.literal for rule in rules)
    return tuple((text, tuple(rule for rule in rules if rule.literal == text)) for text in literals)


_BY_LITERAL: Final = _by_literal(RULES)
_FABRIC_BY_LITERAL: Final = _by_literal(FABRIC_RULES)


def _search(record: Record) -> tuple[Rule, KernelEvent] | None:
    text, is_whole = record.text, record.is_dated
    is_fabric = record.source is LogWriter.FABRIC_MANAGER
    for literal, rules in _FABRIC_BY_LITERAL if is_fabric else _BY_LITERAL:
        if literal not in text:
            continue
        for rule in rules:
            match = rule.match(text, is_whole=is_whole)
            if match is not None and not _is_in_quotes(text, match.start()):
                event = _event_of(record, rule, match)
                return (rule, event) if event is not None else None
    return None


def _is_in_quotes(text: str, place: int) -> bool:
    """Return whether a program quotes the message: JSON, logfmt, a command that writes it."""
    return place > 0 and text[place - 1] in "\"'`"


def _event_of(record: Record, rule: Rule, match: re.Match[str]) -> KernelEvent | None:
    groups = match.groupdict()
    code = int(groups["code"]) if groups.get("code") else None
    pid = groups.get("pid")
    event = KernelEvent(
        kind=rule.kind,
        text=record.text,
        code=None if code is None else min(code, CODE_MAX),
        sub_code=(groups.get("sub_code") or rule.sub_code).strip(),
        device=_device_of(record, groups),
        pid=int(pid) if pid else None,
        process=groups.get("process") or "",
        at_s=record.at_s,
        stamp=record.stamp,
        level=record.level,
        facility=record.facility,
        seq=record.seq,
    )
    return rule.refine(event, match) if rule.refine else event


def _device_of(record: Record, groups: dict[str, str | None]) -> str:
    """Return the name that people use: the network device rather than its PCI address."""
    if name := groups.get("netdev") or groups.get("device") or groups.get("disk"):
        return name
    if address := groups.get("pci"):
        return groups.get("port") or "" if address.startswith("id=") else pci_bus_id(address)
    for name, value in record.fields:
        if name == "DEVICE" and (match := _DICTIONARY_PCI.fullmatch(value)):
            return pci_bus_id(match[1])
    return ""


class SplitMessages:
    """Joins the lines of one NVRM message that a syslog daemon wrote as lines of their own.

    rsyslog's imklog splits at the line's end: the first line has the GPU's address, the last says what
    happened to it. Messages of two GPUs may be mixed; each keeps its order.
    """

    def __init__(self) -> None:
        self._heads: list[tuple[str, float | None]] = []

    def note(self, record: Record) -> None:
        """Keep the address of a message that goes on."""
        if found := _GPU_HEAD.fullmatch(record.text):
            self._heads = [*self._heads, (pci_bus_id(found[1]), record.at_s)][-_PENDING_MAX:]

    def end(self, record: Record, event: KernelEvent | None) -> str:
        """Return the address of the message that ends with the record, or nothing."""
        is_lost = event is not None and event.kind is EventKind.GPU_LOST and not event.device
        if is_lost or _GPU_OTHER_END.match(record.text):
            return self.take(record.at_s)
        return ""

    def take(self, at_s: float | None) -> str:
        """Return the address of the oldest message that can go on now, or nothing."""
        while self._heads:
            device, begun_at_s = self._heads.pop(0)
            if _are_together(begun_at_s, at_s):
                return device
        return ""


class NvmePaths:
    """Separates disks removed on purpose from disks whose paths failed."""

    def __init__(self) -> None:
        self._removed_at_s: float | None = None
        self._is_removed = False
        self._unmounted: dict[str, float | None] = {}

    def is_removed(self, record: Record) -> bool:
        """Return whether the record is only about a disk that is being removed: its controller, or after its unmount."""
        if "Removing ctrl: NQN" in record.text:
            self._is_removed, self._removed_at_s = True, record.at_s
            return True
        if found := _UNMOUNTED.match(record.text):
            self._unmounted[found[1]] = record.at_s
            while len(self._unmounted) > _UNMOUNTED_MAX:
                del self._unmounted[next(iter(self._unmounted))]
            return True
        found = _NO_PATH.match(record.text)
        return found is not None and (
            (self._is_removed and _is_soon(record, self._removed_at_s, REMOVAL_S_MAX))
            or (
                found[1] in self._unmounted
                and _is_soon(record, self._unmounted[found[1]], UNMOUNT_S_MAX)
            )
        )


def _is_soon(record: Record, at_s: float | None, max_s: float) -> bool:
    """Return whether the record follows within the time; a log without times says yes."""
    return record.at_s is None or at_s is None or 0 <= record.at_s - at_s <= max_s


class SwitchErrors:
    """Joins the lines of an NVSwitch's error: the first names its severity, the second gives it as a number.

    Where the first is missing, which the kernel's limit may leave out, the second counts.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[str, int | None], float | None] = {}

    def judge(self, event: KernelEvent) -> KernelEvent | None:
        """Return the event, or None if an earlier line reported it."""
        if event.kind is not EventKind.SXID:
            return event
        key = (event.device, event.code)
        if (severity := SEVERITIES.get(event.sub_code)) is None:
            self._named.pop(key, None)
            self._named[key] = event.at_s
            while len(self._named) > _PENDING_MAX:
                del self._named[next(iter(self._named))]
            return event
        if key in self._named and _are_together(self._named[key], event.at_s):
            return None
        return replace(event, sub_code=severity)


class Restarts:
    """Separates the start of a device that had failed from any other: its driver prints one line for both."""

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}

    def is_ordinary(self, event: KernelEvent) -> bool:
        """Return whether the event is only the start of a device that has not failed before."""
        if event.kind in _RESTARTED:
            self._failed[event.device] = None
            while len(self._failed) > _PENDING_MAX:
                del self._failed[next(iter(self._failed))]
        is_start = event.kind is EventKind.DEVICE_RECOVERED and event.sub_code in _STARTS
        return is_start and event.device not in self._failed


class Matcher:
    """Turns records into events; keeps what one line says about the next."""

    def __init__(self) -> None:
        # kind and device of an announcement -> when, oldest first
        self._announced: dict[tuple[EventKind, str], float | None] = {}
        self._oom: tuple[int, str, str] | None = None  # pid, constraint, cgroup
        self._oom_task = ""  # cgroup of the task that the next line names, before 4.19
        # by text, and whether it is all of the message: floods repeat it
        self._found: dict[tuple[str, bool, LogWriter], tuple[Rule, KernelEvent] | None] = {}
        self._cages = Cages()
        self._firmware = FirmwareErrors()
        self._paths = NvmePaths()
        self._restarts = Restarts()
        self._switches = SwitchErrors()
        self._split = SplitMessages()
        self._pages = PoisonedPages()
        self._tests = InjectedErrors()

    def match(self, record: Record) -> KernelEvent | None:
        """Return the event that the record reports, or None; never raises."""
        if self._is_context(record):
            return None
        if "[Hardware Error]" in record.text:
            self._pages.note_report(record)
            if event := self._firmware.match(record):
                return self._firmware.in_its_boot(event)
        result = self._search(record)
        device = self._split.end(record, result[1] if result else None)
        if result is None:
            return None
        rule, found = result
        event = self._pages.judge(record, self._firmware.in_its_boot(found))
        if event is None or self._tests.has_injected(event) or self._restarts.is_ordinary(event):
            return None
        if device and not event.device:
            event = replace(event, device=device)
        joined = self._switches.judge(event)
        return self._once(rule, joined) if joined is not None else None

    def _once(self, rule: Rule, event: KernelEvent) -> KernelEvent | None:
        """Return the event, or None if an earlier line reported it."""
        key = (event.kind, event.device)
        if rule.is_announcement:
            self._announced.pop(key, None)
            self._announced[key] = event.at_s
            while len(self._announced) > _PENDING_MAX:
                del self._announced[next(iter(self._announced))]
            return event
        if event.kind is EventKind.OOM_KILL:
            return self._with_cgroup(event)
        if key in self._announced:
            announced_at_s = self._announced.pop(key)
            if _are_together(announced_at_s, event.at_s):
                return None  # already reported
        return event

    def _search(self, record: Record) -> tuple[Rule, KernelEvent] | None:
        if record.fields:
            return _search(record)
        key = (record.text, record.is_dated, record.source)
        if key not in self._found:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[key] = _search(record)
        result = self._found[key]
        if result is None:
            return None
        rule, event = result
        if event.seq == record.seq and event.at_s == record.at_s:
            return result
        return rule, _at(event, record)

    def _is_context(self, record: Record) -> bool:
        """Keep what the record says about others; return whether that is all it says."""
        text = record.text
        if text.startswith("NVRM: The NVIDIA "):
            self._split.note(record)
        elif text.startswith(OLD_RECORDS):
            self._firmware.note_old(record)
        return (
            ("ill" in text and self._is_oom_context(text))
            or (("mlx5_core" in text or "HSN cable" in text) and self._cages.is_empty(record))
            or ("nvme" in text and self._paths.is_removed(record))
            or (INJECTING in text and self._pages.is_injection(record))
            or (any(mark in text for mark in INJECTIONS) and self._tests.is_injection(record))
        )

    def _is_oom_context(self, text: str) -> bool:
        """Keep what the lines before an OOM kill say about it."""
        if found := _OOM_CONTEXT.search(text):
            self._oom = (int(found[3]), found[1], found[2])
            return True
        if found := _OOM_TASK.search(text):
            self._oom_task = found[1]
            return True
        if found := _OOM_OLD.search(text):
            constraint = "CONSTRAINT_MEMCG" if found[1][0] == "M" else "CONSTRAINT_NONE"
            self._oom = (int(found[2]), constraint, self._oom_task)
            self._oom_task = ""
            return True
        return False

    def _with_cgroup(self, event: KernelEvent) -> KernelEvent:
        where = "cgroup" if "emory cgroup out of memory" in event.text else "node"
        if self._oom is None or self._oom[0] != event.pid:
            return replace(event, sub_code=where)
        _pid, constraint, cgroup = self._oom
        self._oom = None
        where = "cgroup" if constraint == "CONSTRAINT_MEMCG" else "node"
        return replace(event, sub_code=where, cgroup=cgroup[:512])


def _at(event: KernelEvent, record: Record) -> KernelEvent:
    """Return the event for another record with the same text."""
    return KernelEvent(  # `replace` takes twice as long, and a flood comes through here
        event.kind,
        event.text,
        event.code,
        event.sub_code,
        event.device,
        event.pid,
        event.process,
        event.cgroup,
        event.registers,
        record.at_s,
        record.stamp,
        record.level,
        record.facility,
        record.seq,
    )


def _are_together(earlier_s: float | None, later_s: float | None) -> bool:
    if earlier_s is None or later_s is None:
        return True
    return abs(later_s - earlier_s) <= PAIR_S_MAX
