"""`srun rankmend run` on a real Slurm cluster: the examples as they stand, faults, a sweep, a requeue."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.api import wire
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support import forked_cli, lockstep
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.service import Running, make_folder, running
from tests.support.slurm import SlurmCluster, missing, slurm_cluster
from tests.support.torch_here import needs_torch
from tests.system.cluster.bed import LOCKSTEP

pytestmark = [pytest.mark.site, pytest.mark.torch, pytest.mark.timeout(1500)]
ROOT = Path(__file__).resolve().parents[2]
DIGITS_TORCH = ROOT / "examples/digits_torch/train.py"
RANKS = 3
STEPS = 60
SMALL = (f"--steps={STEPS}", "--hidden=16", "--batch=48")
ENDLESS = "--steps=1000000 --step-s=0.05 --keep=3"
# Takes the options of the example in whose place it stands.
LOCKSTEP_AS_EXAMPLE = f"""
import argparse, runpy, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--data")
parser.add_argument("--learning-rate")
sys.argv[1:] = parser.parse_known_args()[1]
runpy.run_path({str(LOCKSTEP)!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    needs_torch()
    if reason := missing():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 4) as cluster:
        yield cluster


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a user's folder, with the examples of the repository in it, and in the place of PyTorch's a job of a few ms a step."""
    (tmp_path / "home").mkdir()
    (tmp_path / "examples" / "digits_torch").mkdir(parents=True)
    for name in ("digits", "slurm"):
        (tmp_path / "examples" / name).symlink_to(ROOT / "examples" / name)
    put_example(tmp_path, LOCKSTEP_AS_EXAMPLE)
    return tmp_path


def put_example(place: Path, text: str) -> None:
    (place / "examples" / "digits_torch" / "train.py").write_text(text)


def submit(slurm: SlurmCluster, place: Path, *words: str) -> str:
    """Submit in a user's folder, with a rankmend on the PATH that starts no fork servers; return the job's number."""
    real, named = Path(sys.executable).with_name("rankmend"), place / "bin" / "rankmend"
    named.parent.mkdir(exist_ok=True)
    named.write_text(
        f'#!/bin/sh\n[ "$1" = run ] || exec {real} "$@"\nshift\nexec {real} run --no-fork-server "$@"\n'
    )
    named.chmod(0o755)
    path = f"{named.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = slurm.run(
        "sbatch", "--parsable", "--chdir", str(place), *words,
        PATH=path, HOME=str(place / "home"), OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def example(name: str) -> str:
    return str(ROOT / "examples" / "slurm" / name)


def wait_for(condition: Callable[[], object], what: str, output: Path) -> None:
    def said() -> str:
        return output.read_text() if output.exists() else "nothing"

    eventually(condition, lambda: f"{what}: {said()}", pause_s=0.1)


def processes(place: Path, node: str, *, ranks: bool) -> list[int]:
    """Return the ranks, or the launchers, that run on a node for a job of this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
            words = path.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        here = {f"SLURMD_NODENAME={node}".encode(), f"HOME={place}/home".encode()}
        is_rank = any(one.startswith(b"RANKMEND_PROGRESS_FILE=") for one in variables)
        is_launcher = b"run" in words[:4] and any(one.endswith(b"/rankmend") for one in words[:3])
        if here <= set(variables) and (is_rank if ranks else is_launcher and not is_rank):
            found.append(int(path.parent.name))
    return found


def attempts(place: Path, name: str = "published") -> list[int]:
    """Return the attempt that published each checkpoint of a lockstep job, in the order of time."""
    path = place / name
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def end(slurm: SlurmCluster, place: Path, job: str, output: Path, ranks: int = 2) -> str:
    """Have a lockstep job end, compare its result with that of an undisturbed run, and return its output."""
    (place / "enough").touch()
    state = slurm.wait_job(job)
    out = output.read_text()
    assert state == "COMPLETED", out + slurm.logs()
    told = result(place)
    step = told["step"]
    assert isinstance(step, int)
    assert told == lockstep.undisturbed(step, ranks)
    return out


def result(place: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((place / "result.json").read_text())
    return told


def journals(place: Path) -> list[dict[str, object]]:
    return [
        json.loads(path.read_text())
        for path in sorted((place / "home").glob(".local/state/rankmend/jobs/*/job.json"))
    ]


def undisturbed(place: Path) -> object:
    """Return the digest of the parameters of the example with PyTorch, as it stands, on ranks that nothing disturbs."""
    port = str(free_port())
    words = [f"--data={place}/digits.npz", f"--checkpoint-dir={place}/undisturbed", *SMALL]
    with (place / "undisturbed.out").open("wb") as out:
        ranks = [
            forked_cli.start_script(
                DIGITS_TORCH,
                [*words, f"--result={place}/undisturbed.json"],
                environment={
                    **os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                },
                stdout=out,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
    codes = [rank.wait(DEADLINE_S) for rank in ranks]
    assert codes == [0] * RANKS, (place / "undisturbed.out").read_text()
    return json.loads((place / "undisturbed.json").read_text())["sha256"]


def test_commands_of_the_quick_start_train_on_three_nodes_and_lost_rank_and_node_change_no_parameter(
    slurm: SlurmCluster, place: Path
) -> None:
    page = (ROOT / "docs/use/slurm.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    prepare, sbatch, squeue = block.splitlines()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "PATH": path, "HOME": str(place / "home"), "OMP_NUM_THREADS": "1", **slurm.environment,
    }  # fmt: skip
    # The example as it stands, but for a line: it makes its last step once the faults are over.
    text, line = DIGITS_TORCH.read_text(), "        rankmend.step(step)\n"
    assert text.count(line) == 1
    put_example(
        place,
        text.replace(
            line,
            f"{line}        while step == settings.steps - 1 and not Path('enough').exists():\n"
            "            time.sleep(0.05)\n",
        ),
    )

    told = [
        subprocess.run(
            ["bash", "-ec", line], cwd=place, env=environment, capture_output=True, text=True,
            timeout=DEADLINE_S, check=True,
        ).stdout
        for line in (prepare, f"{sbatch} {' '.join(SMALL)}", squeue)
    ]  # fmt: skip
    (job,) = re.findall(r"Submitted batch job (\d+)", "".join(told))
    output = place / "digits.out"
    wait_for(lambda: output.exists() and "step   50  loss" in output.read_text(), "steps", output)

    ranks = {node: processes(place, node, ranks=True) for node in slurm.nodes}
    working = [node for node in slurm.nodes[1:] if ranks[node]]
    victims = [pid for node in slurm.nodes for pid in ranks[node]]
    os.kill(victims[0], signal.SIGKILL)
    # Attempt 2 is forked in their places.
    wait_for(lambda: "attempt 2 makes progress" in output.read_text(), "restarted", output)
    for pid in processes(place, working[0], ranks=False):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "attempt 3 makes progress" in output.read_text(), "restarted", output)
    (place / "enough").touch()

    state = slurm.wait_job(job)
    out = output.read_text()
    assert state == "COMPLETED", out + slurm.logs()  # though srun tells of the killed launcher
    assert out.count(f"from Slurm job {job}, step 0: 4 nodes, of which 1 spare") == 1
    assert "runs no ranks on this node" in out
    assert "attempt 3 makes progress on 3 ranks" in out
    assert "done: every rank ended with exit code 0" in out
    assert result(place)["step"] == STEPS
    assert result(place)["sha256"] == undisturbed(place)


def test_planned_stop_saves_and_the_requeued_job_goes_on_as_the_same_one(
    slurm: SlurmCluster, place: Path
) -> None:
    output = place / "digits.out"
    words = (*ENDLESS.split(), "--until=enough", "--published=published")
    job = submit(slurm, place, "--nodes=3", example("nodes_and_spares.sbatch"), *words)
    wait_for(lambda: attempts(place), "a checkpoint", output)

    assert slurm.run("scancel", "--signal=TERM", job).returncode == 0
    wait_for(lambda: "restart 1: 3 nodes" in output.read_text(), "requeued", output)
    wait_for(lambda: 2 in attempts(place), "it goes on", output)
    out = end(slurm, place, job, output)

    assert "stopped: stop requested: SIGTERM" in out
    assert "failed after step" not in out
    assert out.count("from the beginning (no checkpoint found") == 1


def test_eight_runs_of_a_sweep_in_one_allocation_are_eight_jobs(
    slurm: SlurmCluster, place: Path
) -> None:
    words = ("--result=result.json", "--steps=30", "--step-s=0")
    job = submit(slurm, place, example("sweep.sbatch"), *words)

    state = slurm.wait_job(job)

    outs = [path.read_text() for path in sorted(place.glob("sweep-*.out"))]
    assert state == "COMPLETED", outs
    assert len(outs) == 8
    assert all("done: every rank ended with exit code 0" in out for out in outs), outs
    assert len({one["job_id"] for one in journals(place)}) == 8


def test_second_step_with_the_same_checkpoints_is_refused_on_every_node(
    slurm: SlurmCluster, place: Path
) -> None:
    line = (
        "srun --exact --nodes=2 --ntasks=2 --ntasks-per-node=1 rankmend run"
        f" --checkpoint-dir ckpt {LOCKSTEP} --checkpoint-dir ckpt --result result.json {ENDLESS}"
    )
    (place / "two.sh").write_text(
        f"#!/bin/bash\n{line} > one.out 2>&1 &\nfirst=$!\n"
        "until grep -qs 'makes progress' one.out; do sleep 0.2; done\n"
        f"{line} > two.out 2>&1\necho second $?\nscancel --signal=TERM $SLURM_JOB_ID\nwait $first\necho first $?\n"
    )
    job = submit(slurm, place, "--nodes=4", "--output=two-steps.out", str(place / "two.sh"))

    slurm.wait_job(job)

    told = (place / "two.out").read_text()
    assert (place / "two-steps.out").read_text().split() == ["second", "75", "first", "143"], told
    assert told.count("runs this job already") == 2, told


@contextmanager
def controller(slurm: SlurmCluster, folder: Path, **settings: Any) -> Iterator[Running]:
    """Run a controller that may act on Slurm, with a token of the user of these jobs."""
    make_folder(folder)
    token, entry = make_token("root", [Role.LAUNCH])
    add_token(folder / "tokens.toml", entry)
    (folder / "root.token").write_text(token)
    (folder / "root.token").chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        limits = SlurmLimits(
            enabled=True, act=True, drain=False, timeout_s=10.0, requeue_after_s=0.5, **settings
        )
        with running(folder, lambda one: msgspec.structs.replace(one, slurm=limits)) as up:
            yield up
    for node in slurm.nodes:
        slurm.run("scontrol", "update", f"nodename={node}", "state=undrain")


def job_line(place: Path, name: str, options: str, nodes: int = 2) -> str:
    """Return a line that trains on so many nodes without a spare; ``name``: of its checkpoints."""
    where = f"--checkpoint-dir {place}/{name}"
    return (
        f"srun --exact --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0"
        f" rankmend run {options} {where} {LOCKSTEP} {where}"
        f" --result {place}/result.json --until {place}/enough --published {place}/{name}.published"
        f" {ENDLESS}"
    )


def access(up: Running) -> str:
    return f"--controller {up.url} --ca-file {up.ca} --token-file {up.folder}/root.token"


def kill_launcher(slurm: SlurmCluster, place: Path) -> str:
    """Kill the launcher of the last node with a rank; return the node."""
    victim = [node for node in slurm.nodes if processes(place, node, ranks=True)][-1]
    for pid in processes(place, victim, ranks=False):
        os.kill(pid, signal.SIGKILL)
    return victim


def kill_node(slurm: SlurmCluster, place: Path) -> str:
    """Kill all that the job has on the last node with a rank, its guardian first; return the node."""
    victim = [node for node in slurm.nodes if processes(place, node, ranks=True)][-1]
    here = {f"SLURMD_NODENAME={victim}".encode(), f"HOME={place}/home".encode()}
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = path.with_name("cmdline").read_bytes()
            if here <= set(path.read_bytes().split(b"\0")):
                found.append((b"guardian" not in words, int(path.parent.name)))
    for _order, pid in sorted(found):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return victim


def submit_alone(
    slurm: SlurmCluster, place: Path, options: str, nodes: int = 2
) -> tuple[str, Path]:
    """Submit a job without a spare that Slurm may requeue; return its number and output once it trains."""
    output = place / "job.out"
    (place / "job.sh").write_text(f"#!/bin/bash\n{job_line(place, 'ckpt', options, nodes)}\n")
    words = (f"--nodes={nodes}", "--requeue", f"--output={output}", "--open-mode=append")
    job = submit(slurm, place, *words, str(place / "job.sh"))
    wait_for(lambda: attempts(place, "ckpt.published"), "a checkpoint", output)
    return job, output


def requeues(up: Running) -> list[wire.SlurmRequestView]:
    return [one for one in up.client("admin").slurm().requests if one.action == "requeue"]


def test_job_without_a_spare_is_requeued_and_keeps_a_node_whose_launcher_alone_has_ended(
    slurm: SlurmCluster, place: Path, tmp_path: Path
) -> None:
    with controller(slurm, tmp_path / "controller") as up:
        job, output = submit_alone(slurm, place, access(up))
        kill_launcher(slurm, place)
        wait_for(lambda: 2 in attempts(place, "ckpt.published"), "it goes on", output)
        end(slurm, place, job, output)
        (request,) = requeues(up)

    told = slurm.run("scontrol", "show", "job", job).stdout
    assert "ExcNodeList=(null)" in told
    assert "Restarts=1" in told
    assert (request.nodes, request.outcome) == ([], "done")
    assert len(up.service.worker.jobs.known) == 1


def test_job_without_a_controller_has_itself_requeued_without_the_lost_node(
    slurm: SlurmCluster, place: Path
) -> None:
    job, output = submit_alone(slurm, place, "--slurm-requeue 0.5s", RANKS)
    victim = kill_node(slurm, place)
    wait_for(lambda: 2 in attempts(place, "ckpt.published"), "it goes on", output)
    out = end(slurm, place, job, output, RANKS)

    told = slurm.run("scontrol", "show", "job", job).stdout
    assert f"ExcNodeList={victim}" in told
    assert "Restarts=1" in told
    assert f"Slurm job {job} is requeued without {victim}: " in out
    assert out.count("from the beginning (no checkpoint found") == 1


def test_job_that_shares_its_allocation_is_not_requeued(
    slurm: SlurmCluster, place: Path, tmp_path: Path
) -> None:
    output, names = place / "job.out", ("one", "two")
    with controller(slurm, tmp_path / "controller") as up:
        lines = [f"{job_line(place, name, access(up))} &" for name in names]
        (place / "job.sh").write_text("\n".join(["#!/bin/bash", *lines, "wait", ""]))
        options = ("--nodes=4", "--requeue", f"--output={output}", "--open-mode=append")
        job = submit(slurm, place, *options, str(place / "job.sh"))
        published = [f"{name}.published" for name in names]
        wait_for(lambda: all(attempts(place, name) for name in published), "both train", output)
        kill_launcher(slurm, place)
        wait_for(lambda: any(one.outcome for one in requeues(up)), "an answer", output)
        (request,) = requeues(up)
        told = slurm.run("scontrol", "show", "job", job).stdout
        slurm.run("scancel", job)

    assert request.outcome == "left"
    assert f"job {job} is shared: a requeue would also end" in request.text
    assert "JobState=RUNNING" in told
    assert "Restarts=0" in told


def test_fabric_test_of_its_page_finds_its_place_and_judges_under_srun(
    slurm: SlurmCluster, place: Path
) -> None:
    page = (ROOT / "docs/use/fabric.md").read_text()
    (command,) = re.findall(
        r"^    srun --ntasks-per-node=1 (rankmend fabric test find)$", page, re.M
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # All nodes are on this machine: without a word it refuses to test the loopback interface.
    words = [*command.split(), "--rail=lo", "--seconds=0.1", "--timeout=90s", "--json"]

    done = slurm.run(
        "srun", "--nodes=4", "--ntasks-per-node=1", "--chdir", str(place), *words,
        PATH=path, HOME=str(place / "home"),
    )  # fmt: skip

    assert done.returncode in (0, 3), (
        done.stderr + slurm.logs()
    )  # 3: one was slow on this busy machine
    told = json.loads(done.stdout)
    assert told["network"]["nodes"] == list(slurm.nodes)
    assert told["absent"] == []
    assert told["verdict"]["rounds"] <= 4, "2 log2 4"


def test_pre_flight_check_under_srun_tests_the_network_between_its_nodes(
    slurm: SlurmCluster, place: Path
) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    parts = ("--no-disk", "--no-gpu", "--no-health", f"--state-dir={place / 'flights'}")

    done = slurm.run(
        "srun", "--nodes=2", "--ntasks-per-node=1", "--chdir", str(place),
        "rankmend", "preflight", "job", "--network", "--rail=lo", *parts, "--json",
        PATH=path, HOME=str(place / "home"),
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr + slurm.logs()
    assert done.stdout.count('"network_sent_bytes_per_s"') >= 2
    # Each of the two nodes says so; where one test was slow by chance, it was repeated.
    assert len(re.findall(r"rounds? of pairs, too little to name a part", done.stdout)) == 2
