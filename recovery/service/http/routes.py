"""The routes of the API: one row for each, with its handler, who may ask, and what a request touches.

`recovery.service.http.permission` decides from roles and `Touches` before a handler runs. The server and /openapi.json are
made from this table.
"""

from typing import Any, Final

from rankmend.watched_report import BYTES_MAX, ReportTaken, WatchedReport, decode
from recovery.api import wire
from recovery.messages.codec import MESSAGE_BYTES_MAX, decode_report
from recovery.messages.exchange import Order, Report
from recovery.service.http.handlers import (
    alerts,
    cluster,
    health,
    incidents,
    jobs,
    launchers,
    nodes,
    slurm,
    watched,
)
from recovery.service.http.permission import Touches
from recovery.service.http.route import (
    NOTHING,
    PAGE,
    TEXT,
    Answerer,
    Body,
    RequestKind,
    Route,
    answer,
    body,
    encoded,
    query,
)
from recovery.service.roles import Role

ALERT_BYTES_MAX: Final = 8 * 1024 * 1024  # 10,000 alerts of a switch with 800 bytes each

_LAUNCH: Final = (Role.LAUNCH,)
_READ: Final = (Role.READ, Role.FLEET_READ)
_FLEET: Final = (Role.FLEET_READ,)
_ACT: Final = (Role.ACT,)
_ALERT: Final = (Role.ALERT, Role.REPORT)
_REPORT: Final = Body(Report, lambda text, _now_unix_s: decode_report(text), MESSAGE_BYTES_MAX)
_POSTED: Final = Body(list[dict[str, Any]], alerts.read_posted, ALERT_BYTES_MAX)
_WEBHOOK: Final = Body(dict[str, Any], alerts.read_webhook, ALERT_BYTES_MAX)
_WATCHED: Final = Body(WatchedReport, lambda text, _now_unix_s: decode(text), BYTES_MAX)
_BECAUSE: Final = body(wire.Because)
_DONE: Final = answer(wire.Done)

