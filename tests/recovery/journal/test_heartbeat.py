"""When a launcher was last alive, by the file that it leaves."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from recovery.journal.folder.heartbeat import FILE, Heartbeat, read_heartbeat, read_trouble
from recovery.journal.ledger import Moment


@dataclass
class HeldClock:
    monotonic_s: float = 100.0
    unix: float = 5000.0

    def now_s(self) -> float:
        return self.monotonic_s

    def unix_s(self) -> float:
        return self.unix


def beaten(folder: Path, clock: HeldClock) -> None:
    with closing(Heartbeat(folder, clock, "boot-1")) as heartbeat:
        heartbeat.beat()


def age_s(folder: Path, clock: HeldClock, boot_id: str = "boot-1") -> float | None:
    with closing(Heartbeat(folder, clock, boot_id)) as heartbeat:
        return heartbeat.age_s()


def test_next_launcher_learns_how_long_ago_the_last_one_lived(tmp_path: Path) -> None:
    beaten(tmp_path, HeldClock())

    assert age_s(tmp_path, HeldClock(160.0, 9999.0)) == 60.0  # by the monotonic clock
    assert age_s(tmp_path, HeldClock(3.0, 5600.0), "boot-2") == 600.0
    assert read_heartbeat(tmp_path) == Moment(5000.0, 100.0, "boot-1")


def test_it_beats_once_a_second(tmp_path: Path) -> None:
    clock = HeldClock()
    with closing(Heartbeat(tmp_path, clock, "boot-1")) as heartbeat:
        heartbeat.beat()
        clock.monotonic_s = 100.9
        heartbeat.beat()
        assert read_heartbeat(tmp_path) == Moment(5000.0, 100.0, "boot-1")

        clock.monotonic_s = 101.0
        heartbeat.beat()

    assert read_heartbeat(tmp_path) == Moment(5000.0, 101.0, "boot-1")


def test_why_a_launcher_cannot_decide_is_known_at_once_and_takes_no_room(tmp_path: Path) -> None:
    clock = HeldClock()
    with closing(Heartbeat(tmp_path, clock, "boot-1")) as heartbeat:
        heartbeat.beat()
        size = (tmp_path / FILE).stat().st_size
        assert read_trouble(tmp_path) is None

        heartbeat.beat("the disk\nis full: /jobs/säge " + "x" * 2000)
        found = read_trouble(tmp_path)
        assert found is not None
        assert found.startswith("the disk is full: /jobs/säge xxx")
        assert (tmp_path / FILE).stat().st_size == size
        assert read_heartbeat(tmp_path) == Moment(5000.0, 100.0, "boot-1")

        heartbeat.beat()

    assert read_trouble(tmp_path) is None
    assert (tmp_path / FILE).stat().st_size == size


@pytest.mark.parametrize("body", [b"", b"x", b"1 2", b"nan 5 b\n", b"inf inf b\n", b"\xff" * 300])
def test_a_file_that_is_none_of_ours_tells_nothing(tmp_path: Path, body: bytes) -> None:
    (tmp_path / FILE).write_bytes(body)

    assert read_heartbeat(tmp_path) is None
    assert read_trouble(tmp_path) is None
    assert age_s(tmp_path, HeldClock()) is None


def test_a_folder_that_takes_no_file_and_a_link_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")

    for folder in (tmp_path, tmp_path / "gone"):
        beaten(folder, HeldClock())
        assert age_s(folder, HeldClock()) is None

    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert read_heartbeat(tmp_path / "gone") is None


def test_a_folder_that_is_removed_under_a_job_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HeldClock()
    with closing(Heartbeat(tmp_path, clock, "boot-1")) as heartbeat:
        heartbeat.beat()
        (tmp_path / FILE).unlink()
        for _beat in range(3):
            clock.monotonic_s += 1.0
            heartbeat.beat()

    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "this job's state folder was removed"
    ]
