"""`rankmend logs`: what it prints, and what it says where nothing is kept."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from rankmend.cli import cli


def make_job(state: Path, name: str, logs: Path | None) -> None:
    folder = state / "jobs" / f"{name}-1"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"name": name, "job_id": "ab"}))
    told = {"node": "n1", "logs": None if logs is None else str(logs)}
    (folder / "run.json").write_text(json.dumps(told))


def ask(state: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["logs", *words, "--state-dir", str(state)])


def test_each_line_says_its_rank_and_one_rank_alone_does_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / "logs" / "attempt_1" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"step {rank}\nlast")
    (tmp_path / "logs" / "attempt_1" / "0" / "stderr.log").write_text("\x1b[2Joops\n")
    make_job(tmp_path / "state", "train", tmp_path / "logs")

    shown = ask(tmp_path / "state")
    one = ask(tmp_path / "state", "tra", "--rank", "1", "--follow")

    assert shown.exit_code == 0
    assert shown.stdout == "[rank 0] step 0\n[rank 1] step 1\n[rank 0] last\n[rank 1] last\n"
    assert "oops" in shown.stderr
    assert "\x1b" not in shown.stderr
    assert (one.exit_code, one.stdout) == (0, "step 1\nlast\n"), "an ended job is not waited for"


def test_a_job_without_log_files_says_how_to_keep_them(tmp_path: Path) -> None:
    make_job(tmp_path / "state", "train", None)

    told = ask(tmp_path / "state", "train")

    assert told.exit_code == 1
    assert told.stderr.startswith("rankmend: train keeps no output: its ranks write to the console")
    assert "rankmend run --log-dir logs --tee 3" in told.stderr


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs" / "attempt_1" / "0").mkdir(parents=True)
    (tmp_path / "logs" / "attempt_1" / "0" / "stdout.log").write_text("x\n")
    make_job(tmp_path / "state", "train", tmp_path / "logs")

    rank = ask(tmp_path / "state", "--rank", "3")
    job = ask(tmp_path / "state", "nosuch")

    assert (rank.exit_code, job.exit_code) == (1, 1)
    assert "no output of rank 3 on this machine" in rank.stderr
    assert "has ranks 0, attempts 1" in rank.stderr
    assert "no job 'nosuch' has run on this machine" in job.stderr
