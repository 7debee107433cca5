"""The console in a real Chromium, on a real controller whose launchers only speak."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.service.controller_config import Config, ConsoleSection
from tests.support.browser import Visit, chromium
from tests.support.console_stage import HOSTILE, Stage, make_files, staged
from tests.support.eventually import eventually
from tests.support.service import make_folder, running

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def stage(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("console") / "files") as stage:
        yield stage


@pytest.fixture
def visit(browser: Any, stage: Stage) -> Iterator[Visit]:
    with Visit(browser, stage.up.url, viewport={"width": 1280, "height": 900}) as visit:
        yield visit


def paths_of(stage: Stage) -> list[str]:
    incident = stage.admin.plans()[0].incident_id
    job, waits = stage.jobs[0].job_id, stage.jobs[1].job_id
    return [
        "/",
        "/?q=r1&state=training",
        "/jobs",
        f"/jobs/{job}",
        f"/jobs/{waits}",
        "/incidents",
        f"/incidents/{incident}",
        "/nodes/r2-n16",
        "/nodes/r3-n02",
        "/journal",
        f"/journal?job={job}&kind=attempt_started",
        f"/act?act=approve&job={waits}&incident={incident}",
        "/act?act=drain&node=r1-n01",
        "/act?act=pause&scope=cluster",
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_page_fits_its_window_and_complains_of_nothing(
    browser: Any, stage: Stage, width: int, scheme: str
) -> None:
    options = {"viewport": {"width": width, "height": 850}, "color_scheme": scheme}
    with Visit(browser, stage.up.url, **options) as visit:
        visit.sign_in(stage.token("admin"))
        for path in paths_of(stage):
            answer = visit.go(path)
            assert answer.status == 200, path
            assert visit.page.locator("h1").count() == 1, path
            if path.endswith(stage.jobs[0].job_id):
                visit.page.wait_for_selector("#heat[data-drawn='208']")
            assert not visit.is_wider_than_its_window(), path
            assert visit.complaints() == [], path


def test_nobody_reads_without_a_token_and_signing_out_ends_it(visit: Visit, stage: Stage) -> None:
    visit.go("/jobs")
    assert visit.page.url.endswith("/sign-in?next=%2Fjobs")

    visit.page.fill("#token", "rm_00000000_" + "0" * 64)
    visit.page.click("main button")
    assert "unknown or was revoked" in visit.page.inner_text("main")

    visit.page.fill("#token", stage.token("reader"))
    visit.page.click("main button")
    assert visit.page.url == f"{stage.up.url}/jobs"
    cookie = visit.context.cookies()[0]
    assert (cookie["name"], cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (
        "__Host-rankmend", True, True, "Strict",
    )  # fmt: skip
    assert stage.token("reader") not in str(visit.context.cookies())

    visit.page.click("text=Sign out")
    visit.go("/jobs")
    assert "/sign-in" in visit.page.url


def test_who_may_only_read_sees_no_button_and_is_refused(visit: Visit, stage: Stage) -> None:
    visit.sign_in(stage.token("reader"))

    assert visit.page.locator("a.button").count() == 0
    answer = visit.go("/act?act=pause&scope=cluster")

    assert answer.status == 403
    assert "lacks the role act" in visit.page.inner_text("main")


def test_a_token_that_is_limited_to_jobs_sees_only_these(visit: Visit, stage: Stage) -> None:
    visit.sign_in(stage.token("narrow"))
    visit.go("/jobs")

    text = visit.page.inner_text("main")
    assert "small-eval" in text
    assert "llama-70b" not in text
    assert visit.go(f"/jobs/{stage.jobs[0].job_id}").status == 404
    assert visit.go("/journal").status == 403


@pytest.mark.component("Chromium")
def test_the_page_changes_by_itself_and_keeps_what_is_typed(visit: Visit, stage: Stage) -> None:
    visit.sign_in(stage.token("admin"))
    visit.page.wait_for_selector("#live.on")
    visit.page.fill("input[name=q]", "r1-")

    stage.admin.drain("r4-n11", "a reason that only this test gives")

    visit.page.wait_for_selector("text=a reason that only this test gives")
    assert visit.page.input_value("input[name=q]") == "r1-"
    assert visit.complaints() == []
    stage.admin.release("r4-n11", "over")


def test_the_map_of_ranks_names_the_slow_and_the_standing_rank(visit: Visit, stage: Stage) -> None:
    visit.sign_in(stage.token("reader"))
    visit.go(f"/jobs/{stage.jobs[0].job_id}")
    visit.page.wait_for_selector("#heat[data-drawn='208']")
    visit.page.wait_for_selector("td.n >> text='77'")
    visit.page.wait_for_selector("tr:has-text('standing') >> text='200'")

    visit.page.focus("#heat canvas")
    for _ in range(77):
        visit.page.keyboard.press("ArrowRight")

    assert visit.page.inner_text("#heat output").startswith("Rank 77 on r1-n10, training")


def test_the_clock_of_an_open_incident_runs_between_two_answers(visit: Visit, stage: Stage) -> None:
    visit.sign_in(stage.token("reader"))
    visit.go(f"/incidents/{stage.admin.plans()[0].incident_id}")
    visit.page.wait_for_selector(".loss.open [data-age-s]")
    visit.context.set_offline(True)  # no answer renews it
    seen = visit.page.inner_text(".loss.open [data-age-s]")

    eventually(
        lambda: visit.page.inner_text(".loss.open [data-age-s]") != seen, "the clock has gone on"
    )

    assert visit.page.inner_text(".loss").startswith("Down ")
    assert "16 ranks idle" in visit.page.inner_text(".loss")


def test_rows_of_a_narrow_window_are_as_high_as_two_lines_of_text(
    browser: Any, stage: Stage
) -> None:
    with Visit(browser, stage.up.url, viewport={"width": 390, "height": 850}) as visit:
        visit.sign_in(stage.token("reader"))
        visit.go("/jobs")
        visit.page.wait_for_selector("tbody tr")

        heights = visit.page.evaluate(
            "[...document.querySelectorAll('tbody tr')].map((row) => row.offsetHeight)"
        )

    assert max(heights) < 70


def test_the_keyboard_alone_leads_from_the_door_to_a_node(visit: Visit, stage: Stage) -> None:
    keys = visit.page.keyboard
    visit.go("/")
    keys.type(stage.token("reader"))  # the field has the focus
    keys.press("Enter")
    visit.page.wait_for_selector(".map")

    keys.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    keys.press("Enter")
    for _ in range(40):
        keys.press("Tab")
        if visit.page.evaluate("document.activeElement.matches('.map a.cell')"):
            break
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    keys.press("Enter")

    visit.page.wait_for_selector("h1:has-text('Node r1-n03')")


def test_a_form_of_another_site_or_without_the_sessions_secret_is_refused(
    visit: Visit, stage: Stage
) -> None:
    visit.sign_in(stage.token("admin"))
    form = {"act": "pause", "scope": "cluster", "reason": "not by a person"}
    post = visit.context.request.post  # with the cookie of the session

    without = post(f"{stage.up.url}/act", form=form)
    foreign = post(f"{stage.up.url}/act", form=form, headers={"Sec-Fetch-Site": "cross-site"})
    other = post(f"{stage.up.url}/act", form=form, headers={"Origin": "https://evil.example"})

    assert [without.status, foreign.status, other.status] == [403, 403, 403]
    assert stage.admin.cluster().paused == []


def test_a_hostile_name_is_text_on_every_page(visit: Visit, stage: Stage) -> None:
    job = stage.start(HOSTILE, ["r4-n02"], slots=2)
    reason = "\u202egnp.exe\u202c <b onmouseover=alert(1)>" + "W" * 800
    stage.admin.drain("r4-n02", reason)
    visit.sign_in(stage.token("admin"))

    for path in ("/", "/jobs", f"/jobs/{job.job_id}", "/nodes/r4-n02", "/journal",
                 f"/act?act=pause&scope=job:{job.job_id}"):  # fmt: skip
        assert visit.go(path).status == 200
        assert "owned" not in visit.page.title().replace(HOSTILE[:120], "")
        assert visit.page.locator("main img, main script, main b[onmouseover]").count() == 0
        assert "\u202e" not in visit.page.content()
        assert not visit.is_wider_than_its_window(), path
        assert visit.complaints() == [], path
    stage.admin.release("r4-n02", "over")


def test_a_person_approves_a_plan_from_the_page(visit: Visit, stage: Stage) -> None:
    job = stage.jobs[1]
    incident = stage.admin.plans()[0].incident_id
    visit.sign_in(stage.token("admin"))
    visit.go(f"/incidents/{incident}")
    assert f"rankmend approve {incident}" in visit.page.inner_text(".next")

    visit.page.click("text=Approve ...")
    assert "restart in place" in visit.page.inner_text("main")
    visit.page.fill("#reason", "seen, and it may go on")
    visit.page.click("text=Approve: carry out the plan")

    visit.page.wait_for_selector("h1:has-text('Done')")
    eventually(lambda: stage.admin.plans() == [], "no plan waits")
    acted = [
        msgspec.json.decode(line.record)
        for line in stage.admin.story(job.job_id).lines
        if line.kind == "person_acted"
    ]
    assert [(one["command"]["who"], one["command"]["reason"]) for one in acted] == [
        ("admin", "seen, and it may go on")
    ]
    audit = (stage.up.folder / "state/audit.jsonl").read_text()
    assert f"POST /v1/jobs/{job.job_id}/commands" in audit
    visit.page.click("text=Go on")
    visit.page.wait_for_selector("h1:has-text('Incident')")
    assert visit.complaints() == []


def test_a_lost_connection_is_said_and_forgotten_once_it_is_back(
    browser: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    port = 0

    def change(config: Config) -> Config:
        listen = f"127.0.0.1:{port}"
        return msgspec.structs.replace(config, console=ConsoleSection(open=True), listen=listen)

    with running(folder, change) as first:
        port = first.port
        visit = Visit(browser, first.url)
        visit.go("/")
        visit.page.wait_for_selector("#live.on")
        assert "No job runs" in visit.page.inner_text("main")
    with visit:
        visit.page.wait_for_selector("#live.off:has-text('Not live since')")
        with running(folder, change):
            visit.page.wait_for_selector("#live.on")
            assert visit.page.inner_text("#live") == "Live"


def test_a_session_ends_with_its_token(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    make_files(folder)
    with running(folder) as up, Visit(browser, up.url) as visit:
        visit.sign_in((folder / "reader.token").read_text())
        assert visit.go("/jobs").url.endswith("/jobs")
        # An open page would go to the door by itself, in mid-navigation.
        visit.page.goto("about:blank")

        kept = up.service.api.doorman.tokens
        assert kept is not None
        up.service.api.doorman.tokens = type(kept)([])

        assert "/sign-in" in visit.go("/jobs").url


def test_an_open_page_leads_to_the_door_once_a_restart_has_ended_its_session(
    browser: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    make_files(folder)
    port = 0

    def change(config: Config) -> Config:
        return msgspec.structs.replace(config, listen=f"127.0.0.1:{port}")

    with running(folder, change) as first:
        port = first.port
        visit = Visit(browser, first.url)
        visit.sign_in((folder / "reader.token").read_text())
        visit.go("/jobs")
        visit.page.wait_for_selector("#live.on")
    with visit:
        visit.page.wait_for_selector("#live.off:has-text('Not live since')")
        with running(folder, change):
            visit.page.wait_for_url("**/sign-in?next=%2Fjobs")
