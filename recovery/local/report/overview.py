"""What `rankmend status`, `incidents` and `why` show: read from state folders, never written.

Works while a launcher is at work and when none is left: the journal alone tells the story, and
progress files tell where the ranks stand now.
"""

import contextlib
import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import msgspec

from detectors.node.job_libraries import RankLibrary, find_mixed_jobs
from rankmend import progress
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, JournalError, LaunchError, RankmendError, SourceError
from rankmend.rank_values import ToldHidden
from recovery.accounting.goodput.anatomy import StepAnatomy, divide_steps
from recovery.accounting.goodput.job_time import StepsTime
from recovery.api import nccl_shares, wire
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.marks import BESIDE
from recovery.checkpoints.snapshots.leftovers import FOLDER
from recovery.checkpoints.snapshots.listing import kept_of, list_held
from recovery.checkpoints.snapshots.memory import NodeMemory, newest_step_of
from recovery.checkpoints.storage_calls import StorageCalls
from recovery.console.views.incident_view import entries_of_incident
from recovery.console.views.job_view import (
    UNMANAGED,
    raise_highest,
    reason_of,
    state_of,
    view_ledger,
)
from recovery.console.views.snapshot_view import view_snapshots
from recovery.console.views.state_words import INTERRUPTED
from recovery.journal.attempt_records import AttemptStarted, hidden_communication, hidden_io
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.folder.heartbeat import read_trouble
from recovery.journal.folder.job_folder import is_held, list_folders, read_json, read_quietly
from recovery.journal.job_records import JobEnded, JobOpened, LauncherStarted
from recovery.journal.ledger import Ledger
from recovery.journal.observation_records import SlowEnded, SlowExplained, SlowFound
from recovery.journal.records import Entry
from recovery.journal.store import open_readonly
from recovery.local.report.time_report import RankPace
from recovery.messages.exchange import KeptSnapshots

_NUMBERS_SHOWN_MAX = 4
_STORAGE_S_MAX = 0.3  # whoever asks for a job's state waits no longer for its checkpoints
_DEPTH_MAX = 3  # folders from a checkpoint's path to that of its job
_CLOCK = SystemClock()
_STORAGE = StorageCalls(_CLOCK, late_s=0.0)
_RECORDS = 20  # step records that a step time is taken from


@dataclass(frozen=True, slots=True)
class StoredRankView:
    """One running rank. Ages in seconds by this node's clock."""

    rank: int
    local_rank: int
    pid: int
    step: int | None = None
    step_seconds: float | None = None  # median of the last records
    step_age_s: float | None = None
    section: str | None = None
    problem: str | None = None  # why its progress can't be told
    start: str | None = None  # how its process came to be: forked, standby or fresh
    why_not_forked: str | None = None  # None: it was forked, or no fork server was requested
    kept: KeptSnapshots | None = None  # None: it asks for no snapshots
    anatomy: StepAnatomy | None = None  # of its newest steps; None: it reports no sections
    nccl: tuple[str, ...] = ()  # versions that it has loaded


class StoredJobView(wire.JobView):
    """One job as its state folder tells of it, with its ranks on this node."""

    state_dir: str = ""
    launcher_pid: int | None = None
    ranks: tuple[StoredRankView, ...] = ()
    removed_checkpoint: str = ""  # path of the newest checked one, which is no longer there
    slow: tuple[str, ...] = ()  # ranks that are slower than their peers, in words
    numbers: tuple[str, ...] = ()  # that went wrong in the newest attempt, in words, newest last
    replicas: tuple[str, ...] = ()  # that differ in the newest attempt, in words, newest last


class LocalWatchedView(wire.WatchedView):
    """One job of another launcher, with its ranks on this machine."""

    ranks: tuple[StoredRankView, ...] = ()


