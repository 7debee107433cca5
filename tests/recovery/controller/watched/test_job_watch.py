"""The verdict on a watched job, from what its nodes' agents tell."""

from detectors.finding import Blame
from detectors.hang.live import HungLimits
from rankmend.cli.watched_lines import say_trouble
from rankmend.watched_report import (
    ReportedEvidence,
    ReportedJob,
    ReportedRank,
    WatchedReport,
)
from recovery.controller.cluster.notices import NoticeKind
from recovery.controller.watched.hang_evidence import ASKED_MAX
from recovery.controller.watched.job_watch import SILENT_S
from recovery.controller.watched.verdict import WatchedState
from recovery.controller.watched.watched_jobs import ENDED_KEPT_S, WatchedJobs
from tests.support.watched_cluster import EVERY_S, JOB, LOAD, REDUCE, Cluster, stand_still


def test_stopped_rank_is_named_within_a_minute_with_its_node() -> None:
    cluster = Cluster()
    assert cluster.run(60) is WatchedState.TRAINING

    cluster.pause()
    cluster.states[2] = "T"

    assert cluster.run(40) is WatchedState.HUNG
    (notice,) = cluster.jobs.notices()
    assert (notice.kind, notice.rank, notice.node) == (NoticeKind.RANK_HUNG, "2", "n2")
    assert "llama (Slurm job 41) hung, it waits for rank 2 on n2" in notice.summary


def test_stopped_rank_of_a_job_with_long_steps_is_named_within_a_minute_too() -> None:
    cluster = Cluster(step_s=120.0)
    cluster.run(600)

    cluster.pause()
    cluster.states[2] = "T"

    assert cluster.run(40) is WatchedState.HUNG
    assert cluster.job.verdict.ranks == (2,)


def test_job_that_goes_on_is_told_of_no_more() -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.pause()
    cluster.states[2] = "T"
    cluster.run(40)

    cluster.states.clear()
    cluster.go_on()

    assert cluster.run(10) is WatchedState.TRAINING
    assert cluster.jobs.notices() == ()


def test_pause_of_all_ranks_is_no_hang_before_half_an_hour_and_then_accuses_nobody() -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.pause()

    assert cluster.run(1700, every_s=20.0) is WatchedState.TRAINING
    assert cluster.run(200, every_s=20.0) is WatchedState.HUNG
    (finding,) = cluster.job.verdict.findings
    assert finding.blame is Blame.NOBODY
    assert "no rank is blamed" in cluster.jobs.notices()[0].summary


def test_pause_that_ended_by_itself_makes_the_next_one_longer() -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.pause()
    cluster.run(1500, every_s=20.0)
    cluster.go_on()
    cluster.run(60)

    cluster.pause()

    assert cluster.run(2500, every_s=20.0) is WatchedState.TRAINING
    assert cluster.run(600, every_s=20.0) is WatchedState.HUNG


def test_job_whose_ranks_are_all_stopped_is_suspended() -> None:
    cluster = Cluster()
    cluster.run(60)

    cluster.pause()
    cluster.states = dict.fromkeys(range(4), "T")

    assert cluster.run(300) is WatchedState.SUSPENDED
    assert cluster.jobs.notices() == ()


def test_job_of_a_silent_node_is_unknown_and_not_hung() -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.pause()

    assert cluster.run(SILENT_S + EVERY_S, silent=("n2",)) is WatchedState.UNKNOWN
    assert cluster.run(3000, silent=("n2",)) is WatchedState.UNKNOWN
    assert "n2" in cluster.job.verdict.reason


def test_ranks_that_end_while_one_still_saves_are_no_hang() -> None:
    cluster = Cluster()
    cluster.run(60)

    cluster.pause()
    cluster.nodes = {"n1": [0], "n2": []}

    assert cluster.run(1500) is WatchedState.TRAINING


def test_rank_that_is_dead_and_not_reaped_has_ended() -> None:
    cluster = Cluster()
    cluster.run(60)

    cluster.pause()
    cluster.states = {1: "Z", 2: "Z", 3: "Z"}

    assert cluster.run(1500) is WatchedState.TRAINING
    assert cluster.job.living == {0}


def test_job_without_ranks_has_ended_and_is_forgotten() -> None:
    cluster = Cluster()
    cluster.run(60)

    cluster.nodes = {"n1": [], "n2": []}

    assert cluster.run(10) is WatchedState.ENDED
    while JOB in cluster.jobs.jobs and cluster.now_s < 1000 + 2 * ENDED_KEPT_S:
        cluster.now_s += EVERY_S
        cluster.jobs.tick()
    assert cluster.jobs.jobs == {}


