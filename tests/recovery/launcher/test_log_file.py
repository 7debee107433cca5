"""Log files of ranks that can't be written, and the folder of a run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rankmend.console import Outlet, OutletTarget
from rankmend.errors import ConfigError
from recovery.launcher.ranks.rank_output import MOVED_LOOK_S, LogFile
from recovery.launcher.run.options import RunOptions, make_log_folder, make_output_plan

pytestmark = pytest.mark.process

TEE = RunOptions("train.py", tee="3")


def test_a_file_is_made_with_its_folder_by_its_first_line(tmp_path: Path) -> None:
    outlet = Outlet("test")
    file = LogFile(tmp_path / "attempt_1" / "0" / "stdout.log")
    assert not file.path.parent.exists()

    outlet.put(file, b"one\n")
    outlet.finish(file)

    assert outlet.close()
    assert file.path.read_bytes() == b"one\n"


def test_a_file_that_could_not_be_made_says_what_it_lacks_once_it_can(tmp_path: Path) -> None:
    heard: list[OutletTarget] = []
    outlet = Outlet("test", on_loss=lambda target, _error: heard.append(target))
    in_the_way = tmp_path / "attempt_1"
    in_the_way.write_bytes(b"")
    file = LogFile(in_the_way / "0" / "stdout.log")
    outlet.put(file, b"one\ntwo\n")
    assert outlet.flush()

    in_the_way.unlink()
    outlet.put(file, b"three\n")

    assert outlet.close()
    lacks = b"rankmend: 2 lines are missing here because of an error: File exists\n"
    assert file.path.read_bytes() == lacks + b"three\n"
    assert heard == [file]


@pytest.mark.parametrize("puts_another_there", [True, False], ids=["create", "nocreate"])
def test_a_file_that_logrotate_has_moved_is_made_anew(
    tmp_path: Path, puts_another_there: bool
) -> None:
    now_s = [0.0]
    file = LogFile(tmp_path / "attempt_1" / "0" / "stdout.log", now_s=lambda: now_s[0])
    moved = file.path.with_suffix(".log.1")
    file.write(memoryview(b"one\n"))
    file.path.rename(moved)
    if puts_another_there:
        file.path.touch()

    file.write(memoryview(b"two\n"))
    now_s[0] += MOVED_LOOK_S
    file.write(memoryview(b"three\n"))
    file.close()

    assert (moved.read_bytes(), file.path.read_bytes()) == (b"one\ntwo\n", b"three\n")


def test_a_file_that_logrotate_has_emptied_goes_on_at_its_beginning(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "attempt_1" / "0" / "stdout.log")
    file.write(memoryview(b"one\n"))

    os.truncate(file.path, 0)
    file.write(memoryview(b"two\n"))
    file.close()

    assert file.path.read_bytes() == b"two\n"


def test_a_folder_for_logs_alone_writes_no_file_and_redirects_nothing(tmp_path: Path) -> None:
    options = replace(TEE, tee="0", log_dir=tmp_path)

    plan = make_log_folder(make_output_plan(options, 2), "job")

    assert plan.log_folder is None
    assert not any((*plan.redirects, *plan.tee))
    assert list(tmp_path.iterdir()) == []


def test_each_run_has_a_folder_of_its_own_in_the_one_that_runs_share(tmp_path: Path) -> None:
    plan = make_output_plan(replace(TEE, log_dir=tmp_path / "logs"), 2)

    first, second = make_log_folder(plan, "my job"), make_log_folder(plan, "my job")

    assert first.log_folder is not None
    assert first.log_folder != second.log_folder
    assert first.log_folder.parent == tmp_path / "logs"
    assert first.log_folder.name.startswith("my_job_")


def test_a_folder_for_logs_that_can_not_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "logs").write_bytes(b"")
    plan = make_output_plan(replace(TEE, log_dir=tmp_path / "logs"), 2)

    with pytest.raises(ConfigError, match=f"{tmp_path}/logs.*--log-dir"):
        make_log_folder(plan, "job")
