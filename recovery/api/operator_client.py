"""Requests of people, scripts and Alertmanager to a controller: views and commands."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

import msgspec

from recovery.api import wire
from recovery.api.connection import ControllerConnection, part
from recovery.api.controller_errors import RefusedError
from recovery.messages.outside import PersonAct


class OperatorClient(ControllerConnection):
    searched = ""  # people name the controller that they ask

    def jobs(self, *, with_ended: bool = False) -> list[wire.JobView]:
        return self.ask("GET", f"/v1/jobs?ended={str(with_ended).lower()}", wire.Jobs).jobs

    def job(self, job_id: str) -> wire.JobDetail:
        return self.ask("GET", f"/v1/jobs/{part(job_id)}", wire.JobDetail)

    def nodes(self) -> list[wire.NodeView]:
        return self.ask("GET", "/v1/nodes", wire.Nodes).nodes

    def watched(self) -> list[wire.WatchedView]:
        """Return the jobs of other launchers; an older controller knows none."""
        try:
            return self.ask("GET", "/v1/watched", wire.Watched).watched
        except RefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return []

    def watched_times(self) -> list[wire.WatchedTime]:
        """Return where the time of jobs of other launchers went; an older controller doesn't know."""
        try:
            return self.ask("GET", "/v1/watched/times", wire.WatchedTimes).jobs
        except RefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return []

    def incidents(self, job_id: str | None = None, *, limit: int = 100) -> list[wire.IncidentView]:
        query = {"limit": limit} | ({"job": job_id} if job_id else {})
        return self.ask("GET", f"/v1/incidents?{urlencode(query)}", wire.Incidents).incidents

    def story(self, incident_or_job: str, since_unix_s: float | None = None) -> wire.Story:
        """``since_unix_s``: of a job only what accounts for its time from then on; an older controller returns all."""
        query = "" if since_unix_s is None else f"?since={since_unix_s!r}"
        return self.ask("GET", f"/v1/incidents/{part(incident_or_job)}{query}", wire.Story)

    def plans(self) -> list[wire.PlanView]:
        return self.ask("GET", "/v1/plans", wire.Plans).plans

    def dry_run(self, job_id: str, node: str | None = None) -> wire.PlanView:
        """Return the plan that a failure of the node, or of the job's ranks, would cause now."""
        query = {"job": job_id} | ({"node": node} if node else {})
        return self.ask("GET", f"/v1/plan?{urlencode(query)}", wire.PlanView)

    def cluster(self) -> wire.Cluster:
        return self.ask("GET", "/v1/cluster", wire.Cluster)

    def untaken(self) -> wire.Untaken:
        return self.ask("GET", "/v1/untaken", wire.Untaken)

    def slurm(self) -> wire.SlurmView:
        return self.ask("GET", "/v1/slurm", wire.SlurmView)

    def kubernetes(self) -> wire.SlurmView:
        return self.ask("GET", "/v1/kubernetes", wire.SlurmView)

    def command(
        self,
        job_id: str,
        act: PersonAct,
        *,
        reason: str = "",
        incident_id: str | None = None,
        node: str | None = None,
        key: str = "",
        plan_id: str = "",
    ) -> wire.Done:
        requested = wire.JobCommand(
            act=act, reason=reason, incident_id=incident_id, node=node, key=key, plan_id=plan_id
        )
        return self.ask("POST", f"/v1/jobs/{part(job_id)}/commands", wire.Done, requested)

    def acknowledge(self, incident_id: str, reason: str) -> wire.Done:
        """Acknowledge an incident that was given up: its notices stop."""
        path = f"/v1/incidents/{part(incident_id)}/acknowledge"
        return self.ask("POST", path, wire.Done, wire.Because(reason))

    def policy(self, job_id: str | None = None) -> wire.PolicyView:
        """Return the limits of a job, or of all jobs."""
        query = "" if job_id is None else f"?job={part(job_id)}"
        return self.ask("GET", f"/v1/policy{query}", wire.PolicyView)

    def pause(self, reason: str, scope: str = "cluster", *, is_expected: bool = False) -> wire.Done:
        """Pause automation for ``cluster``, ``job:UUID`` or ``node:NAME`` until it is resumed."""
        path = "/v1/cluster/pause" if scope == "cluster" else f"/v1/pauses/{part(scope)}/pause"
        return self.ask("POST", path, wire.Done, wire.Because(reason, is_expected))

    def resume(self, reason: str, scope: str = "cluster") -> wire.Done:
        path = "/v1/cluster/resume" if scope == "cluster" else f"/v1/pauses/{part(scope)}/resume"
        return self.ask("POST", path, wire.Done, wire.Because(reason))

    def drain(
        self, node: str, reason: str, *, is_expected: bool = False, also_in: str = ""
    ) -> wire.Done:
        """Have the node get no ranks; ``also_in``: "slurm" or "kubernetes", which is asked to take it out, too."""
        path = f"/v1/nodes/{part(node)}/drain"
        if not also_in:  # as older controllers read it
            return self.ask("POST", path, wire.Done, wire.Because(reason, is_expected))
        return self.ask("POST", path, wire.Done, wire.NodeDrain(reason, is_expected, also_in))

    def release(self, node: str, reason: str) -> wire.Done:
        """Release a node from a drain or quarantine."""
        path = f"/v1/nodes/{part(node)}/resume"
        return self.ask("POST", path, wire.Done, wire.Because(reason))

    def add_window(self, window: wire.Window) -> wire.WindowView:
        return self.ask("POST", "/v1/windows", wire.WindowView, window)

    def end_window(self, window_id: str, reason: str) -> wire.Done:
        path = f"/v1/windows/{part(window_id)}/end"
        return self.ask("POST", path, wire.Done, wire.Because(reason))

    def post_alerts(self, alerts: Sequence[Mapping[str, object]]) -> wire.Taken:
        body = msgspec.json.encode(list(alerts))
        return self.decode(self.request("POST", "/api/v2/alerts", body), wire.Taken)
