"""Reads the policy of a controller from a TOML file: cluster-wide tables, then those of jobs.

Their keys are the fields of `recovery.controller.cluster.cluster_limits`, which hold the defaults with their
reasons; [policy] and [hang] are the defaults for jobs (`recovery.launcher.run.options`). A key that is none of
them is an error. deploy/policy.toml has them all, commented.
"""

from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from detectors.hang.live import HungLimits
from rankmend.errors import ConfigError
from rankmend.toml_file import (
    Keys,
    SettingError,
    TomlFile,
    convert_table,
    refuse_unknown,
    table_of,
)
from recovery.controller.cluster.cluster_limits import (
    AlertRules,
    Approval,
    Budgets,
    ClusterPolicy,
    JobOverride,
    LemonRules,
    NodeRules,
    PeopleRules,
    Quarantine,
    WatchedRules,
)
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.journal.limits import Policy

_BYTES_MAX: Final = 1024 * 1024
_TOP: Final = (
    "cluster", "budgets", "quarantine", "alerts", "watched", "people", "lemons", "fabric_probe", "policy", "hang", "jobs", "nodes",
)  # fmt: skip
_OVERRIDE: Final = ("match", "approval", "dry_run", "observe", "policy", "hang")
_NODES_MAX: Final = 1_000  # rules


@dataclass(frozen=True, slots=True)
class JobRules:
    """The file's overrides for jobs whose names match."""

    pattern: str
    policy: dict[str, Any] = field(default_factory=dict)
    hang: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyFile:
    cluster: ClusterPolicy = field(default_factory=ClusterPolicy)
    policy: Policy = field(default_factory=Policy)
    jobs: tuple[JobRules, ...] = ()

    def policy_for(self, job_name: str) -> Policy:
        """Return the limits of a job: the defaults, then each match in the file's order."""
        policy = self.policy
        for rules in self.jobs:
            if fnmatchcase(job_name, rules.pattern):
                policy = _laid_over(policy, rules.policy, rules.hang, ())
        return policy


def read_policy_file(path: Path | None) -> PolicyFile:
    """Return what a file says over the defaults; without a file the defaults."""
    if path is None:
        return PolicyFile()
    file = TomlFile(path, _BYTES_MAX, "the policy")
    try:
        return parse_policy(file.tables)
    except ConfigError as error:
        raise file.named(error) from error


def parse_policy(tables: dict[str, Any]) -> PolicyFile:
    """Return what the tables say; an unknown key or a value of a wrong type is a SettingError."""
    refuse_unknown("the file", (), tables, _TOP)
    cluster = table_of(tables, "cluster")
    refuse_unknown(
        "[cluster]", ("cluster",), cluster, ("approval", "dry_run", "observe", "single_tenant")
    )
    policy = _laid_over(Policy(), table_of(tables, "policy"), table_of(tables, "hang"), ())
    jobs = tables.get("jobs", [])
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise SettingError(("jobs",), f"jobs is {jobs!r:.200}, not a list of tables ([[jobs]])")
    read = [_job(number, job, policy) for number, job in enumerate(jobs)]
    return PolicyFile(
        ClusterPolicy(
            _approval(cluster.get("approval", "off"), ("cluster", "approval"), "[cluster]"),
            _flag(cluster.get("dry_run", False), ("cluster", "dry_run"), "[cluster]"),
            convert_table(table_of(tables, "budgets"), Budgets, ("budgets",)),
            convert_table(table_of(tables, "quarantine"), Quarantine, ("quarantine",)),
            convert_table(table_of(tables, "alerts"), AlertRules, ("alerts",)),
            convert_table(table_of(tables, "watched"), WatchedRules, ("watched",)),
            convert_table(table_of(tables, "people"), PeopleRules, ("people",)),
            convert_table(table_of(tables, "lemons"), LemonRules, ("lemons",)),
            tuple(override for _rules, override in read),
            _flag(cluster.get("observe", False), ("cluster", "observe"), "[cluster]"),
            _nodes(tables.get("nodes", [])),
            convert_table(table_of(tables, "fabric_probe"), ProbeRules, ("fabric_probe",)),
            _flag(cluster.get("single_tenant", False), ("cluster", "single_tenant"), "[cluster]"),
        ),
        policy,
        tuple(rules for rules, _override in read),
    )


def _nodes(tables: Any) -> tuple[NodeRules, ...]:
    is_list = isinstance(tables, list) and len(tables) <= _NODES_MAX
    if not is_list or not all(isinstance(table, dict) for table in tables):
        raise SettingError(
            ("nodes",), f"nodes is {tables!r:.200}, not a list of tables ([[nodes]])"
        )
    return tuple(
        convert_table(table, NodeRules, ("nodes", number)) for number, table in enumerate(tables)
    )


def _job(number: int, table: dict[str, Any], policy: Policy) -> tuple[JobRules, JobOverride]:
    keys: Keys = ("jobs", number)
    where = f"[[jobs]] number {number + 1}"
    refuse_unknown(where, keys, table, _OVERRIDE)
    pattern = table.get("match")
    if not isinstance(pattern, str) or not pattern:
        raise SettingError(
            (*keys, "match"), f"{where}: match is {pattern!r}, not a pattern for job names"
        )
    rules = JobRules(pattern, table_of(table, "policy", keys), table_of(table, "hang", keys))
    try:
        _laid_over(policy, rules.policy, rules.hang, keys)  # checked now, not when a job comes
    except SettingError as error:
        raise SettingError(error.keys, f"{where}: {error}") from error
    approval, dry_run, observe = (table.get(key) for key in ("approval", "dry_run", "observe"))
    override = JobOverride(
        pattern,
        None if approval is None else _approval(approval, (*keys, "approval"), where),
        None if dry_run is None else _flag(dry_run, (*keys, "dry_run"), where),
        None if observe is None else _flag(observe, (*keys, "observe"), where),
    )
    return rules, override


def _laid_over(base: Policy, policy: dict[str, Any], hang: dict[str, Any], keys: Keys) -> Policy:
    """Return the limits with what two tables set; ``keys``: where the tables are."""
    hung = {item.name: getattr(base.hung, item.name) for item in fields(HungLimits)}
    limits = {item.name: getattr(base, item.name) for item in fields(Policy) if item.name != "hung"}
    new_hung = convert_table(hang, HungLimits, (*keys, "hang"), hung)
    new = convert_table(policy, Policy, (*keys, "policy"), limits, hidden=("hung",))
    # By kind: those that the table does not name stay as they are.
    return replace(new, hung=new_hung, allow={**base.allow, **new.allow})


def _approval(value: object, keys: Keys, where: str) -> Approval:
    try:
        return Approval(value)
    except ValueError:
        words = ", ".join(approval.value for approval in Approval)
        raise SettingError(keys, f"{where}: approval is {value!r}, not one of {words}") from None


def _flag(value: object, keys: Keys, where: str) -> bool:
    if not isinstance(value, bool):
        raise SettingError(keys, f"{where}: {keys[-1]} is {value!r}, not true or false")
    return value
