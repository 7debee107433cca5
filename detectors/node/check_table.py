"""The policy table of the node: which value of which metric is a finding, and what to do about it.

The table is TOML text that the agent reads: data/node_policy.toml, then the site's own file, which
overrides it. One row is one check; its key is the check's name. Rows are validated when read: a
metric that nothing exports, a condition that can't be parsed or a row without a source stops the
agent, because a check must never be disabled silently. docs/operate/findings.md explains every key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from types import MappingProxyType
from typing import Any, Final

import msgspec

from detectors.finding import Action, Severity
from detectors.kernel.event_policy import PolicyTable, policy_named
from detectors.node.checks import (
    Check,
    CheckGuard,
    Combine,
    Comparison,
    Component,
    Condition,
    Measure,
)
from detectors.persistence import Latch, Persistence
from rankmend.errors import ConfigError

ROWS_MAX: Final = 1_000
WINDOW_S_MAX: Final = 7 * 86_400.0
_TEXT_CHARS_MAX: Final = 500
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_METRIC: Final = r"rankmend_[a-z0-9_]+"
_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


_CONDITION: Final = re.compile(
    rf"(?P<measure>value|increase|rate)"
    rf"(?: (?P<combine>[-/]) (?P<other>{_METRIC}))?"
    rf" (?P<comparison>>=|<=|==|!=|>|<) (?:(?P<number>{_NUMBER})|(?P<limit>{_METRIC}))"
)


_GUARD: Final = re.compile(
    rf"(?P<metric>{_METRIC}) (?P<comparison>>=|<=|==|!=|>|<) (?P<number>{_NUMBER})"
)
_FORMAT: Final = re.compile(r"(?:,?\.[0-6][fge%])?")


@dataclass(frozen=True, slots=True)
class MetricShape:
    """What the registry knows about a metric."""

    labels: tuple[str, ...]
    is_counter: bool


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    component: Component
    metric: str
    condition: str
    summary: str
    source: str
    severity: Severity | None = None
    action: Action | None = None
    event: str = ""
    beside: tuple[str, ...] = ()
    beside_action: Action | None = None
    when: tuple[str, ...] = ()
    where: dict[str, str] = {}
    by: tuple[str, ...] | None = None
    window_s: float = 0.0
    counts_from_zero: bool = False
    bad_looks: int = 1
    of_looks: int | None = None
    clear_looks: int = 3
    sticky_s: float = 0.0
    latch: Latch = Latch.NONE
    flap_raises: int = 3
    flap_window_s: float = 3_600.0
    reboots_max: int | None = None
    overrules: bool = False  # the driver's own verdict: its action wins on this device
    document: str = ""  # key of data/documents.toml
    says: str = ""  # what that document says, in figures
    differs: str = ""  # why this row says otherwise, on purpose
    enabled: bool = True


def parse_rows(text: str, origin: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table as they are in the file, by name."""
    try:
        rows: dict[str, dict[str, Any]] = msgspec.toml.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"{origin}: {error}") from error
    if len(rows) > ROWS_MAX:
        raise ConfigError(f"{origin}: {len(rows)} rows, at most {ROWS_MAX}")
    for name, row in rows.items():
        if not _NAME.fullmatch(name) or len(name) > 60:
            raise ConfigError(
                f"{origin}: {name!r} is not a check's name; use words_with_underscores"
            )
        if not isinstance(row, dict):
            raise ConfigError(f"{origin}: {name} is not a row; write [{name}]")
        if not str(row.get("source", "")).strip():
            raise ConfigError(
                f"{origin}: {name}: source is missing; say where its figures come from"
            )
    return rows


def override(
    rows: Mapping[str, Mapping[str, Any]], site: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the table with the site's rows overriding it, key by key."""
    return {
        name: {**rows.get(name, {}), **site.get(name, {})}
        for name in [*rows, *(name for name in site if name not in rows)]
    }


def compile_table(
    rows: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, MetricShape],
    origin: str,
    events: PolicyTable = MappingProxyType({}),
) -> tuple[Check, ...]:
    """Return the checks of all rows that are enabled, or raise ConfigError that names the row.

    ``events``: the table that gives a check with an `event` its severity and action.
    """
    checks = []
    for name, raw in rows.items():
        where = f"{origin}: {name}"
        try:
            row = msgspec.convert(raw, _Row)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {error}") from error
        _check_beside(row, rows, where)
        check = _compile(name, row, known, events, where)  # even if disabled: a typo is a typo
        if row.enabled:
            checks.append(check)
    return tuple(checks)


def _verdict(row: _Row, events: PolicyTable, where: str) -> tuple[Severity, Action]:
    """Return the severity and the action: those of the event, unless a site says otherwise."""
    if not row.event:
        if row.severity is None or row.action is None:
            raise ConfigError(f"{where}: severity and action are missing, and no event gives them")
        return row.severity, row.action
    policy = policy_named(events, row.event)
    if policy is None:
        raise ConfigError(
            f"{where}: no row for the event {row.event!r}; write 'xid 79', 'verdict 1' or 'log KIND'"
        )
    return row.severity or policy.severity, row.action or policy.action


