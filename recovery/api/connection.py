"""Connections to controllers: which one to ask, redirects, TLS, tokens and timeouts.

A connection knows a list of controllers and asks the one that answered last. If that one does not answer, it
tries each of the others once. After `LauncherClient.join` it stays with the controller that was joined. It follows a redirect to
another controller, checks that one's certificate as strictly, and never sends a token without TLS beyond this machine.

Safe to use from several threads. Every wait has a timeout, and nothing is retried here: the caller decides when to
try again (`pause_s`).
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import msgspec
import urllib3

from rankmend.backoff import Backoff
from rankmend.cut_paths import CLIENT_OPTIONS
from rankmend.errors import ConfigError
from rankmend.token_file import read_token
from recovery.api import wire
from recovery.api.contact import Contact, check_url
from recovery.api.controller_errors import (
    BusyError,
    ConflictError,
    ControllerError,
    JobEndedError,
    RefusedError,
    TlsFault,
    UnknownJobError,
    UnreachableError,
    tls_fault_of,
)

# A handshake takes milliseconds; a lost packet is repeated after 1 and 3 s.
CONNECT_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 15.0  # without a byte; answers come from memory or a small file
BODY_BYTES_MAX: Final = 64 * 1024 * 1024  # a job's whole story: 1,000 records of 54 days take 1 MB
HOPS_MAX: Final = 4  # controllers may point at each other
# 2,000 launchers come back over 7 s, 300 handshakes a second
BACKOFF: Final = Backoff(first_s=0.5, cap_s=15.0, jitter=0.5)

_T = TypeVar("_T")
_Client = TypeVar("_Client", bound="ControllerConnection")


def pause_s(failures: int, draw: float | None = None) -> float:
    """Return how long to wait after so many failures in a row.

    ``draw`` is a number from 0 to 1; without it chance decides.
    """
    part = random.random() if draw is None else draw  # noqa: S311 - spreads load, keeps no secret
    return BACKOFF.wait_s(failures, part)


def _plain(error: Exception, answer_s: float) -> str:
    """Return why no answer came, in few words; urllib3's own begin with its object."""
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "this machine finds no address for that name"
    cause = error.__cause__ or error.__context__
    if isinstance(error, urllib3.exceptions.NewConnectionError) and isinstance(cause, OSError):
        return cause.strerror or str(cause)
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return f"no connection within {CONNECT_S_MAX:g} s"
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        return f"no answer within {answer_s:g} s"
    return str(error)


