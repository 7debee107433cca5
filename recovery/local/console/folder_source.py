"""Gives the console what a state folder tells: the same values as `rankmend status` and `rankmend why` show of it.

It reads, and never writes. Whoever may read the folder may see all of it.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Final, NoReturn, TypeVar

from rankmend.clock import read_boot_id
from rankmend.errors import RankmendError
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_window import read_job_time
from recovery.accounting.readings.reading import NodeReading
from recovery.accounting.readings.reading_file import read_readings
from recovery.api import wire
from recovery.console.acts import AskedAct, command_of
from recovery.console.source import JobRecords, PageError, PastJob, RankTail, Viewer
from recovery.console.views.incident_view import view_incidents
from recovery.console.views.plan_view import view_plan
from recovery.controller.job.watch.rank_picture import RankState
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.folder.heartbeat import read_heartbeat
from recovery.journal.folder.job_folder import is_held, list_folders
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import OutcomeKind
from recovery.journal.ledger import Moment
from recovery.journal.records import Entry
from recovery.journal.stored_journal import JournalFile
from recovery.local.report.overview import (
    StoredJobView,
    StoredRankView,
    find_story,
    name_of,
    read_entries,
    view_job,
    view_losses,
)

_INCIDENTS: Final = 200
_JOBS_MAX: Final = 100  # the newest: each look reads their journals
_ENDED: Final = frozenset(kind.value for kind in OutcomeKind)
_TAIL_RANKS_MAX: Final = 4  # whose output an incident's page shows
_TAIL_LINES_MAX: Final = 40
_TAIL_BYTES_MAX: Final = 16 * 1024  # of one stream
_LOOK_S: Final = 0.5  # between two looks at the files' times
_STANDS_S_MIN: Final = 10.0  # as recovery.controller.job.watch.rank_picture
_STANDS_STEPS: Final = 10.0

_T = TypeVar("_T")


class FolderSource:
    """Belongs to the event loop; files are read in threads."""

    is_controller = False

    def __init__(
        self,
        state: Path,
        own_node: str = "",
        watched: Callable[[], Sequence[wire.WatchedView]] = lambda: (),
    ) -> None:
        """``watched``: looks at this machine's jobs of other launchers."""
        self._state = state
        self._watched = watched
        self.title = f"state folder {state}"
        self.own_node = own_node
        self._revision = ("", -_LOOK_S)

    async def _read(self, act: Callable[[], _T]) -> _T:
        try:
            return await asyncio.to_thread(act)
        except PageError:
            raise
        except RankmendError as error:
            raise PageError(str(error), 503) from error

    def _folders(self) -> list[Path]:
        return list_folders(self._state)[:_JOBS_MAX]

    def _views(self) -> list[StoredJobView]:
        return [view_job(folder, time.monotonic, time.time()) for folder in self._folders()]

    def _view_of(self, job_id: str) -> StoredJobView:
        found = next((view for view in self._views() if view.job_id == job_id), None)
        if found is None:
            raise PageError(f"no job {job_id[:80]}", 404)
        return found

    async def jobs(self, viewer: Viewer) -> list[wire.JobView]:
        del viewer
        return [item for item in await self._read(self._views) if item.state not in _ENDED]

    async def ended(self, viewer: Viewer) -> list[PastJob]:
        del viewer
        return [
            PastJob(item.job_id, item.name, item.owner, item.state, item.reason or "")
            for item in await self._read(self._views)
            if item.state in _ENDED
        ]

    async def job(self, viewer: Viewer, job_id: str) -> wire.JobDetail:
        del viewer

        def read() -> wire.JobDetail:
            view = self._view_of(job_id)
            return wire.JobDetail(view, _nodes_of(view))

        return await self._read(read)

    async def ranks(self, viewer: Viewer, job_id: str) -> wire.RankMap:
        del viewer

        def read() -> wire.RankMap:
            view = self._view_of(job_id)
            nodes = {rank: node.node for node in _nodes_of(view) for rank in node.ranks}
            losses = view_losses(Path(view.state_dir), time.monotonic)
            return _rank_map(view, nodes, losses)

        return await self._read(read)

    async def nodes(self, viewer: Viewer) -> list[wire.NodeView]:
        """Return the nodes of the jobs whose launcher runs here and uses this machine alone."""
        del viewer

        def read() -> list[wire.NodeView]:
            found = (_nodes_of(view) for view in self._views() if view.launcher_pid is not None)
            return [node for nodes in found if len(nodes) == 1 for node in nodes]

        return await self._read(read)

    async def known_nodes(self, viewer: Viewer) -> list[str]:
        del viewer
        return []

    async def cluster(self, viewer: Viewer) -> wire.Cluster:
        del viewer
        return wire.Cluster([], [], [], [])

    async def plans(self, viewer: Viewer) -> list[wire.PlanView]:
        del viewer

        def read() -> list[wire.PlanView]:
            found = []
            for folder in self._folders():
                if is_held(folder):
                    entries = read_entries(folder)
                    ledger = fold_all(entries)
                    found.append(view_plan(ledger, ledger.job_id or "", name_of(folder, entries)))
            return [item for item in found if item is not None]

        return await self._read(read)

    async def watched(self, viewer: Viewer) -> list[wire.WatchedView]:
        del viewer
        return list(await self._read(self._watched))

    async def slurm(self, viewer: Viewer) -> wire.SlurmView | None:
        del viewer
        return None

    async def kubernetes(self, viewer: Viewer) -> wire.SlurmView | None:
        del viewer
        return None

    async def incidents(self, viewer: Viewer) -> list[wire.IncidentView]:
        del viewer

        def read() -> list[wire.IncidentView]:
            found: list[wire.IncidentView] = []
            for folder in self._folders():
                entries = _quietly(folder)
                found += view_incidents(entries, name_of(folder, entries))
            return sorted(found, key=lambda view: -view.opened_unix_s)[:_INCIDENTS]

        return await self._read(read)

    async def records(self, viewer: Viewer, wanted: str) -> JobRecords:
        del viewer
        return await self._read(lambda: self._records(wanted)[1])

    def _records(self, wanted: str) -> tuple[Path, JobRecords]:
        folder = self._folder_of(wanted)
        if folder is None:
            folder, _entries = find_story(self._state, wanted)
        if folder is None:
            raise PageError(f"no incident or job {wanted[:80]}", 404)
        entries = read_entries(folder)
        return folder, JobRecords(_job_id(folder), name_of(folder, entries), entries)

    async def readings(self, viewer: Viewer, incident: str) -> Sequence[NodeReading]:
        """Return what a controller has read, if this is its folder; launchers read no agent."""
        del viewer
        return await self._read(lambda: read_readings(self._records(incident)[0], incident))

    async def tails(self, viewer: Viewer, incident: str) -> Sequence[RankTail]:
        del viewer
        return await self._read(lambda: read_tails(*self._records(incident), incident))

    def _folder_of(self, job_id: str) -> Path | None:
        return next((folder for folder in self._folders() if _job_id(folder) == job_id), None)

    async def cluster_records(self, viewer: Viewer) -> Sequence[Entry]:
        del viewer
        return ()

    async def time(self, viewer: Viewer, job_id: str) -> JobTime | None:
        del viewer

        def read() -> JobTime | None:
            folder = self._folder_of(job_id)
            if folder is None:
                raise PageError(f"no job {job_id[:80]}", 404)
            now = Moment(time.time(), time.monotonic(), read_boot_id())
            until = now if is_held(folder) else read_heartbeat(folder)
            return read_job_time(JournalFile(folder), until)

        return await self._read(read)

    def revision(self) -> str:
        text, looked_at_s = self._revision
        if time.monotonic() - looked_at_s >= _LOOK_S:
            text = ".".join(
                f"{_changed_ns(folder / name):x}"
                for folder in self._folders()[:100]
                for name in ("journal.db", "journal.db-wal", "run.json")
            )
            self._revision = (f"{hash(text):x}", time.monotonic())
        return self._revision[0]

    async def act(self, viewer: Viewer, requested: AskedAct) -> NoReturn:
        del viewer
        command = command_of(requested.name, requested.about)
        raise PageError(f"this console only reads; type: {command}", 403)


