"""Which requests pass the application by, and what their handlers are told of the path."""

import asyncio
from collections.abc import Mapping

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from recovery.service.http.fast_path import make_straight

JOB = "0c1d6a52-0000-4000-8000-000000000003"


def way_of(method: str, path: str, headers: Mapping[str, str] | None = None) -> str:
    """Return who answers a request, and with which parts of the path."""

    async def report(_request: web.BaseRequest, found: Mapping[str, str]) -> web.StreamResponse:
        return web.Response(text=f"report {dict(found)}")

    async def order(_request: web.BaseRequest, found: Mapping[str, str]) -> web.StreamResponse:
        return web.Response(text=f"order {dict(found)}")

    async def application(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="application")

    async def ask() -> str:
        answer = await make_straight(report, order, application)(
            make_mocked_request(method, path, dict(headers or {}))
        )
        assert isinstance(answer, web.Response)
        return answer.text or ""

    return asyncio.run(ask())


def test_reports_and_polls_go_straight_to_their_handlers() -> None:
    assert way_of("POST", f"/v1/jobs/{JOB}/reports") == f"report {{'job': '{JOB}'}}"
    polled = way_of("GET", f"/v1/jobs/{JOB}/orders/n1.site-a?launcher=a&after=1&wait=25")
    assert polled == f"order {{'job': '{JOB}', 'node': 'n1.site-a'}}"
    assert way_of("GET", f"/v1/jobs/{JOB}/orders/n1") == f"order {{'job': '{JOB}', 'node': 'n1'}}"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/jobs/{JOB}/reports"),
        ("POST", f"/v1/jobs/{JOB}/orders/n1"),
        ("HEAD", f"/v1/jobs/{JOB}/orders/n1"),
        ("GET", f"/v1/jobs/{JOB}/orders/n%31"),  # means n1
        ("GET", f"/v1/jobs/{JOB}/orders/n1/more"),
        ("GET", f"/v1/jobs/{JOB}/orders/"),
        ("POST", f"/v1/jobs/{JOB}/reports/"),
        ("POST", f"//v1/jobs/{JOB}/reports"),
        ("POST", "/v1/jobs"),
        ("GET", "/metrics"),
    ],
)
def test_whatever_is_not_plain_goes_through_the_application(method: str, path: str) -> None:
    assert way_of(method, path) == "application"


def test_a_client_that_waits_to_be_let_on_goes_through_the_application() -> None:
    path = f"/v1/jobs/{JOB}/reports"
    assert way_of("POST", path, {"Expect": "100-continue"}) == "application"
