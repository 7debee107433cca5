"""What arrives by the kernel's log and by a counter or by a recorded log is judged alike."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from agent.assembly.families import FAMILIES
from agent.findings.collector import FindingsCollector
from agent.findings.policy_files import load_checks, load_policy
from agent.metrics import Metric
from agent.sampling.collection import CollectorOutcome, CollectorView
from detectors.finding import Action, Severity
from detectors.kernel.event import EventKind, ManyEvents
from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.event_policy import EventTable
from detectors.kernel.log import Record
from detectors.kernel.log_cases import KernelFinding
from detectors.kernel.log_verdict import judge
from detectors.node.checks import Check
from rankmend.cli import cli
from tests.support.agent import FakeClock, answer_of
from tests.support.collectors import FakeDevice, collector
from tests.support.findings import Node, values_for
from tests.support.kernel_log_forms import FORMS

pytestmark = pytest.mark.process

POLICY = load_policy()
CHECKS = [check for check in load_checks(FAMILIES) if check.event]
AT_S = 1_000.5

# Kinds of the log that no counter, register or library call tells of as well, or where what it tells
# is something else. Who adds a kind says here which; who adds a check takes its kind out.
BY_LOG_ONLY = {
    EventKind.SXID: "NVSwitches have no counter that the agent reads",
    EventKind.GSP: "NVML tells of it as XID 119 or 120",
    EventKind.GSP_HEARTBEAT: "nobody counts it; a GPU that is gone says so by an XID",
    EventKind.NVLINK_DISCOVERY: "nobody counts it: gpu_fabric_not_joined is of NVSwitch systems",
    EventKind.FABRIC_DOWN: "the fabric manager's own log, which the agent does not read: gpu_fabric_not_joined",
    EventKind.FABRIC_MULTICAST: "the same",
    EventKind.GPU_INIT: "a GPU that did not start is missing: gpu_count_low, after its own time",
    EventKind.GPU_UNCLAIMED: "a GPU that is missed is gpu_count_low or gpu_vanished",
    EventKind.GPU_FIRMWARE: "nobody counts it; a GPU that does not start is missing",
    EventKind.DRIVER_MISMATCH: "NVML can't be loaded then: collector_broken",
    EventKind.GPU_HUNG: "AMD, Habana and Intel only; of NVIDIA's it is an XID",
    EventKind.GPU_PAGE_FAULT: "AMD and Intel only; of NVIDIA's it is XID 31",
    EventKind.GPU_RESET: "nobody counts it",
    EventKind.GPU_RESET_FAILED: "nobody counts it",
    EventKind.GPU_NEEDS_RESET: "NVML tells of it by its recovery action: gpu_verdict_reset",
    EventKind.UVM_FAILED: "NVML tells of it by its recovery action: gpu_verdict_reboot",
    EventKind.GPU_MEMORY_CORRECTED: "AMD's counters (rankmend_amd_ecc_errors_total) have no check",
    EventKind.GPU_MEMORY_DEFERRED: "the same",
    EventKind.GPU_MEMORY_UNCORRECTED: "the same",
    EventKind.GPU_WORN_OUT: "nobody counts it",
    EventKind.GPU_OVERHEATED: "the machine is off before a sensor is read again",
    EventKind.PEERMEM: "nobody counts it",
    EventKind.MODULE_REFUSED: "module_missing, where a site asks for the module",
    EventKind.PCIE_CORRECTED: "one is for the record; many are pcie_corrected_many",
    EventKind.PCIE_LINK_DOWN: "a device that is gone has no counters",
    EventKind.SLOT_LINK_DOWN: "the missing device itself: gpu_vanished, nic_vanished, disk_vanished",
    EventKind.SLOT_LINK_UP: "the end of a slot_link_down",
    EventKind.DEVICE_RECOVERED: "the end of an nvme_down, a nic_fault, a gpu_reset_failed or a pcie_fatal",
    EventKind.PCIE_LIMITED: "printed once at boot, also for slots that are meant to be narrow",
    EventKind.IOMMU_FAULT: "nobody counts it",
    EventKind.MEMORY_CORRECTED: "one is for the record; many are memory_corrected_many",
    EventKind.MACHINE_CHECK_CORRECTED: "the same",
    EventKind.MACHINE_CHECK_OLD: "from before the boot: nobody counts it",
    EventKind.CLOCK_UNSTABLE: "nobody counts it",
    EventKind.LINK_UP: "the end of a link_down",
    EventKind.NIC_HUNG: "nobody counts it",
    EventKind.NIC_RESET: "nobody counts it",
    EventKind.NIC_INIT: "a card that did not start has no counters",
    EventKind.NIC_FAULT: "nobody counts it",
    EventKind.NIC_WARNING: "nobody counts it",
    EventKind.NIC_COMMAND: "nobody counts it",
    EventKind.TRANSCEIVER: "the module's registers tell of heat and light only",
    EventKind.HARD_LOCKUP: "the taint is that of a soft lockup",
    EventKind.RCU_STALL: "nobody counts it",
    EventKind.FS_ERROR: "nobody counts it; what follows is fs_read_only",
    EventKind.FS_MONITOR: "one is for the record; many are fs_monitor_many",
    EventKind.FS_VOLUME: "the same, of a volume that is no disk of the node",
    EventKind.FS_UNCHECKED: "the file system remembers it and says so in the log only",
    EventKind.PATH_LOST: "nobody counts it",
    EventKind.NO_PATH: "nobody counts it",
    EventKind.NVME_TIMEOUT: "nobody counts it",
    EventKind.NVME_RESET: "nobody counts it",
    EventKind.NVME_DOWN: "a disk that is gone has no health log",
    EventKind.IO_ERROR: "may be a cable or a path; the disk's own word is medium_error",
    EventKind.STORAGE_FAULT: "nobody counts it",
    EventKind.SEGFAULT: "nobody counts it",
    EventKind.PANIC: "nothing runs on",
    EventKind.THROTTLED: "nobody counts it",
}
MANY = {
    ManyEvents.PCIE_CORRECTED: (
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        [AT_S + number / 4 for number in range(200)],
    ),
    ManyEvents.MEMORY_CORRECTED: ("EDAC MC0: 100 CE memory read error on DIMM_A1 (x)", [AT_S]),
}


def judged(*records: tuple[float, str]) -> list[KernelFinding]:
    state = KernelLogState()
    state.feed_all(Record(text, at_s=at_s, facility=0) for at_s, text in records)
    return list(judge(state.groups(), POLICY))


def of_log(event: str) -> tuple[Severity, Action]:
    """Return the judgement of a line of the log that tells of this event."""
    table, _space, code = event.partition(" ")
    if table == EventTable.XID.value:
        found = judged((AT_S, f"NVRM: Xid (PCI:0000:3b:00): {code}, x"))
    elif table == EventTable.VERDICT.value:
        number = 9 if code == "*" else int(code)
        text = f"GPU recovery action changed from 0x0 (None) to {number:#x} (x)"
        found = judged((AT_S, f"NVRM: Xid (PCI:0000:3b:00): 154, {text}"))
    elif many := next((many for many in MANY if many.value == code), None):
        text, times_s = MANY[many]
        found = judged(*((at_s, text) for at_s in times_s))
    else:
        text = next(text for text, expected in FORMS if expected[0] is EventKind(code))
        found = judged((AT_S, text))
    (finding,) = found
    return finding.severity, finding.action


def of_check(check: Check) -> tuple[Severity, Action]:
    bad, _good = values_for(check)
    is_growth = check.condition.measure.value != "value"
    node = Node(check)
    if is_growth:
        node.answer(0.0)
    for _ in range(check.persistence.bad_looks):
        found = node.answer(bad, after_s=check.window_s * 1.2 if is_growth else 1.0)
    (finding,) = found
    return finding.severity, finding.action


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_event_has_one_severity_and_one_action_whichever_way_it_arrives(check: Check) -> None:
    assert of_check(check) == of_log(check.event)


def test_every_kind_of_the_log_has_a_check_or_a_reason_why_it_has_none() -> None:
    named = {check.event.removeprefix("log ") for check in CHECKS if check.event.startswith("log ")}
    by_check = {kind for kind in EventKind if kind.value in named}
    xids = any(check.event.startswith("xid ") for check in CHECKS)

    assert xids
    assert by_check | set(BY_LOG_ONLY) | {EventKind.XID} == set(EventKind)
    assert not by_check & set(BY_LOG_ONLY)


# --- a recorded log and the agent


def by_check_log(text: str) -> list[dict[str, Any]]:
    line = f"[{AT_S:12.6f}] {text}\n"
    result = CliRunner().invoke(cli, ["check", "log", "--json", "-"], input=line.encode())
    findings: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    return findings


def by_agent(text: str) -> list[dict[str, Any]]:
    """Return what the agent's page says of a message in its kernel's ring."""
    escaped = text.replace("\\", "\\x5c")
    device = FakeDevice(f"3,1,{AT_S * 1e6:.0f},-;{escaped}\n".encode())
    log = collector(device)
    clock = FakeClock()
    clock.time_s = AT_S + 1
    list(log.collect())
    log.stop()
    records = (Metric("rankmend_kernel_log_records_total", 1),)
    view = CollectorView(
        "kernel_log",
        1.0,
        CollectorOutcome.MEASURED,
        "",
        0.0,
        0.0,
        None,
        0.0,
        0,
        is_stale=False,
        answer=answer_of(records),
    )
    findings = FindingsCollector(clock, "n1", (), kernel_log=log)
    findings.watch(lambda: [view])
    list(findings.collect())
    page = json.loads(json.dumps(findings.page(clock.time_s)))
    found: list[dict[str, Any]] = page["findings"]
    return found


SHARED = ("kind", "code", "device", "sub_codes", "count", "first", "last", "first_s", "last_s")


@pytest.mark.parametrize("text", [text for text, _expected in FORMS])
def test_recorded_line_and_the_agents_are_judged_alike_with_device_and_time(text: str) -> None:
    recorded = by_check_log(text)

    shown = by_agent(text)

    assert len(recorded) == 1
    assert recorded[0]["first"] == f"{AT_S:.6f}"
    wanted = [one for one in recorded if one["severity"] != "info" and one["action"] != "none"]
    assert [
        {**{name: one["kernel"][name] for name in SHARED}, **_verdict(one)} for one in shown
    ] == [{**{name: one[name] for name in SHARED}, **_verdict(one)} for one in wanted]


def _verdict(found: dict[str, Any]) -> dict[str, str]:
    return {"severity": found["severity"], "action": found["action"]}


def test_table_of_check_log_shows_time_and_device_of_each_finding() -> None:
    text = "[28481.075827] i40e 0000:a1:00.0 ens44f0: NETDEV WATCHDOG: CPU: 2: transmit queue 22 timed out 5376 ms\n"

    result = CliRunner().invoke(cli, ["check", "log", "-"], input=text.encode())

    assert result.exit_code == 1
    assert "28481.075827" in result.stdout
    assert "ens44f0" in result.stdout
