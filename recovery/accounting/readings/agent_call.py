"""Asks the agent of a node for its page of metrics, once. The answer is bounded in size and in time, whatever the agent sends."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from rankmend.errors import SourceError

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # 30,000 series of 130 characters
ANSWER_S_MAX: Final = (
    5.0  # from the connection to the page's last byte; an agent takes milliseconds
)
_CHUNK_BYTES: Final = 64 * 1024
_HEADERS: Final = {"Accept": "text/plain", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class AgentAddress:
    host: str  # a host name or an address
    port: int


def read_agent_page(
    address: AgentAddress,
    context: ssl.SSLContext | None = None,
    *,
    bytes_max: int = PAGE_BYTES_MAX,
    answer_s_max: float = ANSWER_S_MAX,
) -> bytes:
    """Return the page of metrics, or raise SourceError with the reason. ``context``: for https.

    The look-up of the name takes as long as the system's resolver allows; so this is for a thread of its own.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise SourceError(f"cannot find the host {address.host}: {_reason(error)}") from error
    return asyncio.run(_read(address, _Found(found), context, bytes_max, answer_s_max))


class _Found(AbstractResolver):
    """What the look-up has found: aiohttp tries one address after the other."""

    def __init__(self, found: Sequence[tuple[Any, ...]]) -> None:
        self._found = found

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        return [
            ResolveResult(
                hostname=host,
                host=str(place[0]),
                port=port,
                family=kind,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _type, _proto, _name, place in self._found
        ]

    async def close(self) -> None: ...


async def _read(
    address: AgentAddress,
    found: _Found,
    context: ssl.SSLContext | None,
    bytes_max: int,
    limit_s: float,
) -> bytes:
    scheme = "http" if context is None else "https"
    host = f"[{address.host}]" if ":" in address.host else address.host
    where = f"{host}:{address.port}"
    url = f"{scheme}://{where}/metrics"
    page = bytearray()
    try:
        async with (
            # No proxy and no cookie: what is set for the world is not for a host of the cluster.
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=found),
                timeout=aiohttp.ClientTimeout(total=limit_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            ) as session,
            session.get(
                url, headers=_HEADERS, allow_redirects=False, ssl=context or True
            ) as answer,
        ):
            if answer.status != 200:
                raise SourceError(f"{where} answered HTTP {answer.status}")
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                page += chunk
                if len(page) > bytes_max:
                    raise SourceError(f"{where} sent more than {bytes_max} bytes")
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise SourceError(f"{where} did not answer within {limit_s:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SourceError(f"{where} did not answer: {_reason(error)}") from error
    return bytes(page)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:200]
