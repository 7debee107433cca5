"""The controller's own metrics. docs/reference/metrics.md lists them, and a test compares."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from detectors.finding import Kind, Severity
from detectors.numbers.wrong import Trouble
from recovery.accounting.goodput.time_window import catch_up
from recovery.api.wire import CheckpointView
from recovery.journal.accounting import Account, RecoveryPhase, Tier, account_all
from recovery.journal.attempt_records import AttemptVerified
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import IncidentEvent, IncidentOpened
from recovery.journal.ledger import Ledger
from recovery.journal.narration.cluster_narrator import end_of_probe
from recovery.journal.observation_records import SlowFound
from recovery.journal.records import Entry
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.service.agent_readings import AgentReadings
from recovery.service.bmc.bmc_readings import BmcReadings
from recovery.service.jobs.served_job import Job
from recovery.service.metrics.desk_gauges import DeskGauges
from recovery.service.metrics.gauges import NameGauges, SnapshotGauges, WatchedGauges
from recovery.service.metrics.site_gauges import SiteGauges
from recovery.service.metrics.time_accounts import TimeAccounts
from recovery.service.metrics.time_gauges import TimeGauges
from recovery.service.pager import Pager
from recovery.service.tokens import Tokens

# MTTR is aimed at seconds; requeues and reloads of large models take up to an hour.
_PHASE_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600, 1800, 3600)
_TURN_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
_COMMIT_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STEPS_BUCKETS: Final = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_COST_PARTS: Final = ("stalls", "recomputed", "restarts")
_ENTRIES_MAX: Final = 1000  # per incident, kept for its account
_PREFIX: Final = "rankmend_controller"
NODE_CERTIFICATE_S: Final = 31 * 86_400.0  # before its end one is shown
NODE_CERTIFICATES_MAX: Final = 5_000
_REPLICAS: Final = "replicas"
_ENDS: Final = (Phase.RECOVERED, Phase.ESCALATED, Phase.CANCELLED)


class Measures:
    """Counts what the worker and the API tell; its own registry, so that several can be in a process."""

    _unheard_s = 0.0  # that is counted
    accounts: TimeAccounts | None = (
        None  # of where the time of jobs goes; None: nobody requested that
    )
    readings: AgentReadings | None = None  # of the agents of blamed nodes

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._running: dict[str, list[Entry]] = {}  # job -> entries of its open incident

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        self.incidents = counter(
            "incidents", "Ended incidents, by cause and outcome.", "cause", "outcome"
        )
        self.opened = counter("incidents_opened", "Incidents opened, by cause.", "cause")
        self.slow, self.probes = (
            counter(
                "slow_ranks",
                "Ranks found slow, by section. Divided by nodes and days: alarms per node-day.",
                "section",
            ),
            counter(
                "fabric_probes",
                "Tests of the network among idle nodes for slow jobs, by end: judged, yielded, failed, late, interrupted; dry; too_few: fewer than 2 nodes.",
                "end",
            ),
        )
        self.phase_s = Histogram(
            f"{_PREFIX}_recovery_phase_seconds",
            "Phases of MTTR of recovered incidents, by phase. One that was not observed has no sample.",
            ("phase",),
            buckets=_PHASE_BUCKETS_S,
            registry=self.registry,
        )
        self.recovery_s = Histogram(
            f"{_PREFIX}_recovery_seconds",
            "MTTR: from the fault to the first step of the slowest rank.",
            buckets=_PHASE_BUCKETS_S,
            registry=self.registry,
        )
        self.gpu_s_lost = counter(
            "gpu_seconds_lost",
            "GPU time of recovered incidents from fault to first step, by cause; a rank counts as one GPU. Repeated steps are not in it.",
            "cause",
        )
        self.steps_recomputed = counter("steps_recomputed", "Steps repeated after restarts.")
        self.steps_lost = Histogram(
            f"{_PREFIX}_steps_lost",
            "Steps that a recovered incident made the job repeat, by tier: what it restored (memory, checkpoint, start).",
            ("tier",),
            buckets=_STEPS_BUCKETS,
            registry=self.registry,
        )
        self.reports = counter(
            "reports",
            "Reports of launchers, by result: queued, full, rate, ended or refused. Slimmed reports count as queued.",
            "result",
        )
        self.requests = counter(
            "requests", "Requests answered, by route and status.", "route", "status"
        )
        self.auth_failures = counter(
            "auth_failures",
            "Requests refused, by reason: not authenticated (unknown), role missing (role), outside the token's limits (limit).",
            "reason",
        )
        self.alerts = counter("alerts", "Alerts accepted.")
        self.alerts_refused = counter(
            "alerts_refused", "Alerts refused because one sender has too many."
        )
        self.failures = counter("job_failures", "Failures of the code that manages a job.")
        self.turn_s, self.commit_s = (
            Histogram(
                f"{_PREFIX}_turn_seconds",
                "Turns of the deciding thread that had work.",
                buckets=_TURN_BUCKETS_S,
                registry=self.registry,
            ),
            Histogram(
                f"{_PREFIX}_commit_seconds",
                "Commits of jobs' journals: until the disk, or PostgreSQL, has them.",
                buckets=_COMMIT_BUCKETS_S,
                registry=self.registry,
            ),
        )
        self.jobs = gauge("jobs", "Jobs that this controller manages.")
        self.queue = gauge("reports_queued", "Reports waiting for the deciding thread.")
        self.orders = gauge("orders_pending", "Orders not yet acknowledged by a report.")
        self.polls = gauge("polls_waiting", "Long polls waiting for an order.")
        self.connections = gauge("connections", "Open connections.")
        self.cut = gauge(
            "connections_cut",
            "Connections closed since the start because they were slow, sent too much, or were too many.",
        )
        self.budget = gauge(
            "restarts_left",
            "Restarts left in the job's budgets (the run, and a day without a new step), by job_id.",
            "job_id",
        )
        self.cluster_budget = gauge(
            "budget_left",
            "What is left of the cluster's budgets, by budget: stops_per_hour, nodes_held.",
            "budget",
        )
        self.checkpoint_age_s = gauge(
            "checkpoint_age_seconds",
            "Age of the newest restorable checkpoint, by job_id.",
            "job_id",
        )
        self.checkpoint_interval_s = gauge(
            "checkpoint_interval_seconds",
            "Usual time from the begin of a save to the next, by job_id; no series before two saves.",
            "job_id",
        )
        self.checkpoint_best_s = gauge(
            "checkpoint_best_interval_seconds",
            "Interval at which checkpoints cost least (Young/Daly), by job_id.",
            "job_id",
        )
        self.checkpoint_stall_s = gauge(
            "checkpoint_stall_seconds", "For how long a save stops training, by job_id.", "job_id"
        )
        self.checkpoint_save_s = gauge(
            "checkpoint_save_seconds",
            "From the first change of a checkpoint's files to the last, by job_id.",
            "job_id",
        )
        self.checkpoint_write_rate = gauge(
            "checkpoint_write_bytes_per_second", "At which the job saves, by job_id.", "job_id"
        )
        self.checkpoint_read_rate = gauge(
            "checkpoint_read_bytes_per_second",
            "At which the ranks read the checkpoint of the newest restore, by job_id.",
            "job_id",
        )
        self.checkpoint_cost = gauge(
            "checkpoint_cost_ratio",
            "Share of the wall time that the present interval costs, by job_id and part: stalls, recomputed, restarts.",
            "job_id",
            "part",
        )
        self.failure_interval_s = gauge(
            "failure_interval_seconds",
            "Mean running time between failures of a job, measured as far as it had failures, by job_id.",
            "job_id",
        )
        self.wrong_numbers = gauge(
            "numbers_wrong",
            "Losses and gradient norms that went wrong in the newest attempt, by job_id and trouble: not_finite, spike, apart; replicas: parts of snapshots that differ and ought to be equal.",
            "job_id",
            "trouble",
        )
        self.notices = gauge("notices", "Active notices to people, by notice.", "notice")
        self.told = gauge(
            "people_told",
            "1 if the Alertmanager accepted the newest message for people, by target.",
            "target",
        )
        self._node_ends, self.certificate_s, self.node_certificate_s, self.token_ends_s = (
            dict[str, float](),  # of nodes' certificates, as shown
            gauge(
                "certificate_expiry_timestamp_seconds",
                "Unix time at which the certificate expires; 0 without TLS.",
            ),
            gauge(
                "node_certificate_expiry_timestamp_seconds",
                "Unix time at which a node's certificate expires, by whose it is: of those that agents showed and that end within 31 days.",
                "subject",
            ),
            gauge(
                "token_expiry_timestamp_seconds",
                "Unix time at which a token expires, by its id and whose it is. Tokens without an end have none.",
                "token",
                "subject",
            ),
        )
        self.lateness_s = gauge(
            "lateness_seconds",
            "How long the oldest report has waited for the deciding thread, in listened seconds.",
        )
        self.unheard = counter(
            "unheard_seconds",
            "Time in which the event loop was late or the queue full; it counts against no node. Above a fifth of the time the controller is overloaded.",
        )
        self.silent_s = gauge(
            "turn_age_seconds",
            "Time since the deciding thread last finished a turn. Above 1 s it is stuck on a disk.",
        )
        self.snapshots = SnapshotGauges(_PREFIX, self.registry)
        self.watched, self.names = (
            WatchedGauges(_PREFIX, self.registry),
            NameGauges(_PREFIX, self.registry),
        )
        self.times = TimeGauges(_PREFIX, self.registry)
        self.slurm, self.kubernetes = (
            DeskGauges(_PREFIX, self.registry, limits) for limits in (SlurmLimits, KubernetesLimits)
        )
        self.bmcs, self.site = BmcReadings(), SiteGauges()
        self._begin()

    def account(self, accounts: TimeAccounts) -> TimeAccounts:
        """Have the time of jobs accounted, and show it; return what accounts it."""
        self.accounts = accounts
        self.times.watch(accounts)
        return accounts

    def take_tokens(self, tokens: Tokens | None) -> None:
        """Show when the tokens in force end."""
        self.token_ends_s.clear()
        for entry, ends_unix_s in tokens.ending() if tokens is not None else ():
            self.token_ends_s.labels(entry.id, entry.subject).set(ends_unix_s)

    def note_node_certificate(self, subject: str, ends_unix_s: float, now_unix_s: float) -> None:
        """Show when a node's certificate ends, while that is near. For the event loop."""
        if self._node_ends.get(subject) == ends_unix_s:
            return
        self._node_ends.pop(subject, None)
        if len(self._node_ends) >= NODE_CERTIFICATES_MAX:
            forgotten = next(iter(self._node_ends))
            del self._node_ends[forgotten]
            with contextlib.suppress(KeyError):
                self.node_certificate_s.remove(forgotten)
        if ends_unix_s - now_unix_s > NODE_CERTIFICATE_S:  # looked at again with the next report
            with contextlib.suppress(KeyError):
                self.node_certificate_s.remove(subject)
            return
        self._node_ends[subject] = ends_unix_s
        self.node_certificate_s.labels(subject).set(ends_unix_s)

    def _begin(self) -> None:
        """Show counters before their first event: `increase` counts nothing of a series that begins at 1."""
        self.registry.register(self.bmcs)
        self.registry.register(self.site)
        self.database_away_s = Gauge(
            f"{_PREFIX}_database_away_seconds",
            "For how long PostgreSQL has not answered: nothing new is decided meanwhile. 0 if it answers, or if the journals are files.",
            registry=self.registry,
        )
        for kind in Kind:
            self.opened.labels(kind.value)
            self.gpu_s_lost.labels(kind.value)
            for phase in _ENDS:
                self.incidents.labels(kind.value, phase.name.lower())
        for section in ("compute", "communication", "io"):
            self.slow.labels(section)
        for recovery_phase in RecoveryPhase:
            self.phase_s.labels(recovery_phase.value)
        for tier in Tier:
            self.steps_lost.labels(tier.value)

    def render(self, encode: Callable[[Any], bytes] = generate_latest) -> bytes:
        return encode(self.registry)

    def note_hearing(self, lateness_s: float, unheard_s: float) -> None:
        """Record how late reports are read."""
        self.lateness_s.set(lateness_s)
        self.unheard.inc(unheard_s - self._unheard_s)
        self._unheard_s = unheard_s

    def note_pager(self, pager: Pager, now_unix_s: float) -> None:
        """Record the active notices and their delivery, and the site's units."""
        self.site.note(pager.site(), now_unix_s)
        for notice, count in pager.counts().items():
            self.notices.labels(notice).set(count)
        for target, is_told in pager.told().items():
            self.told.labels(target).set(is_told)

    def note_numbers(self, ledger: Ledger) -> None:
        """Record which numbers of a job went wrong."""
        wrong = [
            number.trouble
            for number in ledger.wrong_numbers
            if number.attempt == ledger.attempt
            if number.trouble is not Trouble.NOT_FINITE or number.severity is Severity.CRITICAL
        ]
        for trouble in Trouble if ledger.wrong_numbers and ledger.job_id else ():
            self.wrong_numbers.labels(ledger.job_id, trouble.value).set(wrong.count(trouble))
        if ledger.differing and ledger.job_id:
            differing = [differ for differ in ledger.differing if differ.attempt == ledger.attempt]
            self.wrong_numbers.labels(ledger.job_id, _REPLICAS).set(len(differing))

    def note_checkpoint(self, job_id: str, view: CheckpointView | None) -> None:
        """Record a job's newest restorable checkpoint and what its saves cost; None: it has none."""
        if view is None:
            self._forget_checkpoint(job_id)
            return
        self.snapshots.note_age(job_id, Tier.CHECKPOINT, view.age_s)
        best = None if view.best is None else view.best.interval_s
        for gauge, value in (
            (self.checkpoint_age_s, view.age_s),
            (self.checkpoint_interval_s, view.interval_s),
            (self.checkpoint_best_s, best),
            (self.checkpoint_stall_s, view.stall_s),
            (self.checkpoint_save_s, view.save_s),
            (self.checkpoint_write_rate, view.write_bytes_per_s),
            (self.checkpoint_read_rate, view.read_bytes_per_s),
            (self.failure_interval_s, view.failure_interval_s),
        ):
            if value is not None:
                gauge.labels(job_id).set(value)
        for part in _COST_PARTS if view.present is not None else ():
            self.checkpoint_cost.labels(job_id, part).set(getattr(view.present, part))

    def _forget_checkpoint(self, job_id: str) -> None:
        for gauge in (
            self.checkpoint_age_s,
            self.checkpoint_interval_s,
            self.checkpoint_best_s,
            self.checkpoint_stall_s,
            self.checkpoint_save_s,
            self.checkpoint_write_rate,
            self.checkpoint_read_rate,
            self.failure_interval_s,
        ):
            _remove(gauge, job_id)
        for part in _COST_PARTS:
            _remove(self.checkpoint_cost, job_id, part)
        self.snapshots.note_age(job_id, Tier.CHECKPOINT, None)

    # What the jobs and the deciding thread tell (`JobListener`, `TurnListener`).

    def journal_opened(self, job: Job, opened: Sequence[Entry], through: int) -> None:
        if self.accounts is not None:
            reported = catch_up(job.hold.stored_journal, through)
            self.accounts.opened(job.job_id, job.stored.join.name, reported)
        if self.readings is not None:
            self.readings.journal_opened(job.job_id, job.hold.stored_journal.folder, opened)

    def entry(self, job: Job, entry: Entry) -> None:
        record = entry.record
        if self.accounts is not None:
            self.accounts.entry(job.job_id, entry)
        if self.readings is not None:
            self.readings.entry(job.job_id, job.hold.stored_journal.folder, entry)
        running = self._running.get(job.job_id)
        if isinstance(record, IncidentOpened):
            running = self._running[job.job_id] = []
            self.opened.labels(record.failure.finding.kind.value).inc()
        if isinstance(record, SlowFound):
            self.slow.labels(record.section).inc()
        elif (end := end_of_probe(record)) is not None:
            self.probes.labels(end).inc()
        if running is None:
            return
        if len(running) < _ENTRIES_MAX:
            running.append(entry)
        if isinstance(record, IncidentEvent | AttemptVerified):
            account = account_all(running)[-1]
            if account.state.phase in _ENDS:
                del self._running[job.job_id]
                self._count(account)

    def _count(self, account: Account) -> None:
        cause = account.opened.failure.finding.kind.value
        self.incidents.labels(cause, account.state.phase.name.lower()).inc()
        if account.state.phase is not Phase.RECOVERED:
            return
        for phase, seconds in account.phases.items():
            self.phase_s.labels(phase.value).observe(seconds)
        if account.total_s is not None:
            self.recovery_s.observe(account.total_s)
            self.gpu_s_lost.labels(cause).inc(account.total_s * account.ranks)
        if account.steps_recomputed is not None:
            self.steps_recomputed.inc(account.steps_recomputed)
            if account.tier is not None:
                self.steps_lost.labels(account.tier.value).observe(account.steps_recomputed)

    def failed(self, _job: Job, _error: Exception) -> None:
        self.failures.inc()

    def taken_up(self, job: Job) -> None:
        self._running.pop(job.job_id, None)

    def ended(self, job: Job) -> None:
        if self.accounts is not None:
            self.accounts.closed(job.job_id)
        if self.readings is not None:
            self.readings.ended(job.job_id)
        self._running.pop(job.job_id, None)
        _remove(self.budget, job.job_id)
        for trouble in Trouble:
            _remove(self.wrong_numbers, job.job_id, trouble.value)
        _remove(self.wrong_numbers, job.job_id, _REPLICAS)
        self._forget_checkpoint(job.job_id)
        self.snapshots.note_unsaved(job.job_id, None)
        self.snapshots.note(job.job_id, None)

    def turned(self, _reports: int, took_s: float) -> None:
        self.turn_s.observe(took_s)


def _remove(gauge: Gauge, *labels: str) -> None:
    with contextlib.suppress(KeyError):  # it never had one
        gauge.remove(*labels)
