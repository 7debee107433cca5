"""Sessions: bounded, and ended by time."""

from recovery.console.sessions import (
    AGE_S_MAX,
    IDLE_S_MAX,
    SESSIONS_MAX,
    SESSIONS_OF_KEY_MAX,
    SessionBook,
)


def test_a_session_is_found_by_its_cookie_and_by_nothing_else() -> None:
    book = SessionBook()
    text, session = book.open("key", 0.0)

    assert book.find(text, 1.0) is session
    assert book.find(text[:-1], 1.0) is None
    assert book.find("", 1.0) is None


def test_a_session_ends_when_it_is_idle_or_old_or_closed() -> None:
    book = SessionBook()
    idle, _session = book.open("key", 0.0)
    assert book.find(idle, IDLE_S_MAX + 1) is None

    old, _session = book.open("key", 0.0)
    at_s = 0.0
    while at_s <= AGE_S_MAX:
        assert book.find(old, at_s) is not None
        at_s += IDLE_S_MAX / 2
    assert book.find(old, at_s) is None

    closed, _session = book.open("key", 0.0)
    book.close(closed)
    assert book.find(closed, 0.0) is None


def test_one_token_has_so_many_sessions_and_the_oldest_ends_first() -> None:
    book = SessionBook()
    texts = [book.open("key", 0.0)[0] for _ in range(SESSIONS_OF_KEY_MAX + 3)]

    found = [book.find(text, 0.0) is not None for text in texts]

    assert found == [False] * 3 + [True] * SESSIONS_OF_KEY_MAX


def test_all_tokens_together_have_so_many_sessions() -> None:
    book = SessionBook()
    first = book.open("first", 0.0)[0]
    for number in range(SESSIONS_MAX):
        book.open(f"key {number}", 0.0)

    assert len(book) == SESSIONS_MAX
    assert book.find(first, 0.0) is None
