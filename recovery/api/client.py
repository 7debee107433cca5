"""Speaks to a controller: for launchers, for the command line and for tests.

Knows a list of controllers and asks the one that answered last; where that does not answer it
tries each of the others once. A launcher that has joined a job stays with the controller that it
joined, and leaves it only for one that knows the job and can take it over. Follows a redirect to another controller, whose certificate is
checked as strictly, and never sends a token without TLS beyond this machine.

Safe to use from several threads. Nothing here waits beyond its time-outs, and nothing repeats by itself:
who calls decides when to try again (`pause_s`).
"""

import ipaddress
import os
import random
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec
import urllib3

from rankmend.backoff import Backoff
from rankmend.errors import ConfigError, MessageError, RankmendError
from recovery.api import wire
from recovery.journal.records import JobOutcome
from recovery.messages.codec import decode_order, encode_message
from recovery.messages.exchange import Order, Report
from recovery.messages.outside import PersonAct

CONNECT_S_MAX: Final = (
    5.0  # a handshake takes milliseconds; a lost packet is repeated after 1 and 3 s
)
ANSWER_S_MAX: Final = 15.0  # of silence; what is asked is in memory or a small file
BODY_BYTES_MAX: Final = 64 * 1024 * 1024  # a job's whole story: 1,000 records of 54 days take 1 MB
HOPS_MAX: Final = 4  # a list of controllers that point at each other is no way
TOKEN_BYTES_MAX: Final = 4096
# 2,000 launchers come back over 7 s, 300 handshakes a second
BACKOFF: Final = Backoff(first_s=0.5, cap_s=15.0, jitter=0.5)

_T = TypeVar("_T")


class ControllerError(RankmendError):
    """The controller did not do what it was asked."""


