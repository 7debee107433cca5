"""What is asked of a real Slurm: done once, elsewhere, and never against a person."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.journal.slurm_records import SlurmAct, SlurmActs, SlurmOutcome
from recovery.journal.store import Journal
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmCommands
from recovery.schedulers.slurm.desk import SlurmDesk
from recovery.schedulers.slurm.ledger import Work
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.slurm import SlurmCluster, missing, slurm_cluster

pytestmark = [pytest.mark.site, pytest.mark.safety]
LIMITS = SlurmLimits(
    enabled=True, act=True, reboot=True, cancel=True, timeout_s=15.0, started_s=15.0,
    nodes_drained_percent=100.0,
)  # fmt: skip


@pytest.fixture(params=["short", "stock"], scope="module")
def slurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """Give a cluster whose requeued jobs may start after 5 s, and one where they wait for 121 s."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    reboot = folder / "reboot.sh"
    reboot.write_text(f"#!/bin/sh\necho restarts >> {folder}/restarts\n")
    reboot.chmod(0o755)
    stock = {"AuthInfo": f"socket={folder}/munge/sock"} if request.param == "stock" else {}
    with slurm_cluster(folder, 4, RebootProgram=str(reboot), **stock) as cluster:
        yield cluster


class Controller:
    """The part of a controller that acts on Slurm; a new one on the same journal is its next start."""

    def __init__(self, slurm: SlurmCluster, folder: Path, limits: SlurmLimits = LIMITS) -> None:
        self.journal = Journal(folder / "journal.db", SystemClock(), "boot")
        environment = {"PATH": os.environ["PATH"], **slurm.environment}
        run = SlurmCommands(limits.timeout_s, environment)
        self.desk = SlurmDesk(
            self.journal,
            SlurmClient(run),
            limits,
            SystemClock(),
            folder / "scripts",
            settle_s=1.0,
            look_s=0.5,
        )

    def turn_until(self, is_so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if not is_so():
                self.desk.turn()
                return False
            return True

        eventually(look, lambda: f"{what}: {self.desk.ledger.works}", pause_s=0.2)

    def finish(self, request: SchedulerRequest) -> Work:
        self.desk.ask(request)
        self.turn_until(lambda: self.work(request).ended is not None, request.key)
        return self.work(request)

    def work(self, request: SchedulerRequest) -> Work:
        return self.desk.ledger.works[request.key]


@pytest.fixture
def controller(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Controller]:
    made = Controller(slurm, tmp_path)
    yield made
    made.journal.close()
    slurm.run("scancel", "--user=root")
    for node in slurm.nodes:
        slurm.run("scontrol", "update", f"nodename={node}", "state=undrain")
    slurm.wait_until_idle(has_rebooted=True)


def reason_of(slurm: SlurmCluster, node: str) -> str:
    return slurm.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T %E").stdout.strip()


def submit(slurm: SlurmCluster, name: str, nodes: int = 2) -> tuple[str, Path]:
    """Start a job that says where and how often it was started."""
    out = slurm.folder / f"{name}.out"
    script = slurm.folder / f"{name}.sh"
    script.write_text(
        f"#!/bin/sh\n#SBATCH --output={out} --open-mode=append\n"
        "echo started ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST\nsleep 600\n"
    )
    number = slurm.run("sbatch", f"--nodes={nodes}", str(script)).stdout.split()[-1]
    eventually(lambda: out.exists() and "started 0" in out.read_text(), f"{name} runs")
    return number, out


def saved_jobs(slurm: SlurmCluster) -> bytes:
    """Return what slurmctld has saved of its jobs; for a moment of each save there is no such file."""
    try:
        return (slurm.folder / "state" / "job_state").read_bytes()
    except FileNotFoundError:
        return b""


def starts(out: Path) -> list[str]:
    return [line for line in out.read_text().splitlines() if line.startswith("started")]


def request_of(action: SchedulerAction, key: str, **fields: object) -> SchedulerRequest:
    return SchedulerRequest(key, action, **fields)  # type: ignore[arg-type]


def test_a_node_is_drained_with_a_reason_and_taken_back_by_us_only(
    slurm: SlurmCluster, controller: Controller
) -> None:
    drain = request_of(
        SchedulerAction.DRAIN, "inc-1", nodes=("node1",), reason="GPU 3 fell off the bus"
    )
    resume = request_of(SchedulerAction.RESUME, "back-1", nodes=("node1",))

    drained = controller.finish(drain)
    told = reason_of(slurm, "node1")
    controller.finish(drain)  # asked again
    back = controller.finish(resume)

    assert drained.ended is not None
    assert drained.ended.outcome is SlurmOutcome.DONE
    assert told.startswith("drained rankmend: GPU 3 fell off the bus #")
    assert back.ended is not None
    assert back.ended.outcome is SlurmOutcome.DONE
    assert "drain" not in reason_of(slurm, "node1")
    assert len(controller.work(drain).acts) == 1
    assert controller.desk.ledger.ours == []


def test_a_persons_drain_is_neither_changed_nor_taken_back(
    slurm: SlurmCluster, controller: Controller
) -> None:
    slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=fan is loud")

    drained = controller.finish(request_of(SchedulerAction.DRAIN, "inc-2", nodes=("node2",)))
    back = controller.finish(request_of(SchedulerAction.RESUME, "back-2", nodes=("node2",)))

    assert (drained.acts, back.acts) == ((), ())
    assert drained.ended is not None
    assert drained.ended.outcome is SlurmOutcome.LEFT
    assert "fan is loud" in drained.ended.text
    assert back.ended is not None
    assert back.ended.outcome is SlurmOutcome.LEFT
    assert reason_of(slurm, "node2") == "drained fan is loud"


def test_a_drain_whose_reason_a_person_has_changed_is_theirs(
    slurm: SlurmCluster, controller: Controller
) -> None:
    controller.finish(request_of(SchedulerAction.DRAIN, "inc-3", nodes=("node1",), reason="slow"))
    slurm.run("scontrol", "update", "nodename=node1", "state=drain", "reason=rankmend: mine now")

    back = controller.finish(request_of(SchedulerAction.RESUME, "back-3", nodes=("node1",)))

    assert back.ended is not None
    assert back.ended.outcome is SlurmOutcome.LEFT
    assert reason_of(slurm, "node1") == "drained rankmend: mine now"


def test_a_watched_job_is_cancelled_only_if_slurm_says_that_it_is_its_users(
    slurm: SlurmCluster, controller: Controller
) -> None:
    number, _out = submit(slurm, "watched")
    claimed = {"slurm_job": number, "reason": "hung", "seen_on": slurm.nodes}
    foreign = request_of(SchedulerAction.CANCEL, "watched-1", owner="nobody", **claimed)
    own = request_of(SchedulerAction.CANCEL, "watched-2", owner="root", **claimed)

    left = controller.finish(foreign)
    assert left.ended is not None
    assert (left.ended.outcome, left.acts) == (SlurmOutcome.LEFT, ())
    assert left.ended.text == f"job {number} is root's, and the ranks are nobody's"
    done = controller.finish(own)
    assert done.ended is not None
    assert done.ended.outcome is SlurmOutcome.DONE
    assert slurm.wait_job(number) == "CANCELLED"


def test_nothing_is_done_in_dry_mode_and_what_would_be_done_is_told(
    slurm: SlurmCluster, controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "dry").mkdir()
    dry = Controller(slurm, tmp_path / "dry", SlurmLimits(enabled=True))
    number, out = submit(slurm, "dry")

    drained = dry.finish(request_of(SchedulerAction.DRAIN, "inc-4", nodes=("node4",)))
    requeued = dry.finish(
        request_of(SchedulerAction.REQUEUE, "re-4", slurm_job=number, nodes=("node1",))
    )
    dry.journal.close()

    assert drained.ended is not None
    assert requeued.ended is not None
    assert (drained.ended.outcome, drained.ended.text) == (SlurmOutcome.DRY, "would drain node4")
    assert requeued.ended.outcome is SlurmOutcome.DRY
    assert requeued.ended.text == f"would requeue job {number} (RUNNING on node[1-2]) without node1"
    assert len(starts(out)) == 1


def test_a_job_is_requeued_without_the_bad_nodes_and_starts_once(
    slurm: SlurmCluster, controller: Controller
) -> None:
    number, out = submit(slurm, "requeued")

    done = controller.finish(
        request_of(SchedulerAction.REQUEUE, "re-5", slurm_job=number, nodes=("node1", "node2"))
    )

    assert done.ended is not None
    assert done.ended.outcome is SlurmOutcome.DONE, done
    assert starts(out) == ["started 0 node[1-2]", "started 1 node[3-4]"]


def test_a_controller_that_died_after_each_record_requeues_a_job_once(
    slurm: SlurmCluster, controller: Controller, tmp_path: Path
) -> None:
    number, out = submit(slurm, "crashed")
    request = request_of(SchedulerAction.REQUEUE, "re-6", slurm_job=number, nodes=("node1",))
    (tmp_path / "own").mkdir()
    lives = 0
    first = Controller(slurm, tmp_path / "own")
    first.desk.ask(request)
    first.journal.close()

    while True:  # each life ends after one more record
        life = Controller(slurm, tmp_path / "own")
        known = life.desk.ledger.number
        life.turn_until(lambda: life.desk.ledger.number > known, "one more record")  # noqa: B023
        life.journal.close()
        lives += 1
        ended = life.work(request).ended
        if ended is not None:
            break

    assert lives >= 5
    assert ended.outcome is SlurmOutcome.DONE
    assert len(starts(out)) == 2
    assert "node1" not in starts(out)[1]


def test_a_controller_killed_between_intent_and_act_does_it_at_its_next_start(
    slurm: SlurmCluster, controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    request = request_of(SchedulerAction.DRAIN, "inc-7", nodes=("node3",), reason="link down")
    first = Controller(slurm, tmp_path / "own")
    first.desk.ask(request)
    first.desk.bench.write(SlurmActs("inc-7", SlurmAct.DRAIN, "node3"))
    first.journal.close()

    second = Controller(slurm, tmp_path / "own")
    done = second.finish(request)
    second.finish(request_of(SchedulerAction.RESUME, "back-7", nodes=("node3",)))
    second.journal.close()

    assert done.ended is not None
    assert done.ended.outcome is SlurmOutcome.DONE
    assert "drain" not in reason_of(slurm, "node3")


def test_a_job_that_ended_in_place_of_starting_is_put_back_once(
    slurm: SlurmCluster, controller: Controller
) -> None:
    number, out = submit(slurm, "lost")
    request = request_of(SchedulerAction.REQUEUE, "re-8", slurm_job=number, nodes=("node1",))
    controller.desk.ask(request)
    # As a revoked credential does: the next start ends at once with exit code 1, before the script's first line.
    marker = slurm.folder / "lose"
    marker.touch()
    work = lambda: controller.work(request)  # noqa: E731
    controller.turn_until(lambda: bool(work().did(SlurmAct.EXCLUDE)), "held")
    script = next(slurm.folder.glob(f"state/hash.*/job.{number}/script"))
    script.write_text(
        f"#!/bin/sh\nif rm {marker}; then exit 1; fi 2>/dev/null\necho started again\nsleep 600\n"
    )

    controller.turn_until(lambda: work().ended is not None, "the end")

    ended = work().ended
    assert ended is not None
    assert ended.outcome is SlurmOutcome.DONE, work()
    assert len(work().did(SlurmAct.REQUEUE_AGAIN)) == 1
    assert starts(out)[1:] == ["started again"]


def test_a_job_that_slurm_no_longer_requeues_is_submitted_anew_once(
    slurm: SlurmCluster, controller: Controller
) -> None:
    number, out = submit(slurm, "anew")
    request = request_of(SchedulerAction.REQUEUE, "re-10", slurm_job=number, nodes=("node1",))
    controller.desk.ask(request)
    work = lambda: controller.work(request)  # noqa: E731
    controller.turn_until(lambda: bool(work().did(SlurmAct.EXCLUDE)), "held")
    # Its next start ends as that of a job whose credential was revoked, and from then on it may not be requeued.
    next(slurm.folder.glob(f"state/hash.*/job.{number}/script")).write_text("#!/bin/sh\nexit 1\n")
    assert slurm.run("scontrol", "update", f"jobid={number}", "requeue=0").returncode == 0

    controller.turn_until(lambda: work().ended is not None, "the end")
    lines, copy = starts(out), work().copy
    told = slurm.run("scontrol", "show", "job", copy, "--oneliner").stdout
    known = slurm.run(
        "squeue", "--noheader", "--name=anew.sh", "--states=all", "--format=%i %T"
    ).stdout

    ended = work().ended
    assert ended is not None
    assert ended.outcome is SlurmOutcome.DONE, work()
    assert sorted(known.splitlines()) == sorted([f"{number} FAILED", f"{copy} RUNNING"])
    assert "ExcNodeList=node1 " in told
    assert lines[0] == "started 0 node[1-2]"
    assert len(lines) == 2
    assert lines[1].startswith("started 0 node[2-")


def boot(slurm: SlurmCluster, node: str, restarts: Path) -> None:
    """Start slurmd as on a node that has booted: Slurm takes no boot in the second in which it asked for it."""
    eventually(lambda: time.time() > restarts.stat().st_mtime + 2.0, "the second is over")
    slurm.processes[node].terminate()
    slurm.processes[node].wait(DEADLINE_S)
    config = str(slurm.folder / "slurm.conf")
    slurm.start(node, "slurmd", "-D", "-b", "-N", node, "-f", config)
    slurm.wait_until_idle(has_rebooted=True)


def test_a_node_is_restarted_once_it_is_empty_and_comes_back(
    slurm: SlurmCluster, controller: Controller
) -> None:
    marks = slurm.folder / "restarts"
    number, _out = submit(slurm, "busy", nodes=1)
    request = request_of(SchedulerAction.REBOOT, "boot-1", nodes=("node1",), reason="GPU is stuck")

    done = controller.finish(request)
    left = controller.finish(
        request_of(SchedulerAction.REBOOT, "boot-2", nodes=("node1",), reason="the same")
    )
    assert done.ended is not None
    assert left.ended is not None
    assert (done.ended.outcome, left.ended.outcome) == (SlurmOutcome.DONE, SlurmOutcome.LEFT)
    assert not marks.exists(), "its job still runs"
    slurm.run("scancel", number)
    eventually(marks.exists, "RebootProgram runs")
    boot(slurm, "node1", marks)

    assert marks.read_text() == "restarts\n"


def test_slurmctld_killed_in_mid_action_loses_and_repeats_nothing(
    slurm: SlurmCluster, controller: Controller
) -> None:
    number, out = submit(slurm, "outage")
    # slurmctld saves its jobs every few seconds: one that it never saved is lost whoever asks.
    eventually(lambda: b"outage.sh" in saved_jobs(slurm), "the job is saved")
    request = request_of(SchedulerAction.REQUEUE, "re-9", slurm_job=number, nodes=("node1",))
    controller.desk.ask(request)
    controller.turn_until(lambda: bool(controller.work(request).did(SlurmAct.REQUEUE_HOLD)), "held")
    slurm.processes["slurmctld"].kill()
    slurm.processes["slurmctld"].wait()
    controller.turn_until(lambda: controller.desk.bench.is_answering is False, "Slurm is away")

    slurm.start("slurmctld", "slurmctld", "-D", "-f", str(slurm.folder / "slurm.conf"))
    controller.turn_until(lambda: controller.work(request).ended is not None, "the end")

    ended = controller.work(request).ended
    assert ended is not None
    assert ended.outcome is SlurmOutcome.DONE, controller.work(request)
    assert len(starts(out)) == 2
    assert "node1" not in starts(out)[1]
