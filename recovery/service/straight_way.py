"""Carries reports and polls to their handlers past aiohttp's search for the route.

They are nearly all of a controller's requests, and the search, its match and the middlewares around the handler took a tenth of the event
loop. Whatever is not plain (another method, an escaped character, `Expect`) goes through the application, to the same handler.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from aiohttp import hdrs, web

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Serve: TypeAlias = Callable[[web.BaseRequest, Mapping[str, str]], Awaitable[web.StreamResponse]]

_PART: Final = r"[A-Za-z0-9._-]+"  # what means the same escaped or not
_REPORT: Final = re.compile(rf"/v1/jobs/(?P<job>{_PART})/reports")
_ORDER: Final = re.compile(rf"/v1/jobs/(?P<job>{_PART})/orders/(?P<node>{_PART})(?:\?[^#]*)?")


def make_straight(report: Serve, order: Serve, application: Handler) -> Handler:
    """Return the handler of all requests of a server."""
    ways = {"POST": (_REPORT, report), "GET": (_ORDER, order)}

    def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        pattern, serve = ways.get(request.method, (None, None))
        if pattern is not None and serve is not None:
            found = pattern.fullmatch(request.raw_path)
            if found is not None and hdrs.EXPECT not in request.headers:
                return serve(request, found.groupdict())
        return application(request)

    return handle
