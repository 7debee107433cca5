"""Reads what other tools say of the nodes of our jobs in Kubernetes, and takes it in as alerts (`recovery.kubernetes.signals`)."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rankmend.errors import RankmendError
from recovery.cluster.incoming_alerts import IncomingAlert
from recovery.kubernetes.signals import NodeSignal, alert_of, read_signals

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
NODES_MAX: Final = 20_000
STOP_S_MAX: Final = 5.0


class KubernetesSignals:
    def __init__(
        self,
        node: Callable[[str], Mapping[str, Any] | None],
        nodes: Callable[[], Sequence[str]],
        take: Callable[[Sequence[IncomingAlert]], object],
        look_s: float = LOOK_S,
    ) -> None:
        """``node`` reads a node's object; ``nodes`` names those of our jobs; ``take`` has the alerts judged."""
        self._node = node
        self._nodes = nodes
        self._take = take
        self._look_s = look_s
        self._firing: dict[tuple[str, NodeSignal], str] = {}
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes-signals", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S_MAX)

    def _run(self) -> None:
        while not self._should_stop.wait(self._look_s):
            try:
                self.look()
            except RankmendError as error:  # Kubernetes is away: nothing is concluded from that
                log.warning("cannot read nodes in Kubernetes", extra={"error": str(error)})
            except Exception:
                log.exception("cannot read nodes in Kubernetes")

    def look(self) -> None:
        """Read the nodes once, and tell of what fires and of what has ended."""
        firing: dict[tuple[str, NodeSignal], str] = {}
        for name in sorted(self._nodes())[:NODES_MAX]:
            told = self._node(name)
            if told is None:
                continue
            firing.update({(name, signal): text for signal, text in read_signals(told)})
        ended = self._firing.keys() - firing.keys()
        alerts = [
            *(alert_of(node, one, text, is_firing=True) for (node, one), text in firing.items()),
            *(alert_of(node, one, "", is_firing=False) for node, one in ended),
        ]
        if alerts:
            self._take(alerts)
        self._firing = firing
