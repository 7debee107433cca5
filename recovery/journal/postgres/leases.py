"""Which journals this start of a controller may write: leases, held together and renewed by a thread.

The database measures their time by its own clock and refuses a write under a lease that is over, so
the journals are right even where this module is wrong. It only renews the leases, and notices early
where that fails.
"""

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import JobHeldError, JournalError, RankmendError
from rankmend.lasting_trouble import LastingTrouble
from rankmend.version import RANKMEND_VERSION
from recovery.journal.postgres.database import (
    CommitUnknownError,
    Database,
    DatabaseAwayError,
    LeaseLostError,
    StatementRefusedError,
)

log = logging.getLogger(__name__)

# A reading is wrong by half of what it took at most. One that took longer doesn't replace a better one.
READING_S_MAX: Final = 0.5

LEASE_OVER: Final = "RM001"
JOURNAL_MOVED: Final = "RM002"
NO_JOURNAL: Final = "RM003"
_RENEWALS: Final = 4  # within a lease: three may fail
_KNOWN: Final = "SELECT 1 FROM rankmend.controller WHERE controller_id = %s"
_UNIX_S: Final = "extract(epoch FROM clock_timestamp())::float8"
_TURN_S: Final = 1.0  # between two renewals: one commit a second
_YIELD_S: Final = 0.1  # until the next look whether a decision is being committed
# In the order of their names, so that two controllers that take the same ones can't wait for each other.
_TAKE_FREE: Final = (
    "SELECT free.name, taken.epoch FROM (SELECT name, %s::uuid AS taker FROM rankmend.journal"
    " WHERE name = ANY(%s) AND holder IS DISTINCT FROM %s ORDER BY name) AS free"
    " CROSS JOIN LATERAL rankmend.take(free.name, free.taker) AS taken"
)


class DatabaseClock:
    """The clock by which several controllers date their decisions: the database's, carried on by the monotonic clock.

    A budget counts what was spent within an hour, by the stamps of records that other controllers
    wrote. With each host's wall clock, a host whose clock was set back would date its records into
    the past, where they no longer count.
    """

    def __init__(self, clock: Clock) -> None:
        """``clock``: this host's. Its wall clock counts only until the first reading."""
        self._clock = clock
        self._lock = threading.Lock()
        self._offset_s: float | None = None  # of the database's wall clock to our monotonic one

    def now_s(self) -> float:
        return self._clock.now_s()

    def unix_s(self) -> float:
        """Return the database's wall clock, in seconds since 1970."""
        with self._lock:
            offset_s = self._offset_s
        return self._clock.unix_s() if offset_s is None else self._clock.now_s() + offset_s

    def note(self, database_unix_s: float, asked_at_s: float) -> None:
        """Add a reading of the database's clock, made between ``asked_at_s`` (monotonic seconds) and now."""
        answered_at_s = self._clock.now_s()
        with self._lock:
            if self._offset_s is None or answered_at_s - asked_at_s <= READING_S_MAX:
                self._offset_s = database_unix_s - (asked_at_s + answered_at_s) / 2


@dataclass(frozen=True, slots=True)
class JournalLease:
    """The right to write one journal, until the controller's leases end or another controller has it."""

    journal: str
    epoch: int  # the fencing token


class HeldByOtherError(JobHeldError):
    """Another controller has the lease."""

    def __init__(self, journal: str, name: str, url: str, left_s: float) -> None:
        super().__init__(
            f"{journal} is managed by the controller on {name}{f' ({url})' if url else ''}, whose lease has "
            f"{max(0.0, left_s):.0f} s left"
        )
        self.url = url


