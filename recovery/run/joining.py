"""Joins a job at a controller, and says what it waits for while none answers."""

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

    What time alone does not heal is said at once, all else when it lasts.
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
    """Return what a person can do about a controller that can't be reached, where that is known."""
    fault = error.tls_fault if isinstance(error, UnreachableError) else None
    return None if fault is None else _TLS_HINTS.get(fault)


_TLS_HINTS: Final = {
    TlsFault.WRONG_NAME: "name the controller by a name that is in its certificate",
    TlsFault.WRONG_TIME: (
        "its certificate is not valid by this machine's clock: is the clock right? "
        "A new one is made by rankmend controller server-cert"
    ),
    TlsFault.UNKNOWN_AUTHORITY: (
        "--ca-file names the authority of its certificate (ca.crt of rankmend controller init)"
    ),
    TlsFault.NO_TLS: "what answers there does not speak TLS",
}
