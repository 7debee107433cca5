"""What the events of a kernel log mean together: the table's verdict, or a stronger one.

There is one finding for each kind, code and device, however many messages (`log_cases` makes them). The
driver's own verdict (XID 154) overrides the table. XIDs caused by another one (45, 171, 172, 63 beside 48) are its victims and need no action. Every
finding gives the reason for its action.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from detectors.finding import Action, Severity
from detectors.kernel.event import EventKind, ManyEvents
from detectors.kernel.event_groups import BURST_GAP_S, BURSTS_MAX, EventGroup
from detectors.kernel.event_policy import (
    EventPolicy,
    PolicyTable,
    policy_of,
    policy_of_many,
    policy_of_verdict,
)
from detectors.kernel.log_cases import SEVERITY_ORDER, KernelFinding, LogCase, cases_of
from detectors.kernel.nvlink import ECC_MAX, IN_WORDS, NvlinkError, read_nvlink_error
from detectors.kernel.nvlink import XIDS as NVLINK5_XIDS
from detectors.kernel.rules.poisoned_pages import UNREPORTED

# A row is remapped, a context removed and a verdict changed in the handler of the first error, but
# a program that hangs is removed when somebody kills it: NCCL's watchdog does after 600 s.
CASCADE_S: Final = 900.0
REPEAT_WINDOW_S: Final = 86_400.0  # NVSentinel health-events-analyzer: 24 h
REPEATS_FATAL: Final = 5  # the same: 5 fatal XIDs in 24 h
REPEATS_PLACE: Final = 2  # the same: XID 13 on one TPC, XID 31 on one GPU
PLACES_MAX: Final = 2  # a faulty program fails on most of the 60 to 72 TPCs at once
CORRECTED_PER_DAY_MAX: Final = 100  # awslabs hyperpod-node-debugger: fewer is normal
MEMORY_PER_MINUTE_MAX: Final = 10  # own choice; mcelog.conf: 10 in 24 h on one module are too many
LOCKUPS_PER_DAY_MAX: Final = (
    3  # own choice: the watchdog repeats itself each 20 s while a CPU stands still
)
_DAY_S: Final = 86_400.0
CORRECTED_PER_MINUTE_MAX: Final = 60  # PCIe errors; docs/operate/findings.md, pcie_corrected
MONITORS_PER_MINUTE_MAX: Final = 5  # Ceph's, lost; own choice, detectors/data/kernel_log.csv
FAILING_S: Final = (
    600.0  # of hangs and resets of a card without a pause; own choice: NCCL gives up then
)
BURSTS_FAILING: Final = 3  # bursts of a card or disk; own choice, docs/reference/kernel-log.md
_MEMORY: Final = frozenset({48, 94, 95})  # an uncorrectable error; 63 and 64 tell of its row
_REMAPPED: Final = frozenset({63, 64})
_PROGRAM: Final = frozenset({13, 31})


# Events that a later message ends, however late.
_LINK_UPS: Final = {
    EventKind.LINK_DOWN: EventKind.LINK_UP,
    EventKind.SLOT_LINK_DOWN: EventKind.SLOT_LINK_UP,
}
# Failures that a driver can mend: it says later that the device works again, however late.
_MENDED: Final = frozenset(
    {
        *(EventKind.NVME_DOWN, EventKind.NIC_FAULT, EventKind.PCIE_FATAL),
        EventKind.GPU_RESET_FAILED,
    }
)
# Lines that name no address, and the XIDs of the GPU that they are about.
_GSP_XIDS: Final = frozenset({8, 62, 79, 109, 119, 120, 143, 154})
_RESET_XIDS: Final = _GSP_XIDS | {46, 48, 64, 74, 95, 110, 140, *NVLINK5_XIDS}
_WITHOUT_ADDRESS: Final = {
    EventKind.GPU_LOST: frozenset({79}),
    EventKind.GPU_INIT: frozenset({119, 120, 143}),
    EventKind.GPU_NEEDS_RESET: _RESET_XIDS,
    EventKind.GSP: _GSP_XIDS,
    EventKind.GSP_HEARTBEAT: _GSP_XIDS,
}
# The same, and the events other than XIDs that name the GPU.
_WITH_ADDRESS: Final = {
    EventKind.GSP: (EventKind.GPU_INIT,),
    EventKind.GSP_HEARTBEAT: (EventKind.GPU_INIT,),
}


def judge(
    groups: Iterable[EventGroup], policy: PolicyTable, now_s: float | None = None
) -> tuple[KernelFinding, ...]:
    """Return the findings, the worst first. ``now_s`` is on the log's own axis.

    Without it, the newest event is now: the way to read a recorded log.
    """
    cases = cases_of(groups, policy)
    if now_s is None:
        now_s = max(
            (burst[1] for case in cases for g in case.groups for burst in g.bursts), default=0
        )
    judged = [_judge_case(case, cases, policy, now_s).finding for case in cases]
    return tuple(sorted(judged, key=_order))


def judge_xids(
    groups: Iterable[EventGroup], policy: PolicyTable, now_s: float | None = None
) -> tuple[KernelFinding, ...]:
    """Return the findings about GPUs and NVSwitches only."""
    mine = frozenset(
        {
            *(EventKind.XID, EventKind.SXID, EventKind.GPU_LOST, EventKind.GPU_NEEDS_RESET),
            *(EventKind.GSP, EventKind.GSP_HEARTBEAT),
        }
    )
    return judge((group for group in groups if group.kind in mine), policy, now_s)


def _order(finding: KernelFinding) -> tuple[int, str, str, int]:
    code = -1 if finding.code is None else finding.code
    return SEVERITY_ORDER[finding.severity], finding.device, finding.kind.value, code


def _judge_case(
    case: LogCase, cases: Sequence[LogCase], policy: PolicyTable, now_s: float
) -> LogCase:
    """Return the case after all rules that override its row, the strongest last."""
    beside = [other for other in cases if _is_beside(case, other)]
    case = _by_words(case)
    if case.finding.kind is EventKind.XID:
        case = _by_lost_cause(_by_company(case, beside, cases, now_s), cases, policy)
        return _by_driver(case, beside, policy)
    return _by_many(_by_recovery(_by_others(case, beside, cases), beside, now_s), policy, now_s)


def _by_words(case: LogCase) -> LogCase:
    """Lower the severity if every message says that the error is harmless."""
    finding = case.finding
    words = [group.sub_code for group in case.groups]
    if finding.kind is EventKind.SXID:
        if all(word.startswith("nonfatal") for word in words):
            return _with(case, _lower(finding.severity), Action.WATCH, "the driver: non-fatal")
    elif finding.kind is EventKind.XID and finding.code == 74:
        return _by_registers(case)
    elif finding.kind is EventKind.MEMORY_UNCORRECTED and set(words) == {UNREPORTED}:
        reason = "no machine check came with it: software gave the pages up, nobody lost data"
        return _with(case, Severity.WARNING, Action.WATCH, reason, hardware=False)
    return case


def _follows(case: LogCase) -> bool:
    """Return whether all NVLink errors are secondary ones."""
    errors = {read_nvlink_error(group.last.registers) for group in case.groups}
    return errors <= {NvlinkError.SECONDARY, NvlinkError.IGNORABLE}


def _by_registers(case: LogCase) -> LogCase:
    """Judge an NVLink error of Hopper by the worst of its registers."""
    counts: dict[NvlinkError, int] = {}
    for group in case.groups:
        if group.last.registers:
            error = read_nvlink_error(group.last.registers)
            counts[error] = max(group.count, counts.get(error, 0))
        else:
            counts[NvlinkError.OTHER] = group.count
    worst = max(counts, key=list(NvlinkError).index)
    finding, reason = case.finding, f"NVIDIA WORKFLOW_NVLINK_ERR: {IN_WORDS[worst]}"
    if worst is NvlinkError.IGNORABLE:
        return _with(case, Severity.INFO, Action.NONE, reason, hardware=False)
    if worst is NvlinkError.THRESHOLD:
        return _with(case, Severity.INFO, Action.WATCH, reason, hardware=False)
    if worst is NvlinkError.ECC and counts[worst] > ECC_MAX:
        return _with(case, Severity.CRITICAL, Action.CONTACT_SUPPORT, reason, hardware=True)
    if worst is NvlinkError.OTHER:
        return case
    return _with(case, finding.severity, finding.action, reason)


def _by_company(  # noqa: PLR0911 - one return for each rule
    case: LogCase, beside: Sequence[LogCase], cases: Sequence[LogCase], now_s: float
) -> LogCase:
    """Judge an XID by the others on its GPU and by how often it came."""
    code = case.code
    codes = {other.code for other in beside} - {None}
    if code == 45:
        causes = _causes_of_45(case, codes)
        if causes:
            reason = f"cleanup after XID {causes}: a victim"
            return _with(case, Severity.INFO, Action.NONE, reason, hardware=False)
    elif code in (171, 172) and 48 in codes:
        return _with(case, Severity.INFO, Action.NONE, "details of XID 48: see that finding")
    elif code == 74 and _follows(case) and codes - {74, 154}:
        others = _text(codes - {74, 154})
        reason = f"NVIDIA WORKFLOW_NVLINK_ERR: follows XID {others}: see that finding"
        return _with(case, Severity.WARNING, Action.WATCH, reason, hardware=False)
    elif code == 63 and codes & _MEMORY:
        reason = f"remaps the row of XID {_text(codes & _MEMORY)}: see that finding"
        return _with(case, Severity.INFO, Action.NONE, reason)
    elif code in (48, 95) and codes & _REMAPPED:
        reason = f"NVIDIA WORKFLOW_XID_48 with {_text(codes & _REMAPPED)}: drain and reset"
        return _with(case, Severity.CRITICAL, Action.DRAIN, reason)
    elif code == 163 and _newest(beside, 162) > case.last_number:
        return _with(case, Severity.INFO, Action.NONE, "cancelled by the XID 162 after it")
    elif code in _PROGRAM and _is_place_bound(case, cases, now_s):
        reason = f"repeated at one place ({REPEATS_PLACE} bursts in 24 h): run field diagnostics"
        return _with(case, Severity.WARNING, Action.CONTACT_SUPPORT, reason, hardware=True)
    if case.finding.severity is Severity.CRITICAL and _bursts(case, now_s) >= REPEATS_FATAL:
        reason = f"{_bursts(case, now_s)} times in 24 h: earlier actions did not help"
        return _with(case, Severity.CRITICAL, Action.REPLACE, reason, hardware=True)
    return case


def _by_lost_cause(case: LogCase, cases: Sequence[LogCase], policy: PolicyTable) -> LogCase:
    """Judge a 45 by the XID that it names as its cause, if the log does not show that one."""
    shown = {other.code for other in cases}
    rows = {code: policy_of(policy, EventKind.XID, code) for code in _named_causes(case) - shown}
    if case.code != 45 or not rows:
        return case
    code, row = min(rows.items(), key=lambda item: SEVERITY_ORDER[item[1].severity])
    reason = f"cleanup after XID {code}, which the log does not show: {row.meaning}"
    return _with(case, row.severity, row.action, reason, hardware=row.blames_hardware)


def _by_driver(case: LogCase, beside: Sequence[LogCase], policy: PolicyTable) -> LogCase:
    """Let the driver's own verdict override the table."""
    if case.code == 154:
        verdict = _verdict_of(case, policy)
        if verdict is None:
            return case
        row, words = verdict
        return _with(case, row.severity, row.action, f"the driver's verdict: {words}")
    for other in beside:
        verdict = _verdict_of(other, policy) if other.code == 154 else None
        if verdict is None or not _driver_decides(case):
            continue
        (row, words), action = verdict, verdict[0].action
        if action is not Action.NONE:
            if case.finding.action is Action.REPLACE:
                return case  # it returns after what the driver asks for
            worst = min(case.finding.severity, row.severity, key=SEVERITY_ORDER.__getitem__)
            return _with(case, worst, action, f"XID 154, the driver's verdict: {words}")
        if case.last_number < other.last_number:
            reason = f"XID 154, the driver's later verdict: {words}"
            return _with(case, Severity.INFO, Action.NONE, reason)
    return case


