"""Jobs of other launchers: what agents report of them, and the list with the verdicts."""

from detectors.wording import counted
from rankmend.watched_report import ReportTaken, WatchedReport
from recovery.api import wire
from recovery.console.views.watched_time_view import view_time
from recovery.service.fleet.answers import others
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.permission import may_read, reads_all
from recovery.service.roles import Role, Subject


async def report(backend: Backend, call: Call[WatchedReport]) -> ReportTaken:
    reported, is_of_node = call.given, Role.REPORT in call.subject.roles
    worker = backend.worker

    def take() -> tuple[int, tuple[str, ...]]:
        if is_of_node:  # a token proves no node
            worker.present.take(reported, worker.hearing.now_s())
            if reported.present or reported.left:
                worker.on_present(reported.node)
        return worker.watched.take(reported), worker.watched.wanted(reported.node)

    refused, wanted = await backend.ask(take)
    text = f"no room for {counted(refused, 'job')}" if refused else "taken"
    return ReportTaken(text=text, evidence_of=wanted)


async def watched(backend: Backend, call: Call[None]) -> wire.Watched:
    return wire.Watched(await seen_watched(backend, call.subject))


async def seen_watched(backend: Backend, subject: Subject) -> list[wire.WatchedView]:
    """Return the jobs that the subject may see: by their user and names, and with each of their nodes."""
    shown = list(await backend.ask(backend.worker.watched.views))
    here = {item.job_id for item in shown}
    for reported in await others(backend, "watched", subject):
        views = () if reported.answer is None else reported.answer.watched
        shown += [view for view in views if view.job_id not in here]
    if reads_all(subject):
        return shown
    return [
        item
        for item in shown
        if may_read(subject, item.user, item.name) and all(map(subject.may_use_node, item.nodes))
    ]


async def times(backend: Backend, call: Call[None]) -> wire.WatchedTimes:
    """Return where the time of watched jobs went. Who may see only some nodes sees none: past nodes are not kept."""
    subject = call.subject
    accounts = backend.measures.accounts
    if accounts is None or accounts.watched is None or subject.nodes:
        return wire.WatchedTimes([])
    found = await backend.disk.read(accounts.watched.times)
    shown = [view_time(item) for item in found if subject.may_use_job(item.name)]
    for reported in await others(backend, "watched_times", subject):
        shown += () if reported.answer is None else reported.answer.jobs
    if (
        subject.reads_own_jobs_only
    ):  # whose a job was is not kept: only of those that agents still report
        own = {view.job_id for view in await seen_watched(backend, subject)}
        shown = [item for item in shown if item.job_id in own]
    return wire.WatchedTimes(shown)
