"""The guardian's end of the socket to its launcher. Nothing here waits.

Events that the launcher does not read are queued. A launcher that leaves 10,000 of them unread counts as
dead: each command leads to at most three.
"""

import os
import select
import socket
from array import array
from collections import deque
from typing import Final

from rankmend.errors import SourceError
from recovery.launcher.guardian.packets import PACKET_BYTES_MAX, Message, decode, encode

UNSENT_MAX: Final = 10_000
DESCRIPTORS_MAX: Final = 3  # per command


class LauncherLink:
    """The socket to the launcher; calls raise ConnectionError once the launcher is gone."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._unsent: deque[bytes] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_behind(self) -> bool:
        """Whether events are waiting for room in the socket."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send a message in order, now or with a later `flush`."""
        self._unsent.append(encode(message))
        self.flush()
        if len(self._unsent) > UNSENT_MAX:
            raise ConnectionError(f"the launcher has left {UNSENT_MAX} events")

    def flush(self) -> None:
        """Send as many queued messages as there is room for."""
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            pass

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next command with its descriptors, or None if there is none yet.

        Commands of a launcher that has died are no longer carried out. This is checked for every
        command, because this process may have been stopped since the last check.
        """
        if self._is_hung_up():
            raise ConnectionError("the launcher has closed the socket")
        numbers = array("i")
        room = socket.CMSG_SPACE(DESCRIPTORS_MAX * numbers.itemsize)
        try:
            # socket.recv_fds passes no flags on (Python 3.10 to 3.13): its descriptors would
            # reach every rank.
            packet, control, flags, _address = self._socket.recvmsg(
                PACKET_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        if not packet:
            raise ConnectionError("the launcher has closed the socket")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise SourceError(f"a command was cut off: {packet[:200]!r}")
        return decode(packet), list(numbers)

    def _is_hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))
