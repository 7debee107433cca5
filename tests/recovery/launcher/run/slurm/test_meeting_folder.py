"""Where the launchers of a Slurm step meet that has no checkpoint folder."""

import os
import time
from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from recovery.launcher.run.slurm.meeting_folder import make_meeting_folder

pytestmark = pytest.mark.safety

DAY_S = 86400.0


def test_folder_is_private_and_the_same_for_each_launcher_of_the_job(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}

    folder = make_meeting_folder(environment, "toy-12-abc")

    assert folder == make_meeting_folder(environment, "toy-12-abc")
    assert folder == tmp_path / "state/rankmend/meetings/toy-12-abc"
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_folders_of_jobs_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    ages_s = {"toy-1-a": 31 * DAY_S, "toy-2-b": 29 * DAY_S}
    for name, age_s in ages_s.items():
        path = make_meeting_folder(environment, name)
        (path / "host.json").write_text("{}")
        os.utime(path, (time.time() - age_s,) * 2)

    make_meeting_folder(environment, "toy-3-c")

    found = {path.name for path in (tmp_path / "rankmend/meetings").iterdir()}
    assert found == {"toy-2-b", "toy-3-c"}


def test_home_folder_that_can_not_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"file/rankmend.*--checkpoint-dir"):
        make_meeting_folder({"XDG_STATE_HOME": str(tmp_path / "file")}, "toy-1-a")
