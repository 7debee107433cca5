"""Requests of launchers to a controller: join a job, post reports, wait for orders.

A launcher that has joined a job stays with the controller that it joined. It leaves that controller only for one that
knows the job and can take it over.
"""

import logging
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from rankmend.errors import ConfigError, MessageError
from rankmend.files import read_capped
from recovery.api import wire
from recovery.api.connection import ANSWER_S_MAX, ControllerConnection, part
from recovery.api.controller_errors import ControllerError, UnknownJobError, UnreachableError
from recovery.messages.codec import decode_order, encode_message
from recovery.messages.exchange import Order, Report

log = logging.getLogger(__name__)


def read_pod_token(path: Path) -> str:
    """Return the projected service-account token in a file."""
    text = read_capped(path, wire.POD_TOKEN_CHARACTERS_MAX, ConfigError, name=f"pod token {path}")
    try:
        token = text.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"pod token {path} is not a token: it has other than ASCII") from error
    if not token or any(character.isspace() for character in token):
        raise ConfigError(f"pod token {path} is not a token: it is empty or has several words")
    return token


class LauncherClient(ControllerConnection):
    _newest: tuple[int, int] = (0, 0)  # the highest epoch of an order, and the highest attempt
    pod_token_file: Path | None = None  # the kubelet renews it, so it is read for each join
    wait_s = wire.WAIT_S_SAFE  # for how long a poll may wait at the controller that was joined

    def join(self, request: wire.Join) -> wire.JoinAnswer:
        """Join a job where it runs, else at the first controller of the list that answers.

        From then on the client asks that controller only.
        """
        if self.home is None:
            self.current = self._where_it_runs(request) or self.urls[0]
        joined = self.ask("POST", "/v1/jobs", wire.JoinAnswer, self._with_pod(request))
        self.home, self.wait_s = self.current, min(joined.wait_s, wire.WAIT_S_MAX)
        return joined

    def _with_pod(self, request: wire.Join) -> wire.Join:
        """Return the request with the token of this pod; without where that can't be read: the job matters more."""
        if self.pod_token_file is None:
            return request
        try:
            token = read_pod_token(self.pod_token_file)
        except ConfigError as error:
            log.warning("joining without the pod's token", extra={"error": str(error)})
            return request
        return wire.JoinRequest(**{**msgspec.structs.asdict(request), "pod_token": token})

    def _where_it_runs(self, request: wire.Join) -> str | None:
        """Return the controller where the job has begun, else one that knows the job."""
        found: dict[bool, str] = {}
        for base in self.urls if len(self.urls) > 1 else ():
            try:
                where, joined = self._seek(base, request)
            except ControllerError:
                continue
            found.setdefault(joined.attempt > 0, where)
        return found.get(True) or found.get(False)

    def _seek(self, base: str, request: wire.Join) -> tuple[str, wire.JoinAnswer]:
        requested = msgspec.structs.replace(request, begins=False, job_id=None)
        body = msgspec.json.encode(requested)
        where, answer = self.follow("POST", base, "/v1/jobs", body, ANSWER_S_MAX)
        return where, self.decode(answer, wire.JoinAnswer)

    def leave(self, request: wire.Join) -> bool:
        """Return whether another controller is to be joined, for a job that has not begun.

        The launchers of a job may have joined different ones, where one was away for a moment. They
        meet at the one where the job has begun, else at the first of the list that answers.
        """
        home, target, is_before = self.home, None, True
        for base in self.urls:
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
            self.home = None
        return target is not None

    @property
    def has_choice(self) -> bool:
        """Return whether there is more than one controller to join."""
        return len(self.urls) > 1

    def report(self, report: Report) -> wire.Accepted:
        path = f"/v1/jobs/{part(report.job_id)}/reports"
        body = encode_message(report)
        try:
            return self.decode(self.request("POST", path, body), wire.Accepted)
        except UnreachableError as error:
            if self.home is None or self.urls == [self.home]:
                raise  # a redirect's target is none of the URLs: those may have the job again
            return self._report_elsewhere(path, body, error)

    def _report_elsewhere(
        self, path: str, body: bytes, unreachable: UnreachableError
    ) -> wire.Accepted:
        """Report to another controller if it can take the job over, else raise ``unreachable``.

        It can if it knows the job and its newest attempt, with a higher epoch: it runs on the journal
        of the one that was joined. One that does not know the job would begin it anew, beside the ranks that train.
        """
        for base in self.urls:
            if base in (self.home, self.current):
                continue
            try:
                found, answer = self.follow("POST", base, path, body, ANSWER_S_MAX)
                accepted = self.decode(answer, wire.Accepted)
            except ControllerError:
                continue
            epoch, attempt = self._newest
            if accepted.epoch > epoch and accepted.attempt >= attempt:
                self.home, self.wait_s = found, wire.WAIT_S_SAFE  # it may be of an older version
                self.current = found
                return accepted
        raise unreachable

    def order(
        self, job_id: str, node: str, launcher_id: str, *, after: int, epoch: int, wait_s: float
    ) -> Order | None:
        """Return a newer order as soon as there is one, or None after ``wait_s``."""
        query = {"launcher": launcher_id, "after": after, "epoch": epoch, "wait": f"{wait_s:g}"}
        path = f"/v1/jobs/{part(job_id)}/orders/{part(node)}?{urlencode(query)}"
        body = self.request("GET", path, answer_s=wait_s + ANSWER_S_MAX)
        if not body:
            return None
        try:
            order = decode_order(body)
        except MessageError as error:
            raise ControllerError(f"{self.current}: {error}") from error
        epoch, attempt = self._newest
        self._newest = (max(epoch, order.epoch), max(attempt, order.attempt))
        return order
