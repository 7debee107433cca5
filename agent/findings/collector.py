"""Findings of this node: runs the detectors on the newest answers and serves the result.

Runs as a collector of its own: what goes wrong here harms no other, and shows on the page as a
collector that is broken. Order of a change: journal, then log, page and alerts.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from agent.findings.journal import VERSION, FindingStore, SavedState
from agent.findings.page import FindingsView, describe, findings_page
from agent.findings.snapshot import LOG_RECORDS, SeenAnswers, make_snapshot
from agent.metrics import Family, Metric, counter, gauge
from agent.sampling.collection import CollectorView
from detectors.finding import Severity
from detectors.kernel.event_policy import PolicyTable
from detectors.kernel.log_cases import KernelFinding
from detectors.kernel.log_verdict import judge as judge_log
from detectors.node.checks import SCAN_LOOKS, Check, Labels, for_one_scan
from detectors.node.findings import blocked_checks, judge, list_findings, release, restore
from detectors.node.kernel_findings import (
    DriverEvents,
    by_recovery_action,
    driver_events,
    driver_groups,
    kernel_observations,
)
from detectors.node.looks import StandingChecks, observe
from detectors.node.node_alerts import alert_annotations, alert_labels
from detectors.node.node_state import CheckLook, NodeFinding, NodeState, Snapshot
from rankmend.alerting import Alert, AlertmanagerTarget
from rankmend.clock import Clock, read_boot_id
from rankmend.errors import StorageError
from rankmend.links import RUNBOOKS, check_runbooks

log = logging.getLogger(__name__)

SAVE_S: Final = 60.0  # what else is lost in a crash: looks that have not become a finding yet
DAY_S: Final = 86_400.0
RAISES_MAX: Final = 10_000  # remembered for the last day
XID_COLLECTOR: Final = "gpu"
_SEVERITIES: Final = tuple(member.value for member in Severity)
_KERNEL_CHECKS: Final = ("kernel_", "xid_", "sxid_")

_FINDING: Final = ("check", "component", "uuid", "device", "severity", "action")
FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "finding_active",
        "",
        _FINDING,
        "1 for each active finding of this node that is not silenced (docs/operate/findings.md).",
    ),
    gauge(
        "finding_rank_info",
        "",
        ("job_id", "rank", "check", "uuid", "device"),
        "Which rank a finding affects; always 1.",
    ),
    gauge("finding_silenced", "", (), "Findings that the configuration silences."),
    gauge("finding_checks", "", (), "Checks of the policy table."),
    gauge(
        "finding_checks_blocked",
        "",
        (),
        "Checks that can't run because their collector is broken or stuck.",
    ),
    counter(
        "finding_raised", "", ("check", "severity"), "Findings raised since the agent started."
    ),
    gauge(
        "finding_raised_last_day",
        "",
        ("severity",),
        "Findings raised in the last 24 hours, or since the agent started.",
    ),
    counter("finding_overflow", "", (), "Findings dropped because too many were active at once."),
    gauge(
        "finding_journal_success",
        "",
        (),
        "1 when the last change of a finding was written to disk, 0 when that failed.",
    ),
    # one for each target of alerts
    counter("alert_sent", "", ("target",), "Alerts that the target accepted, including repeats."),
    counter("alert_failures", "", ("target",), "Messages that the target did not accept."),
    counter(
        "alert_dropped", "", ("target",), "Ended alerts whose end did not reach the target in time."
    ),
    gauge(
        "alert_ended_waiting",
        "",
        ("target",),
        "Ended alerts whose end the target has not accepted yet.",
    ),
    gauge(
        "alert_success",
        "",
        ("target",),
        "1 when the target accepted the last message, 0 when it did not.",
    ),
)


class KernelLog(Protocol):
    def findings(self) -> tuple[KernelFinding, ...]: ...


class FindingsCollector:
    name = "findings"
    interval_s = 1.0

    def __init__(
        self,
        clock: Clock,
        node: str,
        checks: Sequence[Check],
        silenced: Sequence[str] = (),
        kernel_log: KernelLog | None = None,
        kernel_policy: PolicyTable | None = None,
    ) -> None:
        self._clock = clock
        self._node = node
        self._patterns = tuple(silenced)
        self._kernel_log = kernel_log
        self._kernel_policy = kernel_policy
        self._driver_events: DriverEvents = {}
        self._views: Callable[[], Sequence[CollectorView]] = list
        self._store: FindingStore | None = None
        self._targets: tuple[AlertmanagerTarget, ...] = ()
        self._runbooks = RUNBOOKS
        self._state = NodeState()
        self._still = StandingChecks()
        self._seen = SeenAnswers()
        self._raised: Counter[tuple[str, str]] = Counter()  # (check, severity)
        self._raised_at_s: list[tuple[float, str]] = []
        self._saved_at_s = clock.now_s()
        self._is_storing = True  # the last write succeeded
        self._release_trouble = ""
        self._boot_id = read_boot_id()
        self._take_checks(checks)
        self.newest = FindingsView(clock.now_s(), checks=len(self._checks))

    def watch(self, views: Callable[[], Sequence[CollectorView]]) -> None:
        """Take the collectors' answers from ``views``."""
        self._views = views

    def tell(self, targets: Sequence[AlertmanagerTarget], runbooks: str = RUNBOOKS) -> None:
        """Send what is found to these, with a link to the runbooks at that URL."""
        self._targets = tuple(targets)
        self._runbooks = check_runbooks(runbooks)

    def keep_in(self, store: FindingStore) -> None:
        """Go on from what ``store`` remembers, and write all changes to it."""
        self._store = store
        self._is_storing = store.is_open
        try:
            saved = store.load()
        except StorageError as error:
            log.warning(
                "cannot read the state of findings; starting empty", extra={"error": str(error)}
            )
            return
        if saved is None:
            return
        now_s = self._clock.now_s()
        away_s = max(0.0, self._clock.unix_s() - saved.unix_s)
        is_new_boot = saved.boot_id != self._boot_id
        shift_s = now_s - away_s - saved.now_s
        self._state = restore(saved.state, shift_s, is_new_boot=is_new_boot)
        self._still = StandingChecks()
        known = list_findings(self._state, Snapshot({}), now_s)
        self.newest = FindingsView(now_s, known, checks=len(self._checks))

    def scan_only(self, looks: int = SCAN_LOOKS) -> None:
        """Judge by so many looks and no history, for one scan of a node."""
        self._take_checks(for_one_scan(self._checks, looks))

    def reload(self, checks: Sequence[Check], silenced: Sequence[str]) -> None:
        """Take over another policy; findings of checks that are gone end."""
        self._take_checks(checks)
        self._patterns = tuple(silenced)
        self._still = StandingChecks()

    def _take_checks(self, checks: Sequence[Check]) -> None:
        self._checks = tuple(checks)
        self._names = frozenset(check.name for check in checks)
        self._readers: dict[
            str, list[Check]
        ] = {}  # by metric: a card has 500 series, the table 400 checks
        for check in checks:
            for name in check.metrics:
                self._readers.setdefault(name, []).append(check)
        self.metrics = frozenset(self._readers)
        self._seen = SeenAnswers()  # its answers hold what the former checks read

    def reads(self, metric: str, labels: Labels) -> bool:
        """Return whether a check reads this series."""
        return any(check.reads(metric, labels) for check in self._readers.get(metric, ()))

    def stop(self) -> None:
        """Save the state. Alerts are not resolved: an agent that ends says nothing of the node."""
        try:
            self._save()
        except StorageError as error:
            log.warning("cannot save the state of findings", extra={"error": str(error)})

    def blocked(self) -> tuple[str, ...]:
        return self.newest.blocked

    def page(self, now_s: float) -> dict[str, Any]:
        return findings_page(self._node, self.newest, now_s)

    def collect(self) -> Iterator[Metric]:
        now_s, unix_s = self._clock.now_s(), self._clock.unix_s()
        checks, before = self._checks, self.newest
        snapshot = make_snapshot(
            self._views(), now_s, self._seen, asking=self.name, wanted=self.metrics
        )
        state = self._without_unknown(self._released(self._state))
        state, observations = observe(state, checks, snapshot, self._still)
        observations += self._kernel_observations(state, snapshot, now_s)
        self._state = state = judge(state, observations, snapshot, now_s, unix_s)
        findings = list_findings(state, snapshot, now_s)
        silenced = frozenset(f.id for f in findings if is_silenced(f.id, self._patterns))
        blocked = tuple(blocked_checks(state, checks, snapshot))
        view = FindingsView(
            now_s,
            findings,
            silenced,
            blocked,
            tuple(sorted(snapshot.silent)),
            len(checks),
            before.looks + 1,
        )
        self._settle(before, view, unix_s)
        self.newest = view
        self._alert(view)
        yield from self._metrics(view)

    def _kernel_observations(
        self, state: NodeState, snapshot: Snapshot, now_s: float
    ) -> list[CheckLook]:
        """Return the looks at the kernel's messages, else at the XIDs that the driver reports."""
        if self._kernel_log is not None and LOG_RECORDS in snapshot.readings:
            found = self._kernel_log.findings()
            return list(kernel_observations(found, state, snapshot, now_s))
        if self._kernel_policy is None:
            return []
        self._driver_events = driver_events(self._driver_events, snapshot)
        judged = judge_log(driver_groups(self._driver_events), self._kernel_policy, now_s)
        weighed = by_recovery_action(judged, snapshot)
        return list(kernel_observations(weighed, state, snapshot, now_s, XID_COLLECTOR))

    def _without_unknown(self, state: NodeState) -> NodeState:
        if not state.held:
            return state
        names = self._names
        held = {
            key: subject
            for key, subject in state.held.items()
            if subject.seen.check in names or subject.seen.check.startswith(_KERNEL_CHECKS)
        }
        return state if len(held) == len(state.held) else replace(state, held=held)

    def _released(self, state: NodeState) -> NodeState:
        if self._store is None:
            return state
        try:
            requested = self._store.released()
        except StorageError as error:  # the findings themselves need no disk
            if str(error) != self._release_trouble:
                log.error("cannot look for released findings", extra={"error": str(error)})  # noqa: TRY400
            self._release_trouble, requested = str(error), []
        else:
            self._release_trouble = ""
        for finding_id in requested:
            released = release(state, finding_id)
            fields = {"finding": finding_id}
            if released is None:
                log.warning("no latched finding to release", extra=fields)
            else:
                log.info("finding released", extra=fields)
                state = released
        return state

    def _settle(self, before: FindingsView, after: FindingsView, unix_s: float) -> None:
        """Write, log and count what has changed."""
        changes: list[tuple[str, NodeFinding]] = []
        if before.findings or after.findings:
            old = {finding.id: finding for finding in before.findings}
            new = {finding.id: finding for finding in after.findings}
            changes += [("raised", new[key]) for key in new if key not in old]
            changes += [("ended", old[key]) for key in old if key not in new]
            changes += [
                ("changed", new[key])
                for key in new
                if key in old and _state_of(new[key]) != _state_of(old[key])
            ]
        for change, finding in changes:
            if change == "raised":
                self._raised[finding.check, finding.severity.value] += 1
                self._raised_at_s.append((after.at_s, finding.severity.value))
            fields = {"finding": finding.id, "action": finding.action.value}
            level = logging.INFO if change == "ended" else logging.WARNING
            log.log(level, f"finding {change}", extra={**fields, "summary": finding.summary})
        if self._raised_at_s:
            cut = [raise_ for raise_ in self._raised_at_s if after.at_s - raise_[0] <= DAY_S]
            self._raised_at_s = cut[-RAISES_MAX:]
        if self._store is not None:
            self._write(changes, unix_s, after.at_s)

    def _write(self, changes: list[tuple[str, NodeFinding]], unix_s: float, now_s: float) -> None:
        assert self._store is not None
        try:
            if changes:
                self._store.append(
                    [
                        {"at": round(unix_s, 3), "change": change, **describe(finding)}
                        for change, finding in changes
                    ]
                )
            # After a failure each look tries again: what is not known to be written is not in order.
            if changes or not self._is_storing or now_s - self._saved_at_s >= SAVE_S:
                self._save()
                if not self._is_storing:
                    log.info("findings are saved on disk again")
                self._is_storing = True
        except StorageError as error:
            if self._is_storing:
                log.error("findings are not saved on disk", extra={"error": str(error)})  # noqa: TRY400
            self._is_storing = False

    def _save(self) -> None:
        if self._store is None:
            return
        self._saved_at_s = self._clock.now_s()
        self._store.save(
            SavedState(
                version=VERSION,
                boot_id=self._boot_id,
                now_s=self._clock.now_s(),
                unix_s=self._clock.unix_s(),
                state=self._state,
            )
        )

    def _alert(self, view: FindingsView) -> None:
        if not self._targets:
            return
        alerts = [
            Alert(
                alert_labels(finding, self._node),
                alert_annotations(finding)
                | {"runbook_url": f"{self._runbooks}/findings.md#{finding.check}"},
                finding.started_unix_s,
            )
            for finding in view.findings
            if finding.id not in view.silenced and finding.severity is not Severity.INFO
        ]
        for target in self._targets:
            target.update(alerts)

    def _metrics(self, view: FindingsView) -> Iterator[Metric]:
        for finding in view.findings:
            if finding.id not in view.silenced:
                yield from _finding_metrics(finding)
        yield Metric("rankmend_finding_silenced", len(view.silenced))
        yield Metric("rankmend_finding_checks", view.checks)
        yield Metric("rankmend_finding_checks_blocked", len(view.blocked))
        for (check, severity), count in self._raised.items():
            labels = (("check", check), ("severity", severity))
            yield Metric("rankmend_finding_raised_total", count, labels)
        raised = [severity for _at_s, severity in self._raised_at_s]
        for severity in _SEVERITIES:
            last_day = raised.count(severity)
            yield Metric("rankmend_finding_raised_last_day", last_day, (("severity", severity),))
        yield Metric("rankmend_finding_overflow_total", self._state.dropped)
        if self._store is not None:
            yield Metric("rankmend_finding_journal_success", int(self._is_storing))
        for target in self._targets:
            yield from target_metrics(target)


