"""`make stress`: chosen tests many times beside a load, each failure counted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[1]
EVERY_SECOND_TIME = """
import pathlib

def test_good(): pass

def test_now_and_then():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    seen.write_text((seen.read_text() if seen.exists() else "") + "x")
    assert len(seen.read_text()) % 2, "a race"
"""


def stress(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress", "--load=1", "--workers=1", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout


def test_failure_is_counted_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(EVERY_SECOND_TIME)

    code, printed = stress("--times=4", str(file))

    assert code == 1
    assert "     2  test_x::test_now_and_then" in printed
    assert "a race" in printed
    assert "test_good" not in printed.partition("rounds")[2]


def test_run_that_could_not_begin_is_no_success(tmp_path: Path) -> None:
    code, printed = stress("--times=1", str(tmp_path / "test_that_is_not_there.py"))

    assert code == 1
    assert "the run itself" in printed


@pytest.mark.skipif(not os.access("/sys/fs/cgroup", os.W_OK), reason="no cgroup can be made here")
def test_with_stalls_all_that_a_test_starts_can_be_made_to_stand_still(tmp_path: Path) -> None:
    file = tmp_path / "test_y.py"
    file.write_text(
        "import subprocess\n"
        "def test_where():\n"
        "    told = subprocess.run(['cat', '/proc/self/cgroup'], capture_output=True, text=True).stdout\n"
        "    assert 'rankmend-stalls' in told\n"
    )

    assert stress("--times=1", "--stalls", str(file))[0] == 0
    assert stress("--times=1", str(file))[0] == 1, "the test itself can fail"
    assert not [*Path("/sys/fs/cgroup").rglob("rankmend-stalls-*")]