def test_last_step_of_ranks_that_have_ended_counts_and_that_of_strangers_does_not() -> None:
    cluster = Cluster()
    cluster.run(60)
    before, run = cluster.job.step(), cluster.job.run
    cluster.end()
    cluster.pids += 100

    assert cluster.run(10) is WatchedState.ENDED
    assert (cluster.job.step(), cluster.job.run) == (before, run)

    cluster.pids -= 100
    assert cluster.run(10) is WatchedState.ENDED
    assert cluster.job.step() > before


def test_watched_job_whose_ranks_have_loaded_two_nccls_is_shown_so() -> None:
    cluster = Cluster(nccl={0: ("2.27.3",), 1: ("2.27.3",), 2: ("2.27.3",), 3: ("2.21.5",)})
    cluster.run(20)

    (view,) = cluster.jobs.views()
    assert [(one.version, one.nodes, one.ranks) for one in view.nccl] == [
        ("2.27.3", ["n1", "n2"], [0, 1, 2]),
        ("2.21.5", ["n2"], [3]),
    ]
    assert "2.21.5 in rank 3 on 1 node (n2)" in say_trouble(view)[-1]

    cluster.nccl[3] = ("2.27.3",)
    cluster.pids += 100  # in new processes
    cluster.run(20)
    assert cluster.jobs.views()[0].nccl == []


def test_ranks_in_new_processes_begin_a_new_run_whatever_number_their_attempt_has() -> None:
    cluster = Cluster()
    cluster.run(100)

    cluster.pids, cluster.began_at_s = 200, cluster.now_s

    assert cluster.run(100) is WatchedState.TRAINING
    assert cluster.job.observation.newest_step == 200
    assert cluster.run(1900) is WatchedState.TRAINING


def test_rank_that_works_while_the_others_wait_is_named() -> None:
    cluster = Cluster()
    cluster.run(60)

    cluster.busy = {3: 0.95}

    assert cluster.run(30) is WatchedState.TRAINING
    assert cluster.run(60) is WatchedState.SLOW
    (notice,) = cluster.jobs.notices()
    assert (notice.kind, notice.rank, notice.node) == (NoticeKind.RANK_SLOW, "3", "n2")


def test_ranks_that_all_spin_while_they_wait_are_not_compared() -> None:
    cluster = Cluster(busy=dict.fromkeys(range(4), 1.0))

    assert cluster.run(300) is WatchedState.TRAINING


def test_rank_that_is_busy_in_pauses_alone_is_not_named() -> None:
    cluster = Cluster()
    cluster.run(60)
    for _pause in range(10):
        cluster.pause()
        cluster.busy = {0: 1.0}  # rank 0 evaluates, and the others wait
        cluster.run(20)
        cluster.go_on()
        cluster.busy = {}
        assert cluster.run(20) is WatchedState.TRAINING


def test_job_that_another_restarter_tends_is_told_of_without_urgency() -> None:
    cluster = Cluster(restarter="torchelastic")
    cluster.run(60)
    cluster.pause()
    cluster.states[2] = "T"
    cluster.run(40)

    (notice,) = cluster.jobs.notices()

    assert notice.severity.value == "warning"
    assert "torchelastic restarts its ranks" in notice.todo


def test_counts_say_how_often_trouble_began() -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.pause()
    cluster.states[2] = "T"
    cluster.run(60)

    assert cluster.jobs.found == {"hung": 1}
    assert cluster.jobs.counts()["hung"] == 1


def test_many_jobs_are_judged_by_turns_and_none_is_forgotten() -> None:
    jobs, now_s = WatchedJobs(lambda: now_s, lambda _name: HungLimits()), 1000.0
    ranks = tuple(
        ReportedRank(rank=rank, world_size=64, attempt=1, pid=100 + rank, steps_done=5, step_age_s=0.0, attached_age_s=9.0)
        for rank in range(64)
    )  # fmt: skip
    for number in range(100):
        job_id = f"6d0c4b1e-0000-4000-8000-{number:012d}"
        told = ReportedJob(job_id=job_id, name="many", user="ann", launcher="srun", ranks=ranks)
        jobs.take(WatchedReport(node=f"n{number}", jobs=(told,)))

    jobs.tick()
    first = jobs.counts()["training"]
    for _turn in range(5):
        jobs.tick()

    assert 0 < first < 100
    assert jobs.counts()["training"] == 100


def test_rank_that_has_moved_to_another_node_lives_there() -> None:
    cluster = Cluster()
    cluster.run(60)

    cluster.nodes = {"n1": [0, 1], "n2": [], "n3": [2, 3]}
    cluster.run(10)

    assert cluster.job.living == {0, 1, 2, 3}
    assert cluster.job.nodes == ["n1", "n3"]


