"""Reads the nodes of our jobs in Kubernetes: their states for people, and, if asked, what other tools say of them as alerts (`recovery.kubernetes.signals`)."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from recovery.cluster.incoming_alerts import IncomingAlert
from recovery.kubernetes.node_states import SeenNode, read_state
from recovery.kubernetes.signals import NodeSignal, alert_of, read_signals

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
NODES_MAX: Final = 20_000
STOP_S_MAX: Final = 5.0
SHARE_MAX: Final = 0.25  # of the time that reading may take: of thousands of nodes it takes seconds


class KubernetesSignals:
    def __init__(
        self,
        read: Callable[[Sequence[str]], Mapping[str, Mapping[str, Any]]],
        nodes: Callable[[], Sequence[str]],
        take: Callable[[Sequence[IncomingAlert]], object] | None,
        clock: Clock,
        look_s: float = LOOK_S,
    ) -> None:
        """``read`` returns nodes' objects by name; ``nodes`` names those of our jobs; ``take`` has the alerts judged, None: nobody has them."""
        self._read = read
        self._nodes = nodes
        self._take = take
        self._clock = clock
        self.states: Mapping[str, SeenNode] = {}  # replaced as a whole
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
        wait_s = self._look_s
        while not self._should_stop.wait(wait_s):
            begun_s = time.monotonic()
            try:
                self.look()
            except RankmendError as error:  # Kubernetes is away: nothing is concluded from that
                log.warning("cannot read nodes in Kubernetes", extra={"error": str(error)})
            except Exception:
                log.exception("cannot read nodes in Kubernetes")
            wait_s = max(self._look_s, (time.monotonic() - begun_s) / SHARE_MAX)

    def look(self) -> None:
        """Read the nodes once, keep their states, and tell of what fires and of what has ended."""
        found = self._read(sorted(self._nodes())[:NODES_MAX])
        unix_s = self._clock.unix_s()
        self.states = {name: read_state(told, unix_s) for name, told in found.items()}
        if self._take is None:
            return
        firing: dict[tuple[str, NodeSignal], str] = {}
        for name, told in found.items():
            firing.update({(name, signal): text for signal, text in read_signals(told)})
        ended = self._firing.keys() - firing.keys()
        alerts = [
            *(alert_of(node, one, text, is_firing=True) for (node, one), text in firing.items()),
            *(alert_of(node, one, "", is_firing=False) for node, one in ended),
        ]
        if alerts:
            self._take(alerts)
        self._firing = firing