class UnreachableError(ControllerError):
    """No controller answered, or none can answer now: try again after a pause."""

    def __init__(
        self, message: str, retry_after_s: float | None = None, problems: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.problems = tuple(problems) or (message,)  # one of each controller that was asked


class BusyError(UnreachableError):
    """A controller is there, and can't do now what it was asked."""

    def __init__(
        self,
        message: str,
        retry_after_s: float | None = None,
        problems: Sequence[str] = (),
        *,
        status: int,
        reason: str = "",
    ) -> None:
        super().__init__(message, retry_after_s, problems)
        self.status = status
        self.reason = reason  # of a 503: recovery.api.wire.Problem.refusal


class RefusedError(ControllerError):
    """The controller answered no: the same request will fail again."""

    def __init__(self, message: str, status: int, problem: wire.Problem, base: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        self.base = base  # URL of the controller


class UnknownJobError(RefusedError):
    """The controller does not know the job: join again."""


class ConflictError(RefusedError):
    """It contradicts what is there: a newer launcher of this node, other settings of the job."""


class JobEndedError(RefusedError):
    """The job has ended."""

    def __init__(
        self,
        message: str,
        status: int,
        problem: wire.Problem,
        outcome: JobOutcome,
        base: str = "",
    ) -> None:
        super().__init__(message, status, problem, base)
        self.outcome = outcome


def pause_s(failures: int, draw: float | None = None) -> float:
    """Return how long to wait after so many failures in a row.

    ``draw`` is a number from 0 to 1; without it chance decides.
    """
    part = random.random() if draw is None else draw  # noqa: S311 - spreads load, keeps no secret
    return BACKOFF.wait_s(failures, part)


def read_token(path: Path) -> str:
    """Return the token in a file that nobody else can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"token file {path} is no file")
            if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
                raise ConfigError(
                    f"token file {path} has mode {stat.S_IMODE(status.st_mode):04o} and owner uid "
                    f"{status.st_uid}: it must be yours and unreadable for others (chmod 600)"
                )
            text = os.read(descriptor, TOKEN_BYTES_MAX).decode("ascii").strip()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot read token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"token file {path} holds no token") from error
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(f"token file {path} holds no token")
    return text


def is_loopback(host: str) -> bool:
    """Return whether ``host`` names this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_url(url: str, *, has_token: bool) -> str:
    """Return the URL of a controller without a final slash, or raise ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigError(f"no URL of a controller, https://HOST[:PORT]: {url!r}")
    if parts.query or parts.fragment:
        raise ConfigError(f"the URL of a controller has no query: {url!r}")
    if parts.scheme == "http" and has_token and not is_loopback(parts.hostname):
        raise ConfigError(f"{url}: a token is sent by https only, except to this machine")
    return url.rstrip("/")


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """How a controller is spoken to: what a `ControllerClient` is made of. Holds secrets."""

    urls: tuple[str, ...]
    token_file: str | None = None
    token: str | None = None
    ca_file: str | None = None
    fingerprint: str | None = None


class ControllerClient:
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
        """Name the controllers, and one of ``token_file``, ``token`` or ``certificate`` (with its key).

        ``fingerprint``: SHA-256 of the controller's certificate, in place of an authority.
        """
        if not urls:
            raise ConfigError("no controller is named")
        self._token_file = token_file
        self._token = read_token(token_file) if token_file is not None else token
        self._urls = [check_url(url, has_token=self._token is not None) for url in urls]
        self._current = self._urls[0]
        self._home: str | None = None  # the controller that was joined: it knows the job
        self._newest = (0, 0)  # the highest epoch of an order, and the highest attempt
        self._ca_file, self._fingerprint = ca_file, fingerprint
        for path in (ca_file, *(certificate or ())):
            if path is not None and not path.is_file():
                raise ConfigError(f"there is no file {path}")
        files = {"ca_certs": ca_file}
        if certificate is not None:
            files |= {"cert_file": certificate[0], "key_file": certificate[1]}
        options = {name: str(path) for name, path in files.items() if path is not None}
        if fingerprint is not None:
            options |= {"assert_fingerprint": fingerprint, "cert_reqs": "CERT_NONE"}
        self._pool = urllib3.PoolManager(
            num_pools=2 * len(self._urls) + HOPS_MAX,
            maxsize=4,  # reports, the long poll, and what else a launcher asks
            retries=False,
            headers={"User-Agent": "rankmend", "Accept-Encoding": "identity"},
            **options,
        )

    def close(self) -> None:
        self._pool.clear()

    @classmethod
    def of(cls, contact: Contact) -> "ControllerClient":
        return cls(
            contact.urls,
            token_file=None if contact.token_file is None else Path(contact.token_file),
            token=contact.token,
            ca_file=None if contact.ca_file is None else Path(contact.ca_file),
            fingerprint=contact.fingerprint,
        )

    @property
    def contact(self) -> Contact:
        """What another process, wherever it runs, needs to speak to the same controllers as we do."""
        token_file, ca_file = self._token_file, self._ca_file
        return Contact(
            urls=tuple(self._urls) if self._home is None else (self._home,),
            token_file=None if token_file is None else str(token_file.absolute()),
            token=self._token if token_file is None else None,
            ca_file=None if ca_file is None else str(ca_file.absolute()),
            fingerprint=self._fingerprint,
        )

    @property
    def url(self) -> str:
        """The controller that answered last."""
        return self._current

    # Launchers.

    def join(self, request: wire.Join) -> wire.JoinAnswer:
        """Join a job where it runs, else at the first controller of the list that answers.

        That one is the only one that is asked from now on.
        """
        if self._home is None:
            self._current = self._where_it_runs(request) or self._urls[0]
        joined = self._ask("POST", "/v1/jobs", wire.JoinAnswer, request)
        self._home = self._current
        return joined

    def _where_it_runs(self, request: wire.Join) -> str | None:
        """Return the controller of the list at which the job has begun, or at least is known."""
        found: dict[bool, str] = {}
        for base in self._urls if len(self._urls) > 1 else ():
            try:
                where, joined = self._seek(base, request)
            except ControllerError:
                continue
            found.setdefault(joined.attempt > 0, where)
        return found.get(True) or found.get(False)

    def _seek(self, base: str, request: wire.Join) -> tuple[str, wire.JoinAnswer]:
        asked = msgspec.structs.replace(request, begins=False, job_id=None)
        body = msgspec.json.encode(asked)
        where, answer = self._follow("POST", base, "/v1/jobs", body, ANSWER_S_MAX)
        return where, self._decode(answer, wire.JoinAnswer)

    def leave(self, request: wire.Join) -> bool:
        """Return whether another controller is to be joined, for a job that has not begun.

        The launchers of a job may have joined different ones, where one was away for a moment. They
        meet at the one where the job has begun, else at the first of the list that answers.
        """
        home, target, is_before = self._home, None, True
        for base in self._urls:
            try:
                where, joined = self._seek(base, request)
                has_begun = joined.attempt > 0
            except UnknownJobError as error:
                where, has_begun = error.base, False
            except ControllerError:
                is_before = is_before and base != home
                continue
            is_before = is_before and where != home
            if where != home and (has_begun or (is_before and target is None)):
                target = where
                if has_begun:
                    break
        if target is not None:
            self._home = None
        return target is not None

    @property
    def has_choice(self) -> bool:
        """Return whether there is more than one controller to join."""
        return len(self._urls) > 1

    def report(self, report: Report) -> wire.Accepted:
        path = f"/v1/jobs/{_part(report.job_id)}/reports"
        body = encode_message(report)
        try:
            return self._decode(self._request("POST", path, body), wire.Accepted)
        except UnreachableError as error:
            if self._home is None or self._urls == [self._home]:
                raise  # a redirect's target is none of the URLs: those may have the job again
            return self._report_elsewhere(path, body, error)

    def _report_elsewhere(
        self, path: str, body: bytes, unreachable: UnreachableError
    ) -> wire.Accepted:
        """Report to another controller if it can take the job over, else raise ``unreachable``.

        It can if it knows the job and its newest attempt, with a higher epoch: it runs on the journal
        of the one that was joined. One that does not know the job would begin it anew, beside the ranks that train.
        """
        for base in self._urls:
            if base in (self._home, self._current):
                continue
            try:
                found, answer = self._follow("POST", base, path, body, ANSWER_S_MAX)
                accepted = self._decode(answer, wire.Accepted)
            except ControllerError:
                continue
            epoch, attempt = self._newest
            if accepted.epoch > epoch and accepted.attempt >= attempt:
                self._home = self._current = found
                return accepted
        raise unreachable

    def order(
        self, job_id: str, node: str, launcher_id: str, *, after: int, epoch: int, wait_s: float
    ) -> Order | None:
        """Return a newer order as soon as there is one, or None after ``wait_s``."""
        query = {"launcher": launcher_id, "after": after, "epoch": epoch, "wait": f"{wait_s:g}"}
        path = f"/v1/jobs/{_part(job_id)}/orders/{_part(node)}?{urlencode(query)}"
        body = self._request("GET", path, answer_s=wait_s + ANSWER_S_MAX)
        if not body:
            return None
        try:
            order = decode_order(body)
        except MessageError as error:
            raise ControllerError(f"{self._current}: {error}") from error
        epoch, attempt = self._newest
        self._newest = (max(epoch, order.epoch), max(attempt, order.attempt))
        return order

    # People and scripts.

    def jobs(self, *, with_ended: bool = False) -> list[wire.JobView]:
        return self._ask("GET", f"/v1/jobs?ended={str(with_ended).lower()}", wire.Jobs).jobs

    def job(self, job_id: str) -> wire.JobDetail:
        return self._ask("GET", f"/v1/jobs/{_part(job_id)}", wire.JobDetail)

    def nodes(self) -> list[wire.NodeView]:
        return self._ask("GET", "/v1/nodes", wire.Nodes).nodes

    def incidents(self, job_id: str | None = None, *, limit: int = 100) -> list[wire.IncidentView]:
        query = {"limit": limit} | ({"job": job_id} if job_id else {})
        return self._ask("GET", f"/v1/incidents?{urlencode(query)}", wire.Incidents).incidents

    def story(self, incident_or_job: str) -> wire.Story:
        return self._ask("GET", f"/v1/incidents/{_part(incident_or_job)}", wire.Story)

    def plans(self) -> list[wire.PlanView]:
        return self._ask("GET", "/v1/plans", wire.Plans).plans

    def dry_run(self, job_id: str, node: str | None = None) -> wire.PlanView:
        """Return the plan that would be carried out if the node, or the job's ranks, failed now."""
        query = {"job": job_id} | ({"node": node} if node else {})
        return self._ask("GET", f"/v1/plan?{urlencode(query)}", wire.PlanView)

    def cluster(self) -> wire.Cluster:
        return self._ask("GET", "/v1/cluster", wire.Cluster)

    def command(
        self,
        job_id: str,
        act: PersonAct,
        *,
        reason: str = "",
        incident_id: str | None = None,
        node: str | None = None,
        key: str = "",
        plan_id: str = "",
    ) -> wire.Done:
        asked = wire.JobCommand(
            act=act, reason=reason, incident_id=incident_id, node=node, key=key, plan_id=plan_id
        )
        return self._ask("POST", f"/v1/jobs/{_part(job_id)}/commands", wire.Done, asked)

    def acknowledge(self, incident_id: str, reason: str) -> wire.Done:
        """Take note of an escalated incident: nobody is told of it any more."""
        path = f"/v1/incidents/{_part(incident_id)}/acknowledge"
        return self._ask("POST", path, wire.Done, wire.Because(reason))

    def policy(self, job_id: str | None = None) -> wire.PolicyView:
        """Return what holds for a job, or for all jobs."""
        query = "" if job_id is None else f"?job={_part(job_id)}"
        return self._ask("GET", f"/v1/policy{query}", wire.PolicyView)

    def pause(self, reason: str, scope: str = "cluster", *, is_expected: bool = False) -> wire.Done:
        """Pause automation for ``cluster``, ``job:UUID`` or ``node:NAME`` until it is resumed."""
        path = "/v1/cluster/pause" if scope == "cluster" else f"/v1/pauses/{_part(scope)}/pause"
        return self._ask("POST", path, wire.Done, wire.Because(reason, is_expected))

    def resume(self, reason: str, scope: str = "cluster") -> wire.Done:
        path = "/v1/cluster/resume" if scope == "cluster" else f"/v1/pauses/{_part(scope)}/resume"
        return self._ask("POST", path, wire.Done, wire.Because(reason))

    def drain(self, node: str, reason: str, *, is_expected: bool = False) -> wire.Done:
        path = f"/v1/nodes/{_part(node)}/drain"
        return self._ask("POST", path, wire.Done, wire.Because(reason, is_expected))

    def release(self, node: str, reason: str) -> wire.Done:
        """Take a node back that was drained or held in quarantine."""
        path = f"/v1/nodes/{_part(node)}/resume"
        return self._ask("POST", path, wire.Done, wire.Because(reason))

    def add_window(self, window: wire.Window) -> wire.WindowView:
        return self._ask("POST", "/v1/windows", wire.WindowView, window)

    def end_window(self, window_id: str, reason: str) -> wire.Done:
        path = f"/v1/windows/{_part(window_id)}/end"
        return self._ask("POST", path, wire.Done, wire.Because(reason))

    def post_alerts(self, alerts: Sequence[Mapping[str, object]]) -> wire.Taken:
        body = msgspec.json.encode(list(alerts))
        return self._decode(self._request("POST", "/api/v2/alerts", body), wire.Taken)

    # The way there.

    def _ask(
        self, method: str, path: str, answer: type[_T], body: msgspec.Struct | None = None
    ) -> _T:
        sent = None if body is None else msgspec.json.encode(body)
        return self._decode(self._request(method, path, sent), answer)

    def _decode(self, body: bytes, answer: type[_T]) -> _T:
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ControllerError(f"{self._current} gave no {answer.__name__}: {error}") from error

    def _request(
        self, method: str, path: str, body: bytes | None = None, answer_s: float = ANSWER_S_MAX
    ) -> bytes:
        """Return the body of the first answer that a controller gives."""
        first, home = self._current, self._home
        known = self._urls if home is None else [home]
        problems: list[str] = []
        retry_s: float | None = None
        busy: BusyError | None = None
        for base in (first, *(url for url in known if url != first)):
            try:
                self._current, answer = self._follow(method, base, path, body, answer_s)
            except UnreachableError as error:
                problems.append(str(error))
                retry_s = error.retry_after_s if error.retry_after_s is not None else retry_s
                busy = error if isinstance(error, BusyError) else busy
            except RefusedError as error:
                self._current = error.base
                raise
            else:
                return answer
        self._current = known[(known.index(first) + 1) % len(known)] if first in known else known[0]
        text = "; ".join(problems)
        if home is not None and len(self._urls) > 1:
            text += f"; waiting for {home}, the only one that knows this job"
        if busy is not None:
            raise BusyError(text, retry_s, problems, status=busy.status, reason=busy.reason)
        raise UnreachableError(text, retry_s, problems)

    def _follow(
        self, method: str, base: str, path: str, body: bytes | None, answer_s: float
    ) -> tuple[str, bytes]:
        """Return which controller has answered in the end, and what."""
        for _hop in range(HOPS_MAX):
            status, headers, answer = self._once(method, base + path, body, answer_s)
            if status != 307:
                if status == 401 and self._reread_token():
                    status, headers, answer = self._once(method, base + path, body, answer_s)
                return base, self._judge(base, path, status, headers, answer)
            target = urljoin(base + path, headers.get("Location", ""))
            if not target.endswith(path):
                raise UnreachableError(f"{base} points to {target!r:.200}, not to {path}")
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
                    raise ControllerError(f"{url} answers with more than {BODY_BYTES_MAX} bytes")
                response.drain_conn()
            finally:
                response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise UnreachableError(f"{urlsplit(url).netloc}: {error}") from error
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


def _part(text: str) -> str:
    return quote(text, safe="")


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After, of an hour at most; dates are not used here."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return min(float(text), 3600.0)
