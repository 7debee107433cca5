"""Access control: tokens, node certificates, roles and rates, and for whom another controller sends a request."""

import base64
import binascii
import hmac
import ssl
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from recovery.api.contact import is_loopback
from recovery.service.roles import LOOPBACK, READERS, DeniedError, Role, Subject, TooManyError
from recovery.service.tokens import TokenRefusedError, Tokens

SCHEME: Final = "Rankmend-Peer"
SUBJECT_HEADER: Final = "Rankmend-Subject"

BURST_S: Final = 10.0  # a bucket holds what ten seconds bring
BUCKETS_MAX: Final = 50_000  # subjects, nodes and addresses that are counted at once


class _Reads(Enum):
    OWN = "own"
    FLEET = "fleet"


class _SpokenFor(msgspec.Struct):
    name: str
    roles: list[Role]
    nodes: list[str]
    jobs: list[str]
    how: str
    via: str
    # Which jobs `read` among the roles shows. None: an older controller, where it shows everybody's, has asked for a subject
    # that may see them there. Older ones know no role fleet-read, so it isn't sent.
    reads: _Reads | None = None


def peer_headers(secret: str, subject: Subject, title: str) -> dict[str, str]:
    """Return the headers of a request for ``subject`` by the controller ``title``, to the one with this secret."""
    roles = set(subject.roles - READERS)
    if subject.roles & READERS:
        roles.add(Role.READ)
    reported = _SpokenFor(
        subject.name,
        sorted(roles, key=lambda role: role.value),
        list(subject.nodes),
        list(subject.jobs),
        subject.how,
        title,
        _Reads.OWN if subject.reads_own_jobs_only else _Reads.FLEET,
    )
    text = base64.urlsafe_b64encode(msgspec.json.encode(reported)).decode("ascii")
    return {"Authorization": f"{SCHEME} {secret}", SUBJECT_HEADER: text}


def is_peer(authorization: str | None) -> bool:
    return authorization is not None and authorization.startswith(f"{SCHEME} ")


def read_peer(secret: str, authorization: str, spoken_for: str | None) -> Subject:
    """Return for whom another controller speaks, or raise DeniedError. ``secret``: this controller's own; empty: it has none."""
    given = authorization.removeprefix(f"{SCHEME} ").encode("utf-8", "replace")
    if not secret or not hmac.compare_digest(secret.encode(), given):
        raise DeniedError("this is not the secret of the present start of this controller", 401)
    try:
        reported = msgspec.json.decode(base64.urlsafe_b64decode(spoken_for or ""), type=_SpokenFor)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise DeniedError(f"{SUBJECT_HEADER} can't be read: {error}", 401) from error
    roles = frozenset(reported.roles)
    if Role.READ in roles and reported.reads is not _Reads.OWN:
        roles |= {Role.FLEET_READ}
    return Subject(
        reported.name,
        roles,
        tuple(reported.nodes),
        tuple(reported.jobs),
        f"{reported.how} by way of {reported.via}"[:200],
        reported.via[:200] or "another controller",
    )


class Rate(msgspec.Struct, frozen=True):  # one for every request
    """A token bucket: so many a second in the long run, so many at once."""

    per_s: float
    burst: float


class Rates:
    """Buckets by name, each full when it is first seen; the longest unused ones are forgotten."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def spend(self, what: str, who: str, rate: Rate, now_s: float, count: float = 1) -> None:
        """Take from a bucket, or raise TooManyError with the time after which there is enough."""
        left, at_s = self._buckets.pop((what, who), (rate.burst, now_s))
        left = min(rate.burst, left + (now_s - at_s) * rate.per_s)
        is_enough = left >= count
        self._buckets[what, who] = (left - count if is_enough else left, now_s)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
        if not is_enough:
            wait_s = (count - left) / rate.per_s
            raise TooManyError(f"more than {rate.per_s:g} {what} a second by {who}", wait_s)

    def has(self, what: str, who: str, rate: Rate, now_s: float) -> bool:
        """Return whether the bucket holds one more, and take nothing."""
        left, at_s = self._buckets.get((what, who), (rate.burst, now_s))
        return left + (now_s - at_s) * rate.per_s >= 1


class UnderWay:
    """Counts what each subject has in progress."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._counts: dict[str, int] = {}

    @contextmanager
    def hold(self, who: str, most: int) -> Iterator[None]:
        """Count one more while the block runs, or raise TooManyError."""
        count = self._counts.get(who, 0)
        if count >= most:
            raise TooManyError(f"{count} {self._what} of {who} are in progress; try again", 1.0)
        self._counts[who] = count + 1
        try:
            yield
        finally:
            self._counts[who] -= 1
            if not self._counts[who]:
                del self._counts[who]


