"""The events of a kernel log by kind, code and device, each with its row of the table.

The registers of XIDs 144 to 150 select their row (table `nvlink5`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.finding import Action, Severity
from detectors.kernel.event import EventKind, KernelEvent, ManyEvents
from detectors.kernel.event_groups import EventGroup
from detectors.kernel.event_policy import EventPolicy, EventTable, PolicyTable, policy_of
from detectors.kernel.nvlink import XIDS as NVLINK5_XIDS
from detectors.kernel.nvlink import nvlink5_codes

SEVERITY_ORDER: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """What is wrong with one device in one way, and what to do about it."""

    kind: EventKind
    code: int | None
    name: str
    meaning: str
    device: str  # PCI address, network device, disk; empty: the node
    sub_codes: tuple[str, ...]
    severity: Severity
    action: Action
    blames_hardware: bool
    count: int
    first: KernelEvent
    last: KernelEvent
    reason: str  # why this severity and this action
    many: ManyEvents | None = None  # what this many mean, if more than one alone


@dataclass(frozen=True, slots=True)
class KernelAccount:
    """What the log says about a finding, for `rankmend check log` and the agent alike."""

    kind: str
    code: int | None
    device: str
    sub_codes: tuple[str, ...]
    count: int
    first: str  # times as the log writes them; empty where it has none
    last: str
    first_s: float | None  # the same on the log's own axis: since boot, or since 1970
    last_s: float | None


def account_of(finding: KernelFinding) -> KernelAccount:
    """Return what the log says about a finding."""
    return KernelAccount(
        kind=finding.kind.value,
        code=finding.code,
        device=finding.device,
        sub_codes=finding.sub_codes,
        count=finding.count,
        first=finding.first.when,
        last=finding.last.when,
        first_s=finding.first.at_s,
        last_s=finding.last.at_s,
    )


@dataclass(frozen=True, slots=True)
class LogCase:
    """A finding in the making, with the groups behind it."""

    finding: KernelFinding
    groups: tuple[EventGroup, ...]
    last_number: int
    asks_driver: bool = False  # NVIDIA leaves what to do to the driver's verdict

    @property
    def code(self) -> int | None:
        return self.finding.code if self.finding.kind is EventKind.XID else None


def cases_of(groups: Iterable[EventGroup], policy: PolicyTable) -> list[LogCase]:
    by_key: dict[tuple[EventKind, int | None, str], list[EventGroup]] = {}
    for group in groups:
        by_key.setdefault((group.kind, group.code, group.device), []).append(group)
    return [
        _case_of(tuple(members), _row_of(tuple(members), kind, code, policy))
        for (kind, code, _device), members in by_key.items()
    ]


def _row_of(
    groups: Sequence[EventGroup], kind: EventKind, code: int | None, policy: PolicyTable
) -> EventPolicy:
    """Return the row for events of one kind and code: the worst one that their details select."""
    if kind is not EventKind.XID or code not in NVLINK5_XIDS:
        return policy_of(policy, kind, code)
    rows = [_nvlink5_row(group, policy) for group in groups]
    return min(rows, key=lambda row: (SEVERITY_ORDER[row.severity], not row.blames_hardware))


def _nvlink5_row(group: EventGroup, policy: PolicyTable) -> EventPolicy:
    code, words = group.code, group.sub_code.split()
    assert code is not None
    row = policy_of(policy, EventKind.XID, code)
    if len(words) < 3:
        return row
    if not group.last.registers:
        return (
            row
            if words[2] != "Nonfatal"
            else _mild(row, "the driver: Nonfatal; the line has no registers")
        )
    for together in nvlink5_codes(code, words[1], group.last.registers):
        found = [policy.get((EventTable.NVLINK5, alert)) for alert in together]
        known = [item for item in found if item is not None]
        if len(known) == len(found):
            return _raised(min(known, key=lambda item: SEVERITY_ORDER[item.severity]), words, row)
    if words[2] == "Nonfatal":
        return replace(
            row,
            severity=Severity.INFO,
            action=Action.WATCH,
            source="the driver: Nonfatal, with a status that NVIDIA's table does not list",
            asks_driver=False,
        )
    return row


def _mild(row: EventPolicy, source: str) -> EventPolicy:
    """Return the row as a warning; a verdict of the driver (XID 154) still overrides it."""
    return replace(row, severity=Severity.WARNING, action=Action.WATCH, source=source)


def _case_of(groups: tuple[EventGroup, ...], row: EventPolicy) -> LogCase:
    newest = max(groups, key=lambda group: group.last_number)
    oldest = min(groups, key=lambda group: _first_order(group.first))
    finding = KernelFinding(
        kind=newest.kind,
        code=newest.code,
        name=row.name,
        meaning=row.meaning,
        device=newest.device,
        sub_codes=tuple(sorted({group.sub_code for group in groups} - {""})),
        severity=row.severity,
        action=row.action,
        blames_hardware=row.blames_hardware,
        count=sum(group.count for group in groups),
        first=oldest.first,
        last=newest.last,
        reason=row.source,
    )
    return LogCase(finding, groups, newest.last_number, row.asks_driver)


def _first_order(event: KernelEvent) -> float:
    return event.at_s if event.at_s is not None else float("inf")


def _raised(row: EventPolicy, words: Sequence[str], worst: EventPolicy) -> EventPolicy:
    """Return the row, or the worst if the driver calls an error fatal and NVIDIA's table doesn't.

    A link that goes down is always fatal to the link; its reason decides what to do.
    """
    is_link = words[1].startswith("NETIR_LINK")
    is_raised = words[2] == "Fatal" and row.severity is not Severity.CRITICAL
    return worst if is_raised and not is_link else row
