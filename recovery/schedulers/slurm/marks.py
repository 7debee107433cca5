"""How we know our own drains and jobs again: a mark in the reason or comment, made from the request's key. Pure."""

import hashlib
from typing import Final

from rankmend.printable import printable

OURS: Final = "rankmend: "
_REASON_MAX: Final = 200
_MARK_LENGTH: Final = 12


def mark_of(key: str) -> str:
    """Return the mark of a request."""
    return hashlib.sha256(key.encode()).hexdigest()[:_MARK_LENGTH]


def reason_of(key: str, reason: str) -> str:
    """Return what Slurm shows with a node that we drain."""
    text = " ".join(printable(reason).replace("[", "(").replace("]", ")").split())
    return f"{OURS}{text[:_REASON_MAX] or 'put out of service'} #{mark_of(key)}"


def mark_in(reason: str) -> str | None:
    """Return the mark in a node's reason, or None where the reason is not of our form."""
    head, _hash, mark = reason.rpartition(" #")
    if not head.startswith(OURS) or len(mark) != _MARK_LENGTH:
        return None
    return mark if all(char in "0123456789abcdef" for char in mark) else None


def comment_of(key: str) -> str:
    """Return the comment of a job that we submit, by which it is found again."""
    return f"rankmend-{mark_of(key)}"
