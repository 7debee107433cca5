"""A folder of our own where everybody may write: another user in its place blocks nobody."""

import os
import stat
import uuid
from pathlib import Path

import pytest

from rankmend.errors import JournalError
from rankmend.own_folder import own_folder
from recovery.journal.folder.state_folder import default_state_folder
from recovery.launcher.ranks.runtime_folder import RuntimeFolder

pytestmark = pytest.mark.safety

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes another user's folder")


@needs_root
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_another_users_file_in_the_place_of_ours_blocks_nobody(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    squatted = tmp_path / f"rankmend-{os.getuid()}"
    if kind == "folder":
        squatted.mkdir()
    elif kind == "file":
        squatted.touch()
    else:
        squatted.symlink_to(tmp_path)
    os.chown(squatted, 65534, 65534, follow_symlinks=False)
    decoy = tmp_path / f"rankmend-{os.getuid()}-0decoy"  # a guess, which sorts first
    decoy.mkdir()
    os.chown(decoy, 65534, 65534)

    first, again = own_folder(tmp_path), own_folder(tmp_path)

    assert first == again, "later launchers find what earlier ones left"
    assert first not in (squatted, decoy)
    assert first.stat().st_uid == os.getuid()
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    (told,) = [one for one in caplog.records if "another user's file" in one.message]
    assert (told.by, told.folder) == ("uid 65534", str(first))  # type: ignore[attr-defined]


@needs_root
def test_state_beside_a_home_on_the_network_is_blocked_by_nobody(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        raise JournalError(f"{path} is on NFS")

    free = default_state_folder({}, refuse, tmp_path)
    free.mkdir()
    os.chown(free, 65534, 65534)

    own = default_state_folder({}, refuse, tmp_path)

    assert own == default_state_folder({}, refuse, tmp_path) != free
    assert own.stat().st_uid == os.getuid()


def test_the_plain_folder_is_ours_where_nobody_stands_in_the_way(tmp_path: Path) -> None:
    runtime = RuntimeFolder(tmp_path, uuid.UUID(int=1))

    assert runtime.path.parent == tmp_path / f"rankmend-{os.getuid()}"
    assert stat.S_IMODE(runtime.path.parent.stat().st_mode) == 0o700
