"""Reads the policy of a controller from a TOML file: cluster-wide tables, then those of jobs.

Their keys are the fields of `recovery.cluster.limits`, which hold the defaults with their
reasons; [policy] and [hang] are the defaults for jobs (`recovery.run.limits_file`). A key that is none of
them is an error. deploy/policy.toml has them all, commented.
"""

import sys
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from detectors.hang.live import HungLimits
from rankmend.errors import ConfigError
from recovery.cluster.limits import (
    AlertRules,
    Approval,
    Budgets,
    ClusterPolicy,
    JobOverride,
    Quarantine,
)
from recovery.journal.limits import Policy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BYTES_MAX: Final = 1024 * 1024
_TOP: Final = ("cluster", "budgets", "quarantine", "alerts", "policy", "hang", "jobs")
_OVERRIDE: Final = ("match", "approval", "dry_run", "policy", "hang")


@dataclass(frozen=True, slots=True)
class JobRules:
    """What the file says of the jobs whose names match."""

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
                policy = _laid_over(policy, rules.policy, rules.hang, f"[[jobs]] {rules.pattern}")
        return policy


def read_policy_file(path: Path | None) -> PolicyFile:
    """Return what a file says over the defaults; without a file the defaults."""
    if path is None:
        return PolicyFile()
    try:
        with path.open("rb") as file:
            body = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the policy {path}: {error.strerror}") from error
    if len(body) > _BYTES_MAX:
        raise ConfigError(f"{path} is over {_BYTES_MAX} bytes")
    try:
        tables = tomllib.loads(body.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    try:
        return parse_policy(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_policy(tables: dict[str, Any]) -> PolicyFile:
    """Return what the tables say; an unknown key or a value of a wrong type is a ConfigError."""
    _refuse_unknown("the file", tables, _TOP)
    cluster = _table(tables, "cluster")
    _refuse_unknown("[cluster]", cluster, ("approval", "dry_run"))
    jobs = tables.get("jobs", [])
    if not isinstance(jobs, list) or not all(isinstance(one, dict) for one in jobs):
        raise ConfigError("jobs is no list of tables ([[jobs]])")
    overrides, rules = [], []
    policy = _laid_over(Policy(), _table(tables, "policy"), _table(tables, "hang"), "[policy]")
    for number, one in enumerate(jobs, start=1):
        where = f"[[jobs]] number {number}"
        _refuse_unknown(where, one, _OVERRIDE)
        pattern = one.get("match")
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(f"{where}: match is {pattern!r}, no pattern of job names")
        made = JobRules(pattern, _table(one, "policy"), _table(one, "hang"))
        _laid_over(policy, made.policy, made.hang, where)  # checked now, not when a job comes
        rules.append(made)
        overrides.append(
            JobOverride(
                pattern,
                _approval(one["approval"], where) if "approval" in one else None,
                _flag(one["dry_run"], where) if "dry_run" in one else None,
            )
        )
    return PolicyFile(
        ClusterPolicy(
            _approval(cluster.get("approval", "off"), "[cluster]"),
            _flag(cluster.get("dry_run", False), "[cluster]"),
            _convert("budgets", _table(tables, "budgets"), Budgets),
            _convert("quarantine", _table(tables, "quarantine"), Quarantine),
            _convert("alerts", _table(tables, "alerts"), AlertRules),
            tuple(overrides),
        ),
        policy,
        tuple(rules),
    )


def _laid_over(base: Policy, policy: dict[str, Any], hang: dict[str, Any], where: str) -> Policy:
    hung = {one.name: getattr(base.hung, one.name) for one in fields(HungLimits)}
    limits = {one.name: getattr(base, one.name) for one in fields(Policy) if one.name != "hung"}
    if isinstance(allow := policy.get("allow"), dict):  # by kind: those not named stay as they are
        before = {kind.value: steps for kind, steps in base.allow.items()}
        policy = {**policy, "allow": {**before, **allow}}
    try:
        new_hung = _convert("hang", hang, HungLimits, hung)
        new = _convert("policy", policy, Policy, limits, hidden=("hung",))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    values = {name: getattr(new, name) for name in limits}
    return Policy(**values, hung=new_hung)


def _convert(
    table: str,
    values: dict[str, Any],
    kind: type[Any],
    base: dict[str, Any] | None = None,
    hidden: tuple[str, ...] = (),
) -> Any:
    known = tuple(one.name for one in fields(kind) if one.name not in hidden)
    _refuse_unknown(f"[{table}]", values, known)
    merged = {**(base or {}), **values}
    try:
        return msgspec.convert(msgspec.to_builtins(merged), kind)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"[{table}] {error}") from error


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    found = tables.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is no table")
    return found


def _refuse_unknown(where: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")


def _approval(value: object, where: str) -> Approval:
    try:
        return Approval(value)
    except ValueError:
        words = ", ".join(one.value for one in Approval)
        raise ConfigError(f"{where}: approval is {value!r}, none of {words}") from None


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: dry_run is {value!r}, not true or false")
    return value
