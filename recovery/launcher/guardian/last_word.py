"""Reports that a launcher has ended and that no process it started is left on its node.

A launcher that exits in good order sends this itself (`say`). For a killed launcher the guardian, once
it has the same proof, runs ``python -I -S last_word.py PATHS ATTEMPT`` with the body of a `LastWord` on
stdin: a separate program, because the guardian has neither sockets nor packages.

The report is positive evidence: a controller that accepts it waits for no lease (docs/operate/fencing.md).
If it can't be sent in time, only time is lost. It may be repeated and may arrive late: a controller
refuses it from a launcher that has a successor.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

if __name__ == "__main__":  # run with the launcher's paths
    sys.path[:] = sys.argv[1:-1]

import msgspec

from recovery.api.connection import pause_s
from recovery.api.controller_errors import (
    ConflictError,
    ControllerError,
    JobEndedError,
    UnknownJobError,
)
from recovery.api.launcher_client import LauncherClient
from recovery.launcher.guardian.word import LastWord
from recovery.messages.exchange import Report

# Far below the lease. A restarting controller is back within seconds; if it takes longer, the lease
# runs meanwhile.
GUARDIAN_S_MAX: Final = 10.0
LAUNCHER_S_MAX: Final = 2.0  # a person waits for a launcher to end
CONFIRM_S: Final = 0.3  # a controller decides, and journals this, every 0.05 to 0.25 s
BODY_BYTES_MAX: Final = 64 << 10
_DONE: Final = (ConflictError, JobEndedError, UnknownJobError)


def say(send: Callable[[Report], object], report: Report, within_s: float) -> bool:
    """Send the last report until it is journaled (409) or useless; return whether that came in time.

    A report that was only accepted (202) may be lost with the controller, so it is sent again.
    """
    until_s, failures = time.monotonic() + within_s, 0
    while True:
        try:
            send(report)
            wait_s = CONFIRM_S
        except _DONE:
            return True
        except ControllerError:
            failures += 1
            wait_s = pause_s(failures)
        if time.monotonic() + wait_s >= until_s:
            return False
        time.sleep(wait_s)


def say_within(send: Callable[[Report], object], report: Report, within_s: float) -> None:
    """Send the last report for at most this long, whatever the network does."""
    saying = threading.Thread(
        target=say, args=(send, report, within_s), name="last-word", daemon=True
    )
    saying.start()
    saying.join(within_s)


def main() -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the guardian ignores it, and we inherit that
    signal.alarm(int(GUARDIAN_S_MAX) + 1)  # a silent name server must not delay the exit
    word = msgspec.json.decode(os.pread(0, BODY_BYTES_MAX, 0), type=LastWord)
    time.sleep(random.random() * min(word.spread_s, GUARDIAN_S_MAX / 2))  # noqa: S311 - spreads
    client = LauncherClient.of(word.contact)
    try:
        is_said = say(client.report, word.report(int(sys.argv[-1])), GUARDIAN_S_MAX)
    finally:
        client.close()
    return 0 if is_said else 1


if __name__ == "__main__":
    sys.exit(main())
