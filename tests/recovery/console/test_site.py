"""The console over HTTP with a source that answers from memory: headers, refusals, hostile texts, bounds."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from rankmend.clock import SystemClock
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.readings.reading import NodeReading
from recovery.api import wire
from recovery.console.acts import EVERYTHING, AskedAct, MayAct, command_of
from recovery.console.incident import IncidentPage, Next, PhaseBar, check_command, loss_of
from recovery.console.live import STREAMS_OF_VIEWER_MAX, is_due
from recovery.console.pages import read_act
from recovery.console.rendering import render
from recovery.console.shared_reads import SharedReads
from recovery.console.site import HEADERS, PART_HEADER, ConsoleSite
from recovery.console.source import JobRecords, PageError, PastJob, RankTail, Viewer
from recovery.journal.cluster_records import CauseTold
from recovery.journal.records import Entry

pytestmark = pytest.mark.process

JOB = "00000000-0000-4000-8000-000000000001"
HOSTILE = "</td><script>alert(1)</script>\u202e\"'&\x1b[2J" + "A" * 10_000
VIEWER = Viewer("ann", "127.0.0.1", (), has_act=True, csrf="right", is_signed_in=True)


def job_of(name: str) -> wire.JobView:
    return wire.JobView(JOB, name, name, "running", 1, 2, 1, 0, 0, 7, 0, None, name)


@dataclass
class MemorySource:
    """One job on one node, with the same name for all."""

    name: str = "train"
    title: str = "a test"
    is_controller: bool = True
    own_node: str = ""
    asked: list[AskedAct] = field(default_factory=list)
    reads: int = 0

    async def jobs(self, viewer: Viewer) -> list[wire.JobView]:
        self.reads += 1
        await asyncio.sleep(0)
        return [job_of(self.name)]

    async def ended(self, viewer: Viewer) -> list[PastJob]:
        return [PastJob(JOB, self.name, self.name, "done", self.name)]

    async def job(self, viewer: Viewer, job_id: str) -> wire.JobDetail:
        return wire.JobDetail(job_of(self.name), await self.nodes(viewer))

    async def ranks(self, viewer: Viewer, job_id: str) -> wire.RankMap:
        return wire.RankMap(
            JOB, 1, 0.1, [self.name], [0, 1], [0, 0], [7, None], [0.1, None],
            ["training", "standing"], [1.5, None],
        )  # fmt: skip

    async def nodes(self, viewer: Viewer) -> list[wire.NodeView]:
        return [wire.NodeView(self.name, JOB, 1.0, 1, [0, 1], False, self.name, self.name)]

    async def known_nodes(self, viewer: Viewer) -> list[str]:
        return []

    async def cluster(self, viewer: Viewer) -> wire.Cluster:
        pause = wire.Pause(f"node:{self.name}", self.name, self.name)
        window = wire.WindowView("w", [self.name], 0.0, 1.0, self.name, self.name)
        hold = wire.HoldView(self.name, "drain", self.name, self.name, None)
        return wire.Cluster([pause], [hold], [window], [self.name], [""])

    async def plans(self, viewer: Viewer) -> list[wire.PlanView]:
        text = self.name
        return [wire.PlanView(JOB, text, "i-1", 1, text, text, text, text, [text], "p1")]

    async def watched(self, viewer: Viewer) -> list[wire.WatchedView]:
        text = self.name
        finding = wire.WatchedFinding(text, text, text, text, [0], [text])
        return [
            wire.WatchedView(
                JOB, text, text, text, text, text, 1, 2, 2, [text], 5, 0.1, text, 1.0, text, [finding], text,
            )
        ]  # fmt: skip

    async def slurm(self, viewer: Viewer) -> wire.SlurmView | None:
        return wire.SlurmView(True, False, self.name, [], [])

    async def kubernetes(self, viewer: Viewer) -> wire.SlurmView | None:
        text = self.name
        asked = wire.SlurmRequestView("k", "evict", [text], text, text, 1.0, "", text)
        event = wire.SlurmNodeEventView(1.0, "drained", text)
        ours = wire.SlurmNodeView(text, True, [], text, "waiting", text, 1.0, [event])
        state = wire.KubernetesNodeView(text, True, False, text, "Unknown", [text], [text], 1.0)
        return wire.SlurmView(True, False, "", [asked], [ours], [state])

    async def incidents(self, viewer: Viewer) -> list[wire.IncidentView]:
        text = self.name
        return [
            wire.IncidentView(
                "i-1", JOB, text, 1.0, 1, text, text, text, text, text, [0], [], text, 1, [], {}, [text],
                None, None, None, None,
            )
        ]  # fmt: skip

    async def records(self, viewer: Viewer, wanted: str) -> JobRecords:
        return JobRecords(JOB, self.name, ())

    async def readings(self, viewer: Viewer, incident: str) -> Sequence[NodeReading]:
        return ()

    async def tails(self, viewer: Viewer, incident: str) -> Sequence[RankTail]:
        return ()

    async def cluster_records(self, viewer: Viewer) -> Sequence[Entry]:
        return ()

    async def time(self, viewer: Viewer, job_id: str) -> JobTime | None:
        return None

    def revision(self) -> str:
        return "1"

    async def act(self, viewer: Viewer, asked: AskedAct) -> str:
        self.asked.append(asked)
        return f"done {self.name}"


@dataclass
class OpenDoor:
    """Lets everybody in as the same viewer."""

    who: Viewer | None = VIEWER
    takes_tokens: bool = True
    provider_title: str = ""

    def check_host(self, request: web.Request) -> None: ...
    async def viewer(self, request: web.Request) -> Viewer | None:
        return self.who

    async def sign_in(self, request: web.Request, token: str, answer: web.Response) -> None:
        raise PageError("no", 401)

    async def begin_sign_in(self, request: web.Request, there: str, answer: web.Response) -> str:
        raise PageError("no", 401)

    async def finish_sign_in(self, request: web.Request, answer: web.Response) -> str:
        raise PageError("no", 401)

    async def sign_out(self, request: web.Request, answer: web.Response) -> None: ...
    async def read_body(self, request: web.Request) -> bytes:
        return await request.content.read(100_000)

    def spend(self, viewer: Viewer) -> None: ...


class TwoNodes(MemorySource):
    """A job on two nodes, and its plan."""

    async def nodes(self, viewer: Viewer) -> list[wire.NodeView]:
        return [
            wire.NodeView(name, JOB, 1.0, 1, [rank], False, name)
            for rank, name in enumerate((self.name, "n2"))
        ]


def visit(source: MemorySource, act: Callable[[Any], Any], door: OpenDoor | None = None) -> Any:
    """Run ``act`` with a client of a console over the source."""

    async def run() -> Any:
        site = ConsoleSite(source, door or OpenDoor(), SystemClock())
        app = web.Application()
        site.add_routes(app)
        async with TestClient(TestServer(app)) as client:
            try:
                return await act(client)
            finally:
                site.close()

    return asyncio.run(run())


PAGES = (
    "/", "/?q=a&state=drained", "/jobs", f"/jobs/{JOB}", f"/watched/{JOB}", "/incidents", "/journal",
    "/docs/", "/docs/README.md", "/docs/operate/runbooks/controller.md",
    f"/journal?job={JOB}", f"/act?act=approve&job={JOB}&incident=i-1", f"/act?act=pause&scope=job:{JOB}", "/sign-in",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_a_hostile_text_of_10_kb_is_text_on_every_page(path: str) -> None:
    async def look(client: Any) -> tuple[int, str]:
        answer = await client.get(path)
        return answer.status, await answer.text()

    status, text = visit(MemorySource(HOSTILE), look)

    assert status == 200
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "A" * 3000 not in text


@pytest.mark.parametrize(
    "path",
    [*PAGES, "/nodes/nobody", "/incidents/none", "/static/console.css", "/static/../site.py"],
)
def test_every_answer_has_the_headers_of_a_page_that_trusts_nobody(path: str) -> None:
    async def look(client: Any) -> Any:
        answer = await client.get(path)
        return answer.status, dict(answer.headers)

    _status, headers = visit(MemorySource(), look)

    if path.startswith("/static/console"):
        assert headers["Cache-Control"].startswith("public")
    elif path.startswith("/static"):
        return  # no such route
    for name in HEADERS.keys() - {"Cache-Control"}:
        assert headers[name] == HEADERS[name]
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_no_page_has_a_script_or_style_of_its_own() -> None:
    async def look(client: Any) -> list[str]:
        return [await (await client.get(path)).text() for path in PAGES]

    for text in visit(MemorySource(), look):
        assert " style=" not in text
        assert " onclick=" not in text
        assert "<style" not in text
        assert text.count("<script ") == text.count("<script src=")


@pytest.mark.parametrize(
    ("form", "headers", "status", "acts"),
    [
        ({"csrf": "right"}, {"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 200, 1),
        ({"csrf": "right"}, {}, 200, 1),
        ({"csrf": "wrong"}, {"Sec-Fetch-Site": "same-origin"}, 403, 0),
        ({}, {"Sec-Fetch-Site": "same-origin"}, 403, 0),
        ({"csrf": "right"}, {"Sec-Fetch-Site": "cross-site"}, 403, 0),
        ({"csrf": "right"}, {"Sec-Fetch-Site": "same-site"}, 403, 0),
        ({"csrf": "right"}, {"Origin": "https://evil.example"}, 403, 0),
        ({"csrf": "right"}, {"Origin": "null"}, 403, 0),
        ({"csrf": "right", "reason": " "}, {}, 400, 0),
        ({"csrf": "right", "reason": "x" * 1001}, {}, 400, 0),
        ({"csrf": "right", "act": "explode"}, {}, 400, 0),
    ],
)
def test_an_act_needs_the_sessions_secret_a_reason_and_a_form_of_this_site(
    form: dict[str, str], headers: dict[str, str], status: int, acts: int
) -> None:
    source = MemorySource()

    async def act(client: Any) -> int:
        given = {"act": "drain", "node": "n1", "reason": "why", "key": "k"} | form
        return (await client.post("/act", data=given, headers=headers)).status

    assert visit(source, act) == status
    assert len(source.asked) == acts


def test_who_may_only_read_acts_on_nothing() -> None:
    source = MemorySource()
    reader = OpenDoor(Viewer("bob", "127.0.0.1", (), csrf="right", is_signed_in=True))

    async def act(client: Any) -> int:
        given = {"act": "drain", "node": "n1", "reason": "why", "csrf": "right"}
        return (await client.post("/act", data=given)).status

    assert visit(source, act, reader) == 403
    assert source.asked == []


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ("/jobs?q=a", "/jobs?q=a"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\nb", "/"),
    ],
)
def test_signing_in_never_leads_to_another_site(wanted: str, there: str) -> None:
    async def look(client: Any) -> str:
        return await (await client.get("/sign-in", params={"next": wanted})).text()

    text = visit(MemorySource(), look)

    assert f'name="next" value="{there}"' in text


def test_who_follows_a_link_from_elsewhere_is_asked_again_with_the_cookie() -> None:
    async def look(client: Any) -> Any:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        first = await client.get("/incidents", headers=headers, allow_redirects=False)
        then = await client.get(
            "/incidents", headers={"Sec-Fetch-Mode": "navigate"}, allow_redirects=False
        )
        script = await client.get("/incidents", headers={"Sec-Fetch-Mode": "cors"})
        return first.headers.get("Refresh"), then.status, then.headers["Location"], script.status

    found = visit(MemorySource(), look, OpenDoor(None))

    assert found == ("0", 303, "./sign-in?next=%2Fincidents", 401)


def test_the_documentation_is_served_with_its_pictures_to_who_may_read() -> None:
    async def look(client: Any) -> Any:
        index = await client.get("/docs", allow_redirects=False)
        page = await client.get("/docs/operate/runbooks/controller.md")
        picture = await client.get("/docs/operate/kill.svg")
        lost = [(await client.get(f"/docs/{name}")).status for name in ("no.md", "generate.py")]
        return index, await page.text(), picture, lost

    index, page, picture, lost = visit(MemorySource(), look)

    assert (index.status, index.headers["Location"]) == (303, "./docs/README.md")
    assert 'id="rankmendcontrollerdown"' in page
    assert 'rel="next"' in page
    assert " data-live=" not in page
    assert (picture.status, picture.content_type) == (200, "image/svg+xml")
    assert lost == [404, 404]


def test_who_is_not_signed_in_reads_no_documentation() -> None:
    async def look(client: Any) -> int:
        return (await client.get("/docs/README.md", allow_redirects=False)).status

    assert visit(MemorySource(), look, OpenDoor(None)) == 303


def test_viewers_who_see_the_same_share_what_is_read() -> None:
    source = MemorySource()

    async def look(client: Any) -> None:
        await asyncio.gather(*(client.get("/jobs") for _ in range(30)))

    visit(source, look)

    assert source.reads <= 2


def test_one_viewer_holds_so_many_streams() -> None:
    async def look(client: Any) -> list[int]:
        answers = [await client.get("/live") for _ in range(STREAMS_OF_VIEWER_MAX + 1)]
        statuses = [answer.status for answer in answers]
        for answer in answers:
            answer.close()
        return statuses

    assert visit(MemorySource(), look) == [200] * STREAMS_OF_VIEWER_MAX + [503]


def test_a_failed_read_is_not_kept_for_the_next_viewer() -> None:
    async def run() -> list[str]:
        shared, told = SharedReads(lambda: 0.0, lambda: ""), []

        async def fail() -> str:
            raise PageError("broken", 503)

        async def work() -> str:
            return "fine"

        for read in (fail, work):
            try:
                told.append(await shared.get("key", read))
            except PageError as error:
                told.append(str(error))
        return told

    assert asyncio.run(run()) == ["broken", "fine"]


def test_an_answer_that_takes_long_is_kept_for_longer() -> None:
    """At most a twentieth of the time goes into an answer, and none is older than two beats."""

    async def reads(took_s: float) -> list[float]:
        now_s, read_at_s = [0.0], []
        shared = SharedReads(lambda: now_s[0], lambda: str(now_s[0]))

        async def read() -> None:
            read_at_s.append(round(now_s[0], 1))
            now_s[0] += took_s

        while now_s[0] < 24.0:
            await shared.get("key", read)
            now_s[0] += 0.1
        return read_at_s

    assert asyncio.run(reads(0.0))[:3] == pytest.approx([0.0, 1.0, 2.0], abs=0.3)
    assert asyncio.run(reads(0.2))[:3] == pytest.approx([0.0, 4.0, 8.0], abs=0.3)
    assert asyncio.run(reads(5.0))[:3] == pytest.approx([0.0, 10.0, 20.0], abs=0.3)


@pytest.mark.parametrize(
    ("now_s", "told_at_s", "pace_s", "is_told"),
    [
        (102.0, 101.5, 0.0, True),
        (102.0, 99.0, 2.0, True),
        (101.9, 99.0, 2.0, False),  # all pages have asked at the beat of 100 s
        (104.0, 102.1, 2.0, False),
        (104.4, 99.0, 10.0, False),
        (104.5, 99.0, 10.0, True),
    ],
)
def test_pages_are_told_of_a_change_once_they_would_get_another_answer(
    now_s: float, told_at_s: float, pace_s: float, *, is_told: bool
) -> None:
    assert is_due(now_s, told_at_s, pace_s) is is_told


def test_an_open_page_gets_what_is_in_its_frame_and_no_secret() -> None:
    async def look(client: Any) -> list[Any]:
        whole = await client.get("/jobs")
        part = await client.get("/jobs", headers={PART_HEADER: "page"})
        plain = await client.get("/jobs", headers={PART_HEADER: "page", "Accept-Encoding": ""})
        return [(dict(one.headers), await one.text()) for one in (whole, part, plain)]

    (_, whole), (headers, part), (_, plain) = visit(MemorySource(), look)

    assert part in whole
    assert part == plain
    assert "<h1>Jobs</h1>" in part
    assert "right" in whole, "the frame has the session's secret"
    assert 'value="right"' not in part
    assert headers["Content-Encoding"] == "gzip"
    assert headers[PART_HEADER] == "page"


def test_viewers_who_see_different_things_share_nothing() -> None:
    class TellingSource(MemorySource):
        async def jobs(self, viewer: Viewer) -> list[wire.JobView]:
            return [job_of(f"seen by {viewer.sees}")]

    source, door = TellingSource(), OpenDoor()

    async def look(client: Any) -> list[str]:
        texts = []
        for sees in ("all", "little"):
            door.who = Viewer("ann", "127.0.0.1", sees, is_signed_in=True)
            texts.append(await (await client.get("/jobs")).text())
        return texts

    first, second = visit(source, look, door)

    assert "seen by all" in first
    assert "seen by little" in second
    assert "seen by all" not in second


def test_a_pause_of_a_job_is_told_by_the_jobs_name() -> None:
    class PausedSource(MemorySource):
        async def cluster(self, viewer: Viewer) -> wire.Cluster:
            scopes = (f"job:{JOB}", "node:n1")
            return wire.Cluster([wire.Pause(scope, "ann", "why") for scope in scopes], [], [], [])

    async def look(client: Any) -> str:
        return await (await client.get("/")).text()

    text = visit(PausedSource(), look)

    assert "Paused: job train<" in text
    assert "Paused: node n1<" in text
    assert "<b>1</b> node<" in text


def test_a_node_that_only_a_message_or_a_watched_job_names_has_a_page() -> None:
    class TellingSource(MemorySource):
        async def nodes(self, viewer: Viewer) -> list[wire.NodeView]:
            return []

        async def watched(self, viewer: Viewer) -> list[wire.WatchedView]:
            return [
                msgspec.structs.replace(one, nodes=["seen"])
                for one in await super().watched(viewer)
            ]

        async def cluster_records(self, viewer: Viewer) -> Sequence[Entry]:
            told = CauseTold("node-told", 0.0, "", "", "told", "warning", "GPU lost", nodes=("b",))
            return [Entry(1, 0.0, 0.0, "boot", told)]

    async def look(client: Any) -> list[int]:
        names = ("seen", "told", "b", "nobody")
        return [(await client.get(f"/nodes/{name}")).status for name in names]

    assert visit(TellingSource(), look) == [200, 200, 200, 404]


@pytest.mark.safety
def test_the_page_of_a_watched_job_stays_while_the_journal_tells_of_it() -> None:
    class EndedSource(MemorySource):
        async def watched(self, viewer: Viewer) -> list[wire.WatchedView]:
            return []

        async def cluster_records(self, viewer: Viewer) -> Sequence[Entry]:
            if not viewer.sees:
                raise PageError("limited", 403)
            hung = CauseTold(
                f"hung-{JOB}", 0.0, JOB, "other", "", "critical", "It stands still", nodes=("n7",),
                job_ids=(JOB,), is_over=True, end="the job has ended",
            )  # fmt: skip
            return [Entry(1, 0.0, 0.0, "boot", hung)]

    source, door = EndedSource(), OpenDoor()

    async def look(client: Any) -> list[Any]:
        found = []
        for sees, job in (("all", JOB), ("all", JOB.replace("1", "2")), ("", JOB)):
            door.who = Viewer("ann", "127.0.0.1", sees, is_signed_in=True)
            answer = await client.get(f"/watched/{job}")
            found.append((answer.status, await answer.text()))
        return found

    (shown, text), (unknown, _), (limited, _) = visit(source, look, door)

    assert (shown, unknown, limited) == (200, 404, 404)
    assert "<h1>other</h1>" in text
    assert "the job has ended" in text
    assert 'href="../nodes/n7"' in text


@pytest.mark.parametrize(
    ("about", "command"),
    [
        ("act=drain&node=n1", "rankmend drain n1 --reason 'a fan is loud, ticket 4711'"),
        ("act=pause&scope=cluster", "rankmend pause --cluster --reason 'work on the switches until 16:00'"),
        ("act=approve&job=J&incident=i-1", "rankmend approve i-1"),
        ("act=approve&job=J&incident=", "rankmend approve J"),
        ("act=undrain&node=a;rm -rf ~", "rankmend resume --node 'a;rm -rf ~' --reason 'the fan is replaced'"),
        ("act=resume&scope=node:a b", "rankmend resume --node 'a b' --reason 'the work is done'"),
    ],
)  # fmt: skip
def test_the_command_of_a_form_can_be_pasted_as_it_stands(about: str, command: str) -> None:
    name, given = read_act(dict(parse_qsl(about, keep_blank_values=True)))

    assert command_of(name, given) == command


OF_JOBS = {"approve job", "reject job", "pause job"}
OF_NODES = {"drain node", "undrain node", "pause node", "resume node"}


@pytest.mark.parametrize(
    ("reach", "offered"),
    [
        (EVERYTHING, {*OF_JOBS, *OF_NODES, "pause cluster"}),
        (MayAct(job=True), OF_JOBS),
        (MayAct(node=True), OF_NODES),
        (MayAct(), set()),
    ],
)
def test_a_token_is_offered_what_it_may_do_and_no_more(reach: MayAct, offered: set[str]) -> None:
    """The source has a job with a plan and a node that is drained and paused."""
    door = OpenDoor(replace(VIEWER, reach=reach))

    async def look(client: Any) -> tuple[set[str], dict[str, int]]:
        paths = ("/", f"/jobs/{JOB}", "/nodes/train", "/nodes/n2")
        texts = [await (await client.get(path)).text() for path in paths]
        links = re.findall(r"/act\?act=([a-z]+)&amp;(?:scope=)?([a-z]+)", "".join(texts))
        acts = {" ".join(one) for one in links}
        forms = {
            "job": f"act=pause&scope=job:{JOB}", "node": "act=drain&node=train", "cluster": "act=pause&scope=cluster",
        }  # fmt: skip
        found = {name: (await client.get(f"/act?{query}")).status for name, query in forms.items()}
        return acts, found

    acts, forms = visit(TwoNodes(), look, door)

    assert acts == offered
    assert forms == {
        name: 200 if getattr(reach, name) else 403 for name in ("job", "node", "cluster")
    }


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("recovered", "not seen on its own"),
        ("escalated", "not reached<"),
        ("opened", "not reached yet"),
    ],
)
def test_a_phase_without_a_time_says_whether_it_was_reached(outcome: str, said: str) -> None:
    """The template alone: `view_page` makes the rest from a journal."""
    bar = PhaseBar("fence", "Fence", None, 0.0, 0.0)
    (incident,) = asyncio.run(MemorySource().incidents(VIEWER))
    incident = msgspec.structs.replace(incident, outcome=outcome)
    page = IncidentPage(
        incident,
        loss_of(incident),
        (bar,),
        (),
        (),
        "nobody",
        "no machine",
        outcome == "opened",
        Next("Wait."),
    )
    text = render(
        "incident.html.j2", root="..", page=page, incident=incident, story=[], opened=0.0, plan=None, node=None,
        readings=(), tails=(),
        may=MayAct(), check=check_command, is_controller=True, now_unix_s=2.0,
    )  # fmt: skip

    assert said in text


class BusySource(MemorySource):
    """A bad day: 300 jobs, of which one has a plan and the last ones wait or recover, with 40 open incidents, one of them an old one."""

    async def jobs(self, viewer: Viewer) -> list[wire.JobView]:
        states = ["running"] * 297 + ["recovering", "waiting", "standing"]
        return [
            msgspec.structs.replace(
                job_of(f"job-{number}"),
                job_id=f"00000000-0000-4000-8000-{number:012}",
                state=state,
                incident_id="i-old" if state == "recovering" else None,
            )
            for number, state in enumerate(states)
        ]

    async def incidents(self, viewer: Viewer) -> list[wire.IncidentView]:
        (one,) = await super().incidents(viewer)
        outcomes = ["verifying"] * 39 + ["recovered"] * 161
        return [
            msgspec.structs.replace(one, incident_id=f"i-{number}", outcome=outcome)
            for number, outcome in enumerate(outcomes)
        ]

    async def plans(self, viewer: Viewer) -> list[wire.PlanView]:
        (one,) = await super().plans(viewer)
        return [msgspec.structs.replace(one, plan_id=f"p-{number}") for number in range(7)]


def test_on_a_bad_day_the_fleet_shows_what_needs_a_person_first_and_leads_to_the_rest() -> None:
    async def look(client: Any) -> list[str]:
        return [await (await client.get(path)).text() for path in ("/", "/jobs", "/incidents")]

    fleet, jobs, incidents = visit(BusySource(), look)

    assert fleet.count('id="plan-') == 3
    assert '<a href="./incidents#plans">4 more plans wait</a>' in fleet
    assert fleet.count('id="i-') == 10
    assert '<a href="./incidents#open">All 40 open incidents</a>' in fleet
    assert fleet.count('id="j-') == 20
    assert re.findall(r">(job-[0-9]+)</a>", fleet)[:5] == [
        "job-1", "job-298", "job-297", "job-299", "job-0",
    ]  # fmt: skip
    assert '<a href="./jobs?state=standing"><b>1</b> job standing</a>' in fleet
    assert re.findall(r">(job-[0-9]+)</a>", jobs)[:4] == ["job-1", "job-298", "job-297", "job-299"]
    assert incidents.count('id="p-') == 7
    assert incidents.count('id="i-') == 39 + 100
    assert '<a href="./incidents/i-old">i-old</a> of job-297' in incidents
    assert "61 older ones are not shown" in incidents


def test_jobs_are_chosen_by_state_and_name() -> None:
    async def look(client: Any) -> list[list[str]]:
        texts = [
            await (await client.get(f"/jobs?{query}")).text()
            for query in ("state=recovering", "state=running&q=job-29", "state=none")
        ]
        return [re.findall(r">(job-[0-9]+)</a>", text) for text in texts]

    recovering, named, none = visit(BusySource(), look)

    assert recovering == ["job-297"]
    assert named == [f"job-{number}" for number in (29, *range(290, 297))]
    assert none == []


@pytest.mark.parametrize(
    ("path", "root"), [("/", "."), ("/jobs", "."), (f"/jobs/{JOB}", ".."), ("/a%2Fb/c", "..")]
)
def test_every_address_on_a_page_begins_where_the_console_does(path: str, root: str) -> None:
    """So a proxy may serve it below any path."""

    async def look(client: Any) -> tuple[str, str | None]:
        answer = await client.get(URL(path, encoded=True))
        return await answer.text(), answer.headers.get(PART_HEADER)

    text, part = visit(MemorySource(), look)

    assert part == "whole" or path == "/a%2Fb/c"  # that one is nobody's
    addresses = re.findall(r' (?:href|src|action|data-live|data-ranks)="([^"#]+)', text)
    assert [one for one in addresses if not one.startswith(f"{root}/")] == []


def test_a_proxy_is_told_to_pass_events_on_at_once() -> None:
    async def look(client: Any) -> Any:
        async with client.get("/live") as answer:
            return dict(answer.headers)

    headers = visit(MemorySource(), look)

    assert headers["X-Accel-Buffering"] == "no"
    assert headers["Cache-Control"] == "no-store, no-transform"
