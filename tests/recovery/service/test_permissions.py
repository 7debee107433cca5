"""Every route, with every role, within and outside the limits of a token: what is refused, and what is left out."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
import urllib3

from recovery.messages.codec import encode_message
from recovery.service.http import authority
from recovery.service.http.permission import Touches
from recovery.service.http.route import RequestKind, Route
from recovery.service.http.routes import ROUTES
from recovery.service.roles import TOKEN_ROLES, Role
from recovery.service.tokens import Tokens, make_token
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Running, Speaker, join_of, make_folder, running
from tests.support.service_bench import fail_rank, unlimited

pytestmark = pytest.mark.process

OWN, OTHER = "llama", "gemma"  # jobs; their nodes are n1, n2 and x1, x2
LIMITS: dict[str, dict[str, list[str]]] = {
    "none": {},
    "its job": {"jobs": ["lla*"]},
    "another job": {"jobs": ["gem*"]},
    "its node": {"nodes": ["n*"]},
    "another node": {"nodes": ["x*"]},
    "its job, its node": {"jobs": ["lla*"], "nodes": ["n*"]},
}
ALL = frozenset(LIMITS)
CLUSTER = frozenset({"none"})
NODE = frozenset({"none", "its node"})
WHOLE_JOB = frozenset({"none", "its job", "its job, its node"})
JOB = ALL - {"another job"}
JOB_ON_NODE = ALL - {"another job", "another node"}
L, R, A, T = Role.LAUNCH, Role.REPORT, Role.ACT, Role.ALERT
READ, FLEET = Role.READ, Role.FLEET_READ
READS = {READ, FLEET}
# Handler -> its roles, and the limits under which a request about job "llama" or node n1 is carried out.
RULES: dict[str, tuple[set[Role], frozenset[str]]] = {
    "join": ({L}, JOB_ON_NODE),
    "report": ({L}, JOB_ON_NODE),
    "order": ({L}, JOB_ON_NODE),
    "alerts": ({T, R}, NODE),
    "webhook": ({T, R}, NODE),
    "report_watched": ({T, R}, NODE),
    "watched": (READS, ALL),
    "watched_times": (READS, ALL),
    "jobs": (READS, ALL),
    "job": (READS, JOB),
    "nodes": (READS, ALL),
    "incidents": (READS, ALL),
    "story": (READS, JOB),
    "ranks": (READS, JOB),
    "plans": (READS, ALL),
    "plan": (READS, JOB),
    "policy": (READS, JOB),
    "cluster": (READS, ALL),
    "command": ({A}, WHOLE_JOB),
    "acknowledge": ({A}, WHOLE_JOB),
    "pause_cluster": ({A}, CLUSTER),
    "resume_cluster": ({A}, CLUSTER),
    "pause": ({A}, WHOLE_JOB),
    "resume": ({A}, WHOLE_JOB),
    "drain": ({A}, NODE),
    "release": ({A}, NODE),
    "add_window": ({A}, NODE),
    "end_window": ({A}, NODE),
    "agents": (READS, ALL),
    "metrics": ({FLEET}, CLUSTER),
    "slurm": ({FLEET}, CLUSTER),
    "kubernetes": ({FLEET}, CLUSTER),
    "untaken": ({FLEET}, CLUSTER),
    "healthz": (set(), ALL),
    "readyz": (set(), ALL),
    "openapi": (set(), ALL),
}


@dataclass
class World:
    """A controller with two jobs, an incident, a held node, a pause and a window of each."""

    up: Running
    ours: Speaker
    incident: str
    window: str = ""
    tokens: dict[tuple[Role, str], str] = field(default_factory=dict)  # of alice, who owns the jobs
    foreign: dict[Role, str] = field(default_factory=dict)  # of mallory, who owns none
    pool: Any = None
    pools: dict[str, Any] = field(default_factory=dict)  # of nodes, by their certificates

    def ask(
        self, role: Role, limit: str, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, bytes]:
        headers, pool = {}, self.pools.get({"its node": "n1", "another node": "x1"}.get(limit, ""))
        if role is not Role.REPORT:
            headers["Authorization"] = f"Bearer {self.tokens[role, limit]}"
            pool = self.pool
        answer = pool.request(
            method, self.up.url + path, headers=headers, body=body, timeout=DEADLINE_S
        )
        return answer.status, answer.data

    def ask_as(self, token: str, path: str) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token}"}
        answer = self.pool.request("GET", self.up.url + path, headers=headers, timeout=DEADLINE_S)
        return answer.status, answer.data

    def console(self, token: str) -> Callable[[str], tuple[int, bytes]]:
        """Return how somebody who has signed in with a token reads pages."""
        form = {"token": token}
        signed = self.pool.request(
            "POST", f"{self.up.url}/sign-in", fields=form, encode_multipart=False, redirect=False
        )
        cookie = signed.headers["Set-Cookie"].partition(";")[0]

        def page(path: str) -> tuple[int, bytes]:
            answer = self.pool.request("GET", self.up.url + path, headers={"Cookie": cookie})
            return answer.status, answer.data

        return page

    def may_be_asked(self, role: Role, limit: str) -> bool:
        """Return whether there is such a subject: a certificate always names nodes."""
        return role is not Role.REPORT or limit in ("its node", "another node")

    def request(self, route: Route) -> tuple[str, bytes | None]:
        """Return path and body of a request of job "llama" and node n1."""
        job_id = self.ours.job_id
        parts = {"job": job_id, "node": "n1", "incident": self.incident, "scope": f"job:{job_id}"}
        path = route.path.format(**parts, window=self.window)
        query = {
            "order": "?launcher=launcher-n1",
            "plan": f"?job={job_id}",
            "policy": f"?job={job_id}",
        }
        bodies: dict[str, Any] = {
            "join": join_of("n1", name=OWN, key=f"job:{OWN}"),
            "alerts": [{"labels": {"alertname": "RankmendX", "node": "n1"}}],
            "webhook": {
                "version": "4",
                "alerts": [{"labels": {"alertname": "RankmendX", "node": "n1"}}],
            },
            "report_watched": {"node": "n1", "jobs": [_watched(OWN)]},
            "command": {"act": "reset_budgets"},
            "add_window": {"nodes": ["n1"], "from_unix_s": 2e9, "until_unix_s": 2e9 + 60},
        }
        if route.name == "report":
            assert self.ours.report is not None
            self.ours.report = replace(self.ours.report, number=self.ours.report.number + 1)
            return path, encode_message(self.ours.report)
        body = None if route.body is None else msgspec.json.encode(bodies.get(route.name, {}))
        return path + query.get(route.name, ""), body

    def state(self) -> Any:
        """Return what acts can change."""
        worker = self.up.service.worker
        ledger = worker.desk.ledger
        jobs = {job_id: len(job.launchers) for job_id, job in worker.jobs.running.items()}
        active = sorted(one.target.key for one in worker.desk.alerts.active)
        watched = {one.name: sorted(one.reported_at_s) for one in worker.watched.jobs.values()}
        return ledger.number, jobs, active, watched

    def restore(self) -> None:
        """Have a pause and a window to end, as each request finds them."""
        admin = self.up.client("admin")
        admin.pause("walk")
        admin.pause("walk", f"job:{self.ours.job_id}")
        self.window = admin.add_window(_window(["n1"])).window_id
        admin.close()


def _watched(name: str) -> dict[str, Any]:
    """Return what an agent reports of a rank that another launcher has started."""
    rank = {
        "rank": 0,
        "world_size": 1,
        "attempt": 1,
        "pid": 7,
        "process_state": "S",
        "steps_done": 3,
    }
    return {
        "job_id": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
        "name": name,
        "user": "alice",
        "launcher": "torchrun",
        "ranks": [rank],
    }


def _window(nodes: list[str]) -> Any:
    from recovery.api import wire

    return wire.Window(
        nodes=nodes, from_unix_s=2e9, until_unix_s=2e9 + 60, reason="disk", is_expected=True
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("permissions") / "files"
    make_folder(folder)
    with running(folder, unlimited) as up, ExitStack() as stack:
        up.service.pager.stop()  # it journals what people are told, whenever that is
        up.service.pager.join()
        tokens, entries = {}, []
        for role in TOKEN_ROLES:
            for name, limit in LIMITS.items():
                tokens[role, name], entry = make_token("alice", [role], **limit)
                entries.append(entry)
        foreign = {}
        for role in (READ, FLEET):
            foreign[role], entry = make_token("mallory", [Role.LAUNCH, role])
            entries.append(entry)
        up.service.api.doorman.tokens = Tokens(
            [*up.service.api.doorman.tokens._entries.values(), *entries]  # type: ignore[union-attr]
        )
        pool = stack.enter_context(urllib3.PoolManager(ca_certs=str(up.ca), retries=False))
        world = World(up, None, "", "", tokens, foreign, pool)  # type: ignore[arg-type]
        for node in ("n1", "x1"):
            files = (folder / f"{node}.crt", folder / f"{node}.key")
            authority.make_node((up.ca, folder / "ca.key"), *files, node)
            world.pools[node] = stack.enter_context(
                urllib3.PoolManager(
                    ca_certs=str(up.ca),
                    retries=False,
                    cert_file=str(files[0]),
                    key_file=str(files[1]),
                )
            )
        world.ours = _start(world, OWN, "n1", "n2")
        _start(world, OTHER, "x1", "x2")
        fail_rank(world.ours)
        for node, name in (("n1", OWN), ("x1", OTHER)):
            body = msgspec.json.encode({"node": node, "jobs": [_watched(name)]})
            world.ask(Role.ALERT, "none", "POST", "/v1/watched", body)
        admin = up.client("admin")
        eventually(lambda: bool(admin.incidents(world.ours.job_id)), "an incident")
        world.incident = admin.incidents(world.ours.job_id)[0].incident_id
        for node in ("n2", "x2"):
            admin.drain(node, "fan")
            admin.pause("p", f"node:{node}")
            admin.add_window(_window([node]))
        yield world


def _start(world: World, name: str, *nodes: str) -> Speaker:
    """Have a job run on two nodes, as its owner alice."""
    client = world.up.client("", token=world.tokens[Role.LAUNCH, "none"])
    speakers = []
    for node in nodes:
        joined = client.join(join_of(node, name=name, key=f"job:{name}"))
        speakers.append(Speaker(client, node, joined.job_id))
        speakers[-1].say()
    for speaker in speakers:
        speaker.wait_order()
        speaker.obey()
    return speakers[0]


def test_every_route_has_its_rule_here() -> None:
    assert {one.name: set(one.roles) for one in ROUTES} == {
        handler: roles for handler, (roles, _limits) in RULES.items()
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_route_is_open_to_its_roles_within_their_limits_and_a_refusal_changes_nothing(
    world: World, route: Route
) -> None:
    roles, limits = RULES[route.name]
    is_open = not roles
    subjects = [
        (role, limit) for role in Role for limit in LIMITS if world.may_be_asked(role, limit)
    ]
    allowed = [one for one in subjects if is_open or (one[0] in roles and one[1] in limits)]
    world.restore()
    before, wrong = world.state(), []

    for role, limit in subjects:
        if (role, limit) not in allowed:
            status, _body = world.ask(role, limit, route.method, *world.request(route))
            if status not in (403, 404):
                wrong.append((role.value, limit, status))
    assert (wrong, world.state()) == ([], before)

    for role, limit in allowed:
        if route.name in ("resume_cluster", "resume", "end_window"):
            world.restore()
        status, body = world.ask(role, limit, route.method, *world.request(route))
        if status in (401, 403, 404) or status >= 500:
            wrong.append((role.value, limit, status, body[:200]))
    assert wrong == []


LISTS = [one for one in ROUTES if one.touches is Touches.OWN_PART]


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route.name)
def test_list_shows_nothing_of_jobs_outside_the_limits(world: World, route: Route) -> None:
    _status, all_of_it = world.ask(FLEET, "none", route.method, route.path)
    _status, seen = world.ask(FLEET, "another job", route.method, route.path)

    foreign = rf"{world.ours.job_id}|\b{OWN}\b|\bn[129]\b"
    if route.name != "plans":  # none waits
        assert re.search(foreign, all_of_it.decode())
    assert re.findall(foreign, seen.decode()) == []


READ_ROUTES = [one for one in ROUTES if one.kind is RequestKind.READ]
# What names alice's jobs, their incidents and their nodes.
FOREIGN = re.compile(rb"\b(llama|gemma|[nx][129]|alice)\b")


@pytest.mark.parametrize("route", READ_ROUTES, ids=lambda route: route.name)
def test_jobs_of_others_do_not_exist_for_who_may_read_only_his_own(
    world: World, route: Route
) -> None:
    path, _body = world.request(route)

    status, told = world.ask_as(world.foreign[READ], path)
    fleet_status, fleet_told = world.ask_as(world.foreign[FLEET], path)
    own_status, own_told = world.ask_as(world.tokens[READ, "none"], path)

    statuses = {Touches.JOB: 404, Touches.OWN_PART: 200, Touches.CLUSTER: 403}
    assert status == statuses[route.touches]
    asked = {world.ours.job_id.encode(), world.incident.encode()}  # the request names them itself
    assert FOREIGN.findall(told) == []
    assert not any(one in told for one in asked) or status == 404
    assert fleet_status == 200
    assert own_status == (403 if route.touches is Touches.CLUSTER else 200)
    if route.name not in ("plans", "slurm", "kubernetes", "metrics", "untaken", "policy", "plan"):
        assert FOREIGN.search(fleet_told)
    if route.touches is not Touches.CLUSTER and route.name not in ("plans", "watched_times"):
        assert own_told not in (b"", told)


def test_absent_job_and_job_of_another_get_the_same_answer(world: World) -> None:
    absent, own = str(uuid.UUID(int=7, version=4)), world.ours.job_id

    for path in (
        "/v1/jobs/{}",
        "/v1/jobs/{}/ranks",
        "/v1/plan?job={}",
        "/v1/policy?job={}",
        "/v1/incidents/{}",
    ):
        there = world.ask_as(world.foreign[READ], path.format(own))
        nowhere = world.ask_as(world.foreign[READ], path.format(absent))
        assert (there[0], there[1].replace(own.encode(), b"")) == (
            nowhere[0],
            nowhere[1].replace(absent.encode(), b""),
        )


def test_console_shows_nothing_of_the_jobs_of_others(world: World) -> None:
    job, watched = world.ours.job_id, _watched(OWN)["job_id"]
    open_to_all = ("/", "/jobs", "/jobs?q=llama", "/incidents", "/nodes/n1")
    of_others = (
        f"/jobs/{job}",
        f"/jobs/{job}/ranks.json",
        f"/incidents/{world.incident}",
        f"/journal?job={job}",
        f"/watched/{watched}",
    )

    own = world.console(world.tokens[READ, "none"])  # first, so that what pages share is there
    fleet = world.console(world.foreign[FLEET])
    shown = {path: (own(path), fleet(path)) for path in (*open_to_all, *of_others)}
    page = world.console(world.foreign[READ])
    hidden = {path: page(path) for path in (*open_to_all, *of_others, "/journal")}

    assert {path: (own[0], fleet[0]) for path, (own, fleet) in shown.items()} == dict.fromkeys(
        shown, (200, 200)
    )
    assert FOREIGN.search(shown["/jobs"][0][1])
    assert FOREIGN.search(shown["/jobs"][1][1])
    told = {
        path: FOREIGN.findall(body.replace(b"llama", b"", path.count("llama") * 9))
        for path, (_status, body) in hidden.items()
    }
    assert {path: names for path, names in told.items() if names and path != "/nodes/n1"} == {}
    assert set(told["/nodes/n1"]) <= {b"n1"}  # the page repeats what was asked for
    assert {hidden[path][0] for path in of_others} == {404}
    assert hidden["/journal"][0] == 403


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/cluster", "/v1/sd/agents", "/v1/jobs/{job}"])
def test_list_shows_no_node_outside_the_limits(world: World, path: str) -> None:
    path = path.format(job=world.ours.job_id)
    _status, own = world.ask(FLEET, "its node", "GET", path)
    _status, foreign = world.ask(FLEET, "another node", "GET", path)

    assert re.search(r"\bn2\b", own.decode())
    assert re.findall(r"\bx[129]\b", own.decode()) == []
    assert re.findall(r"\bn[129]\b", foreign.decode()) == []


@pytest.mark.parametrize(
    ("limit", "scope", "status"),
    [
        ("none", "cluster", 200),
        ("its job", "cluster", 403),
        ("its node", "cluster", 403),
        ("its node", "node:n1", 200),
        ("its job", "node:n1", 403),
        ("another node", "node:n1", 403),
        ("its job", "job:00000000-0000-4000-8000-000000000000", 403),
    ],
)
def test_pause_touches_its_scope(world: World, limit: str, scope: str, status: int) -> None:
    path = f"/v1/pauses/{scope}/pause"

    assert world.ask(Role.ACT, limit, "POST", path, b"{}")[0] == status


@pytest.mark.parametrize(
    ("limit", "act", "node", "status"),
    [
        ("its job", "confirm_gone", "x1", 202),
        ("its node", "confirm_gone", "n1", 202),
        ("its node", "confirm_gone", "x1", 403),
        ("its job, its node", "confirm_gone", "x1", 403),
        ("another job", "confirm_gone", "n1", 404),
        ("its node", "reset_budgets", "n1", 403),
    ],
)
def test_command_that_names_a_node_is_the_jobs_own_there(
    world: World, limit: str, act: str, node: str, status: int
) -> None:
    path = f"/v1/jobs/{world.ours.job_id}/commands"
    body = json.dumps({"act": act, "node": node}).encode()

    told, _said = world.ask(Role.ACT, limit, "POST", path, body)

    assert told == status or (status == 202 and told == 409)  # it may contradict what is there


@pytest.mark.parametrize(
    ("limit", "nodes", "status"),
    [
        ("its node", ["n1", "n2"], 200),
        ("its node", ["n1", "x1"], 403),
        ("its node", ["*"], 403),
        ("its node", ["n1*"], 200),
        ("its job", ["n1"], 403),
        ("none", ["*-x"], 200),
    ],
)
def test_window_lies_within_the_nodes_of_the_token(
    world: World, limit: str, nodes: list[str], status: int
) -> None:
    body = msgspec.json.encode(_window(nodes))

    assert world.ask(Role.ACT, limit, "POST", "/v1/windows", body)[0] == status


def test_alert_of_a_token_for_jobs_names_one_of_them(world: World) -> None:
    labels = {"alertname": "RankmendX", "node": "n1", "job_id": world.ours.job_id}
    body = json.dumps([{"labels": labels}]).encode()

    assert world.ask(Role.ALERT, "its job", "POST", "/api/v2/alerts", body)[0] == 200
    assert world.ask(Role.ALERT, "another job", "POST", "/api/v2/alerts", body)[0] == 403


def test_certificate_accuses_no_other_node_by_a_label_that_is_read_first(world: World) -> None:
    worker = world.up.service.worker
    policy = worker.desk.policy
    worker.call(
        lambda: worker.desk.take_policy(
            replace(policy, alerts=replace(policy.alerts, node_labels=("Hostname", "node")))
        )
    ).result(DEADLINE_S)
    try:
        labels = {"alertname": "RankmendX", "node": "n1", "Hostname": "x1"}
        body = json.dumps([{"labels": labels}]).encode()

        assert world.ask(Role.REPORT, "its node", "POST", "/api/v2/alerts", body)[0] == 403
        assert world.ask(Role.REPORT, "another node", "POST", "/api/v2/alerts", body)[0] == 200
    finally:
        worker.call(lambda: worker.desk.take_policy(policy)).result(DEADLINE_S)
