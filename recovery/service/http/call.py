"""One request as handlers see it: its subject and parameters, checked and decoded, and its body."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.service.http.request_errors import FullError
from recovery.service.jobs.job_registry import RegisteredJob
from recovery.service.roles import Subject, TooManyError

Given = TypeVar("Given")

_PARTS_KEPT: Final = 32_768  # nodes and jobs, in some 10 MB

BODY_S_MAX: Final = 30.0  # 8 MiB at 2.2 Mbit/s
NODE_BODY_BYTES_MAX: Final = 2 * 1024 * 1024  # an agent's message is 500 kB at most
NODE_SHARE: Final = 16  # a node may hold 1/16 of the bytes that all bodies may hold

_Word = Annotated[str, msgspec.Meta(pattern=wire.NAME_PATTERN)]

PATH_PARTS: Final[dict[str, Any]] = {
    "job": wire.Uuid,
    "node": wire.Name,
    "scope": _Word,
    "window": _Word,
    "incident": _Word,
}
"""What may stand in each part of a path, by the name of the part."""


class BadError(RankmendError):
    """The request can't be understood."""

    def __init__(self, message: str, field: str = "", value: str = "") -> None:
        super().__init__(message)
        self.field, self.value = field, value


@dataclass(frozen=True, slots=True)
class Accepts:
    """In which forms a client takes the answer: two of its headers, as they came."""

    forms: str = ""  # Accept
    encodings: str = ""  # Accept-Encoding


_ANYTHING: Final = Accepts()


@dataclass(slots=True)
class Call(Generic[Given]):
    """A decoded request. Handlers get it only after `permission` has allowed it."""

    subject: Subject
    parts: Mapping[str, str]  # checked parts of the path
    given: Given  # the decoded body or query
    size_bytes: int = 0  # size of the body
    rules: AlertRules | None = None  # the rules by which alerts were read
    # jobs when the request was permitted
    known: Mapping[str, RegisteredJob] = field(default_factory=dict)
    job_ids: tuple[str, ...] = ()  # jobs that the request names and the subject may touch
    detail: str = ""  # for the audit line
    accepts: Accepts = _ANYTHING  # of a route whose answer has several forms

    @property
    def job(self) -> tuple[str, RegisteredJob]:
        """Return the one job that the request names, with its id."""
        return self.job_ids[0], self.known[self.job_ids[0]]


def read_parts(found: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of the path; raise BadError if one lacks the form that its name asks for."""
    for name, text in found.items():
        check_part(name, text)
    return dict(found)


@lru_cache(_PARTS_KEPT)  # what it raised is not kept, and what has a form is short
def check_part(name: str, text: str) -> None:
    """Raise BadError unless a text has the form of this part of a path."""
    try:
        msgspec.convert(text, PATH_PARTS[name])
    except msgspec.ValidationError as error:
        raise BadError(f"{name}: {error}", name, text) from error


def read_query(
    given: Mapping[str, str], wanted: type[Given], names: Collection[str], *, is_strict: bool
) -> Given:
    """Return the parameters as ``wanted``, whose fields are ``names``.

    Unknown parameters are an error if ``is_strict``. Launchers may be newer than the controller: theirs are ignored.
    """
    unknown = [name for name in given if name not in names]
    if unknown and is_strict:
        known = ", ".join(names)
        raise BadError(
            f"query: no parameter {unknown[0]!r:.80}, the parameters are {known}", unknown[0][:80]
        )
    values: dict[str, Any] = {name: given[name] for name in names if name in given}
    try:
        return msgspec.convert(values, wanted, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadError(f"query: {error}") from error


class LargeError(RankmendError):
    """The body is larger than the route allows."""


class EncodedError(RankmendError):
    """The body is compressed; the controller decompresses nothing."""


class BodyReader:
    """Reads request bodies, bounded in size, in time, and in what all bodies in progress take together. Belongs to the event loop."""

    def __init__(self) -> None:
        self._total_bytes = 0  # size of all bodies in progress
        self._subject_bytes: Counter[str] = Counter()

    async def read(
        self, request: web.BaseRequest, subject: Subject, bytes_max: int, total_bytes_max: int
    ) -> bytes:
        """Return the body; ``total_bytes_max`` bounds all bodies in progress."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise EncodedError("the body has a Content-Encoding; send it uncompressed")
        limit = min(bytes_max, NODE_BODY_BYTES_MAX) if subject.is_node else bytes_max
        share = total_bytes_max // (NODE_SHARE if subject.is_node else 2)
        length = request.content_length
        if length is not None and length > limit:
            raise LargeError(f"the body has {length} bytes; the limit is {limit}")
        name, body = subject.name, bytearray()
        is_here = request.content.is_eof() and length is not None and length <= share
        if is_here and not self._total_bytes:
            # As of most reports, and no other body is in progress: nothing is waited for.
            try:
                return request.content.read_nowait()
            except (HttpProcessingError, RequestPayloadError, ConnectionError) as error:
                raise BadError(f"cannot read the body: {error}") from error

        async def collect() -> None:
            async for chunk in request.content.iter_any():
                self._total_bytes += len(chunk)
                self._subject_bytes[name] += len(chunk)
                body.extend(chunk)
                if len(body) > limit:
                    raise LargeError(f"the body has more than {limit} bytes, the limit")
                if self._total_bytes > total_bytes_max:
                    raise FullError("too many request bodies are in progress; try again")
                if self._subject_bytes[name] > share:
                    raise TooManyError(
                        f"too many request bodies of {name} are in progress; try again", 1.0
                    )

        try:
            await (
                collect() if request.content.is_eof() else asyncio.wait_for(collect(), BODY_S_MAX)
            )
            return bytes(body)
        except asyncio.TimeoutError as error:
            raise BadError(f"the body was not complete after {BODY_S_MAX:g} s") from error
        except (HttpProcessingError, RequestPayloadError, ConnectionError) as error:
            raise BadError(f"cannot read the body: {error}") from error
        finally:
            self._total_bytes -= len(body)
            self._subject_bytes[name] -= len(body)
            if not self._subject_bytes[name]:
                del self._subject_bytes[name]
            body.clear()  # a traceback may hold it until the next garbage collection