class Leases:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        lease_s: float,
        url: str = "",
        host: str | None = None,
        has_thread: bool = True,
        controller_id: uuid.UUID | None = None,
    ) -> None:
        """``url``: where launchers reach this controller, for those that reach another one.

        Without a thread the caller calls `turn` as often as its answer requests. ``controller_id`` names this start.
        """
        self.database = database
        self._clock = clock
        self.lease_s = lease_s
        self._url = url
        self._host = host or socket.gethostname()
        self.controller_id = controller_id or uuid.uuid4()
        self.clock = DatabaseClock(clock)  # read anew with each renewal
        self.generation = 0
        """Changes when the leases have expired, or may have while the server was away, and when it is back."""
        self._renewed_at_s = clock.now_s()
        self._has_expired = False
        self.is_forgotten = False
        """The database knows nothing of this start: it was restored from an older backup."""
        # Called by the thread after each renewal; returns how long to wait at most before the next one.
        self.on_renewed: Callable[[], float] = lambda: _TURN_S
        # Called before each renewal; returns whether a decision is being committed: on a slow disk it waits for each other commit.
        self.yields: Callable[[], bool] = lambda: False
        # Likewise; returns whether this controller is to have no leases, though the database answers.
        self.gives_back: Callable[[], bool] = lambda: False
        self._has_given_back = False
        self._unrenewed = LastingTrouble(log, "leases not renewed", clock)
        self._should_stop = threading.Event()
        self._has_begun = False
        self.has_thread = has_thread
        self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)

    def begin(self) -> None:
        """Make this controller known, and keep it so."""
        asked_at_s = self._clock.now_s()
        ((_none, unix_s),) = self.database.write(
            f"SELECT rankmend.begin_controller(%s, %s, %s, %s, %s), {_UNIX_S}",
            (self.controller_id, self._host, self._url, RANKMEND_VERSION, self.lease_s),
        )
        self.clock.note(unix_s, asked_at_s)
        self._has_begun = True
        if self.has_thread:
            self._thread.start()

    def end(self) -> None:
        """Give all leases back; where that fails, they end by themselves."""
        self._should_stop.set()
        if not self._has_begun:
            return
        if self.has_thread:
            self._thread.join(2 * self.lease_s)
        try:
            self.database.write("SELECT rankmend.end_controller(%s)", (self.controller_id,))
        except RankmendError as error:
            log.warning("leases not given back; they expire", extra={"error": str(error)})

    def take(self, journal: str) -> JournalLease:
        """Take the lease of a journal under a new epoch, or raise HeldByOtherError.

        Its commit comes after every record that was ever written to the journal, and later ones under older leases are
        refused: what is read afterwards is all there is.
        """
        try:
            ((epoch, name, url, left_s),) = self.database.write(
                "SELECT * FROM rankmend.take(%s, %s)", (journal, self.controller_id)
            )
        except CommitUnknownError as error:
            raise JournalError(f"cannot take the lease of {journal}: {error}") from error
        if epoch is None:
            raise HeldByOtherError(journal, name, url, left_s)
        return JournalLease(journal, epoch)

    def take_free(self, journals: Sequence[str]) -> list[JournalLease]:
        """Take the leases of those journals that no controller has, not even this one, by one commit; as `take` does."""
        try:
            rows = self.database.write(
                _TAKE_FREE, (self.controller_id, list(journals), self.controller_id)
            )
        except CommitUnknownError as error:  # they are taken anew, or another controller takes them
            raise JournalError(f"cannot take {len(journals)} leases: {error}") from error
        return [JournalLease(name, epoch) for name, epoch in rows if epoch is not None]

    def release(self, lease: JournalLease) -> None:
        """Give one lease back; where that fails, it is taken over once this controller has ended."""
        try:
            self.database.write(
                "SELECT rankmend.release(%s, %s, %s)",
                (lease.journal, self.controller_id, lease.epoch),
            )
        except DatabaseAwayError:  # which was logged already, and there may be hundreds of leases
            return
        except RankmendError as error:
            log.warning(
                "lease not given back", extra={"journal": lease.journal, "error": str(error)}
            )

    def renew(self) -> bool:
        """Renew all leases; False: they had expired, and each journal must be taken anew."""
        asked_at_s = self._clock.now_s()
        ((held, unix_s),) = self.database.write(
            f"SELECT rankmend.renew(%s), {_UNIX_S}", (self.controller_id,)
        )
        self.clock.note(unix_s, asked_at_s)
        if not held or self._has_expired:
            self.generation += 1
        if not held:
            self.is_forgotten = not self.database.read(_KNOWN, (self.controller_id,))
        self._renewed_at_s, self._has_expired = asked_at_s, False
        return bool(held)

    def left_s(self) -> float:
        """Return for how long the leases hold at least, if they are not renewed again. For any thread."""
        if self._has_expired:
            return 0.0
        return max(0.0, self._renewed_at_s + self.lease_s - self._clock.now_s())

    def _keep(self) -> None:
        wait_s = 0.0
        while not self._should_stop.wait(wait_s):
            wait_s = self.turn()

    def turn(self) -> float:
        """Renew once; return how long to wait before the next time."""
        wait_s = min(_TURN_S, self.lease_s / _RENEWALS)
        if self.left_s() > self.lease_s / 2 and self.yields():
            return _YIELD_S
        try:
            if self.database.away_s is not None:
                self.database.probe()
            if self.gives_back():
                self._give_back()
                self._unrenewed.end()
                return wait_s
            self._has_given_back = False
            if not self.renew():
                log.error("the leases had expired: every job is adopted anew")
            wait_s = min(wait_s, self.on_renewed())
            self._unrenewed.end()
        except RankmendError as error:
            self._unrenewed.note(error)
            if self._clock.now_s() - self._renewed_at_s >= self.lease_s and not self._has_expired:
                # Another controller may decide by now: our launchers must look for it.
                self._has_expired, self.generation = True, self.generation + 1
                log.error(  # noqa: TRY400 - the line before has the reason
                    "the leases have run out: another controller may take the jobs"
                )
        return wait_s

    def _give_back(self) -> None:
        if self._has_given_back:
            return
        self.database.write("SELECT rankmend.end_controller(%s)", (self.controller_id,))
        self._has_given_back = self._has_expired = True
        self.generation += 1


def lease_error(error: StatementRefusedError) -> Exception:
    """Return LeaseLostError where the database refused a write for that reason, else the error itself."""
    return LeaseLostError(str(error)) if error.sqlstate == LEASE_OVER else error
