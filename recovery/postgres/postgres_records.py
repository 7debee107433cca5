"""The rows of a journal in PostgreSQL, for its readers.

Rows are only ever added, or go all at once with their job: questions in turn, each a transaction of its own, tell of one
state of the journal as long as none asks behind a record that the reader has seen.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from recovery.journal.journal_reader import JournalReader
from recovery.journal.journal_rows import JournalRow
from recovery.journal.stored_journal import Written
from recovery.postgres.database import Database
from recovery.postgres.postgres_journal import WAY_OUT

# In a question `record` is this journal. Not materialized: the conditions of the question find the rows by the index.
_RECORD: Final = (
    f"WITH record AS NOT MATERIALIZED (SELECT {', '.join(JournalRow._fields)}"  # noqa: S608 - our own text
    " FROM rankmend.record WHERE journal = %s) "
)
_NEWEST: Final = (
    "SELECT asked.name, newest.number, newest.unix_s FROM unnest(%s::text[]) AS asked (name)"
    " CROSS JOIN LATERAL (SELECT number, unix_s FROM rankmend.record WHERE journal = asked.name"
    " ORDER BY number DESC LIMIT 1) AS newest"
)
_NOTHING: Final = Written(0, (0,), is_exact=True)


class PostgresRecords:
    way_out = WAY_OUT
    can_be_torn = False

    def __init__(self, database: Database, journal: str) -> None:
        self._database = database
        self._journal = journal
        self.name = f"{journal} in {database.url}"

    def ask(self, question: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        statement = _RECORD + question.replace("?", "%s")
        yield from self._database.read(statement, (self._journal, *values))

    def whole_number(self, field: str) -> str:
        return f"(convert_from(body, 'UTF8')::jsonb ->> '{field}')::bigint"


@contextmanager
def reading(database: Database, journal: str) -> Iterator[JournalReader]:
    """Give a reader of a journal, also while a controller writes it."""
    yield JournalReader(PostgresRecords(database, journal))


def written(database: Database, journals: Sequence[str]) -> list[Written]:
    """Return how far each journal was written, by one question."""
    found = {
        name: Written(int(unix_s * 1e9), (number,), is_exact=True)
        for name, number, unix_s in database.read(_NEWEST, (list(journals),))
    }
    return [found.get(name, _NOTHING) for name in journals]