def _check_beside(row: _Row, rows: Mapping[str, Any], where: str) -> None:
    if bool(row.beside) is not (row.beside_action is not None):
        raise ConfigError(f"{where}: beside and beside_action need each other")
    for name in row.beside:
        if name not in rows and not name.startswith(("kernel_", "xid_", "sxid_")):
            raise ConfigError(f"{where}: beside names {name!r}, which is not a check")


def _compile(
    name: str, row: _Row, known: Mapping[str, MetricShape], events: PolicyTable, where: str
) -> Check:
    severity, action = _verdict(row, events, where)
    shape = _shape(row.metric, known, where)
    condition = _condition(row.condition, shape, known, where)
    is_growth = condition.measure is not Measure.VALUE
    if is_growth and not shape.is_counter:
        raise ConfigError(
            f"{where}: {row.metric} is not a counter, so it has no {condition.measure.value}"
        )
    if is_growth and not 0 < row.window_s <= WINDOW_S_MAX:
        raise ConfigError(f"{where}: window_s is {row.window_s}, from 0 to {WINDOW_S_MAX:.0f}")
    if not is_growth and (row.window_s or row.counts_from_zero):
        raise ConfigError(f"{where}: window_s and counts_from_zero need an increase or a rate")
    by = shape.labels if row.by is None else row.by
    _known_labels((*row.where, *by), shape, row.metric, where)
    _check_summary(row.summary, by, where)
    try:
        persistence = Persistence(
            bad_looks=row.bad_looks,
            of_looks=row.bad_looks if row.of_looks is None else row.of_looks,
            clear_looks=row.clear_looks,
            sticky_s=row.sticky_s,
            latch=row.latch,
            flap_raises=row.flap_raises,
            flap_window_s=row.flap_window_s,
        )
        patterns = tuple((label, re.compile(text)) for label, text in row.where.items())
    except (ValueError, re.error) as error:
        raise ConfigError(f"{where}: {error}") from error
    if row.reboots_max is not None and row.reboots_max < 1:
        raise ConfigError(f"{where}: reboots_max is {row.reboots_max}, at least 1")
    return Check(
        name=name,
        component=row.component,
        metric=row.metric,
        condition=condition,
        guards=tuple(_guard(text, known, where) for text in row.when),
        where=patterns,
        by=by,
        window_s=row.window_s,
        counts_from_zero=row.counts_from_zero,
        persistence=persistence,
        severity=severity,
        action=action,
        reboots_max=row.reboots_max,
        overrules=row.overrules,
        summary=row.summary,
        source=row.source.strip(),
        event=row.event,
        beside=row.beside,
        beside_action=row.beside_action or Action.NONE,
    )


def _shape(metric: str, known: Mapping[str, MetricShape], where: str) -> MetricShape:
    try:
        return known[metric]
    except KeyError:
        raise ConfigError(
            f"{where}: no metric {metric!r}: docs/reference/metrics.md lists them"
        ) from None


def _condition(
    text: str, shape: MetricShape, known: Mapping[str, MetricShape], where: str
) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{where}: condition {text!r} is not "
            "'value|increase|rate [/ METRIC | - METRIC] >|>=|<|<=|==|!= NUMBER|METRIC'"
        )
    for metric in (match["other"], match["limit"]):
        if metric is not None:
            _known_labels(_shape(metric, known, where).labels, shape, "the check's metric", where)
    return Condition(
        text=text,
        measure=Measure(match["measure"]),
        combine=Combine(match["combine"] or ""),
        other=match["other"],
        comparison=Comparison(match["comparison"]),
        limit=match["limit"] or float(match["number"]),
    )


def _guard(text: str, known: Mapping[str, MetricShape], where: str) -> CheckGuard:
    match = _GUARD.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: when {text!r} is not 'METRIC >|>=|<|<=|==|!= NUMBER'")
    _shape(match["metric"], known, where)
    return CheckGuard(
        text, match["metric"], Comparison(match["comparison"]), float(match["number"])
    )


def _known_labels(labels: Sequence[str], shape: MetricShape, metric: str, where: str) -> None:
    for label in labels:
        if label not in shape.labels:
            raise ConfigError(
                f"{where}: {metric} has no label {label!r}; it has {', '.join(shape.labels) or 'none'}"
            )


def _check_summary(text: str, by: Sequence[str], where: str) -> None:
    if not 0 < len(text) <= _TEXT_CHARS_MAX or not text.isprintable():
        raise ConfigError(f"{where}: summary of {len(text)} characters, 1 to {_TEXT_CHARS_MAX}")
    try:
        fields = list(_fields(text))
    except ValueError as error:
        raise ConfigError(f"{where}: summary {text!r}: {error}") from error
    for name, form in fields:
        is_number = name in ("value", "limit")
        if not (is_number or name in by):
            allowed = ", ".join(("value", "limit", *by))
            raise ConfigError(f"{where}: summary names {name!r}; it can name {allowed}")
        if not _FORMAT.fullmatch(form) or (form and not is_number):
            raise ConfigError(f"{where}: summary formats {name!r} by {form!r}; use e.g. .0f or .1%")


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for _literal, name, form, conversion in Formatter().parse(text):
        if name is None:
            continue
        if conversion:
            raise ValueError(f"no conversion !{conversion}")
        yield name, form or ""
