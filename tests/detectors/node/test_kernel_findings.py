"""The kernel log's findings among the node's: events become findings that begin, hold and end."""

from collections.abc import Sequence
from dataclasses import replace

from agent.findings.policy_files import load_policy
from agent.metrics import Metric
from detectors.finding import Action, Severity
from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.log import parse_line
from detectors.kernel.log_verdict import judge as judge_log
from detectors.node.checks import Component
from detectors.node.findings import judge, list_findings, restore
from detectors.node.kernel_findings import (
    STICKY_RESET_S,
    STICKY_S,
    driver_events,
    driver_groups,
    kernel_observations,
)
from detectors.node.node_state import MetricAnswer, NodeFinding, NodeState, Snapshot

POLICY = load_policy()
INFO = Metric(
    "rankmend_gpu_info",
    1,
    (("gpu", "3"), ("uuid", "GPU-x"), ("pci_bus_id", "00000000:9B:00.0"), ("model", "H100")),
)
FELL_OFF = (
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
CONTEXT = "NVRM: Xid (PCI:0000:9b:00): 13, pid=7, name=python3, Graphics Exception: ESR 0x404490"
MEMORY = "NVRM: Xid (PCI:0000:9b:00): 95, pid=7, name=python3, Uncontained ECC error"
VERDICT = (
    "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
    "(Node Reboot Required)"
)


class Log:
    """A kernel log that grows, looked at once for each call."""

    def __init__(self) -> None:
        self.kernel = KernelLogState()
        self.state = NodeState()
        self.seq = 0

    def look(
        self, now_s: float, *lines: str, gpus: Sequence[Metric] = (INFO,)
    ) -> dict[str, NodeFinding]:
        for line in lines:
            self.seq += 1
            self.kernel.feed(parse_line(f"3,{self.seq},{int((now_s - 0.5) * 1e6)},-;{line}"))
        readings = {INFO.name: MetricAnswer("gpu", now_s, gpus)} if gpus else {}
        snapshot = Snapshot(readings)
        found = judge_log(self.kernel.groups(), POLICY, now_s)
        looks = kernel_observations(found, self.state, snapshot, now_s)
        self.state = judge(self.state, list(looks), snapshot, now_s, 1.7e9 + now_s)
        return {f.id: f for f in list_findings(self.state, snapshot, now_s)}


def test_xid_is_a_finding_on_the_gpu_with_its_uuid_and_the_line_as_evidence() -> None:
    found = Log().look(100, FELL_OFF)

    xid = found["xid_79/GPU-x"]
    assert (xid.component, xid.action) == (Component.GPU, Action.REBOOT)
    assert xid.labels == (("gpu", "3"), ("uuid", "GPU-x"), ("pci_bus_id", "00000000:9B:00.0"))
    assert FELL_OFF in xid.evidence[0]


def test_without_nvml_the_finding_names_the_pci_address() -> None:
    assert "xid_79/0000:9b:00.0" in Log().look(100, FELL_OFF, gpus=())


def test_gpu_that_nvml_forgets_keeps_its_name() -> None:
    log = Log()
    log.look(100, MEMORY)

    found = log.look(101, FELL_OFF, gpus=())

    assert set(found) == {"xid_95/GPU-x", "xid_79/GPU-x"}


def test_fatal_xid_is_held_until_the_node_has_booted() -> None:
    log = Log()
    log.look(100, FELL_OFF)
    for second in range(10):
        found = log.look(100_000 + second)
    assert "xid_79/GPU-x" in found

    log.kernel = KernelLogState()  # the log of the next boot
    log.state = restore(log.state, shift_s=-100_000.0, is_new_boot=True)
    found = {f.id: f for f in list_findings(log.state, Snapshot({}), 20)}
    assert "xid_79/GPU-x" in found
    after = judge(log.state, [], Snapshot({}), 2_000, 1.7e9)

    assert list_findings(after, Snapshot({}), 2_000) == ()


def test_application_error_ends_after_the_sticky_time_and_a_new_one_begins_anew() -> None:
    log = Log()
    assert "xid_13/GPU-x" in log.look(100, CONTEXT)
    for second in range(3):
        log.look(101 + second)
    assert "xid_13/GPU-x" in log.look(100 + STICKY_S - 1)
    assert "xid_13/GPU-x" not in log.look(100 + STICKY_S)

    found = log.look(2_000, CONTEXT)

    assert found["xid_13/GPU-x"].raises == 2


def test_reset_is_believed_after_its_own_time() -> None:
    log = Log()
    log.look(100, MEMORY)
    for second in range(3):
        log.look(101 + second)

    assert "xid_95/GPU-x" in log.look(100 + STICKY_RESET_S - 1)
    assert "xid_95/GPU-x" not in log.look(100 + STICKY_RESET_S)


def test_old_application_error_in_the_log_is_no_finding_of_an_agent_that_starts_late() -> None:
    log = Log()
    log.seq = 1
    log.kernel.feed(parse_line(f"3,1,{100 * 10**6},-;{CONTEXT}"))
    log.kernel.feed(parse_line(f"3,2,{100 * 10**6},-;{FELL_OFF}"))

    assert set(log.look(5_000)) == {"xid_79/GPU-x", *set(log.look(5_000))} - {"xid_13/GPU-x"}
    assert "xid_13/GPU-x" not in log.look(5_001)


def test_verdict_in_xid_154_wins_over_the_table() -> None:
    log = Log()
    assert log.look(100, MEMORY)["xid_95/GPU-x"].action is not Action.REBOOT

    found = log.look(101, VERDICT)

    assert found["xid_95/GPU-x"].action is Action.REBOOT


def test_what_turns_out_to_be_a_victim_is_withdrawn() -> None:
    log = Log()
    alone = "NVRM: Xid (PCI:0000:9b:00): 163, pid=7, name=python3, PSHC disengaged"
    cancelled = "NVRM: Xid (PCI:0000:9b:00): 162, pid=7, name=python3, PSHC re-engaged"
    assert "xid_163/GPU-x" in log.look(100, alone)

    for second in range(int(STICKY_S) + 5):
        found = log.look(101 + second, *([cancelled] if second == 0 else []))

    assert "xid_163/GPU-x" not in found


def test_latch_lets_go_of_what_turns_out_to_be_nothing() -> None:
    log = Log()
    log.look(100, FELL_OFF)
    (judged,) = (f for f in judge_log(log.kernel.groups(), POLICY, 101) if f.code == 79)
    nothing = replace(judged, severity=Severity.INFO, action=Action.NONE)

    for now_s in (101.0, 102.0, 101 + STICKY_S):
        looks = list(kernel_observations([nothing], log.state, Snapshot({}), now_s))
        log.state = judge(log.state, looks, Snapshot({}), now_s, 1.7e9 + now_s)

    assert list_findings(log.state, Snapshot({}), 101 + STICKY_S) == ()


def test_old_event_told_in_another_way_is_no_new_one() -> None:
    log = Log()
    log.look(100, CONTEXT)
    for second in range(4):
        found = log.look(100 + STICKY_S + second)
    assert found == {}

    log.kernel = KernelLogState()  # begins anew, with other numbers
    log.kernel.feed(parse_line(f"3,77,{100 * 10**6},-;{CONTEXT}"))

    assert log.look(200 + STICKY_S) == {}


def xid_event(code: int, count: float) -> Metric:
    labels = (("gpu", "3"), ("uuid", "GPU-x"), ("pci_bus_id", "00000000:9B:00.0"))
    return Metric("rankmend_gpu_xid_events_total", count, (*labels, ("xid", str(code))))


def test_driver_reports_xids_where_the_log_cant_be_read() -> None:
    state, events = NodeState(), {}

    def look(now_s: float, *metrics: Metric) -> dict[str, NodeFinding]:
        nonlocal state, events
        readings = {INFO.name: MetricAnswer("gpu", now_s, [INFO])}
        if metrics:
            readings[metrics[0].name] = MetricAnswer("gpu", now_s, metrics)
        snapshot = Snapshot(readings)
        events = driver_events(events, snapshot)
        found = judge_log(driver_groups(events), POLICY, now_s)
        looks = list(kernel_observations(found, state, snapshot, now_s, "gpu"))
        state = judge(state, looks, snapshot, now_s, 1.7e9 + now_s)
        return {f.id: f for f in list_findings(state, snapshot, now_s)}

    assert look(100) == {}
    found = look(101, xid_event(79, 1), xid_event(45, 1), xid_event(154, 1))
    assert set(found) == {"xid_79/GPU-x"}  # 45 is its victim, and of 154 the text is not known
    assert found["xid_79/GPU-x"].action is Action.REBOOT
    assert set(look(102, xid_event(79, 1), xid_event(13, 1))) == {"xid_79/GPU-x", "xid_13/GPU-x"}
    for second in range(103, 106):
        look(second, xid_event(13, 1))
    assert set(look(103 + STICKY_S, xid_event(13, 1))) == {"xid_79/GPU-x"}
    assert "xid_13/GPU-x" in look(104 + STICKY_S, xid_event(13, 2))


def test_many_equal_lines_are_one_finding() -> None:
    found = Log().look(100, *[CONTEXT] * 5_000)

    assert len(found) == 1
    assert "5000 times" in found["xid_13/GPU-x"].summary
