"""When a search by mark counts as blocked: what it reads then is passed over."""

from pathlib import Path

import pytest

from recovery.launcher.guardian.kill import stands_still


@pytest.mark.parametrize(
    ("letter", "silent_s", "is_blocked"),
    [
        ("D", 1.9, False),
        ("D", 2.0, True),  # in the memory lock of a process that is stuck in a driver
        ("S", 2.0, True),
        ("R", 2.0, False),  # ready to run: the machine is busy, or was paused
        ("R", 59.0, False),
        ("R", 60.0, True),
        ("Z", 2.0, True),
    ],
)
def test_a_search_without_a_processor_is_not_taken_for_a_blocked_one(
    tmp_path: Path, letter: str, silent_s: float, *, is_blocked: bool
) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text(f"7 (python) {letter} 1 7 7 0 -1 0{' 0' * 10} 0 0 1 0 50 0 7\n")

    assert stands_still(7, silent_s, str(tmp_path)) is is_blocked


def test_a_search_that_has_gone_stands_still(tmp_path: Path) -> None:
    assert stands_still(7, 2.0, str(tmp_path))
