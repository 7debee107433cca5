"""Works on requests about jobs: requeue (`requeue` decides) and cancel."""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from recovery.journal.slurm_records import (
    SlurmAct,
    SlurmActs,
    SlurmJobSeen,
    SlurmOutcome,
    SlurmSubmitted,
)
from recovery.schedulers.slurm.answers import JobInSlurm
from recovery.schedulers.slurm.bench import Bench, Memory, fields_of, output_mark, text_of
from recovery.schedulers.slurm.bounds import refuse_foreign_job, refuse_requeue, refuse_shared_job
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmAwayError, SlurmError
from recovery.schedulers.slurm.ledger import Work
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import (
    Do,
    Move,
    MoveEnd,
    MoveWait,
    SchedulerAction,
    See,
    comment_of,
    mark_of,
)
from recovery.schedulers.slurm.requeue import JobFacts, RequeueTimes, next_requeue_move

log = logging.getLogger(__name__)

TRIES: Final = 3  # of a cancel, and of a submission
# slurmctld that has just started may not know a job yet; what has ended it forgets after MinJobAge (300 s).
UNKNOWN_S_MAX: Final = 30.0


# The options with which a job is submitted anew where Slurm can't requeue it. Pure.
# A batch script has only what its author wrote into it: options of the command line are read from the job. The environment of the first
# submission is lost; Slurm does not tell it.


_NOTHING: Final = frozenset({"", "(null)", "N/A", "UNLIMITED", "Partition_Limit", "0", "None"})
_OPTIONS: Final = (
    ("JobName", "job-name"),
    ("Partition", "partition"),
    ("Account", "account"),
    ("QOS", "qos"),
    ("TimeLimit", "time"),
    ("NumNodes", "nodes"),
    ("NumTasks", "ntasks"),
    ("CPUs/Task", "cpus-per-task"),
    ("WorkDir", "chdir"),
    ("StdOut", "output"),
    ("StdErr", "error"),
    ("ExcNodeList", "exclude"),
    ("ReqNodeList", "nodelist"),
    ("Features", "constraint"),
    ("Reservation", "reservation"),
    ("Licenses", "licenses"),
    ("TresPerNode", "gres"),
    ("Dependency", "dependency"),
    ("Nice", "nice"),
)
_USER: Final = re.compile(r"([^()\s]+)\((\d+)\)")


def options_of(fields: Mapping[str, str], comment: str, own_uid: int) -> tuple[str, ...]:
    """Return the options of `sbatch` for a job with these fields of `scontrol show job`."""
    words = [f"--comment={comment}", "--open-mode=append"]
    for name, option in _OPTIONS:
        value = fields.get(name, "")
        if value in _NOTHING or (option == "nodes" and "-" in value and not value[0].isdigit()):
            continue
        words.append(f"--{option}={value.removeprefix('gres:')}")
    user = _USER.fullmatch(fields.get("UserId", ""))
    group = _USER.fullmatch(fields.get("GroupId", ""))
    if user is not None and int(user.group(2)) != own_uid:
        words.append(f"--uid={user.group(2)}")  # Slurm takes it from root only
        if group is not None:
            words.append(f"--gid={group.group(2)}")
    return tuple(words)


