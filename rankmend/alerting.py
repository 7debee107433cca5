"""Sends alerts: to Alertmanager, to a controller, or to both (POST /api/v2/alerts).

Level-triggered: each target receives all active alerts, at every change and every `resend_s`, so a
lost message does no harm and a receiver that was down knows all after one message. An alert carries
how long it holds; an agent that dies resolves nothing and its alerts run out. One that ended is
sent until the target has accepted it, for at most `RESOLVED_S`. Nothing here grows without bound, and
a target that hangs holds up neither the others nor the findings.

A receiver holds the times of an alert against its own clock: those of a node whose clock is an hour slow would be over
when they come. Each answer carries the receiver's time (Date, RFC 9110), and from then on times are given by that clock.

By urllib.request, which the agent has loaded with prometheus_client anyway: urllib3 would add 0.6 MiB to every agent.
"""

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from threading import Condition, Thread
from typing import Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

import msgspec

from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError
from rankmend.renewed_files import Renewed
from rankmend.token_file import read_token

log = logging.getLogger(__name__)

PATH: Final = "/api/v2/alerts"
RESEND_S: Final = 60.0  # Prometheus' own default (--rules.alert.resend-delay=1m)
HOLD_RESENDS: Final = 4  # Prometheus: an alert holds for four resends, so three may be lost
# As long as a controller remembers an alert that nobody repeats (`forget_s`). An Alertmanager has ended it before by itself.
RESOLVED_S: Final = 6 * 3600.0
TELL_ANEW_S: Final = 1.0
CLOCKS_APART_S: Final = 30.0  # from then on: less harms nothing, and Date is a whole second
RESOLVED_MAX: Final = 2_000
_URGENT: Final = ("action", "ranks", "state", "jobs")  # annotations whose change is sent at once
BATCH_MAX: Final = 256  # alerts in one message: some 500 KB at most
TIMEOUT_S: Final = 10.0  # Prometheus' default for Alertmanager
BACKOFF: Final = Backoff(first_s=1.0, cap_s=60.0)

Key = tuple[tuple[str, str], ...]

Post = Callable[
    [str, bytes], float | None
]  # the receiver's clock, if the answer has it; raises AlertError
Ask = Callable[[str, bytes], bytes]  # (URL, body) -> the answer's body; raises AlertError
Get = Callable[[str, int], bytes]  # (URL, most bytes) -> body; raises AlertError


class AlertError(RankmendError):
    """A target did not take the alerts."""


@dataclass(frozen=True, slots=True)
class Alert:
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    started_unix_s: float

    @property
    def key(self) -> Key:
        """Return what makes two alerts the same one to Alertmanager: all their labels."""
        return tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True)
class Counts:
    """Delivery counts of one target."""

    sent: int
    failed: int  # messages that were not taken
    dropped: int
    ended_waiting: int  # ended alerts whose end the target has not accepted yet
    is_taken: bool  # the newest message was


def encode(alert: Alert, ends_unix_s: float) -> dict[str, object]:
    """Return an alert in the form of Alertmanager's API v2 (postableAlert)."""
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": _rfc3339(alert.started_unix_s),
        "endsAt": _rfc3339(ends_unix_s),
    }


def _moved(alert: Alert, shift_s: float, latest_unix_s: float) -> Alert:
    """Return an alert by a clock that is ahead of ours; one of before our clock was set back begins no later than now."""
    started_unix_s = min(alert.started_unix_s + shift_s, latest_unix_s)
    return replace(alert, started_unix_s=started_unix_s)


