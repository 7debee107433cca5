"""Requeue of a job, without nodes that it must not get again, as a state machine. Pure.

    seen -> held and PENDING -> old nodes proved empty -> pause -> nodes excluded -> let go -> really started
                                                                                  -> ended instead: once more

Only what Slurm reports counts, never that a command was accepted: slurmctld may have died with it. Each command
is repeated only once it can have no late effect. A job that a person holds or has cancelled is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.journal.slurm_records import SlurmAct, SlurmJobSeen, SlurmOutcome
from recovery.schedulers.slurm.answers import JobInSlurm
from recovery.schedulers.slurm.ledger import Act, Work
from recovery.schedulers.slurm.requests import Do, Move, MoveEnd, MoveWait, See

TRIES: Final = 5  # of one command within one start
STARTS: Final = 2  # the requeue itself, and once more where the job ended in place of starting
_HELD: Final = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"})
_OVER: Final = frozenset({"COMPLETED", "CANCELLED", "DEADLINE"})  # by itself, or by a person
_LOST_RUN_S: Final = 2  # a job whose credential is revoked ends in the second of its start


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of the job beside what Slurm reports."""

    now_unix_s: float
    settled_s: float  # after it a command that was begun has had its effect, or has none
    excluded: frozenset[str] = frozenset()  # names of the nodes that it does not get
    nodes: frozenset[str] = frozenset()  # where it is
    lost: tuple[str, ...] = ()  # old nodes where its ranks may still run
    pending_unix_s: float | None = None  # since when it is seen to be PENDING and held
    was_held: bool = False  # it was seen to be held by us
    has_let_go: bool = False  # it was seen not to be held, since it was let go
    output_mark: str = ""  # of its output now; empty: it can't be read from here


@dataclass(frozen=True, slots=True)
class RequeueTimes:
    pause_s: float
    started_s: float
    lost_node_wait_s: float


def next_requeue_move(
    work: Work, jobs: Sequence[JobInSlurm], facts: JobFacts, times: RequeueTimes
) -> Move:
    """Return what to do next about the job."""
    number = work.copy or work.request.slurm_job
    if len(jobs) > 1:
        return MoveEnd(
            SlurmOutcome.LEFT,
            f"job {number} is an array, or has parts on different hardware: only single jobs are requeued",
        )
    job = jobs[0] if jobs else None
    if work.before is None:
        return _first_look(job, number)
    if job is None:
        return _vanished(work, number, facts)
    if not _starts(work):
        return _hold(work, work.before, job, facts) or _let_go(work, job, facts, times)
    return _watch(work, job, facts, times)


def _starts(work: Work) -> tuple[Act, ...]:
    return _since_put_back(work, SlurmAct.START)


def _since_put_back(work: Work, act: SlurmAct) -> tuple[Act, ...]:
    """Return these acts since the job was last put back in place of having started."""
    latest: list[Act] = []
    for item in work.acts:
        if item.act in (SlurmAct.REQUEUE_AGAIN, SlurmAct.SUBMIT):
            latest = []
        elif item.act is act:
            latest.append(item)
    return tuple(latest)


def _first_look(job: JobInSlurm | None, number: str) -> Move:
    if job is None:
        return MoveEnd(SlurmOutcome.FAILED, f"Slurm knows no job {number}")
    if not job.is_batch:
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} has no batch script: it can't be requeued")
    if not job.may_requeue:
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} was submitted with --no-requeue")
    if job.state in _OVER:
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} is {job.state}")
    if job.state == "PENDING" and (job.reason in _HELD or job.is_held):
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} is held: {job.reason}")
    return See()


def _vanished(work: Work, number: str, facts: JobFacts) -> Move:
    if not _starts(work):
        return MoveEnd(SlurmOutcome.LEFT, f"Slurm knows no job {number} any more: it was removed")
    marks = {facts.output_mark, _starts(work)[-1].output_mark}
    if "" not in marks and len(marks) == 2:
        return MoveEnd(SlurmOutcome.DONE, f"job {number} has started and is over")
    return MoveEnd(
        SlurmOutcome.FAILED,
        f"Slurm knows no job {number} any more, and nothing shows that it started: look at its output",
    )


def _hold(work: Work, before: SlurmJobSeen, job: JobInSlurm, facts: JobFacts) -> Move | None:
    """Return what to do until the job is held and waits, or None once it does."""
    number = job.number
    again = [item for item in work.acts if item.act in (SlurmAct.REQUEUE_AGAIN, SlurmAct.SUBMIT)]
    if job.state == "COMPLETING" or "COMPLETING" in job.flags or job.state.startswith("REQUEUE"):
        return MoveWait(f"job {number} is being ended")
    if job.is_held and (again or job.reason != "JobHeldUser"):
        return None
    if not again and (why := _not_ours(work, before, job, facts)) is not None:
        return why
    act = SlurmAct.REQUEUE_HOLD
    if again:  # the command that put it back has had no effect yet
        act = SlurmAct.REQUEUE_AGAIN
    elif job.state == "PENDING":  # it waits by itself, or Slurm has requeued it
        act = SlurmAct.HOLD
    return _repeat(work.did(act), act, number, facts)


