"""What agents say of jobs on their nodes, for every controller of one database.

A node that is lost says nothing more. So a controller that takes jobs over needs what another one has received: each puts the words that it
keeps (`recovery.controller.watched.present_jobs`) into the database, with their ages, and reads those of the others. They count no longer for it.
A thread of its own does both: the deciding thread waits for no database.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from recovery.controller.watched.present_jobs import (
    PRESENT_KEPT_S,
    AgentWordsFile,
    SavedWord,
    decode_words,
    encode_words,
)
from recovery.journal.postgres.database import Database

log = logging.getLogger(__name__)

READ_S: Final = 10.0  # a job is taken over after 8 s of silence, and a lost node blamed later


class WordStore(Protocol):
    """Where the words are for all controllers. May block; raises RankmendError."""

    def save(self, words: bytes, age_s: float) -> None:
        """Replace this controller's words. ``age_s``: since they were encoded."""
        ...

    def load(self) -> list[tuple[float, bytes]]:
        """Return the words of the others that are new since the last call, each with the time since they were encoded."""
        ...

    def load_again(self) -> None:
        """Have all words of the others be new."""
        ...


class PostgresWords:
    """The words in the database of the journals. For one thread."""

    def __init__(self, database: Database, controller_id: uuid.UUID) -> None:
        self._database = database
        self._controller_id = controller_id
        self._read: dict[uuid.UUID, object] = {}  # when the words of another were saved

    def save(self, words: bytes, age_s: float) -> None:
        self._database.write(
            "SELECT rankmend.save_agent_words(%s, %s, %s, %s)",
            (self._controller_id, words, age_s, PRESENT_KEPT_S),
        )

    def load(self) -> list[tuple[float, bytes]]:
        rows = self._database.read(
            "SELECT controller_id, saved_at FROM rankmend.agent_words WHERE controller_id <> %s",
            (self._controller_id,),
        )
        saved: dict[uuid.UUID, object] = dict(rows)
        new = [item for item, saved_at in saved.items() if self._read.get(item) != saved_at]
        found = self._database.read(
            "SELECT extract(epoch FROM clock_timestamp() - saved_at)::float8, words"
            " FROM rankmend.agent_words WHERE controller_id = ANY(%s)",
            (new,),
        )
        self._read = saved
        return [(age_s, bytes(words)) for age_s, words in found]

    def load_again(self) -> None:
        self._read = {}


class SharedWords(threading.Thread):
    """Keeps the words of this controller's agents in a file and in the database, and hands over those of others."""

    def __init__(
        self,
        file: AgentWordsFile,
        store: WordStore,
        clock: Clock,
        deliver: Callable[[Sequence[SavedWord]], None],
    ) -> None:
        super().__init__(name="agent-words", daemon=True)
        self._file = file
        self._store = store
        self._clock = clock
        self._deliver = deliver
        self._newest: tuple[float, bytes] | None = None  # not in the database yet
        self._wanted = threading.Event()
        self._should_stop = threading.Event()
        self._has_failed = False

    # For the deciding thread.

    def load(self) -> tuple[SavedWord, ...]:
        return self._file.load()

    def save(self, words: list[SavedWord]) -> None:
        self._file.save(words)
        self._newest = (self._clock.now_s(), encode_words(words))
        self._wanted.set()

    def stop(self, timeout_s: float) -> None:
        """Put into the database what is not there yet, and end."""
        self._should_stop.set()
        self._wanted.set()
        if self.ident is not None:
            self.join(timeout_s)

    # The thread.

    def run(self) -> None:
        read_at_s = -READ_S
        while True:
            is_last = self._should_stop.is_set()
            is_due = not is_last and self._clock.now_s() - read_at_s >= READ_S
            if is_due:
                read_at_s = self._clock.now_s()
            self.exchange(reads=is_due)
            if is_last:
                return
            self._wanted.wait(READ_S)
            self._wanted.clear()

    def exchange(self, *, reads: bool) -> None:
        """Write what is new here, and hand over what is new elsewhere. Never raises: both are tried again."""
        newest = self._newest
        try:
            if newest is not None:
                self._store.save(newest[1], self._clock.now_s() - newest[0])
                if self._newest is newest:
                    self._newest = None
            for age_s, body in self._store.load() if reads else ():
                words = decode_words(body, age_s)
                if words:
                    self._deliver(words)
            self._has_failed = False
        except RankmendError as error:
            self._store.load_again()
            if not self._has_failed:
                log.warning("words of agents not shared", extra={"error": str(error)})
            self._has_failed = True
