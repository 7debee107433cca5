"""The limits that all jobs of a controller share. Pure; read by `recovery.controller.cluster.cluster_limits_file`.

Two kinds of action are never counted and never blocked, since they restore safety: to stop the ranks
of an attempt that is being fenced, and to start a job again that stands anyway.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from fnmatch import fnmatchcase

from detectors.finding import Kind
from rankmend.errors import ConfigError
from recovery.controller.cluster.probe_rules import ProbeRules

DAY_S = 86_400.0
LEMON_FAULTS_MOST = 100  # that the ledger keeps of a node
POWER_OFFS_MOST = 100  # per hour: the ledger remembers ten times as many


class Approval(Enum):
    OFF = "off"  # no approval is needed
    STOPS = "stops"  # whatever would stop a job that still trains
    MOVES = "moves"  # that, and leaving a node
    ALL = "all"  # every plan


class WatchedAction(Enum):
    """What is done about a job of another launcher that hangs and waits for a rank that is known."""

    TELL = "tell"  # people are notified, and nothing is done
    DRAIN = "drain"  # the rank's node takes no new jobs
    CANCEL = "cancel"
    REQUEUE = "requeue"  # without the rank's node


@dataclass(frozen=True, slots=True)
class WatchedRules:
    action: WatchedAction = WatchedAction.TELL
    dry_run: bool = True  # requests are journaled and shown, and not made
    # How long a verdict must have stood: who has stopped a process for a look at it goes on within a minute.
    confirm_s: float = 120.0
    # As many as fail in an hour of a large cluster; more is a cause that jobs share.
    acts_per_hour_max: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.confirm_s <= DAY_S:
            raise ConfigError(f"watched: confirm_s is {self.confirm_s:g}, not from 0 to {DAY_S:g}")
        if not 0 <= self.acts_per_hour_max <= 100:
            raise ConfigError(
                f"watched: acts_per_hour_max is {self.acts_per_hour_max}, not from 0 to 100"
            )


@dataclass(frozen=True, slots=True)
class Budgets:
    # Alerts and slow ranks stop a job that trains; a rule that misfires would stop all of them.
    # Llama 3 had 8 interruptions a day on 16,384 GPUs: 6 an hour is twenty times that.
    stops_per_hour_max: int = 6
    # Moves by one job: each takes a spare. More than its spares can't be made anyway.
    moves_per_job_day_max: int = 24
    # Nodes that rankmend itself holds back, at one time: both must hold. NVSentinel's users
    # were bitten by a percentage alone (#1228) and by a denominator with other nodes (#1686).
    nodes_held_max: int = 20
    # Of the nodes that ran ranks within the last day; 11 % is what racks are sold with in spares.
    nodes_held_percent: float = 10.0
    # Of these, the nodes of one subject that nobody but its launchers has named count up to this number, where others may launch jobs,
    # too. Half of those at which nodes_held_percent reaches nodes_held_max: above, invented nodes change nothing but the breaker.
    nodes_unconfirmed_max: int = 100
    # Nodes whose power rankmend switches off, of all jobs: a cluster loses a host in hours. More in an hour
    # is the network, or a rack, and a person looks.
    power_offs_per_hour_max: int = 2

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) < 0:
                raise ConfigError(f"budgets: {limit.name} can't be negative")
        if self.power_offs_per_hour_max > POWER_OFFS_MOST:
            raise ConfigError(
                f"budgets: power_offs_per_hour_max is {self.power_offs_per_hour_max}, "
                f"over {POWER_OFFS_MOST}"
            )
        if self.nodes_held_percent > 100:
            raise ConfigError(f"budgets: nodes_held_percent is {self.nodes_held_percent}, over 100")


@dataclass(frozen=True, slots=True)
class Quarantine:
    # Three incidents within a week: RSC's lemon nodes failed several times in 28 days, a good
    # node once in 150 days (arXiv 2410.21680: 6.5 failures per 1,000 node-days).
    blames: int = 3
    window_s: float = 7 * DAY_S
    hold_s: float = DAY_S  # the first time; doubled for each further one
    hold_s_max: float = 30 * DAY_S

    def __post_init__(self) -> None:
        if self.blames < 1:
            raise ConfigError(f"quarantine: blames is {self.blames}; it must be at least 1")
        if not 0 < self.hold_s <= self.hold_s_max or self.window_s <= 0:
            raise ConfigError(
                "quarantine: window_s and hold_s must be above 0, and hold_s_max at least hold_s"
            )


@dataclass(frozen=True, slots=True)
class LemonRules:
    """Which nodes are kept out of use until a person takes them back: those that fail again and again."""

    # Faults of one kind within `days`, from which on a node is a lemon; without a limit the kind doesn't count.
    limits: dict[Kind, int] = field(default_factory=dict)
    faults: int = 0  # of all kinds together; 0: no such limit
    # Meta removed nodes by their faults over 28 days: 1.2 % of the fleet (arXiv 2410.21680, section 5).
    days: float = 28.0
    dry_run: bool = True  # lemons are journaled and shown, and none is kept out
    # Both hold: a wrong limit must not take the fleet.
    nodes_max: int = 10
    nodes_percent: float = 2.0  # of the nodes that ran ranks within a day

    @property
    def is_on(self) -> bool:
        return bool(self.limits or self.faults)

    def __post_init__(self) -> None:
        for kind, limit in self.limits.items():
            if not 1 <= limit <= LEMON_FAULTS_MOST:
                raise ConfigError(
                    f"lemons: limits.{kind.value} is {limit}, not 1 to {LEMON_FAULTS_MOST}"
                )
        if not 0 <= self.faults <= LEMON_FAULTS_MOST:
            raise ConfigError(f"lemons: faults is {self.faults}, not 0 to {LEMON_FAULTS_MOST}")
        if not 0 < self.days <= 365:
            raise ConfigError(f"lemons: days is {self.days:g}, not above 0 and up to 365")
        if self.nodes_max < 0 or not 0 <= self.nodes_percent <= 50:
            raise ConfigError("lemons: nodes_max can't be negative, and nodes_percent is 0 to 50")


@dataclass(frozen=True, slots=True)
class PeopleRules:
    """When people get a message."""

    # Also of an incident that rankmend recovers by itself. Otherwise it is in the daily record.
    page_every_incident: bool = False
    # An incident that is not over by then. Restarts take minutes; a quarter of an hour of a whole job is worth a person.
    # 0: never for that alone.
    page_after_s: float = 900.0
    # A message stands so long at least. The second Alertmanager of a cluster waits 15 s for the word of the first: if the end
    # came before, it would send the message once more, after its end.
    stands_s: float = 60.0
    record_hour: int = 8  # of the daily record, in UTC

    def __post_init__(self) -> None:
        if not 0 <= self.page_after_s <= DAY_S:
            raise ConfigError(f"people: page_after_s is {self.page_after_s:g}, not 0 to {DAY_S:g}")
        if not 0 <= self.stands_s <= 3600:
            raise ConfigError(f"people: stands_s is {self.stands_s:g}, not 0 to 3600")
        if not 0 <= self.record_hour <= 23:
            raise ConfigError(f"people: record_hour is {self.record_hour}, not 0 to 23")


@dataclass(frozen=True, slots=True)
class AlertRules:
    """How to interpret alerts from outside."""

    # Labels in which exporters name a node; the first one present counts, without its port.
    # dcgm-exporter uses Hostname, Prometheus itself instance.
    node_labels: tuple[str, ...] = ("node", "Hostname", "hostname", "nodename", "instance")
    # Domains of the nodes. With them, all names with the same first label in these domains, or without one, are one node.
    domains: tuple[str, ...] = ()
    device_labels: tuple[str, ...] = ("uuid", "UUID", "gpu_uuid", "device")
    # Alerts that may accuse a node of a job: shell patterns of alertname. All of ours may.
    accept: tuple[str, ...] = ("Rankmend*",)
    # Action of an accepted alert that has no label or annotation `action`.
    action_default: str = "watch"
    # An alert that fires this often within the window is flapping: it counts as one piece of evidence until
    # it has been quiet for a whole window. gpud and NVSentinel (#1488) use three within an hour.
    flap_raises: int = 3
    flap_window_s: float = 3600.0
    # Senders repeat firing alerts at least this often (Prometheus: resend 1 m, Alertmanager:
    # repeat 4 h). An alert that is no longer repeated is forgotten, which proves nothing.
    forget_s: float = 6 * 3600.0

    def __post_init__(self) -> None:
        if self.flap_raises < 2:
            raise ConfigError(f"alerts: flap_raises is {self.flap_raises}; it must be at least 2")
        if not 0 < self.flap_window_s <= self.forget_s:
            raise ConfigError(
                "alerts: flap_window_s must be above 0, and forget_s at least flap_window_s"
            )


@dataclass(frozen=True, slots=True)
class JobOverride:
    """Overrides for jobs whose names match."""

    pattern: str
    approval: Approval | None = None
    is_dry: bool | None = None
    observe: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What holds for the nodes whose names match."""

    match: str = ""
    observe: bool = False

    def __post_init__(self) -> None:
        if not self.match:
            raise ConfigError("nodes: match is missing: a pattern for node names")


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    approval: Approval = Approval.OFF
    is_dry: bool = False  # plans are made, journaled and shown, and wait for a person
    budgets: Budgets = field(default_factory=Budgets)
    quarantine: Quarantine = field(default_factory=Quarantine)
    alerts: AlertRules = field(default_factory=AlertRules)
    watched: WatchedRules = field(default_factory=WatchedRules)
    people: PeopleRules = field(default_factory=PeopleRules)
    lemons: LemonRules = field(default_factory=LemonRules)
    overrides: tuple[JobOverride, ...] = ()
    observe: bool = False  # decides, and does nothing
    nodes: tuple[NodeRules, ...] = ()
    fabric_probe: ProbeRules = field(default_factory=ProbeRules)
    single_tenant: bool = (
        False  # all users are one party: a launcher's word counts outside its job, too
    )

    def approval_for(self, job_name: str) -> Approval:
        found = self.approval
        for override in self.overrides:
            if fnmatchcase(job_name, override.pattern) and override.approval is not None:
                found = override.approval
        return found

    def is_dry_for(self, job_name: str) -> bool:
        found = self.is_dry
        for override in self.overrides:
            if fnmatchcase(job_name, override.pattern) and override.is_dry is not None:
                found = override.is_dry
        return found

    def probe_rules_for(self, job_name: str) -> ProbeRules:
        """Return the rules of probes of the network; in a dry run or observe mode all of them are dry."""
        is_dry = self.is_dry_for(job_name) or self.why_observed(job_name) is not None
        return replace(self.fabric_probe, dry_run=True) if is_dry else self.fabric_probe

    def why_observed(self, job_name: str, nodes: Iterable[str] = ()) -> str | None:
        """Return what puts this job, or one of these nodes, into observe mode, or None."""
        found, why = self.observe, "[cluster] observe"
        for override in self.overrides:
            if fnmatchcase(job_name, override.pattern) and override.observe is not None:
                found, why = override.observe, f"[[jobs]] {override.pattern}"
        if found:
            return why
        for node in nodes:
            rule = self._rule_for(node)
            if rule is not None and rule.observe:
                return f"[[nodes]] {rule.match}"
        return None

    def _rule_for(self, node: str) -> NodeRules | None:
        """Return the rule of a node: the last one that matches counts."""
        found = (rule for rule in reversed(self.nodes) if fnmatchcase(node, rule.match))
        return next(found, None)

    def observed_scopes(self) -> tuple[str, ...]:
        """Return where observe mode is on, in words."""
        scopes = ["the cluster"] if self.observe else []
        scopes += [
            f"jobs {override.pattern}" if override.observe else f"not jobs {override.pattern}"
            for override in self.overrides
            if override.observe is not None and override.observe is not self.observe
        ]
        return (*scopes, *(f"nodes {node.match}" for node in self.nodes if node.observe))