def _by_others(case: LogCase, beside: Sequence[LogCase], cases: Sequence[LogCase]) -> LogCase:
    """Judge events other than XIDs by what else happened on the device."""
    finding = case.finding
    codes = {other.code for other in beside} - {None}
    if finding.kind in _WITHOUT_ADDRESS and not finding.device:
        # the line names its GPU by the driver's own number, or not at all
        near = {
            (other.code, other.finding.device)
            for other in cases
            if other.code in _WITHOUT_ADDRESS[finding.kind] and _is_near(case, other)
        }
        if near:
            reason = f"reported as XID {_text({code for code, _device in near})}: see that finding"
            return _with(case, Severity.INFO, Action.NONE, reason)
        kinds = {finding.kind, *_WITH_ADDRESS.get(finding.kind, ())}
        if any(
            other.finding.kind in kinds and other.finding.device and _is_near(case, other)
            for other in cases
        ):
            return _with(case, Severity.INFO, Action.NONE, "see the same finding with an address")
    if finding.kind is EventKind.GPU_LOST and 79 in codes:
        return _with(case, Severity.INFO, Action.NONE, "reported as XID 79: see that finding")
    if finding.kind is EventKind.GSP and codes & {119, 120}:
        reason = f"reported as XID {_text(codes & {119, 120})}: see that finding"
        return _with(case, Severity.INFO, Action.NONE, reason)
    if finding.kind in _LINK_UPS:
        up = max(
            (item.last_number for item in beside if item.finding.kind is _LINK_UPS[finding.kind]),
            default=0,
        )
        if up > case.last_number:
            return _with(case, Severity.INFO, finding.action, "the link is up again")
    return case


