"""What a person gets wrong, and what storage does: a message that names it, and nothing lost."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.journal.job_records import TailCut
from recovery.launcher.processes.process_tree import find_marked
from recovery.local.report.overview import StoredJobView, view_job, view_ranks
from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.system.faults.harness import Job, assert_recovered, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system: needs root")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked_cli.run("run", f"--state-dir={cwd / 'state'}", *arguments, cwd=cwd)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    done = run("no_such.py", cwd=tmp_path)

    assert done.returncode == 1
    assert "'no_such.py' does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_key_in_the_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "limits.toml").write_text("[policy]\nrestart_max = 3\n")

    done = run("--config=limits.toml", "train.py", cwd=tmp_path)

    assert done.returncode == 2
    assert "[policy]: unknown key 'restart_max'" in done.stderr
    assert "restarts_max" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[policy", "is not valid TOML"),
        ("[polcy]\n", "unknown key 'polcy'"),
        ('[policy]\nsettle_s = "fast"\n', "settle_s"),
        ("[hang]\nfloor_s = -1\n", "floor_s is -1"),
    ],
)
def test_a_broken_configuration_is_an_error_that_names_it(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "limits.toml").write_text(text)

    done = run("--config=limits.toml", "train.py", cwd=tmp_path)

    assert done.returncode == 2
    assert "limits.toml" in done.stderr
    assert words in done.stderr


def test_a_busy_master_port_is_named_with_its_holder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        done = run(f"--master-port={port}", "--job=busy", "train.py", cwd=tmp_path)

    assert done.returncode != 0
    assert f"port {port}" in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nproc-per-node=none"], "'none'"),
        (["--redirects=9"], "'9'"),
        (["--port-range=9-1"], "9-1"),
        (["--nnodes=4"], "--rdzv-endpoint"),
        (["--python=/no/such/python"], "/no/such/python"),
        (["--time-limit=soon"], "soon"),
        (["train.py", "--resume={checkpoint}"], "there is no --checkpoint-dir"),
    ],
)
def test_a_wrong_flag_is_named(tmp_path: Path, flags: list[str], words: str) -> None:
    (tmp_path / "train.py").touch()

    done = run(*flags, *([] if "train.py" in flags else ["train.py"]), cwd=tmp_path)

    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "file").touch()

    done = run("--checkpoint-dir=file", "train.py", cwd=tmp_path)

    assert done.returncode == 2
    assert "'file' is a file" in done.stderr


@needs_root
def test_a_read_only_checkpoint_folder_is_refused_before_any_rank_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    (tmp_path / "ckpt").mkdir()
    script = (
        f"mount --bind {tmp_path}/ckpt {tmp_path}/ckpt && mount -o remount,bind,ro {tmp_path}/ckpt"
        f" && exec {sys.executable} -m rankmend.cli run --state-dir={tmp_path}/state"
        f" --checkpoint-dir={tmp_path}/ckpt {tmp_path}/train.py"
    )

    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 2
    assert f"{tmp_path}/ckpt can't be written: EROFS" in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.real_fault("checkpoint damaged")
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair("--steps=34")
    job.start()
    assert job.wait() == 0, job.output
    damaged = [job.checkpoints / f"step-000000{step}.npz" for step in (34, 30, 20)]
    flipped, truncated, empty = damaged
    body = bytearray(flipped.read_bytes())
    body[len(body) // 2] ^= 4
    flipped.write_bytes(body)
    truncated.write_bytes(body[: len(body) // 2])
    empty.write_bytes(b"")
    job.arguments.remove("--steps=34")

    job.start()

    assert_recovered(job, undisturbed_pair, incidents=0)
    choice = job.attempts[-1].choice
    assert choice.restore is not None
    assert choice.restore.step == 10
    assert {one.path for one in choice.passed_over} == {str(path) for path in damaged}
    for path in damaged:
        job.expect_output(f"passed over {path}")


def test_a_progress_file_that_breaks_in_mid_run_stops_no_training(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    job.start()
    job.pids_at_step(10)

    path = job.runtime / "attempt-1" / "rank-1.progress"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))

    assert_recovered(job, undisturbed_pair, incidents=0)


@pytest.mark.real_fault("shared memory full")
@needs_root
def test_a_full_shared_memory_is_an_error_that_names_it_and_no_rank_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    script = (
        "mount -t tmpfs -o size=64k tmpfs /dev/shm && mkdir -m 700 /dev/shm/rankmend-0"
        " && head -c 60k /dev/zero > /dev/shm/full 2>/dev/null;"
        f" exec {sys.executable} -m rankmend.cli run --state-dir={tmp_path}/state --job=full"
        f" --nproc-per-node=4 {tmp_path}/train.py"
    )

    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode != 0
    assert "/dev/shm" in done.stderr
    assert "No space left on device" in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.safety
def test_a_journal_with_a_torn_end_is_cut_and_said_so(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair("--steps=34")
    job.start()
    assert job.wait() == 0, job.output
    job.arguments.remove("--steps=34")
    spoil(job, "SELECT max(number) FROM record")  # that the job has ended

    job.start()

    assert job.wait() == 0, job.output
    assert len(job.records(TailCut)) == 1
    job.expect_output("cut")
    assert len(job.attempts) == 1, "that it was done is still known"
    job.start()
    assert_recovered(job, undisturbed_pair, incidents=0)


@pytest.mark.safety
def test_a_journal_damaged_in_the_middle_is_refused_by_name(make_pair: Make) -> None:
    job = make_pair("--steps=5")
    job.start()
    assert job.wait() == 0, job.output
    spoil(job, "SELECT 3")
    before = (job.state_folder / "journal.db").read_bytes()

    job.start()

    assert job.wait() == 2
    job.expect_output(str(job.state_folder / "journal.db"))
    assert "Traceback" not in job.output
    assert (job.state_folder / "journal.db").read_bytes() == before


def spoil(job: Job, number: str) -> None:
    connection = sqlite3.connect(job.state_folder / "journal.db")
    with connection:
        connection.execute(f"UPDATE record SET body = x'7b7d' WHERE number = ({number})")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.safety
@pytest.mark.real_fault("disk full")
@needs_root
def test_a_full_disk_under_the_journal_stops_no_training_and_nothing_is_done_unremembered(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.state.mkdir()
    job.prefix = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=2m tmpfs {job.state} && exec "$@"',
        "sh",
    ]
    job.start()
    assert job.process is not None
    inside = Path(f"/proc/{job.process.pid}/root{job.state}")
    folder = eventually(
        lambda: inside.is_dir() and next(inside.glob("jobs/*/job.json"), None), "the job's folder"
    ).parent
    job_id = eventually(lambda: read_job_id(folder / "job.json"), "its id")
    runtime = Path("/dev/shm") / f"rankmend-{os.getuid()}" / job_id
    ranks = eventually(lambda: read_pids(runtime, 4), "four ranks")
    fill = inside / "fill"
    with fill.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        while True:
            file.write(b"\0" * 4096)

    os.kill(ranks[3], signal.SIGSTOP)  # the others end by themselves once a peer is gone
    kill(ranks[1])
    eventually(lambda: "journal can't be written" in job.output, "the full disk is told")
    assert "restart: attempt 2" not in job.output
    assert find_marked(job_id), "nobody was fenced without a record"
    eventually(
        lambda: "can't be recorded (since 20" in (seen_now(folder).problem or ""), "status says so"
    )
    assert seen_now(folder).state == "not managed"
    fill.unlink()

    assert job.wait() == 0, job.output
    assert job.result() == undisturbed
    job.expect_output("restart: attempt 2")


def seen_now(folder: Path) -> StoredJobView:
    """Return what `rankmend status` shows of a job."""
    return view_job(folder, SystemClock().now_s)


def read_job_id(path: Path) -> str | None:
    import json

    try:
        return str(json.loads(path.read_text())["job_id"])
    except (OSError, ValueError, KeyError):
        return None


def read_pids(runtime: Path, count: int) -> dict[int, int] | None:
    ranks = {rank.rank: rank.pid for rank in view_ranks(runtime, lambda: 1e12) if rank.step}
    return ranks if len(ranks) == count else None


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_job_without_a_name_is_a_new_one_each_time(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()

    first = run("train.py", cwd=tmp_path)
    second = run("train.py", cwd=tmp_path)

    assert (first.returncode, second.returncode) == (0, 0)
    assert len(list((tmp_path / "state" / "jobs").iterdir())) == 2


def test_a_launch_line_of_torchrun_works_and_says_which_flags_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.environ['TORCHELASTIC_RUN_ID'])\n")

    done = run(
        "--nnodes=1:1",
        "--nproc_per_node=2",
        "--rdzv-backend=c10d",
        "--rdzv_endpoint=localhost:0",
        "--rdzv_id=mine",
        "--monitor_interval=0.1",
        "--max_restarts=2",
        "train.py",
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mine") == 2
    assert "--rdzv-endpoint has no meaning here and is ignored" in done.stderr
