"""Readings beside a job's journal: kept, bounded, and refused where they are torn."""

import os
from pathlib import Path

import pytest

from rankmend.errors import StorageError
from recovery.accounting.readings.reading import NodeReading, ReadAt, Sample
from recovery.accounting.readings.reading_file import (
    FILES_MAX,
    FOLDER,
    READINGS_MAX,
    add_reading,
    read_readings,
)


def reading(unix_s: float) -> NodeReading:
    return NodeReading("n1", ReadAt.OPENED, unix_s, "", (Sample("rankmend_host_cpus", 8.0),))


def test_readings_come_back_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    for unix_s in (1.0, 2.0):
        add_reading(tmp_path, "ab12-1", reading(unix_s))

    assert read_readings(tmp_path, "ab12-1") == (reading(1.0), reading(2.0))
    assert read_readings(tmp_path, "ab12-2") == ()


def test_neither_an_incident_nor_a_job_grows_without_bound(tmp_path: Path) -> None:
    for number in range(READINGS_MAX + 3):
        add_reading(tmp_path, "ab12-0", reading(float(number)))
    for number in range(FILES_MAX + 3):
        path = tmp_path / FOLDER / f"ab12-{number}.json"
        add_reading(tmp_path, f"ab12-{number}", reading(1.0))
        os.utime(path, (1000.0 + number, 1000.0 + number))

    names = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert len(names) == FILES_MAX
    assert f"ab12-{FILES_MAX + 2}.json" in names
    assert "ab12-0.json" not in names


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a" * 101, "a\0b"])
def test_name_of_no_incident_reaches_no_file(tmp_path: Path, name: str) -> None:
    assert read_readings(tmp_path, name) == ()
    with pytest.raises(StorageError, match="not the id of an incident"):
        add_reading(tmp_path, name, reading(1.0))


def test_torn_file_is_an_error_to_readers_and_the_next_reading_replaces_it(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "ab12-1.json").write_bytes(b'{"readings":[{"node"')

    with pytest.raises(StorageError, match=r"ab12-1\.json"):
        read_readings(tmp_path, "ab12-1")
    add_reading(tmp_path, "ab12-1", reading(1.0))
    assert read_readings(tmp_path, "ab12-1") == (reading(1.0),)