def _by_recovery(case: LogCase, beside: Sequence[LogCase], now_s: float) -> LogCase:
    """Lower a failure after which the device came back, unless it keeps failing."""
    if case.finding.kind not in _MENDED or _bursts(case, now_s) >= BURSTS_FAILING:
        return case
    back = [item for item in beside if item.finding.kind is EventKind.DEVICE_RECOVERED]
    if max((item.last_number for item in back), default=0) <= case.last_number:
        return case
    reason = "its driver says later that it works again"
    return _with(case, _lower(case.finding.severity), Action.WATCH, reason)


def _driver_decides(case: LogCase) -> bool:
    """Return whether the driver's verdict decides: the action ends the GPU's use, or NVIDIA says so."""
    return case.finding.action.ends_use or case.asks_driver


def _by_many(case: LogCase, policy: PolicyTable, now_s: float) -> LogCase:
    """Judge by the number of events where one alone says little."""
    for many, reason_of in _MANY.get(case.finding.kind, ()):
        if reason := reason_of(case, now_s):
            return _as_many(case, many, policy, reason)
    return case


def _daily(case: LogCase, _now_s: float) -> str:
    a_day = _per_day(case)
    is_many = a_day >= CORRECTED_PER_DAY_MAX
    return f"{a_day:.0f} a day; fewer than {CORRECTED_PER_DAY_MAX} are normal" if is_many else ""