def view_job(
    folder: Path, read_clock: Callable[[], float], now_unix_s: float | None = None
) -> StoredJobView:
    """Return what is known of one job; what can't be read is said, never guessed.

    ``now_unix_s``: for the age of its newest checkpoint.
    """
    problem = None
    ledger = Ledger()
    entries: tuple[Entry, ...] = ()
    job: dict[str, object] = {}
    try:
        entries = open_readonly(folder / "journal.db").entries
        ledger = fold_all(entries)
        job = read_json(folder / "job.json") or {}
    except (JournalError, ConfigError, LaunchError) as error:
        problem = str(error)
    held = is_held(folder)
    trouble = read_trouble(folder) if held else None
    start = read_quietly(folder / "run.json")
    run = start if held else {}
    runtime = Path(path) if isinstance(path := run.get("runtime"), str) else None
    ranks = () if runtime is None else tuple(view_ranks(runtime, read_clock))
    view = view_ledger(
        ledger,
        job_id=str(job.get("job_id", ledger.job_id or "")),
        name=(name := str(job.get("name") or name_of(folder, entries))),
        state=_state(ledger, is_held=held, trouble=trouble),
        reason=reason_of(ledger, name),
        problem=trouble or problem,  # a full disk may keep it from being read, too
        now_unix_s=now_unix_s,
        snapshots=None
        if runtime is None
        else _view_snapshots(runtime, ranks, ledger, read_clock()),
    )
    view.nccl = _view_nccl(ranks, ledger)
    if view.highest_step is not None:  # its steps compare between attempts
        raise_highest(view, max([view.highest_step, *(rank.step or 0 for rank in ranks)]))
    removed = ""
    if view.checkpoint is not None and len(ledger.placement) <= 1:  # others may lie on their nodes
        removed = view.checkpoint.path if _is_removed(view.checkpoint.path) else ""
    if removed:
        view.checkpoint = None
    view.began_unix_s = entries[0].unix_s if entries else None
    view.lasted_s = _lasted_s(entries, now_unix_s if held else None)
    view.script = script if isinstance(script := start.get("script"), str) else ""
    return StoredJobView(
        **msgspec.structs.asdict(view),
        state_dir=str(folder),
        launcher_pid=pid if isinstance(pid := run.get("pid"), int) else None,
        ranks=ranks,
        removed_checkpoint=removed,
        slow=tuple(slow_ranks(entries)),
        numbers=tuple(
            number.in_words for number in ledger.wrong_numbers if number.attempt == ledger.attempt
        )[-_NUMBERS_SHOWN_MAX:],
        replicas=tuple(
            f"silent corruption at step {differ.step}: {differ.in_words}"
            for differ in ledger.differing
            if differ.attempt == ledger.attempt
        )[-_NUMBERS_SHOWN_MAX:],
    )


def _is_removed(path: str) -> bool:
    """Return whether a checkpoint has gone from a folder that is seen here: one with the job's marks beside it.

    Where the storage does not answer at once, that is not known, and False.
    """

    def look() -> bool:
        if os.path.lexists(path):
            return False
        return any((folder / BESIDE).is_dir() for folder in islice(Path(path).parents, _DEPTH_MAX))

    with contextlib.suppress(UnfinishedError, OSError):
        return _STORAGE.run(path, look, Deadline(_CLOCK, _STORAGE_S_MAX))
    return False


def _lasted_s(entries: Sequence[Entry], now_unix_s: float | None) -> float | None:
    """Return the time from the first record until now, or to the last record where no launcher runs the job."""
    if not entries:
        return None
    until_unix_s = entries[-1].unix_s if now_unix_s is None else now_unix_s
    return max(0.0, until_unix_s - entries[0].unix_s)


def _view_nccl(ranks: Sequence[StoredRankView], ledger: Ledger) -> list[wire.NcclShare]:
    """Return who has loaded which NCCL, where the ranks on this machine differ."""
    node = {rank: place.node for place in ledger.placement for rank in place.ranks}
    reported = (
        RankLibrary(node.get(rank.rank, ""), "", "", 0, rank.rank, rank.nccl) for rank in ranks
    )
    return nccl_shares.to_wire(next((job.shares for job in find_mixed_jobs(reported)), ()))


def _view_snapshots(
    runtime: Path, ranks: Sequence[StoredRankView], ledger: Ledger, now_s: float
) -> wire.SnapshotView | None:
    """Return what the ranks on this machine keep in memory; those of other nodes are not seen."""
    if ledger.job_id is None:
        return None
    held = list_held(runtime / FOLDER, uuid.UUID(ledger.job_id), now_s)
    retained = {rank.rank: rank.kept for rank in ranks if rank.kept is not None}
    here = {rank.rank for rank in ranks}
    node = next((place.node for place in ledger.placement if here & set(place.ranks)), "")
    seen = range(ledger.world_size) if len(ledger.placement) <= 1 else sorted(here)
    newest_step = newest_step_of(rank.step for rank in ranks)
    return view_snapshots(
        [NodeMemory(node, held, kept=retained, newest_step=newest_step)], ledger, seen
    )


