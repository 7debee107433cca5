"""`rankmend check node --for ...` as a program, without any Slurm: exit codes, hangs, broken configurations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent import FIXTURE, sick_tree
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process
HEALTHY = ("--procfs", str(FIXTURE / "proc"), "--sysfs", str(FIXTURE / "sys"))
SLURM = ("prolog", "epilog", "health")


def check(
    folder: Path, use: str, *words: str, timeout: str = "60"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "rankmend.cli", "check", "node", "--for", use, "--json"),
            *(f"--timeout={timeout}", f"--log={folder}/actions.jsonl", *words),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={"PATH": os.environ["PATH"], "SLURM_CONF": str(folder / "no-slurm.conf")},
    )


@pytest.mark.parametrize("use", SLURM)
def test_a_healthy_node_takes_jobs(use: str, tmp_path: Path) -> None:
    done = check(tmp_path, use, *HEALTHY)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["for"], told["obstacles"]) == (use, [])
    assert not (tmp_path / "actions.jsonl").exists()


@pytest.mark.parametrize(("use", "code"), [("prolog", 3), ("epilog", 3), ("health", 0)])
def test_a_critical_finding_keeps_jobs_off_also_where_slurm_does_not_answer(
    use: str, code: int, tmp_path: Path
) -> None:
    done = check(tmp_path, use, *sick_tree(tmp_path), timeout="60")

    assert done.returncode == code, done.stderr
    told = json.loads(done.stdout)
    assert told["drain"]["outcome"] == "no_answer"
    assert "critical: sensor_critical/nvme-nvme0/temp1" in done.stderr
    assert json.loads((tmp_path / "actions.jsonl").read_text())["outcome"] == "no_answer"


@pytest.mark.parametrize("use", SLURM)
def test_a_broken_configuration_is_reported_and_drains_nothing(use: str, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('lisen = "127.0.0.1:9476"\n')

    done = check(tmp_path, use, "--config", str(tmp_path / "agent.toml"), "--drain-unanswered")

    assert done.returncode == 0
    assert "lisen" in done.stderr
    assert "node not checked" in done.stderr


@pytest.mark.parametrize(
    "words", [["--for", "prolog", "--jsn"], ["--for=prolgo"], ["--timeout=x", "--for", "health"]]
)
def test_a_mistyped_line_is_reported_and_drains_nothing(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "check", "node", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 0
    assert "node not checked" in done.stderr


def test_a_person_who_mistypes_gets_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "check", "node", "--for", "person", "--jsn"],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 2


def hanging_sensor(folder: Path) -> list[str]:
    """Return flags for a node one of whose sensors never answers."""
    words = sick_tree(folder)
    (sensor,) = (folder / "sys").glob("devices/**/hwmon1/temp1_input")
    sensor.unlink()
    os.mkfifo(sensor)
    return words


@pytest.mark.parametrize("use", ["prolog", "health"])
def test_a_check_that_hangs_is_named_and_drains_nothing(use: str, tmp_path: Path) -> None:
    done = check(tmp_path, use, *hanging_sensor(tmp_path))

    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert told["unanswered"] == ["thermal"]
    assert "no answer from thermal" in done.stderr
    assert told["drain"]["outcome"] == "not_needed"


def test_a_site_may_have_a_hang_keep_jobs_off(tmp_path: Path) -> None:
    done = check(tmp_path, "prolog", *hanging_sensor(tmp_path), "--drain-unanswered", timeout="60")

    assert done.returncode == 3
    assert json.loads(done.stdout)["obstacles"] == ["no answer from thermal"]


def test_a_check_that_hangs_as_a_whole_ends_in_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent.toml")  # as a file on a mount that is gone

    done = check(tmp_path, "prolog", "--config", str(tmp_path / "agent.toml"), timeout="2")

    assert done.returncode == 0
    assert json.loads(done.stdout)["unanswered"] == ["the whole check"]
