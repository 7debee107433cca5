"""What `status`, `incidents` and `why` read, in the types of the API, and what each source of it offers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recovery.accounting.goodput.job_time import JobTime
    from recovery.api import wire
    from recovery.journal.records import Entry
    from recovery.local.report.time_report import RankPace

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
