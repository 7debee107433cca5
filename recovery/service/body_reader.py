"""Reads request bodies, bounded in size, in time, and in what all bodies in progress take together."""

import asyncio
from collections import Counter
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from rankmend.errors import RankmendError
from recovery.service.call import BadError
from recovery.service.request_errors import FullError
from recovery.service.roles import Subject, TooManyError

BODY_S_MAX: Final = 30.0  # 8 MiB at 2.2 Mbit/s
NODE_BODY_BYTES_MAX: Final = 2 * 1024 * 1024  # an agent's message is 500 kB at most
NODE_SHARE: Final = 16  # a node may hold 1/16 of the bytes that all bodies may hold


class LargeError(RankmendError):
    """The body is larger than the route allows."""


class EncodedError(RankmendError):
    """The body is compressed; the controller decompresses nothing."""


class BodyReader:
    """Belongs to the event loop."""

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
