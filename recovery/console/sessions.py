"""Who is signed in: random ids in cookies, kept here by their hash, bounded in number and time.

A session never outlives its token: it keeps the token's hash, and each request asks whether that token is still in force.
"""

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

SESSIONS_MAX: Final = 1_000
SESSIONS_OF_KEY_MAX: Final = 20  # of one token: the oldest ends
IDLE_S_MAX: Final = (
    8 * 3600.0
)  # a shift; an open page asks again and again and so keeps its session
AGE_S_MAX: Final = 24 * 3600.0  # then it ends whatever happens


@dataclass(slots=True)
class SignedIn:
    key: str  # what it was opened with: the hash of a token, or what its door calls it
    csrf: str
    opened_at_s: float
    seen_at_s: float


class SessionBook:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, SignedIn] = OrderedDict()  # by the hash of the cookie

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: str, now_s: float) -> tuple[str, SignedIn]:
        """Return the text of a new session's cookie, and the session."""
        own = [name for name, one in self._sessions.items() if one.key == key]
        for name in (
            own[: len(own) - SESSIONS_OF_KEY_MAX + 1] if len(own) >= SESSIONS_OF_KEY_MAX else ()
        ):
            del self._sessions[name]
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        text = secrets.token_urlsafe(32)
        session = SignedIn(key, secrets.token_urlsafe(24), now_s, now_s)
        self._sessions[_hash(text)] = session
        return text, session

    def find(self, text: str, now_s: float) -> SignedIn | None:
        """Return the session of a cookie, unless it has ended."""
        name = _hash(text)
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
        self._sessions.pop(_hash(text), None)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
