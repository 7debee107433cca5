"""The cluster: pauses of its automation, and maintenance windows."""

import secrets
from collections.abc import Sequence
from typing import Final

from recovery.api import wire
from recovery.console.views.untaken_view import view_untaken
from recovery.journal.cluster_records import WindowAdded
from recovery.service.fleet.answers import nodes_of, notes_on_others, others
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.handlers.nodes import refuse_unknown_nodes
from recovery.service.http.permission import reads_all
from recovery.service.http.request_errors import CallConflictError
from recovery.service.jobs import views
from recovery.service.jobs.job_registry import refuse_ended
from recovery.service.roles import Role, Subject, UnknownError

_EVERYBODY: Final = Subject("controller", frozenset({Role.FLEET_READ}), how="controller")


async def cluster(backend: Backend, call: Call[None]) -> wire.Cluster:
    desk, subject = backend.worker.desk, call.subject
    nodes: list[wire.NodeView] = []
    if not reads_all(subject):
        nodes = await backend.look(
            lambda running: [view for job in running for view in views.view_nodes(job, desk)]
        )
        nodes += nodes_of(await others(backend, "nodes", subject))
    whole = await backend.ask(lambda: views.view_cluster(desk))
    for reported in await others(backend, "cluster", _EVERYBODY) if not subject.via else ():
        if reported.answer is not None and not reported.problem:
            add_notes(whole, reported.answer.notes, reported.answer.notes_about)
    notes = notes_on_others(backend, subject)
    add_notes(whole, notes, [""] * len(notes))
    return backend.sight(subject, nodes).part_of(whole)


def add_notes(whole: wire.Cluster, notes: Sequence[str], about: Sequence[str]) -> None:
    """Add the notes that are not there yet."""
    for note, item in zip(notes, about, strict=True):
        if note not in whole.notes:
            whole.notes.append(note)
            whole.notes_about.append(item)


async def pause_cluster(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    return await _pause(backend, call, "cluster")


async def resume_cluster(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    return await _resume(backend, call, "cluster")


async def pause(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    return await _pause(backend, call, call.parts["scope"])


async def resume(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    return await _resume(backend, call, call.parts["scope"])


async def _pause(backend: Backend, call: Call[wire.Because], scope: str) -> wire.Done:
    reason, who = call.given.reason, call.subject.name
    kind, _colon, name = scope.partition(":")
    if kind == "node" and not call.given.is_expected:
        await refuse_unknown_nodes(backend, call.subject, [name])
    elif kind == "job":
        known = call.known.get(name)
        if known is None:
            raise UnknownError(f"no job {name}")
        refuse_ended(name, known)
    await backend.ask(lambda: backend.worker.desk.pause(scope, who, reason))
    return wire.Done(
        f"{scope} is paused: ranks keep running, failures are reported, and recovery plans wait"
    )


async def _resume(backend: Backend, call: Call[wire.Because], scope: str) -> wire.Done:
    reason, who, desk = call.given.reason, call.subject.name, backend.worker.desk

    def act() -> None:
        if scope not in desk.ledger.paused:
            raise CallConflictError(f"{scope} is not paused", "scope", scope)
        desk.resume(scope, who, reason)

    await backend.ask(act)
    return wire.Done(f"{scope} is resumed")


async def add_window(backend: Backend, call: Call[wire.Window]) -> wire.WindowView:
    requested = call.given
    if not requested.is_expected:
        await refuse_unknown_nodes(backend, call.subject, requested.nodes)
    window = WindowAdded(
        f"w{secrets.token_hex(4)}",
        tuple(requested.nodes),
        requested.from_unix_s,
        requested.until_unix_s,
        call.subject.name,
        requested.reason,
    )
    call.detail = f"{window.window_id}: {', '.join(requested.nodes[:20])} {requested.reason}"
    await backend.ask(lambda: backend.worker.desk.add_window(window))
    return wire.WindowView(
        window.window_id,
        requested.nodes,
        requested.from_unix_s,
        requested.until_unix_s,
        window.who,
        requested.reason,
    )


async def end_window(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    window_id, reason, who = call.parts["window"], call.given.reason, call.subject.name
    desk = backend.worker.desk

    def act() -> None:
        if window_id not in desk.ledger.windows:
            raise CallConflictError(f"there is no window {window_id}", "window", window_id)
        desk.remove_window(window_id, who, reason)

    await backend.ask(act)
    return wire.Done(f"window {window_id} has ended")


async def untaken(backend: Backend, call: Call[None]) -> wire.Untaken:
    del call  # who may ask is decided by the route
    desk, slurm = backend.worker.desk, backend.slurm

    def act() -> wire.Untaken:
        ledger = None if slurm is None else slurm.ledger
        return view_untaken(desk.ledger, ledger, lambda job_id: _name_of(backend, job_id))

    return await backend.ask(act)


def _name_of(backend: Backend, job_id: str) -> str:
    known = backend.worker.jobs.everywhere.get(job_id)
    return "" if known is None else known.name
