"""What the log files of a watched job say, and which files count: a job's user chooses what lies in his folders."""

import os
import uuid
from pathlib import Path

import pytest

from agent.ranks.watched import WatchedJob
from agent.watch.job_logs import LOG_BYTES_MAX, JobLogs, parse_patterns
from rankmend.errors import ConfigError

JOB = WatchedJob(
    uuid.UUID("0c1d6a52-0000-4000-8000-000000000001"), "pretrain", "kim", "torchrun", "41"
)
ERROR = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 7, in main
[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered
"""


def logs_in(folder: Path, pattern: str = "{user}/slurm-{slurm_job}*.out") -> JobLogs:
    return JobLogs(parse_patterns([f"{folder}/{pattern}"]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs" / "kim").mkdir(parents=True)
    return tmp_path / "logs"


def test_the_file_of_the_job_says_what_happened_and_shows_the_line(folder: Path) -> None:
    (folder / "kim" / "slurm-41.out").write_text("step 40 loss 2.1\n" + ERROR)

    says = logs_in(folder).judge(JOB, os.getuid())

    assert says[0].startswith("restart: rank 3: gpu hardware: ")
    assert says[1].startswith("slurm-41.out:4: [rank 3] RuntimeError: CUDA error")


def test_a_job_without_files_or_without_a_failure_in_them_says_nothing(folder: Path) -> None:
    (folder / "kim" / "slurm-42.out").write_text(ERROR)
    assert logs_in(folder).judge(JOB, os.getuid()) == ()

    (folder / "kim" / "slurm-41.out").write_text("step 40 loss 2.1\n")
    assert logs_in(folder).judge(JOB, os.getuid()) == ()


def test_only_the_ends_of_many_long_files_are_read(folder: Path) -> None:
    for number in range(200):
        (folder / "kim" / f"slurm-41-{number}.out").write_text(ERROR * 300)

    tails = logs_in(folder).read(JOB, os.getuid())

    assert 0 < sum(map(len, tails.values())) <= LOG_BYTES_MAX


def test_files_that_are_no_plain_ones_are_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "kim" / "slurm-41-fifo.out")  # a reader that opens it waits for ever
    (folder / "kim" / "slurm-41-null.out").symlink_to("/dev/zero")
    (folder / "kim" / "slurm-41-folder.out").mkdir()

    assert logs_in(folder).read(JOB, os.getuid()) == {}


def test_links_lead_nowhere_else(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secrets"
    outside.mkdir()
    (outside / "slurm-41.out").write_text(ERROR)
    (folder / "kim" / "slurm-41-link.out").symlink_to(outside / "slurm-41.out")
    (folder / "kim").rename(folder / "was")
    (folder / "kim").symlink_to(outside)

    assert logs_in(folder).read(JOB, os.getuid()) == {}


def test_a_file_of_another_user_does_not_count(folder: Path) -> None:
    (folder / "kim" / "slurm-41.out").write_text(ERROR)

    assert logs_in(folder).read(JOB, os.getuid() + 1) == {}


@pytest.mark.parametrize("name", ["..", "../../etc", "a/b", "*", "", "{user}"])
def test_a_name_that_leads_elsewhere_fills_no_pattern(folder: Path, name: str) -> None:
    (folder / "kim" / "slurm-41.out").write_text(ERROR)
    job = WatchedJob(JOB.job_id, name, "kim", "torchrun", "41")

    assert logs_in(folder, "{job}/kim/slurm-41.out").read(job, os.getuid()) == {}
    assert logs_in(folder, "kim/{job}*.out").read(job, os.getuid()) == {}


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("/work/logs/*.out", "names the files of every job"),
        ("logs/{slurm_job}.out", "must be an absolute path"),
        ("/{slurm_job}.out", "must be an absolute path"),
        ("/work/../{slurm_job}.out", "must be an absolute path"),
        ("/work/{slurm_job}/{rank}.out", "known fields are"),
        ("/work/{slurm_job", "known fields are"),
    ],
)
def test_a_pattern_without_a_job_or_a_folder_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_patterns([pattern])
