"""`rankmend console` over the state folder of a real job that has lost a rank."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.support.browser import Visit, chromium
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.site

SCRIPT = """
import os, pathlib, signal, time
import rankmend
for step in range(30):
    time.sleep(0.02)
    rankmend.step(step)
    died = pathlib.Path("died")
    if step == 9 and os.environ["RANK"] == "1" and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
RANKMEND = [sys.executable, "-m", "rankmend.cli"]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    (folder / "train.py").write_text(SCRIPT)
    command = [*RANKMEND, "run", "--job", "small", "--nproc-per-node", "2",
               "--state-dir", str(folder / "state"), "train.py"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=DEADLINE_S)
    return folder / "state"


@pytest.fixture
def console(state: Path) -> Iterator[Any]:
    process = subprocess.Popen(
        [*RANKMEND, "console", "--state-dir", str(state)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def address_of(process: Any) -> str:
    """Return the address that the command prints next."""
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:[0-9]+/open/\S+", line)
        if found is not None:
            return found[0]
    raise AssertionError("the command ended and printed no address")


def test_the_address_works_once_and_only_by_its_own_name(console: Any) -> None:
    address = address_of(console)
    base = address.partition("/open/")[0]
    pool = urllib3.PoolManager(retries=False, timeout=DEADLINE_S)

    def get(url: str, **headers: str) -> Any:
        return pool.request("GET", url, headers=headers, redirect=False)

    assert get(base + "/").status == 401
    assert get(address, Host=f"evil.example:{base.rpartition(':')[2]}").status == 421
    assert get(base + "/open/guess").status == 403
    opened = get(address)
    assert opened.status == 303
    cookie = opened.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert get(address).status == 403, "it works once"
    assert address_of(console) != address
    assert get(base + "/", Cookie=cookie.partition(";")[0]).status == 200
    assert get(base + "/", Cookie=cookie.partition(";")[0], Host="evil.example").status == 421


def test_the_address_opens_though_nobody_reads_what_is_printed_any_more(console: Any) -> None:
    address = address_of(console)
    base = address.partition("/open/")[0]
    pool = urllib3.PoolManager(retries=False, timeout=DEADLINE_S)
    console.stdout.close()  # as with a pager that has ended, or a terminal under nohup

    opened = pool.request("GET", address, redirect=False)
    cookie = opened.headers["Set-Cookie"].partition(";")[0]

    assert opened.status == 303
    assert pool.request("GET", base + "/", headers={"Cookie": cookie}).status == 200
    assert console.poll() is None


def test_a_console_whose_address_nobody_would_see_does_not_start(state: Path) -> None:
    command = f"exec {shlex.join(RANKMEND)} console --state-dir {shlex.quote(str(state))} >&-"

    ended = subprocess.run(
        command, shell=True, stderr=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_S
    )

    assert ended.returncode == 1
    assert "standard output is closed" in ended.stderr


def test_the_pages_tell_of_the_job_and_its_incident_and_change_nothing(console: Any) -> None:
    address = address_of(console)
    base = address.partition("/open/")[0]
    with chromium() as browser, Visit(browser, base) as visit:
        page = visit.page
        page.goto(address)
        assert "No job runs (1 ended" in page.inner_text("main")
        page.click("text=Jobs")
        page.click("text=small")
        assert "done" in page.inner_text("h1")
        assert page.locator(".timeline rect").count() >= 3
        page.click("td >> text=/-1$/")
        assert "SIGKILL" in page.inner_text("main")
        assert page.locator(".waterfall rect").count() >= 4
        visit.go("/journal")
        assert "small" in page.inner_text("h1")
        assert visit.complaints() == []

        assert visit.go("/act?act=pause&scope=cluster").status == 403
        assert "only reads" in page.inner_text("main")

    console.send_signal(signal.SIGINT)
    assert console.wait(DEADLINE_S) == 0
