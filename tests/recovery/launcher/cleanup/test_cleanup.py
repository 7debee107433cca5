"""What a Slurm job left on a node is removed, and nothing else: real processes and files of real users, without Slurm."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rankmend.errors import ConfigError, SourceError
from rankmend.hook.watched_layout import FOLDER_PREFIX, JOB_FILE
from recovery.launcher.cleanup import leftover_files
from recovery.launcher.cleanup.cleaner import Cleanup, CleanupResult, clean_up, refuse_from_inside
from recovery.launcher.processes.process_tree import read_state
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to run processes of other users"),
]
# No account has these: what else runs on this machine is not theirs.
USER, OTHER_USER = 61_234, 61_235
SWAPS = 12  # clean-ups while folders are exchanged for links
SLEEP = "echo up; exec sleep 600"
DEAF = f"trap '' TERM; {SLEEP}"  # what is ignored stays so over exec


def no_other_jobs() -> Sequence[str]:
    return ()


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder as /dev/shm: everybody writes in it."""
    folder = Path("/dev/shm") / f"test-cleanup-{uuid.uuid4().hex}"
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


class Job:
    """Starts processes of a job, and waits until they are what they shall be."""

    def __init__(self, processes: list["subprocess.Popen[str]"]) -> None:
        self._processes = processes

    def start(self, code: str = SLEEP, *, uid: int = USER, **variables: str) -> int:
        process = subprocess.Popen(
            ["/bin/sh", "-c", code],  # the tests' Python may be for root alone
            env={"PATH": os.environ["PATH"], **variables},
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        if code.endswith(SLEEP):
            _await_sleep(process.pid)
        return process.pid

    def alive(self, *pids: int) -> list[int]:
        states = ((pid, read_state(pid)) for pid in pids)
        return [pid for pid, state in states if state is not None and not state.is_gone]


def _await_sleep(pid: int) -> None:
    """Wait until the shell has become `sleep`: the kernel shows no environment while it makes one of the other."""

    def sleeps() -> bool:
        state = read_state(pid)
        assert state is not None
        return (state.command, state.letter) == ("sleep", "S")

    eventually(sleeps, "the shell has become `sleep`")


@pytest.fixture
def job(processes: list["subprocess.Popen[str]"]) -> Job:
    return Job(processes)


def clean(
    roots: Path | None = None,
    *,
    is_dry: bool = False,
    others: Sequence[str] = (),
    number: str = "7",
    timeout_s: float = 30,
) -> CleanupResult:
    asked = Cleanup(
        number, USER, grace_s=0.5, timeout_s=timeout_s, is_dry=is_dry,
        roots=() if roots is None else (roots,),
    )  # fmt: skip
    return clean_up(asked, lambda: others)


def test_processes_of_the_job_end_and_all_others_live(job: Job) -> None:
    ours = [
        job.start(SLURM_JOB_ID="7"),
        job.start(SLURM_JOBID="7"),
        job.start(DEAF, SLURM_JOB_ID="7"),
    ]
    others = [
        job.start(SLURM_JOB_ID="77"),
        job.start(),
        job.start(SLURM_JOB_ID="7", uid=OTHER_USER),
        job.start(SLURM_JOB_ID="7", uid=0),
    ]

    result = clean()

    assert job.alive(*ours, *others) == others
    assert sorted(one.pid for one in result.ended) == sorted(ours)
    assert result.is_clean


def test_a_dry_run_says_the_same_and_ends_nothing(job: Job) -> None:
    ours = job.start(SLURM_JOB_ID="7")

    result = clean(is_dry=True)

    assert [one.pid for one in result.ended] == [ours]
    assert job.alive(ours) == [ours]


def test_a_daemon_without_the_jobs_variable_is_found_by_its_mark_and_by_its_parent(
    job: Job,
) -> None:
    run = str(uuid.uuid4())
    child = "env -i sleep 600 & echo up; wait"
    parent = job.start(child, SLURM_JOB_ID="7", RANKMEND_JOB_ID=run)
    marked = job.start(RANKMEND_JOB_ID=run)
    elsewhere = job.start(RANKMEND_JOB_ID=str(uuid.uuid4()))

    result = clean()

    assert job.alive(parent, marked, elsewhere) == [elsewhere]
    assert len(result.ended) == 3


def test_a_run_that_goes_on_in_another_job_keeps_its_unnamed_processes(job: Job) -> None:
    run = str(uuid.uuid4())
    ours = job.start(SLURM_JOB_ID="7", RANKMEND_JOB_ID=run)
    others = [job.start(SLURM_JOB_ID="8", RANKMEND_JOB_ID=run), job.start(RANKMEND_JOB_ID=run)]

    clean()

    assert job.alive(ours, *others) == others


def test_a_job_of_root_is_refused() -> None:
    with pytest.raises(ConfigError, match="root"):
        clean_up(Cleanup("7", 0, 1, 1), no_other_jobs)


def test_a_clean_up_that_was_typed_in_the_jobs_own_shell_is_refused(job: Job) -> None:
    shell = read_state(job.start(SLURM_JOB_ID="7"))
    assert shell is not None

    refuse_from_inside("7", [shell], [1, os.getpid()])
    with pytest.raises(ConfigError, match=f"process {shell.pid} .* of job 7 has started"):
        refuse_from_inside("7", [shell], [shell.pid, 1])


def test_processes_that_do_not_end_are_named(job: Job) -> None:
    ours = job.start(DEAF, SLURM_JOB_ID="7")

    result = clean_up(Cleanup("7", USER, grace_s=60, timeout_s=1, roots=()), no_other_jobs)

    assert [one.pid for one in result.alive] == [ours]
    assert not result.is_clean


# ------------------------------------------------------------------------------------- files


def own(path: Path, uid: int = USER) -> Path:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)
    return path