def read_tails(folder: Path, records: JobRecords, incident: str) -> tuple[RankTail, ...]:
    """Return the newest lines of an incident's failed ranks, from the evidence that the launcher saved in the job's folder."""
    opened = next(
        (
            entry.record
            for entry in records.entries
            if isinstance(entry.record, IncidentOpened) and entry.record.incident_id == incident
        ),
        None,
    )
    if opened is None:
        return ()
    saved = folder / "incidents" / incident / f"attempt-{opened.failure.attempt}"
    found = []
    for rank in opened.failure.finding.ranks[:_TAIL_RANKS_MAX]:
        for stream in ("stderr", "stdout"):
            path = saved / f"{stream}-rank-{rank}.txt"
            lines = _last_lines(path)
            if lines:
                found.append(RankTail(rank, stream, str(path), lines))
    return tuple(found)


def _last_lines(path: Path) -> tuple[str, ...]:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                return ()
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES_MAX))
            text = file.read(_TAIL_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-_TAIL_LINES_MAX:])


def _nodes_of(view: StoredJobView) -> list[wire.NodeView]:
    ledger = fold_all(_quietly(Path(view.state_dir)))
    # The launcher of a job on one machine is the only one to be heard, and its file says when it was last alive.
    beat = read_heartbeat(Path(view.state_dir)) if len(ledger.placement) == 1 else None
    is_alive = view.launcher_pid is not None and beat is not None
    age_s = max(0.0, time.time() - beat.unix_s) if is_alive and beat is not None else None
    return [
        wire.NodeView(
            node=place.node,
            job_id=view.job_id,
            heard_age_s=age_s,
            attempt=ledger.attempt,
            ranks=list(place.ranks),
            is_spare=False,
            boot_id="",
        )
        for place in ledger.placement
    ]