class JobWork:
    def __init__(
        self,
        bench: Bench,
        client: SlurmClient,
        limits: SlurmLimits,
        scripts: Path,
        is_gone: Callable[[str, str], bool],
    ) -> None:
        """``scripts``: where batch scripts are kept."""
        self._bench = bench
        self._client = client
        self._limits = limits
        self._scripts = scripts
        self._is_gone = is_gone

    def advance(self, work: Work, memory: Memory) -> None:
        if work.did(SlurmAct.SUBMIT) and not work.copy:
            self._find_copy(work, memory)
            return
        jobs = self._client.jobs(work.copy or work.request.slurm_job)
        self._bench.note_answer()
        if not work.acts and (why := self._not_theirs(work, jobs)) is not None:
            self._bench.end(work, SlurmOutcome.LEFT, why)
            return
        now_unix_s = self._bench.clock.unix_s()
        memory.job.look(jobs, now_unix_s, is_let_go=bool(work.did(SlurmAct.START)))
        unknown_s = now_unix_s - (memory.job.unknown_unix_s or now_unix_s)
        if not jobs and unknown_s < UNKNOWN_S_MAX:
            move: Move = MoveWait(
                f"Slurm does not know job {work.request.slurm_job}; rankmend asks again"
            )
        elif work.request.action is SchedulerAction.CANCEL:
            move = _next_cancel_move(work, jobs, self._bench.settled_s, now_unix_s)
        else:
            known = self._client.nodes(work.request.nodes)
            request = replace(work.request, nodes=tuple(known))
            facts = self._facts(work, jobs, memory)
            limits = self._limits
            times = RequeueTimes(limits.pause_s, limits.started_s, limits.lost_node_wait_s)
            move = next_requeue_move(replace(work, request=request), jobs, facts, times)
        self._move_job(work, jobs, move, memory)

    def _not_theirs(self, work: Work, jobs: Sequence[JobInSlurm]) -> str | None:
        """Return why the job in Slurm is not the one that is meant, or not its alone, or None."""
        for job in jobs:
            why = refuse_foreign_job(work.request, job, self._client.expand(job.nodes))
            if why is not None:
                return why
        step, number = work.request.slurm_step, work.request.slurm_job
        steps = self._client.steps(number) if step else ()
        return refuse_shared_job(work.request, steps)

    def _facts(self, work: Work, jobs: Sequence[JobInSlurm], memory: Memory) -> JobFacts:
        now_unix_s = self._bench.clock.unix_s()
        job = jobs[0] if len(jobs) == 1 else None
        before = work.before
        if job is None or before is None:
            mark = output_mark(before.output) if before is not None else ""
            return JobFacts(now_unix_s, self._bench.settled_s, output_mark=mark)
        lost: list[str] = []
        if job.is_held and before.nodes:
            seen = self._client.nodes(before.nodes)
            lost = [
                name
                for name, node in seen.items()
                if (node.is_down or node.is_silent) and not self._is_gone(name, work.request.key)
            ]
        return JobFacts(
            now_unix_s,
            self._bench.settled_s,
            excluded=frozenset(self._client.expand(job.excluded)),
            nodes=frozenset(self._client.expand(job.nodes)),
            lost=tuple(lost),
            pending_unix_s=memory.job.pending_unix_s,
            was_held=memory.job.was_held,
            has_let_go=memory.job.has_let_go,
            output_mark=output_mark(before.output),
        )

    def _move_job(self, work: Work, jobs: Sequence[JobInSlurm], move: Move, memory: Memory) -> None:
        if isinstance(move, MoveWait):
            self._bench.wait(work, memory, move.text)
            return
        if not isinstance(move, MoveEnd):
            move = self._forbid_job(work, jobs[0], move)
        if isinstance(move, MoveEnd):
            text = text_of(move, memory)
            self._bench.end(work, move.outcome, text)
        elif isinstance(move, See):
            self._see(work, jobs[0])
        elif isinstance(move, Do):
            self._do(work, move, memory)

    def _forbid_job(self, work: Work, job: JobInSlurm, move: Move) -> Move:
        request = work.request
        if not self._limits.allows(request.action):
            without = f" without {', '.join(request.nodes)}" if request.nodes else ""
            where = f" on {job.nodes}" if job.nodes else ""
            text = f"would {request.action.value} job {job.number} ({job.state}{where}){without}"
            return MoveEnd(SlurmOutcome.DRY, text)
        if isinstance(move, See):
            now_unix_s = self._bench.clock.unix_s()
            why = refuse_requeue(
                self._bench.ledger, self._limits, request.slurm_job, now_unix_s, request.sharer
            )
            if why is not None:
                return MoveEnd(SlurmOutcome.REFUSED, f"job {job.number} is not requeued: {why}")
        return move

    def _see(self, work: Work, job: JobInSlurm) -> None:
        """Keep what must be known of the job before it is touched."""
        key = work.request.key
        path = self._scripts / f"{mark_of(key)}.sh"
        script = str(path)
        try:
            self._client.save_script(job.number, path)
        except SlurmAwayError:
            raise
        except (SlurmError, OSError) as error:
            log.warning("cannot save a batch script", extra={"error": str(error)})
            script = ""
        seen = SlurmJobSeen(
            key,
            job.state,
            job.restarts,
            tuple(self._client.expand(job.nodes)),
            job.output,
            script,
            options_of(job.fields, comment_of(key), os.geteuid()),
        )
        self._bench.write(seen)

    def _do(self, work: Work, move: Do, memory: Memory) -> None:
        key, client = work.request.key, self._client
        output = work.before.output if work.before is not None else ""
        mark = output_mark(output) if move.act is SlurmAct.START else ""
        self._bench.write(SlurmActs(key, move.act, move.about, mark))
        memory.error = ""
        log.info("acting on Slurm", extra={**fields_of(work.request), "act": move.act.value})
        if move.act is SlurmAct.CANCEL:
            client.cancel(move.about)
        elif move.act is SlurmAct.HOLD:
            client.hold(move.about)
        elif move.act is SlurmAct.REQUEUE_HOLD:
            client.requeue_hold(move.about)
        elif move.act is SlurmAct.EXCLUDE:
            client.exclude(move.about, move.nodes)
        elif move.act is SlurmAct.START:
            client.start_now(move.about)
        else:
            self._put_back(work, move.about)

    def _put_back(self, work: Work, number: str) -> None:
        """Requeue a job that ended in place of starting: under its number, else as a new one."""
        try:
            self._client.requeue_hold(number)
        except SlurmAwayError:
            raise
        except SlurmError as error:
            if work.before is None or not work.before.script:
                raise
            log.warning("a job is submitted anew", extra={"slurm_job": number, "why": str(error)})
            self._submit(work)

    def _submit(self, work: Work) -> None:
        assert work.before is not None, "a job is seen before it is touched"
        self._bench.write(SlurmActs(work.request.key, SlurmAct.SUBMIT, work.request.slurm_job))
        self._client.submit_held(Path(work.before.script), work.before.options)

    def _find_copy(self, work: Work, memory: Memory) -> None:
        """Find the job that was submitted, held, and keep one of several."""
        numbers = self._client.numbers_with(comment_of(work.request.key))
        self._bench.note_answer()
        if numbers:
            for number in numbers[1:]:
                self._client.cancel(number)
            self._bench.write(SlurmSubmitted(work.request.key, numbers[0]))
            return
        done = work.did(SlurmAct.SUBMIT)
        if self._bench.clock.unix_s() - done[-1].unix_s < self._bench.settled_s:
            self._bench.wait(work, memory, "the new submission is not seen yet")
        elif len(done) >= TRIES:
            self._bench.end(
                work, SlurmOutcome.FAILED, f"sbatch failed {len(done)} times: {memory.error}"
            )
        else:
            self._submit(work)


def _next_cancel_move(
    work: Work, jobs: Sequence[JobInSlurm], settled_s: float, now_unix_s: float
) -> Move:
    number = work.request.slurm_job
    done = work.did(SlurmAct.CANCEL)
    if len(jobs) > 1:
        return MoveEnd(
            SlurmOutcome.LEFT, f"job {number} is an array, or has parts on different hardware"
        )
    live = [job for job in jobs if job.is_live and job.state != "COMPLETING"]
    if not live:
        outcome = SlurmOutcome.DONE if jobs or done else SlurmOutcome.FAILED
        state = jobs[0].state if jobs else "not known to Slurm"
        return MoveEnd(outcome, f"job {number} is {state}")
    if done and now_unix_s - done[-1].unix_s < settled_s:
        return MoveWait(f"job {number} is being cancelled")
    if len(done) >= TRIES:
        return MoveEnd(
            SlurmOutcome.FAILED, f"job {number} is {live[0].state} after {len(done)} cancels"
        )
    return Do(SlurmAct.CANCEL, number)