def run_folder(shared: Path, number: str, *, uid: int = USER) -> Path:
    """Make what a killed launcher leaves."""
    folder = shared / f"rankmend-{uid}" / str(uuid.uuid4())
    for name in ("site", "snapshots", "attempt-1"):
        (folder / name).mkdir(parents=True)
    (folder / "slurm-job").write_text(f"{number}\n")
    (folder / "snapshots" / "rank-0.0.snapshot").write_bytes(b"x" * 10_000)
    (folder / "site" / "rankmend").symlink_to(Path(__file__).parent)
    own(folder.parent, uid)
    return folder


def watched_folder(shared: Path, number: str) -> Path:
    folder = shared / f"{FOLDER_PREFIX}{USER}" / str(uuid.uuid4())
    folder.mkdir(parents=True)
    (folder / JOB_FILE).write_text(json.dumps({"key": "", "slurm_job": number}))
    (folder / "rank-0.progress").write_bytes(b"x")
    own(folder.parent)
    return folder


def segment(shared: Path, name: str, uid: int = USER) -> Path:
    (shared / name).write_bytes(b"x" * 5000)
    return own(shared / name, uid)


def test_folders_of_the_job_go_and_those_of_other_jobs_stay(shared: Path) -> None:
    ours = [run_folder(shared, "7"), watched_folder(shared, "7")]
    others = [
        run_folder(shared, "77"),
        watched_folder(shared, "8"),
        run_folder(shared, "7", uid=OTHER_USER),
    ]

    result = clean(shared)

    assert [path for path in (*ours, *others) if path.exists()] == others
    assert sorted(result.removed) == sorted(map(str, ours))
    assert result.freed_bytes >= 10_000
    assert Path(__file__).exists()


def test_a_folder_whose_launcher_lives_stays(shared: Path) -> None:
    folder = run_folder(shared, "7")
    held = os.open(folder / "snapshots", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)

    result = clean(shared)
    os.close(held)

    assert folder.exists()
    assert "snapshots" in result.kept[0].why


def test_segments_of_frameworks_go_where_the_user_has_no_other_job(shared: Path) -> None:
    ours = [
        segment(shared, "nccl-aB3dEf"),
        segment(shared, "torch_123_456_0"),
        segment(shared, "sem.mp-x1"),
    ]
    others = [segment(shared, "nccl-other", OTHER_USER), segment(shared, "my-own-data")]

    result = clean(shared)

    assert [path for path in (*ours, *others) if path.exists()] == others
    assert result.is_clean


def test_segments_stay_where_another_job_of_the_user_runs(shared: Path) -> None:
    ours = segment(shared, "nccl-aB3dEf")

    result = clean(shared, others=["8"])

    assert ours.exists()
    assert "another job's: 8" in result.kept[0].why


def test_segments_stay_where_a_process_of_another_job_runs(shared: Path, job: Job) -> None:
    ours = segment(shared, "nccl-aB3dEf")
    job.start(SLURM_JOB_ID="8")

    assert "another job's: 8" in clean(shared).kept[0].why
    assert ours.exists()


