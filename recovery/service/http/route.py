"""What the API states of a route: its handler, who may ask, what a request touches, takes and gives.

The handler, what it takes and what it gives share type parameters, so mypy rejects a route whose handler expects another
body or query than the route decodes, or returns what the route does not answer with.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec

from recovery.service.http.call import Call
from recovery.service.http.permission import Touches
from recovery.service.roles import Role

SMALL_BYTES: Final = 64 * 1024

Server = TypeVar("Server")  # what the handlers use: `recovery.service.http.backend.Backend`
Given = TypeVar("Given")
Result = TypeVar("Result")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class RequestKind(Enum):
    """Which rate a request counts against."""

    REPORT = "reports"
    LAUNCH = "launches"
    ALERT = "alerts"
    READ = "reads"
    ACT = "acts"
    OPEN = "open"  # not authenticated


class Answerer(Enum):
    """Which of the controllers of a database answers."""

    HERE = "here"  # any
    OWNER = "owner"  # the one that manages the job
    DESK = "desk"  # the one that works on the desk of this name


@dataclass(frozen=True, slots=True)
class Takes(Generic[Given]):
    """The body of a route's requests."""


@dataclass(frozen=True, slots=True)
class Body(Takes[Given]):
    schema: Any  # its type in the description
    decode: Callable[[bytes, float], Given]  # takes the body and the current time in unix seconds
    bytes_max: int = SMALL_BYTES


@dataclass(frozen=True, slots=True)
class Query(Takes[Given]):
    kind: type[Given]
    names: tuple[str, ...]


NOTHING: Final[Takes[None]] = Takes()


def body(kind: type[Given]) -> Body[Given]:
    """Return a JSON body of type ``kind``."""
    decoder = msgspec.json.Decoder(kind)
    return Body(kind, lambda text, _now_unix_s: decoder.decode(text))


def query(kind: type[_Struct]) -> Query[_Struct]:
    """Return parameters of the URL, one for each field of ``kind``."""
    return Query(kind, kind.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Gives(Generic[Result]):
    """What a route answers."""

    schema: Any  # its type in the description; None: text
    encode: Callable[[Result], bytes | None]  # None: 204, there is nothing to say
    content_type: str = "application/json"
    charset: str | None = None

    @property
    def content_header(self) -> str:
        """Return the header Content-Type."""
        return (
            self.content_type
            if self.charset is None
            else f"{self.content_type}; charset={self.charset}"
        )


def answer(kind: type[Result]) -> Gives[Result]:
    """Return a JSON answer of type ``kind``."""
    return Gives(kind, msgspec.json.encode)


def encoded(kind: type[Any]) -> Gives[bytes | None]:
    """Return an answer that is JSON of type ``kind`` already."""
    return Gives(kind, lambda text: text, charset="utf-8")


@dataclass(frozen=True, slots=True)
class TextPage:
    """An answer in one of several forms, by what the client takes."""

    body: bytes
    content_header: str
    is_gzipped: bool = False

    @property
    def headers(self) -> dict[str, str]:
        found = {"Content-Type": self.content_header, "Vary": "Accept, Accept-Encoding"}
        return {**found, "Content-Encoding": "gzip"} if self.is_gzipped else found


@dataclass(frozen=True, slots=True)
class GivesPage(Gives[TextPage]):
    """A text that the handler has put in the form that the client takes (`Call.accepts`)."""


PAGE: Final = GivesPage(None, lambda page: page.body, "text/plain")
TEXT: Final[Gives[bytes]] = Gives(None, lambda text: text, "text/plain", "utf-8")


@dataclass(frozen=True, slots=True)
class Route(Generic[Server, Given, Result]):
    name: str  # operationId of the description, label `route` of the metrics
    method: str
    path: str
    handler: Callable[[Server, Call[Given]], Awaitable[Result]]
    kind: RequestKind
    roles: tuple[Role, ...]  # one of them is enough; (): not authenticated
    touches: Touches
    takes: Takes[Given]
    gives: Gives[Result]
    summary: str
    status: int = 200
    also: tuple[int, ...] = ()  # statuses beyond those that every route of its kind has
    answerer: Answerer = Answerer.HERE

    @property
    def is_audited(self) -> bool:
        """Return whether each request leaves a line in the audit file: all that acts, and joins."""
        return self.kind is RequestKind.ACT or self.name == "join"

    @property
    def body(self) -> Body[Given] | None:
        return self.takes if isinstance(self.takes, Body) else None

    @property
    def query(self) -> Query[Given] | None:
        return self.takes if isinstance(self.takes, Query) else None
