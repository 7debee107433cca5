"""The console of a real controller without a browser: who comes in, by which name, and how often."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from recovery.service.controller_config import Config, ConsoleSection
from tests.support.service import Running, make_folder, running

pytestmark = pytest.mark.process

LOOPBACK = """\
listen = "127.0.0.1:0"
state_dir = "{0}/state"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("door") / "files"
    make_folder(folder)
    return folder


@contextmanager
def open_to(folder: Path, console: ConsoleSection) -> Iterator[tuple[Running, Any]]:
    def change(config: Config) -> Config:
        return msgspec.structs.replace(config, console=console)

    with (
        running(folder, change) as up,
        urllib3.PoolManager(ca_certs=str(up.ca), retries=False) as pool,
    ):
        yield up, pool


def test_reading_is_open_only_where_the_configuration_says_so(folder: Path) -> None:
    with open_to(folder, ConsoleSection(open=True)) as (up, pool):
        assert pool.request("GET", f"{up.url}/jobs").status == 200
        asked = pool.request("GET", f"{up.url}/act?act=pause&scope=cluster", redirect=False)
        assert asked.headers["Location"].startswith("./sign-in")
        form = {"act": "pause", "scope": "cluster", "reason": "x", "csrf": ""}
        posted = pool.request_encode_body(
            "POST", f"{up.url}/act", fields=form, encode_multipart=False
        )
        assert posted.status == 403

    with open_to(folder, ConsoleSection()) as (up, pool):
        assert pool.request("GET", f"{up.url}/jobs", redirect=False).status == 303


def test_a_console_that_is_off_serves_nothing(folder: Path) -> None:
    with open_to(folder, ConsoleSection(enabled=False)) as (up, pool):
        assert pool.request("GET", f"{up.url}/").status == 404
        assert pool.request("GET", f"{up.url}/healthz").status == 200


def test_guessing_tokens_is_bounded_by_address(folder: Path) -> None:
    with open_to(folder, ConsoleSection()) as (up, pool):

        def guess() -> int:
            form = {"token": "rm_00000000_" + "0" * 64}
            answer = pool.request_encode_body(
                "POST", f"{up.url}/sign-in", fields=form, encode_multipart=False
            )
            return int(answer.status)

        statuses = [guess() for _ in range(110)]

    assert statuses[0] == 401
    assert 429 in statuses


def test_without_tokens_no_other_sites_name_leads_a_browser_here(tmp_path: Path) -> None:
    (tmp_path / "controller.toml").write_text(LOOPBACK.format(tmp_path))
    with running(tmp_path) as up, urllib3.PoolManager(retries=False) as pool:
        url = f"http://127.0.0.1:{up.port}"

        def get(path: str, host: str) -> Any:
            return pool.request("GET", url + path, headers={"Host": host}, redirect=False)

        for host in ("127.0.0.1", f"localhost:{up.port}", f"[::1]:{up.port}"):
            assert get("/", host).status == 200, host
        for host in (
            "evil.example",
            f"evil.example:{up.port}",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
        ):
            assert get("/", host).status == 421, host
        page = get("/act?act=pause&scope=cluster", "localhost").data.decode()
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found is not None
        form = {"act": "pause", "scope": "cluster", "reason": "a test"}
        refused, done = (
            pool.request_encode_body(
                "POST", f"{url}/act", fields=form | {"csrf": csrf}, encode_multipart=False
            )
            for csrf in ("guess", found[1])
        )
        assert (refused.status, done.status) == (403, 200)
        paused = up.service.worker.desk.ledger.paused["cluster"]
        assert (paused.who, paused.reason) == ("loopback", "a test")


def test_behind_a_proxy_with_tls_the_cookie_is_one_for_tls_alone(folder: Path) -> None:
    def plain(config: Config) -> Config:
        return msgspec.structs.replace(config, tls=None)

    token = (folder / "admin.token").read_text().strip()
    with running(folder, plain) as up:
        url = up.url.replace("https:", "http:")
        pool = urllib3.PoolManager()
        for headers, start in (
            ({"X-Forwarded-Proto": "https"}, "__Host-rankmend="),
            ({}, "rankmend="),
        ):
            signed = pool.request(
                "POST", f"{url}/sign-in", fields={"token": token, "next": "/jobs"}, headers=headers,
                redirect=False, encode_multipart=False,
            )  # fmt: skip
            cookie = signed.headers["Set-Cookie"]
            assert cookie.startswith(start)
            assert ("; Secure" in cookie) is bool(headers)
            known = {**headers, "Cookie": cookie.partition(";")[0]}
            assert pool.request("GET", f"{url}/jobs", headers=known, redirect=False).status == 200
