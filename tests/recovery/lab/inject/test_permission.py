from dataclasses import replace

from recovery.lab.inject.fault import FaultGroup, FaultKind
from recovery.lab.inject.permission import JobMark, NodeMarks, why_refused
from recovery.lab.inject.request import FaultOptions, FaultRequest, parse_target

JOB = JobMark("llama", uid=1000, allows_drills=True, checkpoints="/scratch/ckpt")
MARKS = NodeMarks((FaultGroup.NETWORK, FaultGroup.STORAGE), ("eth1",), ("/scratch/drills",))


def ask(fault: FaultKind, target: str, for_s: float = 30.0) -> FaultRequest:
    return FaultRequest(fault, parse_target(target), for_s, FaultOptions())


def test_nothing_is_allowed_without_a_mark() -> None:
    request = ask(FaultKind.LOSS, "interface:eth1")

    assert why_refused(request, None, None, uid=0) == "this node is not marked for drills"


def test_job_that_allows_drills_needs_no_mark_of_the_node_and_no_root() -> None:
    assert why_refused(ask(FaultKind.KILL, "rank:llama/0"), None, JOB, uid=1000) is None


def test_job_of_another_user_is_refused_whatever_it_allows() -> None:
    why = why_refused(ask(FaultKind.KILL, "rank:llama/0"), MARKS, JOB, uid=1001)

    assert why == "job llama is of uid 1000, and you are uid 1001"


def test_job_that_allows_no_drills_is_refused_on_an_unmarked_node() -> None:
    job = replace(JOB, allows_drills=False)

    why = why_refused(ask(FaultKind.STOP, "rank:llama/0"), None, job, uid=1000)

    assert why == "job llama was not started with --drills, and this node is not marked for drills"


def test_job_may_have_its_own_checkpoints_damaged_but_not_the_folder_beside_them() -> None:
    inside = ask(FaultKind.BIT_FLIP, "path:/scratch/ckpt/step_10")
    beside = ask(FaultKind.BIT_FLIP, "path:/scratch/ckpt2/step_10")

    assert why_refused(inside, None, JOB, uid=1000) is None
    assert why_refused(beside, None, JOB, uid=1000) is not None


def test_job_cannot_allow_what_breaks_the_node() -> None:
    request = ask(FaultKind.READ_ONLY, "path:/scratch/ckpt")

    assert why_refused(request, None, JOB, uid=1000) == "this node is not marked for drills"


def test_marked_node_needs_root() -> None:
    why = why_refused(ask(FaultKind.LOSS, "interface:eth1"), MARKS, None, uid=1000)

    assert why == "what breaks a node needs root"


def test_marked_node_allows_only_what_its_mark_names() -> None:
    assert why_refused(ask(FaultKind.LOSS, "interface:eth1"), MARKS, None, uid=0) is None
    assert "interface eth0 is not among" in str(
        why_refused(ask(FaultKind.LOSS, "interface:eth0"), MARKS, None, uid=0)
    )
    assert "not for kernel-log" in str(why_refused(ask(FaultKind.XID, "node"), MARKS, None, uid=0))
    assert "not below one" in str(
        why_refused(ask(FaultKind.READ_ONLY, "path:/scratch/drills2"), MARKS, None, uid=0)
    )


def test_marked_node_bounds_the_time() -> None:
    request = ask(FaultKind.LOSS, "interface:eth1", for_s=600.1)

    assert "at most 600 s" in str(why_refused(request, MARKS, None, uid=0))
