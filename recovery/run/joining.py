"""Joins a job at a controller, and prints why while no controller answers."""

import time
from typing import Final, Protocol

from recovery.api.connection import pause_s
from recovery.api.contact import Contact
from recovery.api.controller_errors import ControllerError, RefusedError, UnreachableError
from recovery.api.tls_fault import TlsFault
from recovery.api.wire import Join, JoinAnswer
from recovery.launcher.membership.remote import Client
from recovery.run.assembly import say

WAITING_SAID_AFTER_S: Final = 10.0


class JoiningClient(Client, Protocol):
    @property
    def has_choice(self) -> bool: ...
    def leave(self, request: Join) -> bool: ...
    @property
    def contact(self) -> Contact | None: ...
    def join(self, request: Join) -> JoinAnswer: ...


def join(
    client: JoiningClient, request: Join, said_after_s: float = WAITING_SAID_AFTER_S
) -> JoinAnswer:
    """Join the job, and wait for the controller as long as it takes.

    Faults that time alone does not heal are printed at once, others only if they persist.
    """
    failures, began_s = 0, time.monotonic()
    said: list[str] | None = None
    while True:
        try:
            return client.join(request)
        except RefusedError:
            raise
        except ControllerError as error:
            failures += 1
            text, hint = str(error), hint_for(error)
            reasons = sorted(error.problems) if isinstance(error, UnreachableError) else [text]
            lasts = time.monotonic() - began_s >= said_after_s
            if reasons != said and (hint is not None or lasts):
                said = reasons
                say(f"waiting for the controller: {text}" + (f"; {hint}" if hint else ""))
            wait_s = pause_s(failures)
            if isinstance(error, UnreachableError) and error.retry_after_s is not None:
                wait_s = max(wait_s, error.retry_after_s)
            time.sleep(wait_s)


def hint_for(error: ControllerError) -> str | None:
    """Return what a person can do about an unreachable controller, or None if that is unknown."""
    fault = error.tls_fault if isinstance(error, UnreachableError) else None
    return None if fault is None else _TLS_HINTS.get(fault)


_TLS_HINTS: Final = {
    TlsFault.WRONG_NAME: "address the controller by a name that its certificate contains",
    TlsFault.WRONG_TIME: (
        "its certificate is not valid by this machine's clock: check the clock, or renew the certificate "
        "with rankmend controller server-cert"
    ),
    TlsFault.UNKNOWN_AUTHORITY: (
        "give the CA of its certificate with --ca-file (ca.crt from rankmend controller init)"
    ),
    TlsFault.NO_TLS: "the server at that address does not speak TLS",
}