def slow_ranks(entries: tuple[Entry, ...]) -> list[str]:
    """Return, in words, the ranks of the newest attempt that are called slow now."""
    slow: dict[int, str] = {}
    why: dict[int, str] = {}  # the newest word counts
    for entry in entries:
        match entry.record:
            case AttemptStarted() | LauncherStarted() | JobEnded():
                slow.clear()
                why.clear()
            case SlowFound(rank=rank, finding=finding):
                slow[rank] = finding.summary
                why.pop(rank, None)
            case SlowExplained(rank=rank, cause=cause, part=part) if rank in slow:
                likely = f", most likely by {cause.replace('_', ' ')}" if cause else ""
                why[rank] = f"{likely}; explained by {part}" if part else likely
            case SlowEnded(rank=rank):
                slow.pop(rank, None)
    return [f"{said}{why.get(rank, '')}" for rank, said in slow.items()]


def view_ranks(runtime: Path, read_clock: Callable[[], float]) -> Iterator[StoredRankView]:
    """Return the ranks that a launcher runs now, by the files in its runtime folder."""
    reported = read_quietly(runtime / "ranks.json")
    attempt, ranks = reported.get("attempt"), reported.get("ranks")
    if not isinstance(attempt, int) or not isinstance(ranks, list):
        return
    for entry in ranks:
        if not isinstance(entry, dict):
            continue
        rank, local_rank, pid = (entry.get(name) for name in ("rank", "local_rank", "pid"))
        if not (isinstance(rank, int) and isinstance(local_rank, int) and isinstance(pid, int)):
            continue
        path = runtime / f"attempt-{attempt}" / f"rank-{rank}.progress"
        view = _view_rank(path, rank, local_rank, pid, read_clock)
        if (
            entry.get("is_contained") is True
        ):  # in the file of its progress is the pid in its container
            view = replace(view, pid=pid)
        yield replace(
            view, start=_text(entry, "start"), why_not_forked=_text(entry, "why_not_forked")
        )


def view_losses(folder: Path, read_clock: Callable[[], float]) -> list[tuple[int, float]]:
    """Return the newest steps and losses of the lowest rank on this machine that reports any: as many as its progress file holds."""
    runtime = read_quietly(folder / "run.json").get("runtime")
    if not isinstance(runtime, str):
        return []
    reported = read_quietly(Path(runtime) / "ranks.json")
    attempt, ranks = reported.get("attempt"), reported.get("ranks")
    if not isinstance(attempt, int) or not isinstance(ranks, list):
        return []
    numbers = [item.get("rank") for item in ranks if isinstance(item, dict)]
    for rank in sorted(number for number in numbers if isinstance(number, int)):
        path = Path(runtime) / f"attempt-{attempt}" / f"rank-{rank}.progress"
        if found := _losses_in(path, read_clock):
            return found
    return []


def _losses_in(path: Path, read_clock: Callable[[], float]) -> list[tuple[int, float]]:
    try:
        reader = progress.ProgressReader(
            progress.open_owned(path, path.parent.stat().st_uid), str(path)
        )
    except (SourceError, OSError):
        return []
    try:
        numbers = reader.read(read_clock(), numbers_after=0).numbers
    except SourceError:
        return []
    finally:
        reader.close()
    return [
        (record.step, record.loss)
        for record in (numbers.records if numbers is not None else ())
        if record.loss is not None and math.isfinite(record.loss)
    ]


def view_paces(folder: Path, read_clock: Callable[[], float]) -> tuple[RankPace, ...]:
    """Return the step times of the ranks that a held job runs on this machine."""
    runtime = read_quietly(folder / "run.json").get("runtime")
    if not isinstance(runtime, str):
        return ()
    return tuple(
        RankPace(rank.rank, rank.step_seconds, rank.anatomy)
        for rank in view_ranks(Path(runtime), read_clock)
        if rank.step_seconds is not None
    )


def _text(entry: dict[str, object], name: str) -> str | None:
    value = entry.get(name)
    return value if isinstance(value, str) and value else None


