"""The link to a controller elsewhere: joins the job, sends reports, delivers orders, and informs the user.

Messages go through `recovery.launcher.membership.remote.Remote`; this module handles the answers.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import JobHeldError
from rankmend.printable import duration
from recovery.api.connection import pause_s
from recovery.api.contact import Contact
from recovery.api.controller_errors import ControllerError, RefusedError, TlsFault, UnreachableError
from recovery.api.wire import Accepted, Join, JoinAnswer
from recovery.journal.job_records import JobOutcome
from recovery.journal.narration.launcher_lines import next_act, unprinted
from recovery.journal.narration.narrator import END_WORDS
from recovery.launcher.decision.pace import REMOTE_REPORT_S_MIN
from recovery.launcher.guardian.last_word import LAUNCHER_S_MAX, say_within
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.node_membership import Membership
from recovery.launcher.membership.peer_launchers import Peers
from recovery.launcher.membership.remote import Client, Remote
from recovery.launcher.run.assembly import say
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import EPOCH_MAX, LauncherLine, Order, Report, StopReason

log = logging.getLogger(__name__)

WAITING_SAID_AFTER_S: Final = 10.0

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


# Between two checks whether the job has begun at another controller in the list; a check costs each
# controller one request.
SEEK_EVERY_S: Final = 10.0
WAITS: Final = "joined; nothing to run yet: the job is waiting for more nodes, or already has all that --nnodes allows"


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
    """Join the job, and wait for the controller as long as it takes; print once why none answers, and once that one does.

    A fault that time alone does not heal is printed at once and with the way out, others only if they persist. Of one kind the
    first is printed: with several controllers the text changes with each try.
    """
    failures, began_s = 0, time.monotonic()
    said = set[tuple[type[ControllerError], str | None]]()
    while True:
        try:
            joined = client.join(request)
            if said:
                say(f"the controller answers after {duration(time.monotonic() - began_s)}")
            return joined
        except RefusedError:
            raise
        except ControllerError as error:
            failures += 1
            text, hint = str(error), hint_for(error)
            lasts = time.monotonic() - began_s >= said_after_s
            if (type(error), hint) not in said and (hint is not None or lasts):
                said.add((type(error), hint))
                say(f"waiting for the controller: {text}" + (f"; {hint}" if hint else ""))
            wait_s = pause_s(failures)
            if isinstance(error, UnreachableError) and error.retry_after_s is not None:
                wait_s = max(wait_s, error.retry_after_s)
            time.sleep(wait_s)


def hint_for(error: ControllerError) -> str | None:
    """Return what a person can do about an unreachable controller, or None if that is unknown."""
    fault = error.tls_fault if isinstance(error, UnreachableError) else None
    return None if fault is None else _TLS_HINTS.get(fault)


class RemoteLink:
    """A launcher's link to its controller, and the handler of its answers (`remote.Heard`)."""

    def __init__(
        self,
        client: JoiningClient,
        request: Join,
        peers: Peers,
        storage: Storage,
        clock: Clock,
        *,
        quiet: bool,
        role: str = "",
        line: int = 0,
        prints_job: Callable[[], bool] = lambda: True,
        passed_preflight: bool = False,
    ) -> None:
        """``request``: the accepted join, which names the job. ``role``: of the ranks; empty: "default".

        ``line``: the newest line of the job that is older than this launcher. ``prints_job``: whether this launcher
        prints the job's lines now; another one may print them into the same file.
        """
        assert request.job_id is not None, "joined"
        self._client = client
        self._request = request
        self._peers = peers
        self._quiet = quiet
        self._prints_job = prints_job
        self._printed_order = (0, False)  # attempt, and whether it had ranks for this node
        self._has_printed = False
        self._printed = line  # number of the newest line
        self._printing = threading.Lock()
        self._is_end_printed = False
        self._remote = Remote(
            client, request.job_id, request.node, request.launcher_id, self, clock
        )
        self._ending = threading.Event()
        self._waiting = threading.Timer(WAITING_SAID_AFTER_S, self._print_waiting)
        self._waiting.daemon = True
        self.membership = Membership(
            request.launcher_id,
            request.slots,
            peers,
            storage,
            lambda: client.contact,
            REMOTE_REPORT_S_MIN,
            role=role,
            passed_preflight=passed_preflight,
        )
        self.empty_through = 0  # a controller elsewhere relies on reports alone
        self.launcher: Launcher | None = None
        self.newest: Order | None = None
        self.is_moving = False  # to another controller, before the job has begun
        self.outcome: JobOutcome | None = None
        self._replaced_by: str | None = None

    # The launcher's side (`recovery.launcher.run.node_launcher.ControllerLink`).

    def put(self, report: Report) -> None:
        if not self._quiet:
            report = replace(report, line_printed=self._printed)
        self._remote.put(report)

    def start(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self._remote.start()
        self._waiting.start()
        if self._client.has_choice:
            threading.Thread(target=self._seek, name="seek", daemon=True).start()

    def flush(self) -> None:
        if self._goes_on:
            self._remote.flush()

    def close(self) -> None:
        self._ending.set()
        self._waiting.cancel()
        self._remote.close()

    def leave(self, last: Report | None) -> None:
        """Report at once that this node is empty and no longer a spare."""
        if last is not None and self._goes_on:
            say_within(self._client.report, last, LAUNCHER_S_MAX)

    def exit_code(self, stop_requested: StopReason | None) -> int:
        if self.outcome is not None:
            if not self._is_end_printed:
                word = END_WORDS[self.outcome.kind]
                self._inform(f"{word}: {self.outcome.reason}{next_act(self.outcome)}")
            return self.outcome.exit_code
        self.is_moving = self.is_moving and stop_requested is None
        if self.is_moving:
            return 0  # nothing ran here
        if self._replaced_by is not None and stop_requested is None:  # else by its own leaving
            raise JobHeldError(f"this launcher was replaced: {self._replaced_by}")
        said = "nobody" if stop_requested is None else stop_requested.value
        self._inform(f"{said}: this node leaves the job")
        return 1 if stop_requested is None else stop_requested.exit_code

    def hurry(self) -> None:
        """Try again now, because the controller has changed."""
        self._remote.hurry()

    @property
    def _goes_on(self) -> bool:
        """Whether the job continues without this launcher."""
        return self.outcome is None and self._replaced_by is None

    # The controller's answers (`recovery.launcher.membership.remote.Heard`).

    def order(self, order: Order) -> None:
        self.newest = order
        reported = (order.attempt, bool(order.ranks))
        if (reported != self._printed_order or not self._has_printed) and not self._quiet:
            self._inform(describe(order, is_over=self._printed_order == (order.attempt, True)))
            self._printed_order, self._has_printed = reported, True
        if self.launcher is not None:
            self.launcher.send(order)

    def _print_waiting(self) -> None:
        """Tell the user if no order has come yet."""
        if self.newest is None and not self._quiet:
            self._inform(WAITS)

    def _seek(self) -> None:
        """Until the job begins, look for a controller where all its launchers meet, and leave for it."""
        while not self._ending.wait(SEEK_EVERY_S):
            if self.newest is not None and self.newest.attempt > 0:
                return
            try:
                self.is_moving = self._client.leave(self._request)
            except ControllerError as error:
                log.debug("no other controller was found: %s", error)
            if self.is_moving:
                self._inform(
                    f"leaving {self._client.url}: the job meets at another controller in the list"
                )
                if self.launcher is not None:
                    self.launcher.finish()
                return

    def taken(self, asked_at_s: float, accepted: Accepted) -> None:
        self._peers.note_controller(asked_at_s)
        self._print(accepted.lines)
        if self.launcher is not None:
            self.launcher.note_answer(accepted.epoch, accepted.controller_id)
            self.launcher.note_copies(accepted.copies or CopyRequest())
            self.launcher.note_probe(accepted.probe)

    def ended(self, outcome: JobOutcome, lines: Sequence[LauncherLine] = ()) -> None:
        self._print(lines)
        is_printed = bool(lines) and not self._quiet and self._prints_job()
        self._is_end_printed = self._is_end_printed or is_printed
        self.outcome = self.outcome or outcome
        if self.launcher is not None:
            self.launcher.finish()

    def replaced(self, reason: str) -> None:
        self._replaced_by = reason
        if self.launcher is not None:
            self.launcher.finish()

    def unknown(self) -> None:
        if self.launcher is not None:
            self._request.epoch = min(self.launcher.epoch, EPOCH_MAX)
        joined = self._client.join(self._request)
        self._peers.take_secret(joined.secret)
        with self._printing:  # its journal may be another one, with numbers from 1 on
            self._printed = joined.line
        if joined.job_id != self._request.job_id:
            raise ControllerError(f"the controller now knows this job as {joined.job_id}")

    def _print(self, lines: Sequence[LauncherLine]) -> None:
        """Print the job's new lines. Answers come to two threads, and may be late."""
        if self._quiet:
            return
        with self._printing:
            for line in unprinted(lines, self._printed):
                self._printed = line.number
                if self._prints_job():
                    self._inform(line.text)

    def _inform(self, text: str) -> None:
        """Print a message; where the job may have several nodes, with this one's name: their consoles may be one file."""
        prefix = f"[{self._request.node}] " if self._request.nodes_max > 1 else ""
        for line in text.splitlines():
            say(f"{prefix}{line}")


def describe(order: Order, *, is_over: bool) -> str:
    """Return an order in a few words; ``is_over``: ranks of its attempt were running here."""
    if not order.ranks and not order.attempt:
        return "joined; nothing to run yet"
    if not order.ranks and is_over:
        return f"attempt {order.attempt} is over on this node"
    if not order.ranks:
        return f"attempt {order.attempt} runs no ranks on this node{_nodes(order)}"
    first, last = order.ranks[0], order.ranks[-1]
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    verb = "runs" if first == last else "run"
    source = order.restore.path if order.restore is not None else "the beginning"
    if order.snapshot is not None:
        source = f"memory at step {order.snapshot.step}"
    return f"attempt {order.attempt}: {ranks} of {order.world_size} {verb} here, from {source}{_nodes(order)}"


def _nodes(order: Order) -> str:
    """Return how many nodes train and how many wait, in words; empty for a job's only node."""
    if order.group_count == 1 and not order.spare_count:
        return ""
    train = "1 node trains" if order.group_count == 1 else f"{order.group_count} nodes train"
    if not order.spare_count:
        return f"; {train}"
    count = order.spare_count
    waits = "1 waits as a spare" if count == 1 else f"{count} wait as spares"
    return f"; {train}, {waits}"