# No annotation: mypy then infers what each row takes and gives, and compares that with its handler.
_LAUNCHERS = (
    Route("join", "POST", "/v1/jobs", launchers.join, RequestKind.LAUNCH, _LAUNCH, Touches.OWN_JOB,
          body(wire.JoinRequest), answer(wire.JoinAnswer),
          "Join a job as a launcher", also=(404, 409, 410)),
    Route("report", "POST", "/v1/jobs/{job}/reports", launchers.report, RequestKind.REPORT, _LAUNCH, Touches.OWN_JOB,
          _REPORT, answer(wire.Accepted),
          "Report what a node runs", status=202, also=(404, 409, 410)),
    Route("order", "GET", "/v1/jobs/{job}/orders/{node}", launchers.order, RequestKind.LAUNCH, _LAUNCH, Touches.OWN_JOB,
          query(launchers.OrderQuery), encoded(Order),
          "Wait for the node's next order (long poll)", also=(204, 404, 409, 410)),
)  # fmt: skip
_ALERTS = (
    Route("alerts", "POST", "/api/v2/alerts", alerts.post, RequestKind.ALERT, _ALERT, Touches.ALERTS,
          _POSTED, answer(wire.Taken),
          "Accept alerts as Alertmanager does"),
    Route("webhook", "POST", "/v1/alertmanager", alerts.webhook, RequestKind.ALERT, _ALERT, Touches.ALERTS,
          _WEBHOOK, answer(wire.Taken),
          "Accept Alertmanager's webhook (version 4)"),
    Route("report_watched", "POST", "/v1/watched", watched.report, RequestKind.ALERT, _ALERT, Touches.REPORTED_NODE,
          _WATCHED, answer(ReportTaken),
          "Report the jobs of other launchers on a node"),
)  # fmt: skip
_READS = (
    Route("jobs", "GET", "/v1/jobs", jobs.jobs, RequestKind.READ, _READ, Touches.OWN_PART,
          query(jobs.JobsQuery), answer(wire.Jobs),
          "List jobs"),
    Route("job", "GET", "/v1/jobs/{job}", jobs.job, RequestKind.READ, _READ, Touches.JOB,
          NOTHING, answer(wire.JobDetail),
          "Show one job and its nodes", also=(404,), answerer=Answerer.OWNER),
    Route("ranks", "GET", "/v1/jobs/{job}/ranks", jobs.ranks, RequestKind.READ, _READ, Touches.JOB,
          NOTHING, answer(wire.RankMap),
          "Show where the ranks of a job stand: step, age, state, slowness", also=(404,), answerer=Answerer.OWNER),
    Route("nodes", "GET", "/v1/nodes", nodes.nodes, RequestKind.READ, _READ, Touches.OWN_PART,
          NOTHING, answer(wire.Nodes),
          "List nodes"),
    Route("watched", "GET", "/v1/watched", watched.watched, RequestKind.READ, _READ, Touches.OWN_PART,
          NOTHING, answer(wire.Watched),
          "List the jobs of other launchers, and what is wrong with them"),
    Route("watched_times", "GET", "/v1/watched/times", watched.times, RequestKind.READ, _READ, Touches.OWN_PART,
          NOTHING, answer(wire.WatchedTimes),
          "Show where the time of the jobs of other launchers went"),
    Route("incidents", "GET", "/v1/incidents", incidents.incidents, RequestKind.READ, _READ, Touches.OWN_PART,
          query(incidents.IncidentsQuery), answer(wire.Incidents),
          "List incidents with their MTTR, newest first"),
    Route("story", "GET", "/v1/incidents/{incident}", incidents.story, RequestKind.READ, _READ, Touches.JOB,
          query(incidents.StoryQuery), answer(wire.Story),
          "Explain each decision: the whole story of an incident or a job", also=(404,)),
    Route("plans", "GET", "/v1/plans", jobs.plans, RequestKind.READ, _READ, Touches.OWN_PART,
          NOTHING, answer(wire.Plans),
          "List pending plans"),
    Route("plan", "GET", "/v1/plan", jobs.plan, RequestKind.READ, _READ, Touches.JOB,
          query(jobs.PlanQuery), answer(wire.PlanView),
          "Show the plan that a failure now would cause", also=(404, 409, 410), answerer=Answerer.OWNER),
    Route("policy", "GET", "/v1/policy", jobs.policy, RequestKind.READ, _READ, Touches.JOB,
          query(jobs.PolicyQuery), answer(wire.PolicyView),
          "Show the limits of a job, or of all jobs", also=(404, 410), answerer=Answerer.OWNER),
    Route("cluster", "GET", "/v1/cluster", cluster.cluster, RequestKind.READ, _READ, Touches.OWN_PART,
          NOTHING, answer(wire.Cluster),
          "Show pauses, held nodes and maintenance windows"),
    Route("slurm", "GET", "/v1/slurm", slurm.slurm, RequestKind.READ, _FLEET, Touches.CLUSTER,
          NOTHING, answer(wire.SlurmView),
          "Show the requests to Slurm, and the nodes that were drained there", answerer=Answerer.DESK),
    Route("kubernetes", "GET", "/v1/kubernetes", slurm.kubernetes, RequestKind.READ, _FLEET, Touches.CLUSTER,
          NOTHING, answer(wire.SlurmView),
          "Show the requests to Kubernetes, and the nodes that were cordoned there", answerer=Answerer.DESK),
    Route("untaken", "GET", "/v1/untaken", cluster.untaken, RequestKind.READ, _FLEET, Touches.CLUSTER,
          NOTHING, answer(wire.Untaken),
          "List what the cluster's rules would have had done, and drains by others"),
    Route("agents", "GET", "/v1/sd/agents", nodes.agents, RequestKind.READ, _READ, Touches.OWN_PART,
          NOTHING, answer(list[wire.Target]),
          "List the agents for Prometheus (http_sd)"),
    Route("metrics", "GET", "/metrics", health.metrics, RequestKind.READ, _FLEET, Touches.CLUSTER,
          NOTHING, PAGE,
          "Show the controller's own metrics"),
)  # fmt: skip
_ACTS = (
    Route("command", "POST", "/v1/jobs/{job}/commands", jobs.command, RequestKind.ACT, _ACT, Touches.JOB,
          body(wire.JobCommand), _DONE,
          "Send a command to a job", status=202, also=(404, 409, 410), answerer=Answerer.OWNER),
    Route("acknowledge", "POST", "/v1/incidents/{incident}/acknowledge", incidents.acknowledge, RequestKind.ACT, _ACT, Touches.JOB,
          _BECAUSE, _DONE,
          "Acknowledge an incident that was given up: its notices stop", also=(404, 409)),
    Route("pause_cluster", "POST", "/v1/cluster/pause", cluster.pause_cluster, RequestKind.ACT, _ACT, Touches.CLUSTER,
          _BECAUSE, _DONE,
          "Pause automation for the cluster"),
    Route("resume_cluster", "POST", "/v1/cluster/resume", cluster.resume_cluster, RequestKind.ACT, _ACT, Touches.CLUSTER,
          _BECAUSE, _DONE,
          "Resume automation for the cluster", also=(409,)),
    Route("pause", "POST", "/v1/pauses/{scope}/pause", cluster.pause, RequestKind.ACT, _ACT, Touches.SCOPE,
          _BECAUSE, _DONE,
          "Pause automation for job:UUID or node:NAME", also=(404, 410)),
    Route("resume", "POST", "/v1/pauses/{scope}/resume", cluster.resume, RequestKind.ACT, _ACT, Touches.SCOPE,
          _BECAUSE, _DONE,
          "Resume automation for job:UUID or node:NAME", also=(409,)),
    Route("drain", "POST", "/v1/nodes/{node}/drain", nodes.drain, RequestKind.ACT, _ACT, Touches.NODE,
          body(wire.NodeDrain), _DONE,
          "Stop placing ranks on a node", also=(404,)),
    Route("release", "POST", "/v1/nodes/{node}/resume", nodes.release, RequestKind.ACT, _ACT, Touches.NODE,
          _BECAUSE, _DONE,
          "Take a node back from a drain or quarantine", also=(404,)),
    Route("add_window", "POST", "/v1/windows", cluster.add_window, RequestKind.ACT, _ACT, Touches.NODES,
          body(wire.Window), answer(wire.WindowView),
          "Add a maintenance window", also=(404,)),
    Route("end_window", "POST", "/v1/windows/{window}/end", cluster.end_window, RequestKind.ACT, _ACT, Touches.NODES,
          _BECAUSE, _DONE,
          "Remove a maintenance window", also=(409,)),
)  # fmt: skip
_OPEN = (
    Route("healthz", "GET", "/healthz", health.healthz, RequestKind.OPEN, (), Touches.NOTHING,
          NOTHING, TEXT,
          "Check that the controller works", also=(503,)),
    Route("readyz", "GET", "/readyz", health.readyz, RequestKind.OPEN, (), Touches.NOTHING,
          NOTHING, TEXT,
          "Check that the controller has resumed its jobs", also=(503,)),
    Route("openapi", "GET", "/openapi.json", health.openapi, RequestKind.OPEN, (), Touches.NOTHING,
          NOTHING, answer(dict[str, Any]),
          "Show this description"),
)  # fmt: skip

ROUTES: Final[tuple[Route[Any, Any, Any], ...]] = (*_LAUNCHERS, *_ALERTS, *_READS, *_ACTS, *_OPEN)
BY_NAME: Final[dict[str, Route[Any, Any, Any]]] = {route.name: route for route in ROUTES}
