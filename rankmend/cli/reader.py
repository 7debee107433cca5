"""The sources of `status`, `incidents` and `why`: a controller, or this machine's state folder.

Both answer in the types of the API, so that the commands show everything in one way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rankmend.cli.controller_options import Access, asking, is_local, is_own_state
from rankmend.cli.options import fail, find_state
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recovery.api import wire
    from recovery.goodput.job_time import JobTime
    from recovery.journal.records import Entry
    from recovery.report.time_report import RankPace


NOTHING_RUNS: Final = "no running job (--all shows ended ones)"
ENDED_SHOWN: Final = 3
"""Newest ended jobs that `rankmend status` shows where none runs: what a person looks for who asks after the end."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the person asked to see."""

    job: str | None
    with_ended: bool
    every_node: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of everything at about one moment."""

    controller: str | None  # URL of the controller that answered; None: read from the state folder
    jobs: "Sequence[wire.JobView]"
    nodes: "Sequence[wire.NodeView]"
    plans: "Sequence[wire.PlanView]"
    cluster: "wire.Cluster"
    state_dir: str = ""
    watched: "Sequence[wire.WatchedView]" = ()  # jobs of other launchers
    slurm_nodes: "Sequence[wire.SlurmNodeView]" = ()  # drained there by rankmend; only with --nodes
    kubernetes: "wire.SlurmView | None" = None  # only with --nodes


@dataclass(frozen=True, slots=True)
class SpentTime:
    """Where the time of one job went."""

    time: "JobTime"
    paces: "Sequence[RankPace]" = ()  # of its ranks on this machine


class Reader(Protocol):
    @property
    def watch_s(self) -> float:
        """Return the pause between two pictures."""
        ...

    def picture(self, wanted: Wanted) -> Picture: ...
    def picture_or_problem(self, wanted: Wanted) -> Picture | str:
        """Return a picture, or why there is none at the moment."""
        ...

    def incidents(self, job: str | None) -> "list[wire.IncidentView]": ...
    def notes(self, job: str | None) -> list[str]:
        """Return which incidents are unknown, and why."""
        ...

    def journals(self) -> "Iterator[Sequence[Entry]]":
        """Return the journals of all jobs."""
        ...

    def times(self, job: str | None, since_unix_s: float | None) -> "Iterator[SpentTime | None]":
        """Return where the time went of the jobs whose name or UUID has this prefix, or of all; None: a job has none.

        Only the time since a moment counts, if one is given.
        """
        ...

    def watched_times(self, job: str | None) -> "list[JobTime]":
        """Return where the time of jobs of other launchers went: of those so named, or of all."""
        ...

    def degraded_networks(self, job: str | None) -> "list[wire.JobView]":
        """Return the jobs so named, or all, that run on nodes with a degraded network now."""
        ...

    def untaken(self) -> "wire.Untaken":
        """Return what the cluster's rules would have had done; nothing where there is no controller service."""
        ...

    def story(self, wanted: str) -> "wire.Story":
        """Return the story of an incident, or of the job whose name or UUID has this prefix."""
        ...


def find_empty(access: Access, state_dir: Path | None) -> Path | None:
    """Return this machine's state folder if it is the one to read, and no job has ever run here; else None.

    Journals are read with all their types of records, which take 0.3 s of a processor to make: a prompt or a prolog that
    asks each minute pays that only where there is a job.
    """
    if not is_local(access):
        return None
    try:
        state = find_state(state_dir)
    except RankmendError as error:
        fail(str(error))
    if (state / "watched").exists() or next(state.glob("jobs/*"), None) is not None:
        return None
    return None if next(state.glob("hosts/*/*/jobs/*"), None) is not None else state


def has_watched() -> bool:
    """Return whether a rank of this user, for root of anybody, has been watched here within the last day.

    Only the names of files are looked at: this is asked before anything that takes time is imported.
    """
    import os

    from rankmend.hook.watched_layout import FOLDER_PREFIX, PROGRESS_SUFFIX, ROOT

    uid = os.geteuid()
    users = "*" if uid == 0 else f"{uid}*"
    found = Path(ROOT).glob(f"{FOLDER_PREFIX}{users}/*/rank-*{PROGRESS_SUFFIX}")
    try:
        return next(found, None) is not None
    except OSError:
        return False  # another user's folder, which closes while it is read


@contextmanager
def reading(
    access: Access, state_dir: Path | None, *, with_watched: bool = False
) -> Iterator[Reader]:
    """Give the reader that the command line selects; a failure ends the command with a message.

    ``with_watched``: this machine's own state folder comes with its ranks under `rankmend watch env`.
    """
    if is_local(access):
        from rankmend.cli.folder_reader import FolderReader

        try:
            if with_watched and is_own_state():
                from rankmend.cli.watched_here import WatchedHere

                yield FolderReader(find_state(state_dir), WatchedHere().views)
            else:
                yield FolderReader(find_state(state_dir))
        except RankmendError as error:
            fail(str(error))
        return
    from rankmend.cli.controller_reader import ControllerReader

    with asking(access) as client:
        yield ControllerReader(client, access)
