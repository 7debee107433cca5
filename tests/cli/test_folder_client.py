"""Who may decide about the jobs of a state folder."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rankmend.cli.sources.folder_client import FolderClient
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

# Everything is imported while the interpreter's files can be read.
CODE = """\
import os, sys
from pathlib import Path
from rankmend.cli.sources.folder_client import FolderClient
from recovery.api.controller_errors import LauncherError
os.setuid(12345)
try:
    FolderClient(Path(sys.argv[1]))
except LauncherError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (0o755, "belongs to uid 0: only that user and root can decide about its jobs"),
        (0o700, "Permission denied"),
    ],
)
def test_another_user_is_told_whose_jobs_they_are(mode: int, reason: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        state = Path(folder) / "state"
        state.mkdir()
        Path(folder).chmod(mode)

        told = subprocess.run(
            [sys.executable, "-c", CODE, str(state)],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )

    assert reason in told.stdout


def test_machine_that_has_run_no_job_has_none(tmp_path: Path) -> None:
    client = FolderClient(tmp_path / "none")

    assert (client.jobs(with_ended=True), client.plans()) == ([], [])
