import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rankmend.errors import ConfigError, JobHeldError, LaunchError
from recovery.journal.folder.job_folder import is_held, open_job, read_json
from recovery.journal.folder.job_key import JobKey

pytestmark = [pytest.mark.process, pytest.mark.safety]

KEY = JobKey("job:mine", "mine", "--job")


def test_a_job_keeps_its_uuid(tmp_path: Path) -> None:

    first = open_job(tmp_path, KEY, None, 1.0)
    os.close(first.lock_descriptor)
    second = open_job(tmp_path, KEY, uuid.uuid4(), 2.0)

    assert second.job_id == first.job_id


def test_a_job_whose_state_was_lost_takes_the_uuid_from_beside_its_checkpoints(
    tmp_path: Path,
) -> None:
    known = uuid.uuid4()

    assert open_job(tmp_path, KEY, known, 1.0).job_id == known


def test_the_same_job_started_twice_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    folder = open_job(tmp_path, KEY, None, 1.0)
    code = (
        "import sys; from pathlib import Path; from recovery.journal.folder.job_folder import *\n"
        "open_job(Path(sys.argv[1]), JobKey('job:mine', 'mine', '--job'), None, 1.0)"
    )

    second = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert second.returncode == 1
    assert JobHeldError.__name__ in second.stderr
    assert f"process {os.getpid()} on" in second.stderr
    assert is_held(folder.path)
    os.close(folder.lock_descriptor)
    assert not is_held(folder.path)


@pytest.mark.parametrize("body", ["", "[]", '{"job_id": 7}', "\x00"])
def test_a_broken_job_file_is_named_and_no_new_job_made_of_it(tmp_path: Path, body: str) -> None:
    folder = open_job(tmp_path, KEY, None, 1.0)
    os.close(folder.lock_descriptor)
    (folder.path / "job.json").write_text(body)

    with pytest.raises(ConfigError, match=r"job\.json"):
        open_job(tmp_path, KEY, None, 1.0)
    assert not is_held(folder.path)


def test_a_state_folder_that_can_not_be_made_is_named_with_the_option_for_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "home").write_text("as good as read-only, also for root")

    with pytest.raises(LaunchError, match=r"home/state/jobs/.*: Not a directory; .* --state-dir"):
        open_job(tmp_path / "home" / "state", KEY, None, 0.0)


def test_a_file_that_is_missing_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "run.json") is None