def _not_ours(work: Work, before: SlurmJobSeen, job: JobInSlurm, facts: JobFacts) -> MoveEnd | None:
    """Return the end of a request whose job has taken another way by itself, or by a person."""
    number = job.number
    if job.is_held:
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} is held by its user")
    if job.state in _OVER:
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} is {job.state}")
    if facts.was_held and (job.restarts > before.restarts or before.state == "PENDING"):
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} was let go by somebody else: {job.state}")
    unwanted = frozenset(work.request.nodes)
    is_elsewhere = bool(facts.nodes) and not (facts.nodes & unwanted)
    if job.state == "RUNNING" and job.restarts > before.restarts and is_elsewhere and unwanted:
        return MoveEnd(SlurmOutcome.DONE, f"Slurm itself has restarted job {number} on {job.nodes}")
    return None


def _repeat(
    done: Sequence[Act], act: SlurmAct, number: str, facts: JobFacts, nodes: tuple[str, ...] = ()
) -> Move:
    if done and facts.now_unix_s - done[-1].unix_s < facts.settled_s:
        return MoveWait(f"job {number}: {act.value} is under way")
    if len(done) >= TRIES:
        return MoveEnd(
            SlurmOutcome.FAILED, f"job {number}: {act.value} had no effect {TRIES} times"
        )
    return Do(act, number, nodes)


def _let_go(work: Work, job: JobInSlurm, facts: JobFacts, times: RequeueTimes) -> Move:
    number = job.number
    waited_s = facts.now_unix_s - (facts.pending_unix_s or facts.now_unix_s)
    if facts.lost and not 0 < times.lost_node_wait_s <= waited_s:
        return MoveWait(
            f"job {number} is held: Slurm has lost touch with {', '.join(facts.lost)}, where its ranks may still run"
        )
    if facts.pending_unix_s is None or waited_s < times.pause_s:
        return MoveWait(f"job {number} waits {times.pause_s:g} s before its start")
    wanted = frozenset(work.request.nodes) | facts.excluded
    if wanted != facts.excluded:
        done = _since_put_back(work, SlurmAct.EXCLUDE)
        return _repeat(done, SlurmAct.EXCLUDE, number, facts, tuple(sorted(wanted)))
    return Do(SlurmAct.START, number)


def _watch(work: Work, job: JobInSlurm, facts: JobFacts, times: RequeueTimes) -> Move:
    """Return what to do about a job that was let go."""
    number = job.number
    has_written = bool(facts.output_mark) and facts.output_mark != _starts(work)[-1].output_mark
    if job.state == "PENDING":
        return _watch_pending(work, job, facts)
    if job.state == "RUNNING":
        where = f"job {number} runs on {job.nodes}"
        if has_written or job.run_s >= times.started_s:
            return MoveEnd(SlurmOutcome.DONE, where)
        return MoveWait(f"{where}; its first output is not seen yet")
    if job.is_live:
        return MoveWait(f"job {number} is {job.state}")
    if _is_lost(job, has_written=has_written):
        return _put_back(work, job)
    return MoveEnd(SlurmOutcome.DONE, f"job {number} has started and is {job.state}")


def _put_back(work: Work, job: JobInSlurm) -> Move:
    number = job.number
    again = work.did(SlurmAct.REQUEUE_AGAIN) + work.did(SlurmAct.SUBMIT)
    if len(again) >= STARTS - 1:
        return MoveEnd(
            SlurmOutcome.FAILED,
            f"job {number} ended {STARTS} times in place of starting: {job.state}",
        )
    return Do(SlurmAct.REQUEUE_AGAIN, number)


def _watch_pending(work: Work, job: JobInSlurm, facts: JobFacts) -> Move:
    number = job.number
    if job.is_held and job.reason in _HELD and facts.has_let_go:
        return MoveEnd(SlurmOutcome.LEFT, f"job {number} is held again: {job.reason}")
    # Held, or with its later begin time: slurmctld died before it had saved that we let the job go.
    if job.is_held or job.reason == "BeginTime":
        return _repeat(_starts(work), SlurmAct.START, number, facts)
    return MoveWait(f"job {number} waits for nodes: {job.reason or 'it is not scheduled yet'}")


def _is_lost(job: JobInSlurm, *, has_written: bool) -> bool:
    """Return whether the job ended in place of starting: "Job credential revoked" leaves this behind."""
    is_short = job.run_s <= _LOST_RUN_S and job.exit_code == "1:0"
    return job.state == "FAILED" and is_short and not has_written