def _rfc3339(unix_s: float) -> str:
    at = datetime.fromtimestamp(unix_s, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_post(
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    token_file: str | None = None,
) -> Post:
    """Return the real way to send; files that can't be used are refused here, and renewed ones are read again."""
    send = _make_send(ca_file, cert_file, key_file, token_file)
    return lambda url, body: send(url, body)[1]


def make_ask(
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    token_file: str | None = None,
) -> Ask:
    """Return the real way to send something that is answered."""
    send = _make_send(ca_file, cert_file, key_file, token_file)
    return lambda url, body: send(url, body)[0]


def _make_send(
    ca_file: str | None, cert_file: str | None, key_file: str | None, token_file: str | None
) -> Callable[[str, bytes], tuple[bytes, float | None]]:
    """Return what posts a body, and returns the answer and the receiver's clock."""
    access = _access(ca_file, cert_file, key_file, token_file)

    def send(url: str, body: bytes) -> tuple[bytes, float | None]:
        opener, authorization = access.look()
        headers = {"Content-Type": "application/json", **authorization}
        request = Request(  # noqa: S310 - the scheme was checked by `target_url`
            url, data=body, headers=headers, method="POST"
        )
        return _send(opener, request, 65_536)

    return send


def make_get(
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    token_file: str | None = None,
) -> Get:
    """Return the real way to read what an Alertmanager knows."""
    access = _access(ca_file, cert_file, key_file, token_file)

    def get(url: str, bytes_max: int) -> bytes:
        opener, authorization = access.look()
        headers = {"Accept": "application/json", **authorization}
        request = Request(url, headers=headers)  # noqa: S310 - checked by `target_url`
        body, _at_unix_s = _send(opener, request, bytes_max + 1)
        if len(body) > bytes_max:
            raise AlertError(f"{url}: the answer has more than {bytes_max} bytes")
        return body

    return get


def _access(
    ca_file: str | None, cert_file: str | None, key_file: str | None, token_file: str | None
) -> Renewed[tuple[OpenerDirector, dict[str, str]]]:
    """Return a connection's certificates and its header with the token, as the files are at each look."""
    known = ssl.get_default_verify_paths()
    authorities = (ca_file,) if ca_file is not None else (known.cafile, known.capath)
    files = (*authorities, cert_file, key_file, token_file)

    def make() -> tuple[OpenerDirector, dict[str, str]]:
        token = read_token(Path(token_file)) if token_file is not None else None
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        return _opener(ca_file, cert_file, key_file), authorization

    return Renewed([file for file in files if file is not None], make)


def _send(opener: OpenerDirector, request: Request, bytes_max: int) -> tuple[bytes, float | None]:
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read(bytes_max)
            return body, _read_date(answer.headers.get("Date"))
    except URLError as error:  # HTTPError, too
        raise AlertError(f"{request.full_url}: {error.reason}") from error
    except (OSError, ValueError, HTTPException) as error:
        raise AlertError(f"{request.full_url}: {error}") from error


def _read_date(text: str | None) -> float | None:
    """Return the time in a header Date; None where there is none, or nonsense."""
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def make_client_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    """Return the context of a client with these PEM files, or raise ConfigError that names them."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        named = ", ".join(str(file) for file in (ca_file, cert_file, key_file) if file)
        raise ConfigError(f"cannot use the certificates {named}: {error}") from error
    return context


def _opener(ca_file: str | None, cert_file: str | None, key_file: str | None) -> OpenerDirector:
    context = make_client_context(ca_file, cert_file, key_file)
    # no proxy out of the environment: alerts go to hosts of the cluster
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context))


def target_url(text: str) -> str:
    """Return the address to post to for a base such as ``http://alertmanager:9093``."""
    base = http_base(text, "alert target")
    return base if base.endswith(PATH) else base + PATH


def http_base(text: str, what: str) -> str:
    """Return an address without its last slash; raise ConfigError, which names ``what`` it is of, where it is none."""
    parts = urlsplit(text)
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        _port = parts.port
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise ConfigError(f"{what} is not http(s)://HOST[:PORT][/PREFIX]: {text!r}")
    return text.rstrip("/")


def _urgent(alerts: Mapping[Key, Alert]) -> dict[Key, tuple[str | None, ...]]:
    """Return the parts of the alerts whose change is sent at once: names, actions, targets, states."""
    return {
        key: tuple(alert.annotations.get(name) for name in _URGENT) for key, alert in alerts.items()
    }


class AlertmanagerTarget:
    """One receiver, with a thread of its own."""

    def __init__(self, url: str, clock: Clock, post: Post, resend_s: float = RESEND_S) -> None:
        self.url = url
        self.name = urlsplit(url).netloc.rpartition("@")[2]  # a password is no label
        self._clock = clock
        self._post = post
        self._resend_s = resend_s
        self._changed = Condition()
        self._active: dict[Key, Alert] = {}
        self._ended: dict[Key, tuple[Alert, float]] = {}  # with its end by the monotonic clock
        self._is_due = False
        self._is_stopped = False
        self._failures_in_a_row = 0
        # The receiver's clock less our monotonic one, so that setting our wall clock changes nothing. None: not known.
        self._ahead_s: float | None = None
        self._is_sent_anew = False  # the newest message was sent because clocks differ
        self._sent_total = self._failed_total = self._dropped_total = 0
        self._thread = Thread(target=self._run, name=f"alerts-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def update(self, alerts: Sequence[Alert], ended: Sequence[Alert] = ()) -> None:
        """Accept the alerts that are active now; never wait for the receiver.

        ``ended``: alerts with the words of their end, also those that an earlier process has sent.
        """
        active = {alert.key: alert for alert in alerts}
        last_words = {alert.key: alert for alert in ended if alert.key not in active}
        with self._changed:
            if not last_words and _urgent(active) == _urgent(self._active):
                self._active = active  # other words for the same: sent with the next resend
                return
            now_s = self._clock.now_s()
            gone = {key: self._active[key] for key in self._active.keys() - active.keys()}
            for key, alert in (gone | last_words).items():
                self._ended[key] = (alert, now_s)
            for key in active.keys() & self._ended.keys():
                del self._ended[key]  # it is back
            while len(self._ended) > RESOLVED_MAX:
                del self._ended[next(iter(self._ended))]
                self._dropped_total += 1
            self._active, self._is_due = active, True
            self._changed.notify()

    def counts(self) -> Counts:
        """Return what has become of the alerts so far."""
        with self._changed:
            return Counts(
                self._sent_total,
                self._failed_total,
                self._dropped_total,
                len(self._ended),
                self._failures_in_a_row == 0,
            )

    def _run(self) -> None:
        wait_s = self._resend_s
        while True:
            with self._changed:
                self._changed.wait_for(self._is_wanted, timeout=wait_s)
                if self._is_stopped:
                    return
            wait_s = self.send()

    def _is_wanted(self) -> bool:
        """Return whether to wake early: for a change, but never for a target that is being left alone."""
        return self._is_stopped or (self._is_due and self._failures_in_a_row == 0)

    def send(self) -> float:
        """Send what is due and return after how long to send again."""
        with self._changed:
            self._is_due = False
            now_s = self._clock.now_s()
            shift_s = self._shift_s()
            unix_s = self._clock.unix_s() + shift_s
            for key, (_alert, ended_s) in list(self._ended.items()):
                if now_s - ended_s > RESOLVED_S:
                    del self._ended[key]
                    self._dropped_total += 1
            ended = dict(self._ended)
            hold_s = HOLD_RESENDS * self._resend_s
            active = list(self._active.values())
        body = [encode(_moved(item, shift_s, unix_s), unix_s + hold_s) for item in active]
        for alert, ended_s in ended.values():
            end_unix_s = unix_s - (now_s - ended_s)
            body.append(encode(_moved(alert, shift_s, end_unix_s), end_unix_s))
        try:
            # an empty message, too: a receiver that is gone is noticed before it is needed
            for start in range(0, max(len(body), 1), BATCH_MAX):
                told_unix_s = self._post(
                    self.url, msgspec.json.encode(body[start : start + BATCH_MAX])
                )
        except AlertError as error:
            return self._failed(error)
        with self._changed:
            if told_unix_s is not None:
                self._ahead_s = told_unix_s - self._clock.now_s()
            is_wrong = bool(body) and abs(self._shift_s() - shift_s) >= CLOCKS_APART_S
            self._is_sent_anew = is_wrong and not self._is_sent_anew
            if self._is_sent_anew:  # once: of receivers behind one address, each may have its own
                ended.clear()
            for key, reported in ended.items():
                if self._ended.get(key) == reported:
                    del self._ended[key]
            self._sent_total += len(body)
            was_failing, self._failures_in_a_row = self._failures_in_a_row > 0, 0
        if was_failing:
            log.info("alerts are accepted again", extra={"target": self.name})
        if self._is_sent_anew:
            fields = {"target": self.name, "ahead_s": round(self._shift_s())}
            log.warning("the receiver has another time: alerts use its clock", extra=fields)
            return TELL_ANEW_S
        return self._resend_s

    def _shift_s(self) -> float:
        """Return how far the receiver's clock is ahead of ours; 0 where that is too little to matter, or not known."""
        if self._ahead_s is None:
            return 0.0
        shift_s = self._ahead_s + self._clock.now_s() - self._clock.unix_s()
        return shift_s if abs(shift_s) >= CLOCKS_APART_S else 0.0

    def _failed(self, error: AlertError) -> float:
        with self._changed:
            self._failed_total += 1
            self._failures_in_a_row += 1
            failures = self._failures_in_a_row
        if failures == 1:
            log.warning("alerts not accepted", extra={"target": self.name, "error": str(error)})
        return min(BACKOFF.wait_s(failures), self._resend_s)