def test_segments_stay_where_slurm_does_not_answer(shared: Path) -> None:
    ours = segment(shared, "nccl-aB3dEf")

    def no_answer() -> Sequence[str]:
        raise SourceError("squeue did not answer in 2.0 s")

    result = clean_up(Cleanup("7", USER, 1, 30, roots=(shared,)), no_answer)

    assert ours.exists()
    assert "did not answer" in result.kept[0].why


def test_a_dry_run_removes_no_file(shared: Path) -> None:
    ours = [run_folder(shared, "7"), segment(shared, "nccl-aB3dEf")]

    result = clean(shared, is_dry=True)

    assert all(path.exists() for path in ours)
    assert len(result.removed) == 2


def test_what_others_put_beside_hides_nothing(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover_files, "ENTRIES_MAX", 3)
    folder = run_folder(shared, "7")
    nested = watched_folder(shared, "7")
    (nested / JOB_FILE).write_text("[" * 4000)
    for number in range(5):
        segment(shared, f"a-{number}", OTHER_USER)
        segment(shared, f"nccl-{number}", OTHER_USER)

    found = clean(shared)

    assert found.removed == (str(folder),)
    assert nested.exists(), "whose it is can't be read"


def test_links_lead_nowhere(shared: Path, tmp_path: Path) -> None:
    """A user puts links where root walks: to another's files, and to a folder of the system."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "slurm-job").write_text("7\n")
    (victim / "precious").write_text("x")
    victim.chmod(0o777)
    own_folder = shared / f"rankmend-{USER}"
    own_folder.mkdir()
    (own_folder / "to-victim").symlink_to(victim)
    inside = run_folder(shared, "7")
    (inside / "attempt-1" / "link").symlink_to(victim)
    own(own_folder)
    (shared / f"rankmend-{USER}-x").symlink_to(victim)
    (shared / "nccl-link").symlink_to(victim / "precious")
    for name in (f"rankmend-{USER}-x", "nccl-link"):
        os.chown(shared / name, USER, USER, follow_symlinks=False)

    clean(shared)

    assert (victim / "precious").read_text() == "x"
    assert (victim / "slurm-job").exists()
    assert not inside.exists()


def test_folders_that_are_exchanged_for_links_all_the_time_lead_nowhere(
    shared: Path, tmp_path: Path, job: Job
) -> None:
    """A user swaps a folder for a link while root removes: with the user's rights nothing of root's is in reach."""
    victim = tmp_path / "victim"
    (victim / "site").mkdir(parents=True)
    (victim / "slurm-job").write_text("7\n")
    (victim / "precious").write_text("x")
    swap = (
        f"cd {shared}/rankmend-{USER}; echo up; while :; do mkdir -p run/site; echo 7 > run/slurm-job; mv -T run was;"
        f" ln -s {victim} run; rm run; mv -T was run; done 2>/dev/null"
    )
    (shared / f"rankmend-{USER}").mkdir()
    own(shared / f"rankmend-{USER}")
    job.start(swap, SLURM_JOB_ID="8")
    for _try in range(SWAPS):
        clean(shared)

    assert sorted(path.name for path in victim.iterdir()) == ["precious", "site", "slurm-job"]


# -------------------------------------------------------------------------------- the command


def command(*words: str, uid: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "cleanup", *words],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_epilog_needs_no_option(job: Job, tmp_path: Path) -> None:
    ours = job.start(SLURM_JOB_ID="7")
    log = tmp_path / "log.jsonl"

    done = command("--json", f"--log={log}", SLURM_JOB_ID="7", SLURM_JOB_UID=str(USER))

    assert done.returncode == 0, done.stderr
    assert [one["pid"] for one in json.loads(done.stdout)["cleanup"]["ended"]] == [ours]
    line = json.loads(log.read_text())
    assert (line["action"], line["slurm_job"], line["uid"]) == ("cleanup", "7", USER)
    with contextlib.suppress(ProcessLookupError):
        os.kill(ours, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--slurm-job"),
        (["--slurm-job=7"], "--user"),
        (["--slurm-job=seven", "--user=61234"], "'seven'"),
        (["--slurm-job=7", "--user=no-such-user"], "no-such-user"),
        (["--slurm-job=7", "--user=0"], "root"),
    ],
)
def test_wrong_usage_is_named(words: list[str], said: str) -> None:
    done = command(*words)

    assert done.returncode == 64
    assert said in done.stderr