def target_metrics(target: AlertmanagerTarget) -> Iterator[Metric]:
    """Return what has become of the alerts for one target, as metrics."""
    labels, counts = (("target", target.name),), target.counts()
    yield Metric("rankmend_alert_sent_total", counts.sent, labels)
    yield Metric("rankmend_alert_failures_total", counts.failed, labels)
    yield Metric("rankmend_alert_dropped_total", counts.dropped, labels)
    yield Metric("rankmend_alert_ended_waiting", counts.ended_waiting, labels)
    yield Metric("rankmend_alert_success", int(counts.is_taken), labels)


def _finding_metrics(finding: NodeFinding) -> Iterator[Metric]:
    uuid = dict(finding.labels).get("uuid", "")
    labels = (
        ("check", finding.check),
        ("component", finding.component.value),
        ("uuid", uuid),
        ("device", finding.device),
        ("severity", finding.severity.value),
        ("action", finding.action.value),
    )
    yield Metric("rankmend_finding_active", 1, labels)
    for rank in finding.ranks:
        hit = (
            ("job_id", rank.job_id),
            ("rank", str(rank.rank)),
            ("check", finding.check),
            ("uuid", uuid),
            ("device", finding.device),
        )
        yield Metric("rankmend_finding_rank_info", 1, hit)


def is_silenced(finding_id: str, patterns: Sequence[str]) -> bool:
    """Tell whether a pattern of the configuration names this finding, or its whole check."""
    check = finding_id.partition("/")[0]
    return any(fnmatchcase(finding_id, pattern) or check == pattern for pattern in patterns)


def _state_of(finding: NodeFinding) -> tuple[object, ...]:
    return finding.severity, finding.action, finding.is_flapping, finding.is_latched
