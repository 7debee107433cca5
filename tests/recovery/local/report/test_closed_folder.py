"""State folders of another user: said with whose they are, and never shown as empty."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
AS_NOBODY = """
import os, sys
from pathlib import Path
from rankmend.errors import ConfigError
from recovery.local.report.closed_folder import refuse_closed
from recovery.journal.folder.job_folder import list_folders
from recovery.local.report.overview import view_job

os.setgroups([])
os.setuid(65534)
state = Path(sys.argv[1])
try:
    refuse_closed(state)
except ConfigError as error:
    print(error)
for folder in list_folders(state):
    print(folder.name, view_job(folder, lambda: 0.0).problem)
"""


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as base:  # pytest's own folders are closed to others
        Path(base).chmod(0o755)
        folder = Path(base) / "state"
        (folder / "jobs" / "mine").mkdir(parents=True)
        (folder / "jobs" / "mine" / "job.json").write_text("{}")
        yield folder


def told_to_nobody(state: Path) -> str:
    command = [sys.executable, "-c", AS_NOBODY, str(state)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout


@NEEDS_ROOT
@pytest.mark.parametrize("closed", [".", "jobs"])
def test_a_state_folder_of_another_user_is_refused_with_its_name(state: Path, closed: str) -> None:
    (state / closed).chmod(0o700)

    told = told_to_nobody(state)

    folder = state if closed == "." else state / closed
    assert told.startswith(f"cannot read {folder}: it belongs to root, and this is nobody.")
    assert "sudo -u root rankmend" in told


@NEEDS_ROOT
def test_a_job_of_another_user_is_listed_with_what_keeps_it_from_being_read(state: Path) -> None:
    (state / "jobs" / "mine").chmod(0o700)

    told = told_to_nobody(state)

    journal = state / "jobs" / "mine" / "journal.db"
    assert told == f"mine cannot read {journal}: Permission denied\n"


@NEEDS_ROOT
def test_a_state_folder_that_is_missing_or_open_is_not_refused(state: Path) -> None:
    assert told_to_nobody(state / "none") == ""
    assert told_to_nobody(state).startswith("mine there is no journal")
