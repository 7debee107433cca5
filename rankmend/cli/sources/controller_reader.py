"""Asks a controller for jobs, incidents and stories."""

from collections.abc import Callable, Iterator, Sequence

from rankmend.cli.output import echo
from rankmend.cli.sources.controller_options import Access, explain, find_job
from rankmend.cli.sources.picture import ENDED_SHOWN, Picture, SpentTime, Wanted
from rankmend.cli.watched_lines import is_named
from recovery.accounting.goodput.figures import clip
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_spent import read_time
from recovery.accounting.goodput.time_window import CLOCK_SET_S_MAX
from recovery.api import wire
from recovery.api.controller_errors import BusyError, RefusedError, UnreachableError
from recovery.api.operator_client import OperatorClient
from recovery.console.views.watched_time_view import time_of_view
from recovery.journal.ledger import Moment
from recovery.journal.records import MAJOR, MINOR, Entry, decode_record


class ControllerReader:
    watch_s = 2.0  # six requests per picture at most, a 20th of one subject's limit

    def __init__(self, client: OperatorClient, access: Access) -> None:
        self._client = client
        self._access = access
        self._watched_times: list[wire.WatchedTime] | None = None  # not asked yet

    def picture(self, wanted: Wanted) -> Picture:
        client = self._client
        plans, cluster = client.plans(), client.cluster()
        if wanted.job is None:
            jobs, nodes = client.jobs(with_ended=wanted.with_ended), client.nodes()
            if not jobs and not wanted.with_ended:
                ended = client.jobs(with_ended=True)
                jobs = sorted(ended, key=_ended_unix_s, reverse=True)[:ENDED_SHOWN]
            slurm = _unless_refused(client.slurm) if wanted.every_node else None
            kubernetes = _unless_refused(client.kubernetes) if wanted.every_node else None
            return Picture(
                client.url,
                jobs,
                nodes,
                plans,
                cluster,
                watched=client.watched(),
                slurm_nodes=[] if slurm is None else slurm.nodes,
                kubernetes=kubernetes if kubernetes is not None and kubernetes.enabled else None,
            )
        watched = [item for item in client.watched() if is_named(item, wanted.job)]
        if watched and not _is_own(client, wanted.job):
            return Picture(client.url, [], [], [], cluster, watched=watched)
        detail = client.job(find_job(client, wanted.job, with_ended=True).job_id)
        plans = [plan for plan in plans if plan.job_id == detail.job.job_id]
        return Picture(client.url, [detail.job], detail.nodes, plans, cluster, watched=watched)

    def picture_or_problem(self, wanted: Wanted) -> Picture | str:
        """Return the problem of a controller that does not answer: that is when people look."""
        try:
            return self.picture(wanted)
        except UnreachableError as error:
            return explain(error, self._access)

    def incidents(self, job: str | None) -> list[wire.IncidentView]:
        return self._client.incidents(self._id_of(job), limit=wire.INCIDENTS_MAX)

    def notes(self, job: str | None) -> list[str]:
        job_id = self._id_of(job)
        return [
            f"{view.name}: adopted at attempt {view.adopted_attempt} after its journal was lost; "
            f"earlier incidents are unknown"
            for view in self._client.jobs()
            if view.adopted_attempt is not None and job_id in (None, view.job_id)
        ]

    def times(self, job: str | None, since_unix_s: float | None) -> Iterator[SpentTime | None]:
        """Return times until now by the controller's clock, which is not this machine's."""
        for view, entries in self._journals(job, since_unix_s):
            spent = read_time(entries, _now_of(view, entries))
            if spent is not None and since_unix_s is not None:
                spent = clip(spent, since_unix_s)
            yield None if spent is None else SpentTime(spent)

    def journals(self) -> Iterator[Sequence[Entry]]:
        for _view, entries in self._journals(None):
            yield entries

    def _journals(
        self, job: str | None, since_unix_s: float | None = None
    ) -> Iterator[tuple[wire.JobView, Sequence[Entry]]]:
        """Return jobs with their journals; ``since_unix_s``: of each what accounts for the time from then on, and none of a job that had ended."""
        jobs = self._client.jobs(with_ended=True)
        if job is not None:
            if any(_is_named(item, job) for item in self._watched()) and not _is_own(
                self._client, job
            ):
                return
            jobs = [find_job(self._client, job, with_ended=True)]
        problem, has_read = None, False
        for item in jobs:
            if since_unix_s is not None and _ended_before(item, since_unix_s):
                continue
            try:
                story = self._client.story(item.job_id, since_unix_s)
            except BusyError as error:
                if error.reason != wire.JOURNAL_UNREADABLE:
                    raise
                problem = error  # a damaged journal of one job hides no other's
                echo(f"rankmend: left out: {error}", err=True)
                continue
            has_read = True
            yield item, [entry_of(line) for line in story.lines]
        if problem is not None and not has_read:
            raise problem

    def watched_times(self, job: str | None) -> list[JobTime]:
        return [
            time_of_view(item) for item in self._watched() if job is None or _is_named(item, job)
        ]

    def _watched(self) -> list[wire.WatchedTime]:
        if self._watched_times is None:
            self._watched_times = self._client.watched_times()
        return self._watched_times

    def degraded_networks(self, job: str | None) -> list[wire.JobView]:
        named = [item for item in self._client.jobs() if item.planes]
        return [
            item
            for item in named
            if job is None or item.name.startswith(job) or item.job_id.startswith(job)
        ]

    def untaken(self) -> wire.Untaken:
        """Return nothing for who may see only jobs of their own, and from an older controller."""
        try:
            return self._client.untaken()
        except RefusedError as error:
            if error.status not in (403, 404):
                raise
            return wire.Untaken([], [])

    def story(self, wanted: str) -> wire.Story:
        try:
            return self._client.story(wanted)
        except RefusedError as error:
            if error.status not in (
                400,
                404,
            ):  # 400: not a valid name in a path, but perhaps a job's prefix
                raise
        return self._client.story(find_job(self._client, wanted, with_ended=True).job_id)

    def _id_of(self, job: str | None) -> str | None:
        return None if job is None else find_job(self._client, job, with_ended=True).job_id


