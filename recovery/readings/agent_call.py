"""Asks the agent of a node for its page of metrics, once. The answer is bounded in size and in time, whatever the agent sends."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Final

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
    ip = str(found[0][4][0])
    return asyncio.run(_read(address, ip, context, bytes_max, answer_s_max))


async def _read(
    address: AgentAddress, ip: str, context: ssl.SSLContext | None, bytes_max: int, limit_s: float
) -> bytes:
    import aiohttp  # noqa: PLC0415 - what is not asked costs no memory
    from yarl import URL  # noqa: PLC0415 - comes with aiohttp

    scheme = "http" if context is None else "https"
    where = f"{address.host}:{address.port}"
    url = URL.build(scheme=scheme, host=ip.partition("%")[0], port=address.port, path="/metrics")
    page = bytearray()
    try:
        async with (
            # No proxy and no cookie: what is set for the world is not for a host of the cluster.
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=limit_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            ) as session,
            session.get(
                url,
                headers={**_HEADERS, "Host": where},
                allow_redirects=False,
                ssl=context or True,
                server_hostname=address.host if context is not None else None,
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
