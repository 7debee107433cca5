"""Asks the node agent on this machine for one of its pages."""

from typing import Final

from rankmend.errors import SourceError

LISTENS_AT: Final = "http://127.0.0.1:9476"  # where an agent listens by default


def read_agent(url: str, *, bytes_max: int, timeout_s: float) -> bytes:
    """Return the page at ``url``, or raise SourceError with the reason why there is none.

    No proxy and no redirect: what a user has set for the world is not for this machine. ``timeout_s`` holds for the
    connection and for each read.
    """
    import urllib3  # noqa: PLC0415 - no start of a job waits for it

    with urllib3.PoolManager(num_pools=1, retries=False) as pool:
        try:
            answer = pool.request(
                "GET",
                url,
                timeout=timeout_s,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            with answer:
                page: bytes = answer.read(bytes_max + 1)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise SourceError(f"no node agent answers at {url}: {_reason(error)}") from error
    if answer.status != 200:
        raise SourceError(f"no node agent answers at {url}: HTTP {answer.status} {answer.reason}")
    if len(page) > bytes_max:
        raise SourceError(f"the page at {url} has more than {bytes_max} bytes")
    return page


def _reason(error: Exception) -> object:
    """Return the system's error, where urllib3's names its own objects."""
    return error.__cause__ if isinstance(error.__cause__, OSError) else error