def entry_of(line: wire.StoryLine) -> Entry:
    """Return the entry that a line of a story was made from."""
    # A kind that this version does not know comes from a newer controller.
    record = decode_record(line.kind, MAJOR, MINOR + 1, bytes(line.record))
    return Entry(line.number, line.unix_s, line.monotonic_s, line.boot_id, record)


def _ended_before(job: wire.JobView, unix_s: float) -> bool:
    is_known = job.began_unix_s is not None and job.lasted_s is not None
    return is_known and _ended_unix_s(job) + CLOCK_SET_S_MAX < unix_s


def _now_of(job: wire.JobView, entries: Sequence[Entry]) -> Moment | None:
    """Return until when the job has lasted, by the clocks that stamped its newest entry; None: not known.

    A job that waits writes no entry, and its wait is a loss.
    """
    if not entries or job.began_unix_s is None or job.lasted_s is None:
        return None
    newest = entries[-1]
    since_s = max(0.0, job.began_unix_s + job.lasted_s - newest.unix_s)
    return Moment(newest.unix_s + since_s, newest.monotonic_s + since_s, newest.boot_id)


def _ended_unix_s(job: wire.JobView) -> float:
    return (job.began_unix_s or 0.0) + (job.lasted_s or 0.0)


def _unless_refused(ask: Callable[[], wire.SlurmView]) -> wire.SlurmView | None:
    """Return None for who may see only jobs of their own, and from a controller that does not tell."""
    try:
        return ask()
    except RefusedError as error:
        if error.status not in (403, 404):
            raise
        return None


def _is_named(time: wire.WatchedTime, job: str) -> bool:
    return time.name.startswith(job) or time.job_id.startswith(job)


def _is_own(client: OperatorClient, job: str) -> bool:
    """Return whether a launcher of ours has started a job that is named so."""
    jobs = client.jobs(with_ended=True)
    return any(item.name.startswith(job) or item.job_id.startswith(job) for item in jobs)
