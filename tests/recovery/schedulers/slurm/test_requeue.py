"""The requeue as a state machine: each step only once Slurm has shown the one before."""

from dataclasses import replace

from recovery.journal.slurm_records import SlurmAct, SlurmJobSeen, SlurmOutcome
from recovery.schedulers.slurm.answers import JobInSlurm, read_jobs, read_nodes
from recovery.schedulers.slurm.ledger import Act, Work
from recovery.schedulers.slurm.requests import (
    Do,
    MoveEnd,
    MoveWait,
    SchedulerAction,
    SchedulerRequest,
    See,
    mark_in,
    mark_of,
    reason_of,
)
from recovery.schedulers.slurm.requeue import JobFacts, RequeueTimes, next_requeue_move

TIMES = RequeueTimes(pause_s=3.0, started_s=10.0, lost_node_wait_s=0.0)
ASKED = Work(SchedulerRequest("k", SchedulerAction.REQUEUE, ("n1",), "7"), 100.0)
SEEN = replace(ASKED, before=SlurmJobSeen("k", "RUNNING", 0, ("n1", "n2"), "/o", "/s", ()))
RUNNING = JobInSlurm("7", "RUNNING", restarts=0, priority=5, nodes="n1,n2", run_s=60)
HELD = JobInSlurm("7", "PENDING", "job_requeued_in_held_state", restarts=1, priority=0)
LOST = JobInSlurm("7", "FAILED", "NonZeroExitCode", restarts=1, priority=5, exit_code="1:0")
FACTS = JobFacts(now_unix_s=200.0, settled_s=20.0, pending_unix_s=190.0)
OUT = frozenset({"n1"})


def acted(*acts: SlurmAct, at_s: float = 150.0, mark: str = "") -> Work:
    return replace(SEEN, acts=tuple(Act(at_s, act, "7", mark) for act in acts))


def test_a_running_job_is_seen_then_put_back_held() -> None:
    assert next_requeue_move(ASKED, [RUNNING], FACTS, TIMES) == See()
    assert next_requeue_move(SEEN, [RUNNING], FACTS, TIMES) == Do(SlurmAct.REQUEUE_HOLD, "7")


def test_a_command_in_doubt_is_repeated_only_once_it_can_have_no_late_effect() -> None:
    recent = acted(SlurmAct.REQUEUE_HOLD, at_s=181.0)
    old = acted(SlurmAct.REQUEUE_HOLD, at_s=180.0)

    assert isinstance(next_requeue_move(recent, [RUNNING], FACTS, TIMES), MoveWait)
    assert next_requeue_move(old, [RUNNING], FACTS, TIMES) == Do(SlurmAct.REQUEUE_HOLD, "7")


def test_a_held_job_waits_for_the_pause_then_loses_the_bad_nodes_then_starts() -> None:
    work = acted(SlurmAct.REQUEUE_HOLD)
    early = replace(FACTS, pending_unix_s=197.5)

    assert isinstance(next_requeue_move(work, [HELD], early, TIMES), MoveWait)
    assert next_requeue_move(work, [HELD], FACTS, TIMES) == Do(SlurmAct.EXCLUDE, "7", ("n1",))
    without = replace(FACTS, excluded=OUT)
    assert next_requeue_move(work, [HELD], without, TIMES) == Do(SlurmAct.START, "7")


def test_ranks_that_may_still_run_keep_the_job_held() -> None:
    work = acted(SlurmAct.REQUEUE_HOLD)
    lost = replace(FACTS, excluded=OUT, lost=("n2",))

    assert isinstance(next_requeue_move(work, [HELD], lost, TIMES), MoveWait)
    bounded = replace(TIMES, lost_node_wait_s=10.0)
    assert next_requeue_move(work, [HELD], lost, bounded) == Do(SlurmAct.START, "7")


def test_a_job_that_ended_in_place_of_starting_is_put_back_once() -> None:
    work = acted(SlurmAct.REQUEUE_HOLD, SlurmAct.START)
    again = acted(SlurmAct.REQUEUE_HOLD, SlurmAct.START, SlurmAct.REQUEUE_AGAIN, SlurmAct.START)

    assert next_requeue_move(work, [LOST], FACTS, TIMES) == Do(SlurmAct.REQUEUE_AGAIN, "7")
    end = next_requeue_move(again, [LOST], FACTS, TIMES)
    assert isinstance(end, MoveEnd)
    assert end.outcome is SlurmOutcome.FAILED


def test_a_job_that_wrote_before_it_failed_has_started_and_is_not_put_back() -> None:
    work = acted(SlurmAct.REQUEUE_HOLD, SlurmAct.START, mark="1:10")

    end = next_requeue_move(work, [LOST], replace(FACTS, output_mark="1:20"), TIMES)

    assert isinstance(end, MoveEnd)
    assert end.outcome is SlurmOutcome.DONE


def test_a_persons_hold_release_or_cancel_is_left() -> None:
    held = replace(HELD, reason="JobHeldUser", restarts=0)
    cancelled = replace(RUNNING, state="CANCELLED")
    let_go = replace(HELD, priority=5, reason="Resources")
    work = acted(SlurmAct.REQUEUE_HOLD)

    ends = [
        next_requeue_move(ASKED, [held], FACTS, TIMES),
        next_requeue_move(work, [cancelled], FACTS, TIMES),
        next_requeue_move(work, [let_go], replace(FACTS, was_held=True), TIMES),
    ]

    assert [one.outcome for one in ends if isinstance(one, MoveEnd)] == [SlurmOutcome.LEFT] * 3


def test_a_jobs_name_and_paths_are_not_read_as_other_fields() -> None:
    (job,) = read_jobs(
        "JobId=7 JobName=x JobState=FAILED Restarts=9\n   Priority=1 Nice=0\n"
        "   JobState=RUNNING Reason=None Dependency=(null)\n   Requeue=1 Restarts=2 ExitCode=0:0\n"
        "   RunTime=1-00:00:05 TimeLimit=UNLIMITED\n   StdOut=/a Restarts=4\n\n"
    )

    assert (job.state, job.restarts, job.run_s) == ("RUNNING", 2, 86_405)
    assert job.output == "/a Restarts=4"


def test_a_reason_keeps_its_text_and_tells_who_set_it() -> None:
    reason = reason_of("k", "it [is] State=IDLE a=b")
    line = f"NodeName=n1 CPUAlloc=0 State=IDLE+DRAIN Reason={reason} [root@2026-11-25T14:28:05]"

    node = read_nodes(line)["n1"]

    assert node.is_drained
    assert (node.reason, node.reason_by) == (reason, "root")
    assert mark_in(node.reason) == mark_of("k")
    assert mark_in("rankmend: by hand") is None
