"""Reads the agent's page of findings, and keeps the node's conditions and events in Kubernetes in step with it.

There is one of these on every node: what Kubernetes refuses is tried again ever more rarely, and what has not changed is rarely said again.
"""

import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from agent.kubernetes.conditions import (
    NAMESPACE,
    PublishedFinding,
    conditions_for,
    event_of,
    our_types,
    read_page,
    unknown_conditions,
)
from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.errors import ManagerAwayError, ManagerDeniedError, ManagerError, SourceError
from rankmend.kubernetes_api import (
    MERGE_PATCH,
    KubernetesApi,
    KubernetesConflictError,
    KubernetesError,
)

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
SILENT_S: Final = 60.0  # an agent that does not answer for so long is unknown, not well
AGAIN_S: Final = 300.0  # what has not changed is said again, as the kubelet does
EVENTS_MAX: Final = 1_000  # remembered
EVENTS_A_LOOK_MAX: Final = 20
_PAUSE: Final = Backoff(
    LOOK_S, AGAIN_S, jitter=0.5
)  # after a refusal; nodes refused together come apart
_SILENT: Final = "silent"  # what was told last of an agent that does not answer


class Teller:
    def __init__(
        self, api: KubernetesApi, node: str, page: Callable[[], bytes], clock: Clock
    ) -> None:
        """``page`` returns the agent's page, or raises SourceError."""
        self._api = api
        self._node = node
        self._page = page
        self._clock = clock
        self._answered_at_s = clock.now_s()
        self._told: object = None
        self._told_at_s = float("-inf")
        self._events: dict[tuple[str, float], None] = {}
        self._failures = 0
        self._due_s = float("-inf")

    def look(self) -> None:
        """Read the findings once and tell of them. Raises KubernetesError where that can't be told, and then waits before it tries again."""
        now_s = self._clock.now_s()
        if now_s < self._due_s:
            return
        try:
            self._tell(now_s)
        except ManagerError:
            self._failures += 1
            self._due_s = now_s + _PAUSE.wait_s(self._failures, random.random())  # noqa: S311
            raise
        self._failures = 0

    def _tell(self, now_s: float) -> None:
        try:
            found = read_page(self._page())
        except SourceError as error:
            log.warning("the agent does not report its findings", extra={"error": str(error)})
            if now_s - self._answered_at_s >= SILENT_S and self._is_due(_SILENT, now_s):
                self._keep_unknown(str(error))
                self._told, self._told_at_s = _SILENT, now_s
            return
        self._answered_at_s = now_s
        reported = found
        if self._is_due(reported, now_s):
            self._set(conditions_for(found, self._known(), self._clock.unix_s()))
            self._told, self._told_at_s = reported, now_s
        self._tell_events(found)

    def _is_due(self, reported: object, now_s: float) -> bool:
        """Return whether this is news, or was said long ago: the node may have been made anew since."""
        return reported != self._told or now_s - self._told_at_s >= AGAIN_S

    def _keep_unknown(self, why: str) -> None:
        requested = [kind for kind, status in self._known().items() if status != "Unknown"]
        self._set(unknown_conditions(requested, why, self._clock.unix_s()))

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{quote(self._node, safe='')}"

    def _known(self) -> dict[str, str]:
        return our_types(self._api.call("GET", self._path))

    def _set(self, conditions: list[dict[str, str]]) -> None:
        if conditions:
            body = {"status": {"conditions": conditions}}
            self._api.call("PATCH", f"{self._path}/status", body=body, sends=MERGE_PATCH)

    def _tell_events(self, found: Sequence[PublishedFinding]) -> None:
        """Tell of what was not told yet, some at a time. One that is refused keeps no other from being told."""
        fresh = [
            finding for finding in found[: EVENTS_MAX // 2] if _key(finding) not in self._events
        ]
        refused: KubernetesError | None = None
        for finding in fresh[:EVENTS_A_LOOK_MAX]:
            try:
                self._tell_event(finding)
            except (ManagerAwayError, ManagerDeniedError):
                raise
            except KubernetesError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _tell_event(self, finding: PublishedFinding) -> None:
        body: dict[str, Any] = event_of(self._node, finding)
        with contextlib.suppress(KubernetesConflictError):  # told before our start
            self._api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/events", body=body)
        self._events[_key(finding)] = None
        if len(self._events) > EVENTS_MAX:
            del self._events[next(iter(self._events))]


def _key(finding: PublishedFinding) -> tuple[str, float]:
    return finding.id, finding.since_unix_s
