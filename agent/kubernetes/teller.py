"""Reads the agent's page of findings, and keeps the node's conditions and events in Kubernetes in step with it."""

import contextlib
import logging
from collections.abc import Callable
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
from rankmend.clock import Clock
from rankmend.errors import SourceError
from rankmend.kubernetes_api import MERGE_PATCH, KubernetesApi, KubernetesConflictError

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
SILENT_S: Final = 60.0  # an agent that does not answer for so long is unknown, not well
AGAIN_S: Final = 300.0  # what has not changed is said again, as the kubelet does
EVENTS_MAX: Final = 1_000  # remembered


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

    def look(self) -> None:
        """Read the findings once and tell of them. Raises KubernetesError where that can't be told."""
        now_s, unix_s = self._clock.now_s(), self._clock.unix_s()
        path = f"/api/v1/nodes/{quote(self._node, safe='')}"
        try:
            found = read_page(self._page())
        except SourceError as error:
            log.warning("the agent does not tell its findings", extra={"error": str(error)})
            if now_s - self._answered_at_s >= SILENT_S:
                known = our_types(self._api.call("GET", path))
                asked = [kind for kind, status in known.items() if status != "Unknown"]
                self._set(path, unknown_conditions(asked, str(error), unix_s))
                self._told = None
            return
        self._answered_at_s = now_s
        told = tuple((one.id, one.severity, one.text, one.since_unix_s) for one in found)
        if told != self._told or now_s - self._told_at_s >= AGAIN_S:
            known = our_types(self._api.call("GET", path))
            ended = [kind for kind, status in known.items() if status != "False"]
            self._set(path, conditions_for(found, ended, unix_s))
            for one in found:
                self._tell_event(one)
            self._told, self._told_at_s = told, now_s

    def _set(self, path: str, conditions: list[dict[str, str]]) -> None:
        if conditions:
            body = {"status": {"conditions": conditions}}
            self._api.call("PATCH", f"{path}/status", body=body, sends=MERGE_PATCH)

    def _tell_event(self, finding: PublishedFinding) -> None:
        key = (finding.id, finding.since_unix_s)
        if key in self._events:
            return
        body: dict[str, Any] = event_of(self._node, finding)
        with contextlib.suppress(KubernetesConflictError):  # told before our start
            self._api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/events", body=body)
        self._events[key] = None
        if len(self._events) > EVENTS_MAX:
            del self._events[next(iter(self._events))]
