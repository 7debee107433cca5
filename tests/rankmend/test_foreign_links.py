"""What another user has planted in a folder that we write is not followed."""

import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.findings.journal import FindingStore
from rankmend.errors import ConfigError, JobHeldError, RankmendError, StorageError
from rankmend.own_folder import make_private, open_new, open_to_append, refuse_foreign_link
from recovery.checkpoints.marks import BESIDE, BudgetCopy, FenceFile, check_writable
from recovery.journal.folder.job_folder import open_job
from recovery.journal.folder.job_key import JobKey
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.launcher.ranks.rank_output import LogFile
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.run.meeting_site import HostFolder
from recovery.service.jobs.stored_jobs import StateFolder

pytestmark = pytest.mark.safety

OTHER_UID = 12345
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="links of another user need root")
PRECIOUS = "not to be written"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Return a folder of somebody's, and a file in it, which nothing may touch."""
    folder = tmp_path / "foreign"
    folder.mkdir(mode=0o755)
    (folder / "file").write_text(PRECIOUS)
    return folder


def plant(link: Path, target: Path, uid: int = OTHER_UID) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    os.chown(link, uid, -1, follow_symlinks=False)


def is_untouched(foreign: Path) -> bool:
    mode = stat.S_IMODE(foreign.stat().st_mode)
    return [one.name for one in foreign.iterdir()] == ["file"] and mode == 0o755


def advance(root: Path) -> None:
    FenceFile(root / BESIDE / "attempt").advance(1)


def open_state(root: Path) -> None:
    os.close(open_job(root, JobKey("job:x", "x", "--job"), None, 1.0).lock_descriptor)


def log_output(root: Path) -> None:
    file = LogFile(root / "attempt_1" / "0" / "stdout.log")
    try:
        file.write(memoryview(b"line\n"))
    finally:
        file.close()


WRITERS = [
    ("checkpoints, probe", BESIDE, check_writable),
    ("checkpoints, fence", BESIDE, advance),
    ("checkpoints, budgets", BESIDE, lambda root: BudgetCopy(root / BESIDE / "b").save(b"{}")),
    ("checkpoints, host", BESIDE, lambda root: HostFolder(root / BESIDE).claim(1, "n")),
    ("state, jobs", "jobs", open_state),
    ("state, a job", f"jobs/{JobKey('job:x', 'x', '--job').folder_name}", open_state),
    ("controller, jobs", "jobs", lambda root: StateFolder(root).close()),
    ("controller, cluster", "cluster", lambda root: StateFolder(root).close()),
    ("log folder, attempt", "attempt_1", log_output),
    ("log folder, rank", "attempt_1/0", log_output),
    ("agent, releases", "release", lambda root: FindingStore(root).close()),
]


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("link", "write"), [one[1:] for one in WRITERS], ids=[w[0] for w in WRITERS]
)
def test_link_of_another_user_in_place_of_a_folder_is_refused_by_name(
    tmp_path: Path, foreign: Path, link: str, write: Callable[[Path], object]
) -> None:
    root = tmp_path / "root"
    plant(root / link, foreign)

    with pytest.raises((RankmendError, OSError), match=f"made by uid {OTHER_UID}"):
        write(root)

    assert is_untouched(foreign)


@NEEDS_ROOT
def test_runtime_folder_in_shared_memory_is_not_behind_a_link(
    tmp_path: Path, foreign: Path
) -> None:
    plant(tmp_path / f"rankmend-{os.getuid()}", foreign)

    made = RuntimeFolder(tmp_path, uuid.uuid4())

    assert is_untouched(foreign)
    assert foreign.resolve() not in made.path.resolve().parents


@pytest.mark.parametrize("name", ["attempt", "budgets.json", "host.json", "owner-1.json"])
def test_file_behind_a_link_is_not_read_as_ours(tmp_path: Path, foreign: Path, name: str) -> None:
    (tmp_path / name).symlink_to(foreign / "file")
    readers: dict[str, Callable[[], object]] = {
        "attempt": FenceFile(tmp_path / "attempt").read,
        "budgets.json": BudgetCopy(tmp_path / "budgets.json").load,
        "host.json": HostFolder(tmp_path).read,
        "owner-1.json": ClaimFolder(tmp_path).newest,
    }

    with pytest.raises(RankmendError):
        readers[name]()


def test_log_is_not_written_through_a_link_or_into_a_pipe(tmp_path: Path, foreign: Path) -> None:
    log = tmp_path / "attempt_1" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.symlink_to(foreign / "file")

    with pytest.raises(OSError, match=r"stdout\.log"):
        log_output(tmp_path)
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(OSError, match=r"stdout\.log"):
        log_output(tmp_path)

    assert (foreign / "file").read_text() == PRECIOUS


def test_links_of_ones_own_are_followed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "ckpt").symlink_to(scratch)
    (scratch / "elsewhere").mkdir(mode=0o700)
    (scratch / BESIDE).symlink_to(scratch / "elsewhere")

    check_writable(tmp_path / "ckpt")
    advance(tmp_path / "ckpt")
    refuse_foreign_link(tmp_path / "ckpt", ConfigError)

    assert (scratch / "elsewhere" / "attempt").read_text() == "1\n"


def test_private_folder_is_closed_to_others_and_a_file_in_its_place_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()

    (tmp_path / "readable").mkdir(mode=0o755)
    (tmp_path / "secret").mkdir(mode=0o755)

    make_private(tmp_path / "open", StorageError)
    make_private(tmp_path / "new", StorageError)
    make_private(tmp_path / "readable", StorageError)
    make_private(tmp_path / "secret", StorageError, is_secret=True)

    assert stat.S_IMODE((tmp_path / "readable").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    with pytest.raises(JobHeldError, match="file"):
        make_private(tmp_path / "file", JobHeldError)


def test_new_file_is_new_and_an_appended_one_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old\n")
    with os.fdopen(open_to_append(path), "w") as file:
        file.write("more\n")
    assert path.read_text() == "old\nmore\n"

    os.close(open_new(path))

    assert path.read_text() == ""
