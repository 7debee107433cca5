"""Asks the launchers of this machine's jobs on one node, in place of a controller that runs as a service.

What the journals tell is read from the state folder, also while a launcher hangs. Commands, and the plan that a failure now would
cause, go to the launcher's socket.
"""

import os
import time
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.api.controller_errors import ConflictError, LauncherError
from recovery.api.job_socket import JobAnswer, JobAsk
from recovery.console.views.plan_view import view_plan
from recovery.console.views.state_words import word_of
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.folder.job_folder import is_held, list_folders
from recovery.journal.job_records import OutcomeKind
from recovery.launcher.run.door_call import NoDoorError, ask_door
from recovery.local.report.overview import StoredJobView, name_of, read_entries, view_job
from recovery.messages.outside import PersonAct

_ENDED: Final = frozenset(kind.value for kind in OutcomeKind)
_NEEDS_SERVICE: Final = "only a controller service can pause the cluster or a node"


class FolderClient:
    def __init__(self, state: Path) -> None:
        self._state = state
        try:
            owner = state.stat().st_uid
        except FileNotFoundError:
            return  # no job ran yet
        except OSError as error:
            raise LauncherError(
                f"cannot read the state folder {state}: {error.strerror}"
            ) from error
        if os.geteuid() not in (0, owner):
            raise LauncherError(
                f"the state folder {state} belongs to uid {owner}: only that user and root can decide about its jobs"
            )

    @property
    def searched(self) -> str:
        return (
            f"; searched: jobs of this machine in {self._state} (--state-dir names another folder, "
            f"--controller a controller)"
        )

    def close(self) -> None:
        """Do nothing: each question has its own connection."""

    def jobs(self, *, with_ended: bool = False) -> list[wire.JobView]:
        found = self._found()
        return [item for item in found if with_ended or item.state not in _ENDED]

    def plans(self) -> list[wire.PlanView]:
        """Return the pending plans of the jobs that a launcher runs now."""
        found = []
        for folder in list_folders(self._state):
            if not is_held(folder):
                continue
            try:
                entries = read_entries(folder)
                ledger = fold_all(entries)
            except RankmendError:
                continue  # `jobs` says what is wrong with it
            pending = view_plan(ledger, ledger.job_id or "", name_of(folder, entries))
            if pending is not None and ledger.ended is None:
                found.append(pending)
        return found

    def dry_run(self, job_id: str, node: str | None = None) -> wire.PlanView:
        """Return the plan that a failure of the node, or of a rank, would cause now."""
        pending = next((item for item in self.plans() if item.job_id == job_id), None)
        if pending is not None:
            return pending
        plan = self._ask(job_id, JobAsk(node=node)).plan
        if plan is None:
            raise LauncherError(f"the launcher of job {job_id} answered without a plan")
        return plan

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
        done = self._ask(job_id, JobAsk(command=requested)).done
        if done is None:
            raise LauncherError(f"the launcher of job {job_id} answered without a result")
        return done

    def cluster(self) -> wire.Cluster:
        """Return that nothing beyond single jobs is paused or held."""
        return wire.Cluster([], [], [], [])

    def resume(self, _reason: str, _scope: str = "cluster") -> wire.Done:
        raise LauncherError(_NEEDS_SERVICE)

    def _found(self) -> list[StoredJobView]:
        return [
            view_job(folder, time.monotonic, time.time()) for folder in list_folders(self._state)
        ]

    def _ask(self, job_id: str, ask: JobAsk) -> JobAnswer:
        job = next((item for item in self._found() if item.job_id == job_id), None)
        if job is None:
            raise LauncherError(f"no job {job_id} in {self._state}")
        try:
            answer = ask_door(Path(job.state_dir), ask)
        except NoDoorError as error:
            raise LauncherError(_no_answer_text(job, error)) from error
        problem = answer.problem
        if problem is not None and problem.refusal:
            raise ConflictError(problem.error, answer.status, problem)
        if problem is not None:
            raise LauncherError(f"job {job.name}: {problem.error}")
        return answer


def _no_answer_text(job: StoredJobView, error: NoDoorError) -> str:
    """Return why nobody answers for a job, by what its folder shows."""
    if job.state in _ENDED:
        return f"job {job.name} {job.job_id} has ended: {word_of(job.state)}: {job.reason}"
    if job.launcher_pid is None:
        return (
            f"no launcher runs job {job.name} {job.job_id} ({word_of(job.state)}): start it again with the "
            f"same command, and it continues from its journal"
        )
    return (
        f"the launcher of job {job.name} (process {job.launcher_pid}) takes no commands: {error}. A job with "
        f"--rdzv-endpoint takes them with --job-folder; a launcher of an older rankmend takes none"
    )