def _view_rank(
    path: Path, rank: int, local_rank: int, pid: int, read_clock: Callable[[], float]
) -> StoredRankView:
    try:
        reader = progress.ProgressReader(
            progress.open_owned(path, path.parent.stat().st_uid), str(path)
        )
    except (SourceError, OSError) as error:
        return StoredRankView(rank, local_rank, pid, problem=str(error))
    try:
        reported = reader.read(read_clock(), _RECORDS)
        now_s = read_clock()  # after the look: a step that ended meanwhile is not of the future
    except SourceError as error:
        return StoredRankView(rank, local_rank, pid, problem=str(error))
    finally:
        reader.close()
    return view_progress(rank, local_rank, reported.pid or pid, reported, now_s)


def view_progress(
    rank: int, local_rank: int, pid: int, reported: progress.RankProgress, now_s: float
) -> StoredRankView:
    """Return what a rank's progress file holds about it; ``pid``: of its process as this machine numbers it."""
    return StoredRankView(
        rank=rank,
        local_rank=local_rank,
        pid=pid or reported.pid,
        step=reported.last.step if reported.last else None,
        step_seconds=_median_step_seconds(reported.records),
        step_age_s=max(0.0, now_s - reported.last.ended_at_s) if reported.last else None,
        section=doing_of(reported),
        kept=kept_of(reported.snapshots),
        anatomy=_anatomy(reported) if reported.sections_entered else None,
        nccl=reported.nccl,
    )


def doing_of(reported: progress.RankProgress) -> str | None:
    """Return the section that a rank is in; "training" where its script marks none, and "-" between two sections.

    None: it has not made a step yet, or nothing reports any.
    """
    if not reported.pid:
        return None
    if reported.section is not progress.Section.IDLE:
        return reported.section.name.lower()
    if reported.last is None:
        return None
    return "-" if reported.sections_entered else "training"


def _anatomy(reported: progress.RankProgress) -> StepAnatomy | None:
    """Return what a rank's newest steps were spent on."""
    if len(reported.records) < 2:
        return None
    first, last = reported.records[0], reported.records[-1]
    hidden = reported.hidden or ToldHidden()
    # Told in all since the rank attached, so that is the mean of all of its steps.
    since = (ToldHidden(), hidden, reported.step_count)
    spent = StepsTime(
        end_s=last.ended_at_s,
        attempt=reported.identity.attempt,
        ranks=1,
        steps=last.count - first.count,
        step_s=last.ended_at_s - first.ended_at_s,
        compute_s=last.compute_s - first.compute_s,
        communication_s=last.communication_s - first.communication_s,
        waited_s=last.waited_s - first.waited_s,
        io_s=last.io_s - first.io_s,
        checkpoint_s=last.checkpoint_s - first.checkpoint_s,
        hidden_communication=hidden_communication(*since),
        hidden_io=hidden_io(*since),
    )
    return divide_steps([spent])


def _median_step_seconds(records: tuple[progress.StepRecord, ...]) -> float | None:
    times = [new.ended_at_s - old.ended_at_s for old, new in pairwise(records)]
    return sorted(times)[len(times) // 2] if times else None


def _state(ledger: Ledger, *, is_held: bool, trouble: str | None) -> str:
    if ledger.ended is not None:
        return ledger.ended.kind.value
    if not is_held:
        return INTERRUPTED
    return state_of(ledger) if trouble is None else UNMANAGED


def name_of(folder: Path, entries: tuple[Entry, ...]) -> str:
    """Return the job's name as its journal has it, else its folder's."""
    opened = (entry.record.name for entry in entries if isinstance(entry.record, JobOpened))
    return next(opened, folder.name)


def id_of(folder: Path) -> str:
    """Return the job's UUID; empty where its file can't be read."""
    return str(read_quietly(folder / "job.json").get("job_id") or "")


def read_entries(folder: Path) -> tuple[Entry, ...]:
    return open_readonly(folder / "journal.db").entries


def find_story(state: Path, incident_id: str) -> tuple[Path | None, tuple[Entry, ...]]:
    """Return the job's folder and the entries of one incident, or None where it is not known."""
    for folder in list_folders(state):
        try:
            entries = read_entries(folder)
        except RankmendError:
            continue
        if found := entries_of_incident(entries, incident_id):
            return folder, tuple(found)
    return None, ()
