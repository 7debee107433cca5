"""A state folder that takes nothing new: what launchers are told, and that it comes back by itself."""

from pathlib import Path

import pytest

from recovery.api.controller_errors import BusyError
from recovery.service.http.error_answers import NotNow
from recovery.service.jobs.stored_jobs import job_key
from tests.support.service import join_of, make_folder, running

pytestmark = pytest.mark.process


def test_launcher_is_told_which_file_cant_be_written_and_joins_once_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, join = tmp_path / "files", join_of("n1")
    make_folder(folder)
    with running(folder) as up:
        job = folder / "state" / "jobs" / job_key("launch", join).folder_name
        job.touch()  # no folder can be made by this name, not by root either

        with pytest.raises(BusyError, match=str(job)) as refused:
            up.client().join(join)

        assert (refused.value.status, refused.value.reason) == (503, NotNow.JOURNAL.value)
        assert "Traceback" not in caplog.text
        job.unlink()
        assert up.client().join(join).job_id
