"""The real torchrun with `--rdzv-backend=rankmend`: what it gains, and that nothing of ours ends a training."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.beside_torchrun import BesideTorchrun, agent_page, ended
from tests.support.eventually import eventually

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.torch]

# A rank says how it was started, writes its pid, and does what the test's lines say.
BEGIN = """
import os, signal, sys, time
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
group = os.environ["GROUP_RANK"]
def say(text):
    with open(f"said-{rank}", "a") as file:
        file.write(f"{text}\\n")
say(f"begin {restart} of {os.environ['WORLD_SIZE']} with {os.environ.get('RANKMEND_CHECKPOINT')}")
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.05)
"""
DIES_ONCE = (
    BEGIN
    + """
if not os.path.exists("died"):  # a node that follows another one's restart counts none of its own
    if rank == 0:
        import numpy
        numpy.savez("part.npz", state=numpy.ones(4))
        os.makedirs("ckpt", exist_ok=True)
        os.rename("part.npz", "ckpt/step_5.npz")
    wait_for("go")
    if rank == 1:
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""
)
# Rank 1 never comes to the meeting, whose time-out ends rank 0.
HANGS_ONCE = (
    BEGIN
    + """
if restart == 0 and rank == 1:
    wait_for("never")
if restart == 0:
    import datetime
    import torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
say("trains")
"""
)
UNTIL_LOST = (
    BEGIN
    + """
if os.environ["WORLD_SIZE"] == "2":
    wait_for("go")
    raise ConnectionResetError("as a collective, when the other node is gone")
"""
)
WAITS = BEGIN + 'wait_for("go")\n'


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], BesideTorchrun]]:
    made: list[BesideTorchrun] = []

    def make_one(script: str) -> BesideTorchrun:
        made.append(BesideTorchrun(tmp_path, script))
        return made[-1]

    yield make_one
    for job in made:
        job.close()


def said(job: BesideTorchrun, rank: int = 0) -> list[str]:
    path = job.folder / f"said-{rank}"
    return path.read_text().splitlines() if path.exists() else []


def go(job: BesideTorchrun) -> None:
    (job.folder / "go").touch()


