"""Which nodes see one checkpoint folder."""

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recovery.checkpoints.marks import identify_folder

pytestmark = pytest.mark.process


def test_all_that_see_a_folder_read_the_id_that_the_first_has_made(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(identify_folder, [tmp_path / ".rankmend"] * 32))

    assert len(ids) == 1
    assert len(ids.pop()) == 32


def test_a_copy_of_a_folder_in_another_place_is_another_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    first = identify_folder(tmp_path / "shared" / ".rankmend")
    shutil.copytree(tmp_path / "shared", tmp_path / "local")

    assert identify_folder(tmp_path / "local" / ".rankmend") not in {"", first}
    assert identify_folder(tmp_path / "shared" / ".rankmend") == first


def test_a_folder_whose_id_is_damaged_or_a_link_is_not_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = tmp_path / ".rankmend"
    identify_folder(beside)
    (file,) = beside.glob("folder-id.*")
    with caplog.at_level(logging.WARNING):
        file.write_text("../../etc")
        assert identify_folder(beside) == ""
        file.unlink()
        file.symlink_to("/etc/hostname")
        assert identify_folder(beside) == ""

    assert len(caplog.records) == 2