def _of_one_module(case: LogCase, _now_s: float) -> str:
    a_minute = max(_rates_per_minute(case), default=0.0)
    if a_minute < MEMORY_PER_MINUTE_MAX:
        return ""
    return f"{a_minute:.0f} a minute on one module; {MEMORY_PER_MINUTE_MAX} are too many"


def _above_minutely(limit: int) -> Callable[[LogCase, float], str]:
    def reason_of(case: LogCase, _now_s: float) -> str:
        a_minute = _per_minute(case)
        return f"{a_minute:.0f} a minute; {limit} is the limit" if a_minute > limit else ""

    return reason_of


def _lasting(case: LogCase, _now_s: float) -> str:
    if "lasting" in case.finding.sub_codes:
        return "a CPU stood still for a minute"
    a_day = _per_day(case)
    is_often = a_day >= LOCKUPS_PER_DAY_MAX
    return f"{a_day:.0f} a day: CPUs stand still again and again" if is_often else ""


def _failing(case: LogCase, now_s: float) -> str:
    if (lasted_s := _longest_burst_s(case)) >= FAILING_S:
        return f"for {lasted_s / 60:.0f} minutes without a pause: the driver's resets do not help"
    bursts = _bursts(case, now_s)
    is_often = bursts >= BURSTS_FAILING
    return f"{bursts} times in 24 h: the driver's resets did not help" if is_often else ""


# what many events of a kind mean, and why these are many; no reason: they are not
_MANY: Final[Mapping[EventKind, tuple[tuple[ManyEvents, Callable[[LogCase, float], str]], ...]]] = {
    EventKind.MEMORY_CORRECTED: (
        (ManyEvents.MEMORY_CORRECTED, _daily),
        (ManyEvents.MEMORY_CORRECTED, _of_one_module),
    ),
    EventKind.MACHINE_CHECK_CORRECTED: ((ManyEvents.MACHINE_CHECK_CORRECTED, _daily),),
    EventKind.SOFT_LOCKUP: ((ManyEvents.SOFT_LOCKUP, _lasting),),
    EventKind.PCIE_CORRECTED: (
        (ManyEvents.PCIE_CORRECTED, _above_minutely(CORRECTED_PER_MINUTE_MAX)),
    ),
    EventKind.FS_MONITOR: ((ManyEvents.FS_MONITOR, _above_minutely(MONITORS_PER_MINUTE_MAX)),),
    EventKind.NIC_HUNG: ((ManyEvents.NIC_FAILING, _failing),),
    EventKind.NIC_RESET: ((ManyEvents.NIC_FAILING, _failing),),
}


def _as_many(case: LogCase, many: ManyEvents, policy: PolicyTable, reason: str) -> LogCase:
    row = policy_of_many(policy, many)
    judged = _with(case, row.severity, row.action, reason, hardware=row.blames_hardware)
    finding = replace(judged.finding, name=row.name, meaning=row.meaning, many=many)
    return replace(judged, finding=finding)