class Doorman:
    """Tells who speaks, by what the connection and the headers show."""

    def __init__(self, tokens: Tokens | None, peer_secret: str = "") -> None:
        """``peer_secret``: by which other controllers of the database prove themselves."""
        self.tokens = tokens  # None: loopback only, everybody may do everything
        self._peer_secret = peer_secret

    def identify(
        self,
        authorization: str | None,
        certificate: Mapping[str, Any] | None,
        now: datetime,
        spoken_for: str | None = None,
    ) -> Subject:
        """Return the subject; a token overrides a certificate. ``spoken_for``: what another controller says of it."""
        if authorization is not None and is_peer(authorization):
            return read_peer(self._peer_secret, authorization, spoken_for)
        if authorization is not None:
            scheme, _blank, text = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise DeniedError("Authorization is not 'Bearer TOKEN'", 401)
            if self.tokens is None:
                return LOOPBACK
            try:
                return self.tokens.find(text.strip(), now)
            except TokenRefusedError as error:
                raise DeniedError(str(error), 401) from error
        names = node_names(certificate) if certificate else ()
        if names:
            return Subject(f"node:{names[0]}", frozenset({Role.REPORT}), names, how="certificate")
        if self.tokens is None:
            return LOOPBACK
        raise DeniedError("no token: Authorization: Bearer TOKEN is needed", 401)


def names_loopback(host: str) -> bool:
    """Return whether a Host header names this machine to itself: localhost or a loopback address, with or without a port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return is_loopback(name.strip("[]"))


def refuse_foreign_pages(headers: Mapping[str, str], host: str) -> None:
    """Raise DeniedError for a request that a page of another site has a browser on this machine send.

    For a controller without tokens, where whoever reaches the port may do everything.
    """
    if not names_loopback(host):  # a name that was made to lead here (DNS rebinding)
        raise DeniedError(
            f"without tokens this answers to localhost only, not to {host!r:.80}", 403
        )
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    is_foreign = site not in (None, "none", "same-origin")
    if is_foreign or (site is None and origin is not None and urlsplit(origin).netloc != host):
        raise DeniedError("a page of another site sent this: nothing was done", 403)


def certificate_ends_unix_s(certificate: Mapping[str, Any]) -> float:
    """Return until when a checked client certificate (`SSLSocket.getpeercert`) holds; 0: it does not say."""
    ends = certificate.get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else 0.0


def node_names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the node names that a checked client certificate (`SSLSocket.getpeercert`) proves.

    Its DNS names, or the common name where it has none, and the first label of each: a site's
    certificates carry full names, and nodes are called by their short ones.
    """
    found = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    if not found:
        subject = certificate.get("subject", ())
        found = [str(value) for part in subject for name, value in part if name == "commonName"]
    plain = [name for name in found if name and not set(name) & set("*?[]")]  # no shell patterns
    short = [name.partition(".")[0] for name in plain]
    return tuple(dict.fromkeys(name for pair in zip(short, plain, strict=True) for name in pair))


def peer_certificate(tls: object) -> Mapping[str, Any] | None:
    """Return the certificate that the peer of a connection has proved, or None."""
    if not isinstance(tls, ssl.SSLObject | ssl.SSLSocket):
        return None
    return tls.getpeercert() or None
