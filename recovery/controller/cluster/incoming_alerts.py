"""Alerts as they come in: Alertmanager's webhook (payload version 4), `POST /api/v2/alerts`, and its GET.

Every sender is a stranger: types, numbers and lengths are checked, and what does not fit is an
`AlertsError` that names the field. Fields that we don't know are passed over (Grafana's webhook has more).
Forms: prometheus.io/docs/alerting/latest/configuration (webhook) and Alertmanager's OpenAPI v2.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Final

import msgspec

from detectors.finding import identity
from detectors.node.node_alerts import own_name
from rankmend.errors import RankmendError
from recovery.controller.cluster.cluster_limits import AlertRules

ALERTS_MAX: Final = 10_000  # in one message: a switch of 64 hosts with 100 series each
ACTIVE_MAX: Final = 100_000  # in all, in one Alertmanager
LABELS_MAX: Final = 64  # Prometheus' own targets have some 30
KEPT_MAX: Final = 256  # characters of a label that is kept; a device or alert name has some 40
RANKS_MAX: Final = 1_000  # per node: 72 GPUs today, with room to grow
TEXT_MAX: Final = 16_384  # characters of a label's or an annotation's value
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\]%-]{0,252}")
_NEVER: Final = datetime(1, 1, 1, tzinfo=timezone.utc)  # Go's zero time: "while it fires"

_Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
_Pairs = Annotated[dict[_Text, _Text], msgspec.Meta(max_length=LABELS_MAX)]


class AlertsError(RankmendError):
    """A message with alerts can't be understood."""


@dataclass(frozen=True, slots=True)
class IncomingAlert:
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_unix_s: float | None
    is_firing: bool
    ends_unix_s: float | None = (
        None  # until when it fires if nobody repeats it; None: no end is named
    )

    @property
    def copy(self) -> bytes:
        """Return what tells it from the same alert of another Prometheus, whose own labels differ."""
        labels = msgspec.json.encode(sorted(self.labels.items()))
        return hashlib.sha256(labels).digest()[:16]


class _Alert(msgspec.Struct, rename="camel"):
    labels: _Pairs
    annotations: _Pairs = {}
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    status: str = ""  # only in the webhook


class _Known(msgspec.Struct, rename="camel"):
    """An alert as `GET /api/v2/alerts` returns it (gettableAlert); its status is another type."""

    labels: _Pairs
    annotations: _Pairs = {}
    starts_at: datetime | None = None


_Alerts = Annotated[list[_Alert], msgspec.Meta(max_length=ALERTS_MAX)]


class _Webhook(msgspec.Struct, rename="camel"):
    version: str
    alerts: _Alerts
    truncated_alerts: int = 0


_WEBHOOK: Final = msgspec.json.Decoder(_Webhook)
_POSTED: Final = msgspec.json.Decoder(_Alerts)
_ACTIVE: Final = msgspec.json.Decoder(Annotated[list[_Known], msgspec.Meta(max_length=ACTIVE_MAX)])


def decode_webhook(body: bytes) -> tuple[tuple[IncomingAlert, ...], int]:
    """Return the alerts of a webhook message, and how many it had to leave out (max_alerts)."""
    try:
        reported = _WEBHOOK.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AlertsError(f"webhook: {error}") from error
    if reported.version != "4":
        raise AlertsError(
            f"webhook: version is {reported.version!r}, this controller understands '4'"
        )
    return tuple(_read(alert, alert.status != "resolved") for alert in reported.alerts), max(
        0, reported.truncated_alerts
    )


def decode_posted(body: bytes, now_unix_s: float) -> tuple[IncomingAlert, ...]:
    """Return the alerts of a `POST /api/v2/alerts`; one whose end has passed is resolved."""
    try:
        reported = _POSTED.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AlertsError(f"alerts: {error}") from error
    return tuple(_read(item, not _has_ended(item.ends_at, now_unix_s)) for item in reported)


def decode_active(body: bytes) -> tuple[IncomingAlert, ...]:
    """Return what an Alertmanager says is active (`GET /api/v2/alerts`)."""
    try:
        reported = _ACTIVE.decode(body)
        return tuple(
            IncomingAlert(item.labels, item.annotations, _unix_s(item.starts_at), is_firing=True)
            for item in reported
        )
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AlertsError(f"active alerts: {error}") from error


def _has_ended(at: datetime | None, now_unix_s: float) -> bool:
    ends_s = _unix_s(at)
    return ends_s is not None and ends_s <= now_unix_s


def _unix_s(at: datetime | None) -> float | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise AlertsError(f"a time without a zone: {at.isoformat()}")
    return None if at == _NEVER else at.timestamp()


def _read(alert: _Alert, is_firing: bool) -> IncomingAlert:
    return IncomingAlert(
        alert.labels,
        alert.annotations,
        _unix_s(alert.starts_at),
        is_firing,
        _unix_s(alert.ends_at),
    )


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """The subject of an alert, in our terms, whatever its source."""

    key: str  # identity: hash of the routing labels
    alertname: str
    node: str  # empty where it names none
    device: str
    job_id: str
    ranks: tuple[int, ...]
    severity: str
    action: str
    told_node: str = ""  # the label that names the node, as it came


def target_of(alert: IncomingAlert, rules: AlertRules) -> AlertTarget:
    """Return what the alert is about; labels of other exporters are read by the rules."""
    labels = alert.labels
    node = node_of(labels, rules)
    device = _first(labels, rules.device_labels)
    name = own_name(labels.get("alertname", ""), labels.get("check", ""))
    known = {**labels, "node": node, "alertname": name}
    if "uuid" not in labels:
        known["device"] = device
    severity = labels.get("severity", "warning")
    action = labels.get("action") or alert.annotations.get("action") or rules.action_default
    pairs = identity(known)
    key = hashlib.sha256(msgspec.json.encode(pairs)).hexdigest()[:32]
    return AlertTarget(
        key,
        name[:KEPT_MAX],
        node[:KEPT_MAX],
        device[:KEPT_MAX],
        labels.get("job_id", "")[:KEPT_MAX],
        _ranks(labels.get("rank", "")),
        severity[:KEPT_MAX],
        action[:KEPT_MAX],
        _first(labels, rules.node_labels)[:KEPT_MAX],
    )


def node_of(labels: Mapping[str, str], rules: AlertRules) -> str:
    """Return the node that an alert is about, by the first label of ``node_labels`` that it has; empty for none.

    The one answer to this question: what decides whether a sender may speak for a node, and what accuses the node,
    both ask here.
    """
    name = next((name for name in rules.node_labels if labels.get(name)), "")
    if name in ("", "node"):  # ours is a node's name as it stands
        return labels.get(name, "")
    return _short(host_of(labels[name]))


def is_node_name(text: str) -> bool:
    """Return whether a node can be called so: an address can, an escape sequence can't."""
    return _NODE_NAME.fullmatch(text) is not None


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def host_of(text: str) -> str:
    """Return the host of ``host:port``; what has no port as it stands."""
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit() and not host.endswith(":") and (":" not in host or host[0] == "["):
        return host.strip("[]")
    return text


def _short(host: str) -> str:
    """Return a host's short name, as nodes are named; addresses stay whole."""
    is_address = host.replace(".", "").isdigit() or ":" in host
    return host if is_address else host.partition(".")[0]


def _ranks(text: str) -> tuple[int, ...]:
    words = [word for word in text.split(",")[:RANKS_MAX] if word.isdecimal() and len(word) <= 9]
    return tuple(sorted({int(word) for word in words}))
