"""The launcher's end of the agent's socket: offers its ranks to an agent, now or whenever one appears."""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankmend.agent_socket import (
    CULPRITS_MAX,
    FINDINGS_MAX,
    JOB_NAME_CHARS_MAX,
    VERSION,
    Offer,
    OfferedRank,
    ShownFinding,
    Told,
    encode,
    encode_told,
)
from rankmend.backoff import Backoff
from rankmend.checkpoint_figures import CheckpointFigures, encode_figures
from rankmend.clock import Clock
from rankmend.errors import SourceError

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_BACKOFF = Backoff(first_s=1.0, cap_s=30.0)
# An agent that closes the connection so soon after figures is an older one, which does not know them.
_REFUSED_WITHIN_S = 5.0
_REFUSED_FOR_S = 600.0


class AgentLink:
    """A connection to the agent, for as long as there is one.

    Nothing here blocks, raises or is needed for training: without an agent it costs one refused
    connect every 1 to 30 s. Call `tick` about once a second; it reconnects after the agent has
    restarted. Opens the progress files itself and owns these descriptors.
    """

    def __init__(self, paths: Sequence[Path], clock: Clock) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._connection: socket.socket | None = None
        self._connected_at_s = 0.0
        self._retry_at_s = 0.0
        self._failures = 0  # in a row
        self._message: bytes | None = None
        self._last: Offer | None = None
        self._findings: tuple[ShownFinding, ...] = ()
        self._figures: CheckpointFigures | None = None
        self._figures_sent_at_s: float | None = None  # on this connection
        self._figures_from_s = 0.0  # none are sent before
        self._descriptors: list[int] = []
        self.problem: str | None = None  # why no agent has the ranks at present, for a log

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def offer(
        self,
        job_id: uuid.UUID,
        job_name: str,
        attempt: int,
        ranks: Sequence[tuple[OfferedRank, Path]],
    ) -> None:
        """Show these ranks by their progress files, and only these, to the agent from now on."""
        self._forget()
        offered = tuple(rank for rank, _path in ranks)
        offer = Offer(job_id, _printable(job_name), attempt, offered)
        try:
            message = encode(offer)
            for _rank, path in ranks:
                self._descriptors.append(os.open(path, _OPEN_FLAGS))
        except (SourceError, OSError) as error:
            self.problem = f"ranks not offered to the agent: {error}"
            self.withdraw()
            return
        self._message, self._last = message, offer
        if self._connection is not None:
            self._send()
        self.tick()

    def tell(self, findings: Sequence[ShownFinding]) -> None:
        """Report these findings about the ranks to the agent; they replace earlier ones."""
        reported = tuple(
            replace(finding, ranks=finding.ranks[:CULPRITS_MAX])
            for finding in findings[:FINDINGS_MAX]
        )
        if reported == self._findings:
            return
        self._findings = reported
        if self._connection is not None:
            self._send_findings()

    def show_checkpoint(self, figures: CheckpointFigures) -> None:
        """Report the figures of the job's checkpoints; they replace earlier ones."""
        if self._figures is not None and not figures.is_news(self._figures):
            return
        self._figures = figures
        if self._connection is not None:
            self._send_figures()

    def tick(self) -> None:
        """Notice an agent that has gone, and look for one when it is time to."""
        if self._message is None:
            return
        if self._connection is not None and self._is_closed(self._connection):
            self._disconnect("the agent closed the connection")
        if self._connection is None and self._clock.now_s() >= self._retry_at_s:
            self._connect()

    def withdraw(self) -> None:
        """Withdraw the offered ranks: the agent drops them and keeps the findings."""
        self._forget()
        if self._last is None:
            self.close()
            return
        self._message = encode(replace(self._last, ranks=()))
        if self._connection is not None:
            self._send()

    def close(self) -> None:
        """Withdraw ranks and findings."""
        self._forget()
        self._findings = ()
        self._figures = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _forget(self) -> None:
        self._message = None
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _connect(self) -> None:
        for path in self._paths:
            connection = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            try:
                connection.connect(str(path))
            except OSError as error:
                connection.close()
                self.problem = f"no agent at {path}: {error}"
                continue
            self._connection = connection
            self._connected_at_s = self._clock.now_s()
            self._send()
            if self._findings and self._connection is not None:
                self._send_findings()
            if self._connection is not None:
                self._send_figures()
            return
        self._wait_longer()

    def _send(self) -> None:
        assert self._connection is not None
        assert self._message is not None
        try:
            socket.send_fds(self._connection, [self._message], self._descriptors)
            self.problem = None
        except OSError as error:  # also a full buffer: an agent that does not read has hung
            self._disconnect(f"the agent does not accept the offer: {error}")

    def _send_findings(self) -> None:
        assert self._connection is not None
        assert self._last is not None, "connected because of an offer"
        try:
            reported = Told(self._last.job_id, self._findings)
            self._connection.send(encode_told(reported, self._clock.now_s()))
        except (SourceError, OSError) as error:
            self._disconnect(f"the agent does not accept the findings: {error}")

    def _send_figures(self) -> None:
        assert self._connection is not None
        now_s = self._clock.now_s()
        if self._figures is None or self._last is None or now_s < self._figures_from_s:
            return
        self._figures_sent_at_s = now_s
        try:
            self._connection.send(
                encode_figures(str(self._last.job_id), self._figures, now_s, VERSION)
            )
        except OSError as error:
            self._disconnect(f"the agent does not accept the figures of checkpoints: {error}")

    @staticmethod
    def _is_closed(connection: socket.socket) -> bool:
        try:
            return connection.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _disconnect(self, problem: str) -> None:
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        self.problem = problem
        sent_at_s, self._figures_sent_at_s = self._figures_sent_at_s, None
        if sent_at_s is not None and self._clock.now_s() - sent_at_s < _REFUSED_WITHIN_S:
            self._figures_from_s = self._clock.now_s() + _REFUSED_FOR_S
        if self._clock.now_s() - self._connected_at_s >= _BACKOFF.cap_s:
            self._failures = 0  # it was accepted: a restart of the agent, no refusal
        self._wait_longer()

    def _wait_longer(self) -> None:
        self._failures += 1
        self._retry_at_s = self._clock.now_s() + _BACKOFF.wait_s(self._failures)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:JOB_NAME_CHARS_MAX]