def test_stacks_name_the_rank_that_a_hung_job_waits_for_where_steps_name_nobody() -> None:
    cluster = Cluster()
    for rank in range(4):
        frame = LOAD if rank == 2 else REDUCE
        cluster.evidence[rank] = ReportedEvidence(frames=(frame,), kernel=("in futex_wait",))

    stand_still(cluster)

    (finding,) = cluster.job.verdict.findings
    assert (cluster.state, finding.blame, finding.ranks) == (WatchedState.HUNG, Blame.RANK, (2,))
    assert finding.node == "n2"
    lines = [f"{one.source}: {one.text}" for one in finding.evidence]
    assert "Python stack of rank 2: /job/train.py:12 in load" in lines
    assert "kernel, main thread of rank 2: in futex_wait" in lines
    assert cluster.wanted == {"n1": 1, "n2": 1}


def test_what_nccl_says_is_shown_once_however_many_nodes_tell_it() -> None:
    cluster = Cluster()
    gone = "rank 3: does not answer"
    for rank in range(4):
        own = f"rank {rank}: 49 AllReduce launched, others 50\x1b[2J"
        cluster.evidence[rank] = ReportedEvidence(frames=(REDUCE,), ras=(own, gone))

    stand_still(cluster)

    (finding,) = cluster.job.verdict.findings
    told = [one.text for one in finding.evidence if one.source == "NCCL RAS"]
    assert len(told) == 5
    assert told.count(gone) == 1
    assert not any("\x1b" in text for text in told)


def test_stopped_process_stays_the_cause_whatever_stacks_say() -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.evidence[0] = ReportedEvidence(frames=(LOAD,))
    for rank in (1, 3):
        cluster.evidence[rank] = ReportedEvidence(frames=(REDUCE,))
    cluster.evidence[2] = ReportedEvidence(notes=("no Python stacks: it is stopped",))
    cluster.pause()
    cluster.states[2] = "T"

    cluster.run(60)

    (finding,) = cluster.job.verdict.findings
    assert finding.ranks == (2,)
    lines = [f"{one.source}: {one.text}" for one in finding.evidence]
    assert "rank 2: no Python stacks: it is stopped" in lines


def test_nodes_that_answer_nothing_are_asked_a_bounded_number_of_times() -> None:
    cluster = Cluster()

    stand_still(cluster)
    cluster.run(600)

    assert cluster.wanted == {"n1": ASKED_MAX, "n2": ASKED_MAX}


def test_what_the_jobs_log_files_say_stands_in_the_finding_once() -> None:
    cluster = Cluster()
    says = "restart: rank 3: gpu hardware: RuntimeError: CUDA error: uncorrectable ECC error"
    for rank in range(4):
        cluster.evidence[rank] = ReportedEvidence(frames=(REDUCE,), log=(says,))
    stand_still(cluster)

    (finding,) = cluster.job.verdict.findings
    assert [one.text for one in finding.evidence if one.source == "log files"] == [says]


def test_job_that_trains_is_asked_for_nothing_and_believed_nothing() -> None:
    cluster = Cluster()
    cluster.evidence[0] = ReportedEvidence(frames=(LOAD,))
    cluster.is_wanted["n1"] = True  # tells it unasked

    cluster.run(60)

    assert cluster.wanted == {"n1": 0, "n2": 0}
    cluster.pause()
    cluster.states[2] = "T"
    cluster.evidence.clear()
    cluster.run(60)
    (finding,) = cluster.job.verdict.findings
    assert not [one for one in finding.evidence if "train.py" in one.text]


def test_dump_that_can_not_be_read_is_named_and_the_verdict_stands() -> None:
    cluster = Cluster()
    for rank in range(4):
        dump = '{"version": 7}' if rank == 1 else "[[["
        cluster.evidence[rank] = ReportedEvidence(frames=(REDUCE,), dump=dump)
    del cluster.evidence[0]

    stand_still(cluster)

    (finding,) = cluster.job.verdict.findings
    lines = [f"{one.source}: {one.text}" for one in finding.evidence]
    assert "rank 1: its flight-recorder dump can't be read" in lines
    assert cluster.state is WatchedState.HUNG


def test_next_hang_is_asked_for_anew() -> None:
    cluster = Cluster()
    cluster.evidence = {rank: ReportedEvidence(frames=(REDUCE,)) for rank in range(4)}
    stand_still(cluster)
    cluster.go_on()
    cluster.run(30)

    cluster.pause()
    cluster.states[1] = "T"
    cluster.run(60)

    assert cluster.wanted == {"n1": 2, "n2": 2}
