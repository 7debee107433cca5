"""A job's folder in shared memory that somebody removes is made again, and what is in the way is named once."""

import logging
import shutil
import uuid
from pathlib import Path

import pytest

from recovery.launcher.ranks.runtime_folder import RuntimeFolder

JOB = uuid.UUID("0f0e0d0c-0b0a-4908-8706-050403020100")


def test_folder_is_made_again_though_all_of_shared_memory_was_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = RuntimeFolder(tmp_path, JOB)
    runtime.lock_snapshots()

    shutil.rmtree(runtime.path.parent)
    for _tick in range(3):
        runtime.mend()

    assert runtime.snapshots.is_dir()
    assert (runtime.site / "sitecustomize.py").exists()
    assert [one.message for one in caplog.records] == [
        "this job's folder was removed: made it again"
    ]


def test_what_keeps_the_folder_from_being_made_again_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = RuntimeFolder(tmp_path, JOB)
    blocked = runtime.path.parent

    shutil.rmtree(blocked)
    blocked.touch()
    for _tick in range(3):
        runtime.mend()
    (warning,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    blocked.unlink()
    runtime.mend()

    assert warning.message == "this job's folder was removed, and can't be made again"
    assert str(blocked) in vars(warning)["error"]
    assert runtime.snapshots.is_dir()
