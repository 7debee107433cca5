"""The list of what the API answers: path, types, roles and limits. The server and /openapi.json are made from it."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from recovery.api import wire
from recovery.messages.codec import MESSAGE_BYTES_MAX
from recovery.messages.exchange import Order, Report
from recovery.service.permission import Touches
from recovery.service.roles import Role

SMALL_BYTES: Final = 64 * 1024
ALERT_BYTES_MAX: Final = 8 * 1024 * 1024  # 10,000 alerts of a switch with 800 bytes each
INCIDENTS_MAX: Final = 1000


class RequestKind(Enum):
    """Which rate a request counts against."""

    REPORT = "reports"
    LAUNCH = "launches"
    ALERT = "alerts"
    READ = "reads"
    ACT = "acts"
    OPEN = "open"  # nobody is asked who he is


class OrderQuery(Struct):
    launcher: wire.LauncherId
    after: Annotated[int, Meta(ge=0)] = 0
    epoch: Annotated[int, Meta(ge=0)] = 0
    wait: Annotated[float, Meta(ge=0, le=wire.WAIT_S_MAX)] = 0.0


class JobsQuery(Struct):
    ended: bool = False


class IncidentsQuery(Struct):
    job: wire.Uuid | None = None
    limit: Annotated[int, Meta(ge=1, le=INCIDENTS_MAX)] = 100


class PolicyQuery(Struct):
    job: wire.Uuid | None = None


class PlanQuery(Struct):
    job: wire.Uuid
    node: wire.Name | None = None


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: str  # method of `recovery.service.web.Api`
    kind: RequestKind
    touches: Touches
    summary: str
    roles: tuple[Role, ...] = ()
    body: Any = None  # type of the body
    query: type[Struct] | None = None
    answer: Any = None  # type of the answer; None: text
    status: int = 200
    body_bytes_max: int = SMALL_BYTES
    also: tuple[int, ...] = ()  # statuses beyond those that every route of its kind has


_LAUNCH: Final = (Role.LAUNCH,)
_READ: Final = (Role.READ,)
_ACT: Final = (Role.ACT,)
_ALERT: Final = (Role.ALERT, Role.REPORT)

ROUTES: Final = (
    Route("POST", "/v1/jobs", "join", RequestKind.LAUNCH, Touches.OWN_JOB, "Join a job as a launcher", _LAUNCH,
          body=wire.JoinRequest, answer=wire.JoinAnswer, also=(409, 410)),
    Route("POST", "/v1/jobs/{job}/reports", "report", RequestKind.REPORT, Touches.OWN_JOB, "Say what a node runs", _LAUNCH,
          body=Report, answer=wire.Accepted, status=202, body_bytes_max=MESSAGE_BYTES_MAX,
          also=(404, 409, 410)),
    Route("GET", "/v1/jobs/{job}/orders/{node}", "order", RequestKind.LAUNCH, Touches.OWN_JOB,
          "Wait for what the node ought to run (long poll)", _LAUNCH,
          query=OrderQuery, answer=Order, also=(204, 404, 409, 410)),
    Route("POST", "/api/v2/alerts", "alerts", RequestKind.ALERT, Touches.ALERTS, "Take alerts as Alertmanager does", _ALERT,
          body=list[dict[str, Any]], answer=wire.Taken, body_bytes_max=ALERT_BYTES_MAX),
    Route("POST", "/v1/alertmanager", "webhook", RequestKind.ALERT, Touches.ALERTS, "Take Alertmanager's webhook (version 4)",
          _ALERT, body=dict[str, Any], answer=wire.Taken, body_bytes_max=ALERT_BYTES_MAX),
    Route("GET", "/v1/jobs", "jobs", RequestKind.READ, Touches.OWN_PART, "List jobs", _READ, query=JobsQuery, answer=wire.Jobs),
    Route("GET", "/v1/jobs/{job}", "job", RequestKind.READ, Touches.JOB, "Show one job and its nodes", _READ,
          answer=wire.JobDetail, also=(404,)),
    Route("GET", "/v1/nodes", "nodes", RequestKind.READ, Touches.OWN_PART, "List nodes", _READ, answer=wire.Nodes),
    Route("GET", "/v1/incidents", "incidents", RequestKind.READ, Touches.OWN_PART, "List incidents with their MTTR, newest first",
          _READ, query=IncidentsQuery, answer=wire.Incidents),
    Route("GET", "/v1/incidents/{incident}", "story", RequestKind.READ, Touches.JOB,
          "Say why rankmend acted as it did: an incident's or a job's whole story", _READ,
          answer=wire.Story, also=(404,)),
    Route("GET", "/v1/plans", "plans", RequestKind.READ, Touches.OWN_PART, "List plans that wait, for an approval or otherwise",
          _READ, answer=wire.Plans),
    Route("GET", "/v1/plan", "plan", RequestKind.READ, Touches.JOB, "Show the plan that a failure now would lead to",
          _READ, query=PlanQuery, answer=wire.PlanView, also=(404, 409, 410)),
    Route("GET", "/v1/policy", "policy", RequestKind.READ, Touches.JOB, "Show the limits of a job, or of all jobs", _READ,
          query=PolicyQuery, answer=wire.PolicyView, also=(404, 410)),
    Route("GET", "/v1/cluster", "cluster", RequestKind.READ, Touches.OWN_PART, "Show pauses, held nodes and maintenance windows",
          _READ, answer=wire.Cluster),
    Route("POST", "/v1/jobs/{job}/commands", "command", RequestKind.ACT, Touches.JOB, "Have a job do something", _ACT,
          body=wire.JobCommand, answer=wire.Done, status=202,
          also=(404, 409, 410)),
    Route("POST", "/v1/incidents/{incident}/acknowledge", "acknowledge", RequestKind.ACT, Touches.JOB,
          "Take note of an incident that was escalated: nobody is told of it any more", _ACT,
          body=wire.Because, answer=wire.Done, also=(404, 409)),
    Route("POST", "/v1/cluster/pause", "pause_cluster", RequestKind.ACT, Touches.CLUSTER, "Pause automation for the cluster", _ACT,
          body=wire.Because, answer=wire.Done),
    Route("POST", "/v1/cluster/resume", "resume_cluster", RequestKind.ACT, Touches.CLUSTER, "Decide again", _ACT,
          body=wire.Because, answer=wire.Done, also=(409,)),
    Route("POST", "/v1/pauses/{scope}/pause", "pause", RequestKind.ACT, Touches.SCOPE,
          "Pause automation for job:UUID or node:NAME", _ACT, body=wire.Because, answer=wire.Done, also=(404, 410)),
    Route("POST", "/v1/pauses/{scope}/resume", "resume", RequestKind.ACT, Touches.SCOPE, "Decide again within a scope", _ACT,
          body=wire.Because, answer=wire.Done, also=(409,)),
    Route("POST", "/v1/nodes/{node}/drain", "drain", RequestKind.ACT, Touches.NODE, "Stop placing ranks on a node", _ACT,
          body=wire.Because, answer=wire.Done, also=(404,)),
    Route("POST", "/v1/nodes/{node}/resume", "release", RequestKind.ACT, Touches.NODE,
          "Take a node back from a drain or quarantine", _ACT, body=wire.Because, answer=wire.Done, also=(404,)),
    Route("POST", "/v1/windows", "add_window", RequestKind.ACT, Touches.NODES, "Add a maintenance window", _ACT,
          body=wire.Window, answer=wire.WindowView, also=(404,)),
    Route("POST", "/v1/windows/{window}/end", "end_window", RequestKind.ACT, Touches.NODES, "Remove a maintenance window", _ACT,
          body=wire.Because, answer=wire.Done, also=(409,)),
    Route("GET", "/v1/sd/agents", "agents", RequestKind.READ, Touches.OWN_PART, "Tell Prometheus where the agents are (http_sd)",
          _READ, answer=list[wire.Target]),
    Route("GET", "/metrics", "metrics", RequestKind.READ, Touches.CLUSTER, "The controller's own metrics", _READ),
    Route("GET", "/healthz", "healthz", RequestKind.OPEN, Touches.NOTHING, "Say whether the controller works", also=(503,)),
    Route("GET", "/readyz", "readyz", RequestKind.OPEN, Touches.NOTHING, "Say whether it has taken up its jobs", also=(503,)),
    Route("GET", "/openapi.json", "openapi", RequestKind.OPEN, Touches.NOTHING, "This description", answer=dict[str, Any]),
)  # fmt: skip

_TEXTS: Final = {
    400: "The request can't be understood",
    401: "Not authenticated",
    403: "Not allowed",
    404: "There is no such thing",
    409: "It contradicts what is there",
    410: "The job has ended",
    413: "The body is too large",
    415: "The body is encoded",
    429: "Too many requests",
    503: "Not now",
}


def describe(version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of all routes."""
    types: set[Any] = {wire.Problem}
    for route in ROUTES:
        types |= {one for one in (route.body, route.answer, route.query) if one is not None}
    listed = [one for one in types if isinstance(one, type)]
    schemas, parts = msgspec.json.schema_components(
        [*listed, list[wire.Target]], ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip([*listed, "targets"], schemas, strict=True))

    def schema(wanted: Any) -> Any:
        if wanted == list[wire.Target]:
            return by_type["targets"]
        if wanted in by_type:
            return by_type[wanted]
        if wanted == list[dict[str, Any]]:
            return {"type": "array", "items": {"type": "object"}}
        return {"type": "object"}

    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema, parts)
    return {
        "openapi": "3.1.0",
        "info": {"title": "rankmend controller", "version": version},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _operation(route: Route, schema: Any, parts: dict[str, Any]) -> dict[str, Any]:
    statuses = {400, 503, *route.also}
    if route.kind is not RequestKind.OPEN:
        statuses |= {401, 403, 429}
    if route.body is not None:
        statuses |= {413, 415}
    problem = {"application/json": {"schema": schema(wire.Problem)}}
    if route.answer is None:
        content = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schema(route.answer)}}
    responses: dict[str, Any] = {
        str(route.status): {"description": "Done", "content": content},
        "307": {"description": "Another controller looks after this: Location"},
    }
    for status in sorted(statuses - {204}):
        responses[str(status)] = {"description": _TEXTS[status], "content": problem}
    if 204 in statuses:
        responses["204"] = {"description": "Nothing new within the wait"}
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "responses": responses,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schema, parts)],
    }
    if route.roles:
        operation["description"] = "Roles: " + ", ".join(role.value for role in route.roles)
        operation["security"] = [{"token": []}]
        if Role.REPORT in route.roles:
            operation["security"].append({"certificate": []})
    else:
        operation["security"] = [{}]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema(route.body)}},
        }
    return operation


PATH_PATTERNS: Final = {
    "job": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    "node": wire.NAME_PATTERN,
    "scope": wire.NAME_PATTERN,
    "window": wire.NAME_PATTERN,
    "incident": wire.NAME_PATTERN,
}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": PATH_PATTERNS[name]},
        }
        for name in names
    ]


def _query_parameters(route: Route, schema: Any, parts: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    told = parts[schema(route.query)["$ref"].rpartition("/")[2]]
    required = told.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": one}
        for name, one in told["properties"].items()
    ]
