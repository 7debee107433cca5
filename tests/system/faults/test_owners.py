"""Two launchers and one checkpoint folder: a living owner is named and never killed."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from recovery.journal.job_records import ClaimProof, ClaimTaken
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.launcher.processes.process_tree import find_marked
from tests.support.eventually import eventually
from tests.system.faults.harness import JOBS, Job, children, is_alive, kill_with_guardian

pytestmark = [pytest.mark.process, pytest.mark.safety]
Make = Callable[..., Job]
ENDLESS_STEP = 30
OTHER_NAMESPACE = ["unshare", "-mpf", "--kill-child", "--mount-proc"]
NEEDS_NAMESPACES = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*OTHER_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="a PID namespace needs root",
)


@pytest.fixture
def rival(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make other launchers for the checkpoints of a job, each with a state folder of its own."""
    made: list[Job] = []

    def make(job: Job, **changes: object) -> Job:
        folder = tmp_path / f"rival{len(made)}"
        folder.mkdir()
        # The last of two options counts.
        flags = [f"--checkpoint-dir={job.checkpoints}", *job.flags]
        other = replace(
            job, folder=folder, flags=flags, process=None, starts=0, name=f"{job.name}-r{len(made)}"
        )
        other = replace(other, **changes)  # type: ignore[arg-type]
        made.append(other)
        return other

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Return a job that trains until the module's tests are over."""
    folder = tmp_path_factory.mktemp("endless")
    job = Job(folder, JOBS / "lockstep.py", [], 2, flags=["--store=ranks"])
    job.arguments = [
        f"--checkpoint-dir={job.checkpoints}",
        f"--result={folder / 'result.json'}",
        "--steps=1000000",
        "--step-s=0.05",
    ]
    job.start()
    yield job
    job.close()


def claims(job: Job) -> ClaimFolder:
    return ClaimFolder(job.checkpoints / ".rankmend")


@pytest.mark.parametrize("option", [(), ("--take-over",)])
def test_second_launcher_with_another_state_folder_is_refused_and_the_first_trains_on(
    endless: Job, rival: Make, option: tuple[str, ...]
) -> None:
    ranks = endless.pids_at_step(5)
    other = rival(endless)

    other.start(*option)

    assert other.wait() == 75, other.output
    other.expect_output(f"process {endless.process.pid} on {os.uname().nodename}")
    assert "killed" not in other.output
    assert ("--take-over is only for an owner that no longer runs" in other.output) == bool(option)
    assert endless.pids_at_step(ENDLESS_STEP) == ranks


@NEEDS_NAMESPACES
def test_launcher_in_another_container_is_refused_and_the_first_trains_on(
    endless: Job, rival: Make
) -> None:
    ranks = endless.pids_at_step(5)
    other = rival(endless, prefix=OTHER_NAMESPACE)

    other.start()

    assert other.wait() == 75, other.output
    other.expect_output("in another container of this machine. That owner is alive")
    assert endless.pids_at_step(ENDLESS_STEP) == ranks


@NEEDS_NAMESPACES
@pytest.mark.parametrize("prefix", [[], OTHER_NAMESPACE], ids=["host", "another container"])
def test_owner_in_a_container_refuses_others_and_makes_way_once_it_is_killed(
    make_pair: Make, rival: Make, prefix: list[str]
) -> None:
    job = make_pair("--steps=100000", prefix=OTHER_NAMESPACE)
    job.start()
    ranks = job.pids_at_step(5)
    refused = rival(job, prefix=prefix)
    refused.start()
    assert refused.wait() == 75, refused.output
    refused.expect_output("That owner is alive")
    assert job.pids_at_step(10) == ranks
    (first,) = children(job.process.pid)
    job.signal(signal.SIGKILL)
    job.wait()
    eventually(
        lambda: not is_alive(first), "the container's first process, the last one, has ended"
    )
    heir = rival(job, prefix=prefix, arguments=[*job.arguments, "--steps=20"])

    heir.start()

    assert heir.wait() == 0, heir.output
    proof = ClaimProof.LOCK if prefix else ClaimProof.PROCESSES
    assert [one.proof for one in heir.records(ClaimTaken)] == [proof]


