"""The console below a path of a real nginx, in a real Chromium: links, live updates, doors of other programs, dead connections."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import LONG_MS, Visit, chromium
from tests.support.console_stage import Stage, staged
from tests.support.eventually import eventually
from tests.support.nginx import Nginx, nginx

pytestmark = pytest.mark.site

DOOR = "<!doctype html><title>Who are you?</title><h1>Company login</h1>"


def below_a_path(stage: Stage) -> str:
    return f"location /ops/rankmend/ {{ proxy_pass https://127.0.0.1:{stage.up.port}/; }}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def stage(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("console") / "files") as stage:
        stage.beat_s = 4.0  # the pages need ranks, and no news of them
        yield stage


@pytest.fixture
def proxy(stage: Stage, tmp_path: Path) -> Iterator[Nginx]:
    with nginx(tmp_path / "nginx", stage.up, below_a_path(stage)) as proxy:
        yield proxy


@pytest.fixture
def visit(browser: Any, stage: Stage, proxy: Nginx) -> Iterator[Visit]:
    """Give a page of the fleet, signed in and live."""
    with Visit(
        browser, f"{proxy.url}/ops/rankmend", viewport={"width": 1280, "height": 900}
    ) as visit:
        visit.context.set_default_timeout(LONG_MS)
        visit.page.set_default_timeout(LONG_MS)
        visit.sign_in(stage.token("admin"))
        assert urlsplit(visit.page.url).path == "/ops/rankmend/"
        visit.page.wait_for_selector("#live.on")
        yield visit


def test_every_link_leads_to_a_page_below_the_path(
    visit: Visit, stage: Stage, proxy: Nginx
) -> None:
    incident = stage.admin.plans()[0].incident_id
    job = stage.jobs[0].job_id
    waits = f"job={stage.jobs[1].job_id}&incident={incident}"
    starts = ("/", "/jobs", f"/jobs/{job}", f"/incidents/{incident}", "/nodes/r1-n01", "/journal",
              f"/act?act=approve&{waits}", "/nodes/nobody")  # fmt: skip
    find = "[...document.querySelectorAll('[href], [src], [action]')].map(e => e.href?.baseVal ?? e.href ?? e.src ?? e.action)"
    found = set()
    for start in starts:
        visit.go(start)
        if start.endswith(job):
            visit.page.wait_for_selector("#heat[data-drawn='208']")
        found |= {urlsplit(link).path for link in visit.page.evaluate(find)}

    assert [path for path in found if not path.startswith("/ops/rankmend/")] == []
    for kind in ("jobs/", "incidents/", "nodes/r", "static/", "journal"):
        path = next(one for one in sorted(found) if one.startswith(f"/ops/rankmend/{kind}"))
        assert visit.context.request.get(proxy.url + path).status == 200, path


def test_a_person_signs_out_and_comes_back_to_the_page_that_was_asked_for(
    visit: Visit, stage: Stage
) -> None:
    visit.page.click("text=Sign out")
    visit.go("/nodes/r1-n01")
    assert visit.page.url.endswith("/ops/rankmend/sign-in?next=%2Fnodes%2Fr1-n01")

    visit.page.fill("#token", stage.token("reader"))
    visit.page.click("main button")

    visit.page.wait_for_url("**/ops/rankmend/nodes/r1-n01")
    visit.page.wait_for_selector("h1:has-text('Node r1-n01')")


@pytest.mark.component("nginx")
def test_a_person_acts_through_the_proxy_and_the_page_changes_by_itself(
    browser: Any, visit: Visit, stage: Stage
) -> None:
    with visit.context.expect_page() as opened:
        visit.page.evaluate("window.open('nodes/r4-n12')")
    page = opened.value
    page.click("text=Drain ...")
    page.fill("#reason", "given through a proxy")
    page.click("main button")
    page.wait_for_selector("h1:has-text('Done')")
    page.click("text=Go on")
    page.wait_for_selector("h1:has-text('Node r4-n12')")

    visit.page.wait_for_selector("text=given through a proxy")
    assert visit.complaints() == []
    stage.admin.release("r4-n12", "over")


def test_a_stream_that_the_proxy_cuts_is_opened_again(
    visit: Visit, stage: Stage, proxy: Nginx
) -> None:
    for turn in ("first", "second"):
        proxy.change(below_a_path(stage))

        stage.admin.drain("r4-n13", f"after the {turn} cut")

        visit.page.wait_for_selector(f"text=after the {turn} cut")
        visit.page.wait_for_selector("#live.on")
        stage.admin.release("r4-n13", "over")


@pytest.mark.parametrize(
    "door",
    [
        "location / { return 302 https://127.0.0.1:%d/login?back=$request_uri; } location /login { default_type text/html; return 200 '%s'; }",
        "location / { default_type text/html; return 200 '%s'; }",
        "location / { default_type text/html; return 403 '%s'; }",
        "location / { default_type text/html; return 401 '%s'; }",
    ],
    ids=["another site", "a page in place of the page", "403", "401"],
)
def test_an_open_page_leads_to_the_door_of_the_proxy_once_its_login_has_ended(
    visit: Visit, proxy: Nginx, door: str
) -> None:
    proxy.change(door % ((proxy.port, DOOR) if "%d" in door else DOOR))

    visit.page.wait_for_selector("h1:has-text('Company login')", timeout=LONG_MS)


def test_a_page_stays_while_the_proxy_says_that_the_controller_is_away(
    visit: Visit, stage: Stage, proxy: Nginx
) -> None:
    proxy.change("location / { return 502; }")

    visit.page.wait_for_selector("#live.off:has-text('Not live since')", timeout=LONG_MS)
    assert visit.page.locator("h1:has-text('Fleet')").count() == 1
    proxy.change(below_a_path(stage))
    visit.page.wait_for_selector("#live.on", timeout=LONG_MS)


def test_a_connection_that_is_dead_without_a_word_is_said_and_opened_again(
    visit: Visit, stage: Stage, proxy: Nginx
) -> None:
    """As after a night in which a laptop slept."""
    proxy.send(signal.SIGSTOP)

    visit.page.wait_for_selector("#live.off:has-text('Not live since')", timeout=LONG_MS)
    proxy.send(signal.SIGCONT)

    visit.page.wait_for_selector("#live.on", timeout=LONG_MS)


def test_a_page_that_nobody_sees_holds_no_stream(visit: Visit, stage: Stage) -> None:
    console = stage.up.service.console
    assert console is not None
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { configurable: true, value: hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    streams: Callable[[], int] = lambda: console.streams  # noqa: E731
    eventually(lambda: streams() == 1, "the stream of the page")

    visit.page.evaluate(hide, True)
    eventually(lambda: streams() == 0, "no stream")
    stage.admin.drain("r4-n14", "while nobody looked")
    visit.page.evaluate(hide, False)

    visit.page.wait_for_selector("text=while nobody looked")
    visit.page.wait_for_selector("#live.on")
    stage.admin.release("r4-n14", "over")
