"""What a server must promise before a journal is kept on it: a commit that it acknowledges is not lost. Pure."""

from dataclasses import dataclass
from typing import Final

VERSION_MIN: Final = 13_00_00  # the oldest release with fixes from PostgreSQL's developers in 2025
# A commit returns once it is on this server's disk, and on that of a synchronous standby where there is one.
# `remote_write` and `local` leave a standby behind that may be promoted without it, `off` leaves both.
DURABLE: Final = frozenset({"on", "remote_apply"})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server says of itself when a session begins."""

    version: int
    is_in_recovery: bool
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str
    standbys: int  # that stream from it now
    answer_ms: int  # after which it ends a statement of this session

    @property
    def has_asynchronous_standbys_only(self) -> bool:
        return self.standbys > 0 and not self.synchronous_standby_names.strip()


def refuse_server(settings: ServerSettings) -> str | None:
    """Return why no journal can be kept on this server, whatever a person accepts; None: one can."""
    if settings.version < VERSION_MIN:
        return f"its version is {settings.version}, below {VERSION_MIN}"
    if settings.is_in_recovery:
        return "it is a standby: nothing can be written there"
    return None


def name_losses(settings: ServerSettings) -> tuple[str, ...]:
    """Return how this server may lose a commit that it has acknowledged, and what to do about it; empty: it can't."""
    found = []
    if settings.synchronous_commit not in DURABLE:
        found.append(
            f"synchronous_commit is {settings.synchronous_commit}: set it to on (ALTER ROLE ... SET synchronous_commit = on)"
        )
    for name in ("fsync", "full_page_writes"):
        if getattr(settings, name) != "on":
            found.append(f"{name} is off: a crash of the server can damage the database")
    if settings.has_asynchronous_standbys_only:
        found.append(
            f"all of its {settings.standbys} standbys are asynchronous, and one of them that is promoted lacks "
            f"the newest commits: name one in synchronous_standby_names"
        )
    return tuple(found)
