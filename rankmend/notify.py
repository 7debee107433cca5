"""Tells systemd that a daemon is ready, alive, reloading or stopping (sd_notify(3)).

Each message is one datagram to the socket that systemd names in the environment. Where it names
none, as on a shell, nothing is sent. A message never waits: a manager that does not read costs
one line in the log.
"""

import logging
import socket
from collections.abc import Mapping
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Final

from rankmend.errors import ConfigError

log = logging.getLogger(__name__)

PINGS_IN_WATCHDOG: Final = 2  # sd_watchdog_enabled(3): ping at half of the time given


class Notifier:
    """One process's line to its service manager."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._is_failing = False
        self.ping_s = None if watchdog_s is None else watchdog_s / PINGS_IN_WATCHDOG
        if address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> "Notifier":
        """Return a notifier for systemd's variables, or one that does nothing without them."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and not address.startswith(("/", "@")):
            raise ConfigError(f"NOTIFY_SOCKET is neither a path nor abstract: {address!r}")
        watchdog_s = None
        watchdog_text = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        if address is not None and watchdog_text and is_ours:
            if not (watchdog_text.isascii() and watchdog_text.isdigit() and int(watchdog_text)):
                raise ConfigError(
                    f"WATCHDOG_USEC is not a number of microseconds: {watchdog_text!r}"
                )
            watchdog_s = int(watchdog_text) / 1e6
        return cls(address, watchdog_s)

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={_line(status)}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={_line(status)}")

    def ping(self) -> None:
        """Ping the watchdog: systemd restarts a daemon that stops pinging."""
        if self.ping_s is not None:
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that a reload has begun; `ready` ends it (Type=notify-reload, systemd 253)."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None or self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._is_failing:
                log.warning("the service manager does not listen", extra={"error": str(error)})
            self._is_failing = True
        else:
            self._is_failing = False


def _line(text: str) -> str:
    return " ".join(text.split())