class ControllerConnection:
    def __init__(
        self,
        urls: Sequence[str],
        *,
        token_file: Path | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Take the controllers' URLs and one of ``token_file``, ``token`` and ``certificate`` (with its key).

        ``fingerprint``: SHA-256 of the controller's certificate, in place of an authority.
        """
        if not urls:
            raise ConfigError("no controller URL is given")
        self._token_file = token_file
        self._token = read_token(token_file) if token_file is not None else token
        self.urls = [check_url(url, has_token=self._token is not None) for url in urls]
        self.current = self.urls[0]
        self.home: str | None = None  # the joined controller: it knows the job
        self._ca_file, self._fingerprint = ca_file, fingerprint
        for path in (ca_file, *(certificate or ())):
            if path is not None and not path.is_file():
                raise ConfigError(f"no such file: {path}")
        files = {"ca_certs": ca_file}
        if certificate is not None:
            files |= {"cert_file": certificate[0], "key_file": certificate[1]}
        options = {name: str(path) for name, path in files.items() if path is not None}
        if fingerprint is not None:
            options |= {"assert_fingerprint": fingerprint, "cert_reqs": "CERT_NONE"}
        self._pool = urllib3.PoolManager(
            num_pools=2 * len(self.urls) + HOPS_MAX,
            maxsize=4,  # reports, the long poll, and a launcher's other requests
            retries=False,
            headers={"User-Agent": "rankmend", "Accept-Encoding": "identity"},
            socket_options=list(CLIENT_OPTIONS),
            **options,
        )

    def close(self) -> None:
        self._pool.clear()

    @classmethod
    def of(cls: type[_Client], contact: Contact) -> _Client:
        return cls(
            contact.urls,
            token_file=None if contact.token_file is None else Path(contact.token_file),
            token=contact.token,
            ca_file=None if contact.ca_file is None else Path(contact.ca_file),
            fingerprint=contact.fingerprint,
        )

    @property
    def contact(self) -> Contact:
        """Return what another process on any machine needs to reach the same controllers."""
        token_file, ca_file = self._token_file, self._ca_file
        return Contact(
            urls=tuple(self.urls) if self.home is None else (self.home,),
            token_file=None if token_file is None else str(token_file.absolute()),
            token=self._token if token_file is None else None,
            ca_file=None if ca_file is None else str(ca_file.absolute()),
            fingerprint=self._fingerprint,
        )

    @property
    def url(self) -> str:
        """The controller that answered last."""
        return self.current

    def ask(
        self, method: str, path: str, answer: type[_T], body: msgspec.Struct | None = None
    ) -> _T:
        sent = None if body is None else msgspec.json.encode(body)
        return self.decode(self.request(method, path, sent), answer)

    def decode(self, body: bytes, answer: type[_T]) -> _T:
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ControllerError(
                f"{self.current} answered with an invalid {answer.__name__}: {error}"
            ) from error

    def request(
        self, method: str, path: str, body: bytes | None = None, answer_s: float = ANSWER_S_MAX
    ) -> bytes:
        """Return the body of the first answer from a controller."""
        first, home = self.current, self.home
        known = self.urls if home is None else [home]
        problems: list[str] = []
        retry_s: float | None = None
        busy: BusyError | None = None
        fault: TlsFault | None = None
        for base in (first, *(url for url in known if url != first)):
            try:
                self.current, answer = self.follow(method, base, path, body, answer_s)
            except UnreachableError as error:
                problems.append(str(error))
                fault = fault or error.tls_fault
                retry_s = error.retry_after_s if error.retry_after_s is not None else retry_s
                busy = error if isinstance(error, BusyError) else busy
            except RefusedError as error:
                self.current = error.base
                raise
            else:
                return answer
        self.current = known[(known.index(first) + 1) % len(known)] if first in known else known[0]
        text = "; ".join(problems)
        if home is not None and len(self.urls) > 1:
            text += f"; waiting for {home}, or for another controller that takes this job over"
        if busy is not None:
            raise BusyError(text, retry_s, problems, status=busy.status, reason=busy.reason)
        raise UnreachableError(text, retry_s, problems, fault)

    def follow(
        self, method: str, base: str, path: str, body: bytes | None, answer_s: float
    ) -> tuple[str, bytes]:
        """Follow redirects; return the controller that answered, and its answer."""
        for _hop in range(HOPS_MAX):
            status, headers, answer = self._once(method, base + path, body, answer_s)
            if status != 307:
                # 403: another token of the same file may have the role.
                if status in (401, 403) and self._reread_token():
                    status, headers, answer = self._once(method, base + path, body, answer_s)
                return base, self._judge(base, path, status, headers, answer)
            target = urljoin(base + path, headers.get("Location", ""))
            if not target.endswith(path):
                raise UnreachableError(
                    f"{base} redirects to {target!r:.200}, which is not the path {path}"
                )
            try:
                base = check_url(target[: -len(path)], has_token=self._token is not None)
            except ConfigError as error:
                raise UnreachableError(f"redirected: {error}") from error
        raise UnreachableError(f"{base}: more than {HOPS_MAX} redirects")

    def _once(
        self, method: str, url: str, body: bytes | None, answer_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"User-Agent": "rankmend", "Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            response = self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S_MAX, read=answer_s),
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            try:
                answer = response.read(BODY_BYTES_MAX + 1)
                if len(answer) > BODY_BYTES_MAX:
                    response.close()
                    raise ControllerError(f"{url} answered with more than {BODY_BYTES_MAX} bytes")
                response.drain_conn()
            finally:
                response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            text = f"{urlsplit(url).netloc}: {_plain(error, answer_s)}"
            raise UnreachableError(text, tls_fault=tls_fault_of(error)) from error
        return response.status, response.headers, answer

    def _reread_token(self) -> bool:
        """Return whether the token file now holds another token than the one refused."""
        if self._token_file is None:
            return False
        try:
            token = read_token(self._token_file)
        except ConfigError:
            return False
        is_new, self._token = token != self._token, token
        return is_new

    def _judge(
        self, base: str, path: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> bytes:
        if status in (200, 202, 204):
            return body
        try:
            problem = msgspec.json.decode(body, type=wire.Problem)
        except (msgspec.DecodeError, ValueError, RecursionError):
            problem = wire.Problem(f"status {status}")
        text = f"{base}{path.partition('?')[0]}: {status}: {problem.error}"
        if status in (429, 502, 503, 504) or status >= 500:
            retry_s = _seconds(headers.get("Retry-After"))
            raise BusyError(text, retry_s, status=status, reason=problem.refusal)
        if status == 410 and problem.outcome is not None:
            raise JobEndedError(text, status, problem, problem.outcome, base)
        if status == 409:
            raise ConflictError(text, status, problem, base)
        if status == 404:
            raise UnknownJobError(text, status, problem, base)
        if status == 401 and self._token_file is not None:
            text += f" (token from {self._token_file})"
        raise RefusedError(text, status, problem, base)


def part(text: str) -> str:
    return quote(text, safe="")


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After, of an hour at most; dates are not used here."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return min(float(text), 3600.0)