def _rank_map(
    view: StoredJobView, nodes: dict[int, str], losses: list[tuple[int, float]]
) -> wire.RankMap:
    ranks = sorted(view.ranks, key=lambda rank: rank.rank)
    times = sorted(rank.step_seconds for rank in ranks if rank.step_seconds is not None)
    step_s = times[len(times) // 2] if times else None
    limit_s = max(_STANDS_S_MIN, _STANDS_STEPS * (step_s or 0.0))
    places: dict[str, int] = {}
    return wire.RankMap(
        job_id=view.job_id,
        attempt=view.attempt,
        step_s=step_s,
        nodes=[
            places.setdefault(nodes.get(rank.rank, "this machine"), len(places)) for rank in ranks
        ],
        node_names=list(places),
        ranks=[rank.rank for rank in ranks],
        steps=[rank.step for rank in ranks],
        ages_s=[rank.step_age_s for rank in ranks],
        states=[_state_of(rank, limit_s).value for rank in ranks],
        # Progress files tell how long a step took, and not how much of that was a rank's own work.
        factors=[None] * len(ranks),
        losses=losses,
    )


def _state_of(rank: StoredRankView, limit_s: float) -> RankState:
    if rank.step is None:
        return RankState.STARTING
    is_still = rank.step_age_s is not None and rank.step_age_s > limit_s
    return RankState.STANDING if is_still else RankState.TRAINING


def _quietly(folder: Path) -> tuple[Entry, ...]:
    """Return a journal's entries; a broken one hides no other job, and its own page says what is wrong."""
    try:
        return read_entries(folder)
    except RankmendError:
        return ()


def _job_id(folder: Path) -> str:
    return view_job(folder, time.monotonic).job_id


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