def _per_minute(case: LogCase) -> float:
    """Return how often it came per minute while it lasted; without times the rate is not known."""
    return sum(_rates_per_minute(case))


def _rates_per_minute(case: LogCase) -> list[float]:
    """Return the same of each group: of a memory module, of a bridge's kind of error."""
    rates = []
    for group in case.groups:
        lasted_s = sum(max(60.0, end - start) for start, end in group.bursts)
        if group.bursts and len(group.bursts) < BURSTS_MAX:  # else older ones are forgotten
            rates.append(group.count * 60.0 / lasted_s)
    return rates


def _is_beside(case: LogCase, other: LogCase) -> bool:
    """Return whether the other case is on the same device and, if times are known, near in time."""
    if other is case or other.finding.device != case.finding.device:
        return False
    if case.finding.kind in {*_LINK_UPS, *_MENDED} or other.code in (154, 162):
        return True  # these hold until the next message, however late
    return _is_near(case, other)


def _is_near(case: LogCase, other: LogCase) -> bool:
    """Return whether both happened together, or the log has no times."""
    ours = [burst for group in case.groups for burst in group.bursts]
    theirs = [burst for group in other.groups for burst in group.bursts]
    if not ours or not theirs:
        return True
    return any(
        start - CASCADE_S <= other_end and other_start <= end + CASCADE_S
        for start, end in ours
        for other_start, other_end in theirs
    )


def _causes_of_45(case: LogCase, codes: set[int | None]) -> str:
    """Return the XIDs that caused a 45: those it names, or those on the same GPU."""
    return _text(_named_causes(case) or codes - {45, 154})


def _named_causes(case: LogCase) -> set[int]:
    return {
        int(group.sub_code.removeprefix("caused by "))
        for group in case.groups
        if group.sub_code.startswith("caused by ")
    }


def _verdict_of(case: LogCase, policy: PolicyTable) -> tuple[EventPolicy, str] | None:
    """Return the newest verdict of an XID 154, or None if its text has none."""
    newest = max(case.groups, key=lambda group: group.last_number)
    number, _space, words = newest.sub_code.partition(" ")
    if not number.isdigit():
        return None
    return policy_of_verdict(policy, int(number)), words


def _is_place_bound(case: LogCase, cases: Sequence[LogCase], now_s: float) -> bool:
    """Return whether XID 13 stays on one TPC, or XID 31 on one GPU: silicon, not the program."""
    devices = {other.finding.device for other in cases if other.code == case.code}
    if len(devices) > 1:
        return False
    if case.code == 31:
        return _bursts(case, now_s) >= REPEATS_PLACE
    places = [group for group in case.groups if group.sub_code]
    return len(places) <= PLACES_MAX and any(
        len(_recent(group, now_s)) >= REPEATS_PLACE for group in places
    )


def _recent(group: EventGroup, now_s: float) -> list[tuple[float, float]]:
    return [burst for burst in group.bursts if burst[1] >= now_s - REPEAT_WINDOW_S]


def _bursts(case: LogCase, now_s: float) -> int:
    """Return how often it came within the window; simultaneous sub-codes count once."""
    recent = sorted(burst for group in case.groups for burst in _recent(group, now_s))
    count, end_s = 0, float("-inf")
    for start, end in recent:
        if start - end_s >= BURST_GAP_S:
            count += 1
        end_s = max(end_s, end)
    return count


def _longest_burst_s(case: LogCase) -> float:
    return max((end - start for group in case.groups for start, end in group.bursts), default=0.0)


def _per_day(case: LogCase) -> float:
    first_s, last_s = case.finding.first.at_s, case.finding.last.at_s
    if first_s is None or last_s is None:
        return float(case.finding.count)
    return case.finding.count * _DAY_S / max(_DAY_S, last_s - first_s)


def _newest(cases: Sequence[LogCase], code: int) -> int:
    return max((case.last_number for case in cases if case.code == code), default=0)


def _lower(severity: Severity) -> Severity:
    return Severity.WARNING if severity is Severity.CRITICAL else severity


def _text(codes: Iterable[int | None]) -> str:
    return ", ".join(str(code) for code in sorted(code for code in codes if code is not None))


def _with(
    case: LogCase, severity: Severity, action: Action, reason: str, *, hardware: bool | None = None
) -> LogCase:
    finding = replace(case.finding, severity=severity, action=action, reason=reason)
    if hardware is not None:
        finding = replace(finding, blames_hardware=hardware)
    return replace(case, finding=finding, asks_driver=False)
