"""Sessions of people who are signed in: random ids in cookies, kept by their hash, bounded in number and time.

A session never outlives what it was opened with: it keeps a hash of that, and each request checks whether it is still in force.
The secret of its forms follows from the cookie, so that whoever knows the cookie by its hash alone knows neither.
"""

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

SESSIONS_MAX: Final = 1_000
SESSIONS_OF_KEY_MAX: Final = 20  # of one token or person: the oldest ends
# a shift; an open page asks again and again and so keeps its session
IDLE_S_MAX: Final = 8 * 3600.0
AGE_S_MAX: Final = 24 * 3600.0  # then it ends whatever happens
COOKIE_CHARACTERS_MAX: Final = 200


@dataclass(slots=True)
class SignedIn:
    key: str  # what it was opened with: the hash of a token or a person, or what its door calls it
    csrf: str
    opened_at_s: float
    seen_at_s: float
    identity: bytes = b""  # what an identity provider says of the person; empty: a token


class SessionBook:
    """The sessions of one process. Belongs to the event loop."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, SignedIn] = OrderedDict()  # by the hash of the cookie

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: str, now_s: float, identity: bytes = b"") -> tuple[str, SignedIn]:
        """Return the text of a new session's cookie, and the session."""
        text = secrets.token_urlsafe(32)
        session = SignedIn(key, csrf_of(text), now_s, now_s, identity)
        self.keep(text, session)
        return text, session

    def keep(self, text: str, session: SignedIn) -> None:
        """Keep the session of a cookie; the oldest ones make room."""
        self._sessions.pop(name_of(text), None)
        own = [name for name, retained in self._sessions.items() if retained.key == session.key]
        for name in own[: max(0, len(own) - SESSIONS_OF_KEY_MAX + 1)]:
            del self._sessions[name]
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        self._sessions[name_of(text)] = session

    def find(self, text: str, now_s: float) -> SignedIn | None:
        """Return the session of a cookie, unless it has ended."""
        name = name_of(text)
        session = self._sessions.get(name)
        if session is None:
            return None
        if now_s - session.seen_at_s > IDLE_S_MAX or now_s - session.opened_at_s > AGE_S_MAX:
            del self._sessions[name]
            return None
        session.seen_at_s = now_s
        self._sessions.move_to_end(name)  # whoever was not seen for longest makes room
        return session

    def close(self, text: str) -> None:
        self._sessions.pop(name_of(text), None)


def name_of(text: str) -> str:
    """Return by what the session of a cookie is kept."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def csrf_of(text: str) -> str:
    """Return the secret of the forms of a cookie's session."""
    return hashlib.sha256(b"rankmend form " + text.encode("utf-8", "replace")).hexdigest()