def test_a_dead_rank_is_an_incident_and_the_restart_has_the_checkpoint(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(DIES_ONCE)
    run = job.start("--nnodes", "1", nproc=2, conf={"checkpoint_dir": job.folder / "ckpt"})
    eventually((job.folder / "ckpt" / "step_5.npz").exists, "a checkpoint")
    eventually(lambda: list(job.state.glob("jobs/*/journal.db-wal")), "the journal")
    go(job)

    code, output = ended(run)

    assert code == 0, output
    path = job.folder / "ckpt" / "step_5.npz"
    for rank in (0, 1):
        assert said(job, rank)[-1] == f"begin 1 of 2 with {path}", output
    (incident,) = job.incidents()
    assert incident["outcome"] == "recovered"
    assert incident["total_s"] > 0


def test_a_hang_that_ends_by_a_timeout_is_an_incident(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(HANGS_ONCE)

    code, output = ended(job.start("--nnodes", "1", nproc=2))

    assert code == 0, output
    assert said(job)[-1] == "trains"
    # torchrun restarts once more where another program took the port that it had found free for the ranks' store.
    restarts = int(said(job)[-2].split()[1])
    assert restarts >= 1, output
    assert [one["outcome"] for one in job.incidents()] == ["recovered"] * restarts, output


@pytest.mark.safety
def test_two_nodes_begin_from_one_checkpoint_and_one_keeps_the_journal(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(DIES_ONCE)
    conf = {"checkpoint_dir": job.folder / "ckpt"}
    runs = [job.start("--nnodes", "2", conf=conf) for _node in range(2)]
    eventually((job.folder / "ckpt" / "step_5.npz").exists, "a checkpoint")
    eventually(lambda: said(job, 0) and said(job, 1), "both ranks run")
    go(job)

    ends = [ended(run) for run in runs]

    assert [code for code, _output in ends] == [0, 0], ends
    path = job.folder / "ckpt" / "step_5.npz"
    for rank in (0, 1):
        assert said(job, rank)[-1].endswith(f"of 2 with {path}"), ends
        assert said(job, rank)[0].endswith("with None"), ends
    assert len(list(job.state.glob("jobs/*"))) == 1
    assert [one["outcome"] for one in job.incidents()] == ["recovered"], ends


def test_a_lost_node_is_an_incident_of_the_one_that_is_left(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(UNTIL_LOST)
    conf = {"keep_alive_interval": 1, "keep_alive_max_attempt": 5}
    first = job.start("--nnodes", "1:2", conf={**conf, "is_host": 1, "last_call_timeout": 20})
    other = job.start("--nnodes", "1:2", conf={**conf, "is_host": 0, "journal": 0})
    eventually(lambda: said(job, 0) and said(job, 1), "both nodes have met")
    workers = psutil.Process(other.process.pid).children(recursive=True)
    other.process.kill()
    for worker in workers:
        worker.kill()
    go(job)

    code, output = ended(first)

    assert code == 0, output
    assert said(job, 0)[-1].endswith("of 1 with None"), output
    # More than one where a busy machine delayed the second node's first meeting, or its signs of life.
    assert {one["outcome"] for one in job.incidents()} == {"recovered"}, output


def test_an_agent_that_hangs_delays_a_start_and_ends_none(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(BEGIN)
    with agent_page() as (page, url):
        page.may_answer.clear()

        code, output = ended(job.start("--nnodes", "1", conf={"agent": url}))

    assert code == 0, output
    assert said(job) == ["begin 0 of 1 with None"]
    assert page.looks == 1


@pytest.mark.safety
def test_a_job_trains_where_no_journal_can_be_kept(make: Callable[[str], BesideTorchrun]) -> None:
    job = make(BEGIN)
    job.state.write_text("no folder")
    missing = {"checkpoint_dir": job.folder / "missing"}

    code, output = ended(job.start("--nnodes", "1", conf=missing))

    assert code == 0, output
    assert said(job) == ["begin 0 of 1 with None"]
    assert "this job's incidents are not journaled" in output


def test_a_known_bad_node_is_kept_out_and_the_finding_is_named(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(BEGIN)
    with agent_page() as (page, url):
        page.add()

        code, output = ended(job.start("--nnodes", "1", conf={"agent": url}))
        assert code == 1
        assert said(job) == []
        assert "GPU 0 has uncorrectable errors (gpu_ecc:0)" in output
        assert "--rdzv-conf vet=0" in output

        code, output = ended(job.start("--nnodes", "1", conf={"agent": url, "vet": 0}))
        assert code == 0, output
        assert said(job) == ["begin 0 of 1 with None"]


def test_a_known_bad_node_waits_as_a_spare_and_ends_well_with_the_job(
    make: Callable[[str], BesideTorchrun],
) -> None:
    job = make(WAITS)
    good = job.start("--nnodes", "1:2")
    eventually(lambda: said(job), "the good node trains")
    with agent_page() as (page, url):
        page.add()
        bad = job.start("--nnodes", "1:2", conf={"agent": url, "is_host": 0})
        eventually(lambda: page.looks >= 2, "it waits")
        go(job)

        code, output = ended(good)
        assert code == 0, output
        code, output = ended(bad)

    assert said(job) == ["begin 0 of 1 with None"]
    assert "waits as a spare" in output
    assert code == 0, output


def test_a_script_that_imports_the_plugins_imports_no_rankmend(
    make: Callable[[str], BesideTorchrun],
) -> None:
    """Else the hook would begin in a parent, or in the fork server, before a rank has its environment."""
    job = make("")

    found = job.python(
        "import sys, torch.distributed.elastic.rendezvous.registry as r; "
        "r._register_out_of_tree_handlers(); print(sorted(m for m in sys.modules if 'rankmend' in m))"
    )

    assert found == "['rankmend_torchrun']"