@NEEDS_NAMESPACES
def test_container_without_a_proc_of_its_own_is_refused_with_a_word(make_pair: Make) -> None:
    job = make_pair(prefix=["unshare", "-pf", "--kill-child"])

    job.start()

    assert job.wait() == 1, job.output
    job.expect_output("unshare --mount-proc")


def test_owner_that_was_stopped_releases_the_folder(make_pair: Make, rival: Make) -> None:
    job = make_pair("--steps=100000")
    job.start()
    job.pids_at_step(5)
    job.signal(signal.SIGTERM)
    assert job.wait() == 143
    pretend_elsewhere(claims(job))  # where nothing else could prove that it has ended
    again = rival(job, arguments=[*job.arguments, "--steps=20"])

    again.start()

    assert again.wait() == 0, again.output
    assert again.records(ClaimTaken) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_launcher_that_is_stopped_before_its_ranks_start_releases_the_folder(
    make_pair: Make, number: int, code: int
) -> None:
    job = make_pair()
    job.start()
    eventually(lambda: claims(job).newest(), "it has taken the folder")
    job.signal(number)

    assert job.wait() == code, job.output
    found = claims(job).newest()
    assert found is not None
    assert found.claim is not None
    assert found.claim.is_released


def pretend_elsewhere(folder: ClaimFolder) -> None:
    """Have the newest claim be that of a launcher on another machine."""
    found = folder.newest()
    assert found is not None
    assert found.claim is not None
    folder.replace(msgspec.structs.replace(found.claim, host="elsewhere", machine="m", boot_id="b"))


def test_killed_owner_on_this_machine_makes_way_without_an_option(
    make_pair: Make, rival: Make
) -> None:
    job = make_pair()
    job.start()
    job.pids_at_step(10)
    mark = job.job_id
    kill_with_guardian(job)
    other = rival(job)

    other.start()

    assert other.wait() == 0, other.output
    taken = other.records(ClaimTaken)
    assert [one.proof for one in taken] == [ClaimProof.PROCESSES]
    other.expect_output("took the checkpoint folder from job")
    assert not find_marked(mark)


def test_owner_from_whom_the_folder_was_taken_stops_its_ranks(make_pair: Make) -> None:
    job = make_pair("--steps=100000")
    job.start()
    job.pids_at_step(5)
    folder = claims(job)
    found = folder.newest()
    assert found is not None
    assert found.claim is not None
    newer = msgspec.structs.replace(
        found.claim, generation=found.generation + 1, token="t", owner="launcher:t", host="other"
    )

    assert folder.make(newer)

    assert job.wait() == 75, job.output
    job.expect_output("was taken over by")
    assert not find_marked(job.job_id)


def test_run_in_a_copied_folder_is_a_job_of_its_own_beside_the_original(
    endless: Job, rival: Make, tmp_path: Path
) -> None:
    ranks = endless.pids_at_step(25)
    copy = tmp_path / "copy"
    with contextlib.suppress(shutil.Error):  # as with cp -r: files of a save vanish meanwhile
        shutil.copytree(endless.checkpoints, copy)
    arguments = [f"--checkpoint-dir={copy}", f"--result={tmp_path / 'r.json'}", "--steps=20"]
    branch = rival(endless, flags=[f"--checkpoint-dir={copy}"], arguments=arguments)

    branch.start()

    assert branch.wait() == 0, branch.output
    assert branch.job_id != endless.job_id
    assert "killed" not in branch.output
    assert endless.pids_at_step(ENDLESS_STEP) == ranks


def test_checkpoint_folder_behind_a_link_of_ones_own_works(make_pair: Make, tmp_path: Path) -> None:
    job = make_pair("--steps=2", world_size=1)
    (tmp_path / "scratch").mkdir()
    job.checkpoints.symlink_to(tmp_path / "scratch")

    job.start()

    assert job.wait() == 0, job.output
    assert (tmp_path / "scratch" / ".rankmend" / "owner-1.json").is_file()
