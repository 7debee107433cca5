"""Sessions of the console at every controller of one database.

The database has the truth: each request reads its session there, so a logout at one controller holds at all of them from the next
request on. Without a database, and while it is away, this controller goes by its own memory. A session that was opened
meanwhile is written to the database afterwards, and one that was closed meanwhile is closed there.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from recovery.console.sessions import (
    AGE_S_MAX,
    IDLE_S_MAX,
    SESSIONS_MAX,
    SESSIONS_OF_KEY_MAX,
    SessionBook,
    SignedIn,
    csrf_of,
    name_of,
)
from recovery.journal.postgres.database import Database, DatabaseAwayError

log = logging.getLogger(__name__)

# The database's own bounds: 3 s for a connection and 4 s for a statement. Then this controller's memory decides.
_ANSWER_S_MAX: Final = 8.0
_SEEN_S: Final = 60.0  # between two notes that a session is in use
_BEHIND_MAX: Final = 1_000  # sessions that the database has to learn of
_USED_MAX: Final = 10_000  # sign-ins of the last minutes
USED_S: Final = 900.0  # for which a used sign-in is remembered: longer than one may take

_T = TypeVar("_T")


class SessionStore(Protocol):
    """Where sessions of several controllers are. May block; raises RankmendError."""

    def open(self, name: str, key: str, identity: bytes) -> None: ...
    def find(self, name: str) -> tuple[str, bytes, float, float] | None:
        """Return key, identity, age and idle time of a session; None: there is none, or it has ended."""
        ...

    def see(self, name: str) -> None:
        """Note that a session is in use."""
        ...

    def close(self, name: str) -> None: ...
    def use_sign_in(self, mark: str) -> bool:
        """Return whether this is the first use of a sign-in."""
        ...


class PostgresSessions:
    """The sessions in the database of the journals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, name: str, key: str, identity: bytes) -> None:
        self._database.write(
            "SELECT rankmend.open_session(%s, %s, %s, %s, %s, %s, %s)",
            (name, key, identity, IDLE_S_MAX, AGE_S_MAX, SESSIONS_OF_KEY_MAX, SESSIONS_MAX),
        )

    def find(self, name: str) -> tuple[str, bytes, float, float] | None:
        rows = self._database.read(
            "SELECT key, identity, extract(epoch FROM clock_timestamp() - opened_at)::float8,"
            " extract(epoch FROM clock_timestamp() - seen_at)::float8"
            " FROM rankmend.console_session WHERE session = %s",
            (name,),
        )
        for key, identity, age_s, idle_s in rows:
            if age_s <= AGE_S_MAX and idle_s <= IDLE_S_MAX:
                return key, bytes(identity), age_s, idle_s
        return None

    def see(self, name: str) -> None:
        self._database.write("SELECT rankmend.see_session(%s)", (name,))

    def close(self, name: str) -> None:
        self._database.write("SELECT rankmend.close_session(%s)", (name,))

    def use_sign_in(self, mark: str) -> bool:
        rows = self._database.write("SELECT rankmend.use_sign_in(%s, %s)", (mark, USED_S))
        return bool(rows[0][0])


class ConsoleSessions:
    """Belongs to the event loop."""

    def __init__(self, store: SessionStore | None, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._book = SessionBook()
        self._used: OrderedDict[str, float] = OrderedDict()  # sign-ins, by when
        self._unsaved: OrderedDict[str, None] = OrderedDict()  # opened while the database was away
        self._unclosed: OrderedDict[str, None] = OrderedDict()
        # One thread: the pool of sessions of the database has one for it.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="sessions")

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def open(self, key: str, identity: bytes = b"") -> str:
        """Return the text of a new session's cookie."""
        text, _session = self._book.open(key, self._clock.now_s(), identity)
        store, name = self._store, name_of(text)
        if store is not None:
            try:
                await self._ask(lambda: store.open(name, key, identity))
            except RankmendError as error:
                _put(self._unsaved, name)
                log.warning(
                    "a login holds at this controller only, until the database is there again",
                    extra={"error": str(error)},
                )
        return text

    async def find(self, text: str) -> SignedIn | None:
        """Return the session of a cookie, unless it has ended."""
        now_s, name, store = self._clock.now_s(), name_of(text), self._store
        retained = self._book.find(text, now_s)
        if store is None:
            return retained
        if name in self._unclosed:
            await self._close_in_store(store, name)
            return None
        try:
            if retained is not None and name in self._unsaved:
                key, identity = retained.key, retained.identity
                await self._ask(lambda: store.open(name, key, identity))
                self._unsaved.pop(name, None)
            found = await self._ask(lambda: store.find(name))
        except RankmendError:
            return retained
        if found is None:
            self._book.close(text)
            return None
        key, identity, age_s, idle_s = found
        session = SignedIn(key, csrf_of(text), now_s - age_s, now_s, identity)
        self._book.keep(text, session)
        if idle_s > _SEEN_S:
            try:
                await self._ask(lambda: store.see(name))
            except RankmendError as error:
                log.debug("a session's use is not noted: %s", error)
        return session

    async def close(self, text: str) -> None:
        """End a session everywhere."""
        name = name_of(text)
        self._book.close(text)
        self._unsaved.pop(name, None)
        if self._store is not None:
            _put(self._unclosed, name)
            await self._close_in_store(self._store, name)

    async def _close_in_store(self, store: SessionStore, name: str) -> None:
        for each in (name, *list(self._unclosed)[:10]):
            try:
                await self._ask(lambda each=each: store.close(each))  # type: ignore[misc]
            except RankmendError as error:
                log.warning(
                    "a logout holds at this controller only, until the database is there again",
                    extra={"error": str(error)},
                )
                return
            self._unclosed.pop(each, None)

    async def use_sign_in(self, state: str) -> bool:
        """Return whether this is the first use of a sign-in at an identity provider."""
        mark, now_s, store = name_of(state), self._clock.now_s(), self._store
        while self._used and (
            len(self._used) >= _USED_MAX or now_s - next(iter(self._used.values())) > USED_S
        ):
            self._used.popitem(last=False)
        if mark in self._used:
            return False
        self._used[mark] = now_s
        if store is None:
            return True
        try:
            return await self._ask(lambda: store.use_sign_in(mark))
        except RankmendError as error:
            log.warning("a sign-in is checked here only", extra={"error": str(error)})
            return True

    async def _ask(self, question: Callable[[], _T]) -> _T:
        """Return the answer of the store, or raise RankmendError."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(
                loop.run_in_executor(self._threads, question), _ANSWER_S_MAX
            )
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise DatabaseAwayError(f"no answer within {_ANSWER_S_MAX:g} s") from error


def _put(names: OrderedDict[str, None], name: str) -> None:
    names[name] = None
    while len(names) > _BEHIND_MAX:
        names.popitem(last=False)
