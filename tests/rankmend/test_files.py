"""Small files are written as a whole by every writer, whatever the disk does, and read up to a bound."""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from agent.findings.journal import VERSION, FindingStore, SavedState
from agent.nvml.children import ReleaseFile
from agent.sources import kmsg
from agent.sources.remembered_devices import InventoryFile
from agent.watch.present_jobs import PresentJobsFile, SeenJob
from detectors.node.findings import NodeState
from detectors.node.inventory import DeviceMemory
from rankmend.cli import cli
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, RankmendError, SourceError, StorageError
from rankmend.files import create_file, read_capped, read_if_there, replace_file, write_output
from rankmend.watched_report import PresentJob
from recovery.checkpoints.marks import BudgetCopy, FenceFile
from recovery.journal.folder.job_folder import JobFolder
from recovery.journal.folder.job_key import JobKey
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.evidence.evidence_collector import EvidenceFolder
from recovery.launcher.ownership.claim import FolderClaim, OwnerKind
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.run.meeting_site import HostFolder, HostNote
from recovery.launcher.run.node_launcher import VARIABLE, write_error_file
from recovery.service import setup
from recovery.service.http import authority
from recovery.service.jobs.job_store import Ended, StoredJob
from recovery.service.jobs.stored_jobs import FolderHold
from recovery.service.roles import Role
from recovery.service.tokens import HEADER, add_token, make_token, read_tokens, revoke_token
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.storage import fill, short_writes, small_disk
from tests.support.service import join_of

pytestmark = [pytest.mark.process, pytest.mark.safety]

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
JOB_ID = uuid.UUID(int=7)
OWNER = FolderClaim(
    token="t-1",
    kind=OwnerKind.LAUNCHER,
    owner="launcher:t-1",
    name="llama",
    folder="/shared/ckpt",
    host="node1",
    machine="m-1",
    uid=1000,
    pid=4711,
    start_ticks=900,
    pid_namespace=1,
    time_namespace=2,
    boot_id="b",
    started_unix_s=1.0,
)
NOTE = HostNote(
    key="job:x", node="a", url="https://a:1", secret="s", fingerprint="f", epoch=1, beat=0
)
PRECIOUS = "not to be written"


@dataclass(frozen=True)
class Writer:
    """Writes a file anew at each call, with other content or under another name."""

    name: str
    write: Callable[[Path, int], object]
    raises: bool = True  # without: a failure is noted, and the job goes on


def job_folder(folder: Path) -> JobFolder:
    return JobFolder(folder, JOB_ID, JobKey("job:x", "x", "--job"), -1)


def add_one_token(folder: Path, number: int) -> None:
    file = folder / "tokens.toml"
    if not file.exists():
        file.write_text(HEADER)
        file.chmod(0o600)
    add_token(file, make_token("program", [Role.READ], comment=str(number))[1])


def revoke_a_token(folder: Path, number: int) -> None:
    if number == 1:
        add_one_token(folder, 1)
        add_one_token(folder, 2)
    revoke_token(folder / "tokens.toml", read_tokens(folder / "tokens.toml")[0].id)


class LostFence:
    """A fence that somebody removes, and that is made again."""

    def __init__(self) -> None:
        self._fence = FenceFile(Path())

    def write(self, folder: Path, number: int) -> None:
        if number == 1:
            self._fence = FenceFile(folder / "attempt")
            self._fence.advance(1)
            self._fence.path.rename(folder / "lost")
            return
        self._fence.restore()


def save_present_jobs(folder: Path, number: int) -> None:
    job = PresentJob(job_id="0c1d6a52-0000-4000-8000-000000000001", uid=number)
    PresentJobsFile(folder / "present", SystemClock(), "b").save([SeenJob(job, 1.0)] * 20)


def save_findings(folder: Path, number: int) -> None:
    store = FindingStore(folder)
    try:
        store.save(
            SavedState(version=VERSION, boot_id="b", now_s=number, unix_s=1, state=NodeState())
        )
    finally:
        store.close()


def write_evidence(folder: Path, number: int) -> None:
    evidence = EvidenceFolder(folder, "i", 1)
    evidence.open()
    evidence.write(f"{number}.txt", b"x" * 5000)
    assert (evidence.notes == []) == (number == 1), "a file that is missing is noted"


def leave_error(folder: Path, number: int) -> None:
    outcome = JobOutcome(OutcomeKind.ESCALATED, 1, f"reason {number}")
    write_error_file(outcome, {VARIABLE: str(folder / "error.json")}, 1.0)


def make_claim(folder: Path, number: int) -> None:
    ClaimFolder(folder).make(msgspec.structs.replace(OWNER, generation=number))


def replace_claim(folder: Path, number: int) -> None:
    ClaimFolder(folder).replace(msgspec.structs.replace(OWNER, generation=1, pid=number))


WRITERS = [
    Writer("a file", lambda f, n: replace_file(f / "f", b"%d" % n * 5000, StorageError)),
    Writer("a new file", lambda f, n: create_file(f / f"f{n}", b"x" * 5000, StorageError)),
    Writer("output", lambda f, n: write_output(f / "f", b"%d" % n * 5000, StorageError)),
    Writer("run.json", lambda f, n: job_folder(f).write_run({"pid": n})),
    Writer(
        "service.json",
        lambda f, n: FolderHold(job_folder(f)).save(StoredJob("o", "s" * n, join_of("a"))),
    ),
    Writer(
        "ended.json",
        lambda f, n: FolderHold(job_folder(f)).save_end(
            Ended(n, JobOutcome(OutcomeKind.ESCALATED, 1, "r"), [], [])
        ),
    ),
    Writer("tokens.toml, add", add_one_token),
    Writer("tokens.toml, revoke", revoke_a_token),
    Writer("authority", lambda f, n: authority.make_authority(f / f"{n}.crt", f / f"{n}.key", "a")),
    Writer("init", lambda f, n: setup.init(f / str(n), ["host"], f / "state", None)),
    Writer("fence", lambda f, n: FenceFile(f / "attempt").advance(n)),
    Writer("fence, again", LostFence().write),
    Writer("budgets", lambda f, n: BudgetCopy(f / "budgets.json").save(b"%d" % n * 5000)),
    Writer("claim", make_claim),
    Writer("claim, replaced", replace_claim),
    Writer("host.json", lambda f, n: HostFolder(f).write(msgspec.structs.replace(NOTE, beat=n))),
    Writer("host-<epoch>", lambda f, n: HostFolder(f).claim(n, "a")),
    Writer(
        "ranks.json",
        lambda f, n: RuntimeFolder(f, JOB_ID).write_ranks(n, [{"rank": 0, "pid": n}]),
        raises=False,
    ),
    Writer("evidence", write_evidence, raises=False),
    Writer("TORCHELASTIC_ERROR_FILE", leave_error, raises=False),
    Writer("state.json of findings", save_findings),
    Writer("gpu-release.json", lambda f, n: ReleaseFile(f / "r", "b").save(0, n)),
    Writer("present jobs", save_present_jobs),
    Writer("kernel log", lambda f, n: kmsg.save(f / "k", kmsg.SavedKernelLog("b", n, 0, 0))),
    Writer("devices", lambda f, n: InventoryFile(f / "d").save(DeviceMemory(memory_bytes_max=n))),
]


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and "site" not in path.parts
    }


@pytest.mark.parametrize("writer", WRITERS, ids=lambda one: one.name)
@pytest.mark.parametrize("fault", ["short write", pytest.param("full disk", marks=NEEDS_ROOT)])
def test_file_is_never_torn_and_the_failure_is_told(
    tmp_path: Path, writer: Writer, fault: str
) -> None:
    with contextlib.ExitStack() as stack:
        folder = tmp_path / "disk"
        if fault == "full disk":
            stack.enter_context(small_disk(folder, 1 << 20))
        else:
            folder.mkdir()
        writer.write(folder, 1)
        before = content(folder)
        assert before, "it has written something"

        with short_writes(1) if fault == "short write" else fill(folder):
            with pytest.raises(RankmendError) if writer.raises else contextlib.nullcontext():
                writer.write(folder, 2)
            after = content(folder)

        after.pop(".filled-by-a-test", None)
        assert after == before


@NEEDS_ROOT
def test_token_that_does_not_fit_on_the_disk_is_an_error_of_the_command(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        add_one_token(disk, 1)
        before = content(disk)
        with fill(disk):
            done = CliRunner().invoke(
                cli,
                f"controller token add eve --role read --tokens-file {disk}/tokens.toml".split(),
            )

        assert done.exit_code != 0
        assert f"cannot write {disk}/tokens.toml: No space left on device" in done.output
        assert content(disk) == before


def test_secret_is_never_readable_by_others_and_the_mode_of_others_is_kept(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", b"s", StorageError)
    create_file(tmp_path / "key", b"s", StorageError)
    replace_file(tmp_path / "public", b"p", StorageError, mode=0o644)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"secret": 0o600, "key": 0o600, "public": 0o644}


@NEEDS_ROOT
def test_replaced_file_has_its_owner_from_the_start(tmp_path: Path) -> None:
    replace_file(tmp_path / "tokens", b"t", StorageError, owner=(12345, 54321))

    found = (tmp_path / "tokens").stat()
    assert (found.st_uid, found.st_gid) == (12345, 54321)


@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_what_has_the_name_of_the_file_is_replaced_and_not_written_to(
    tmp_path: Path, kind: str
) -> None:
    theirs, path = tmp_path / "theirs", tmp_path / "file"
    theirs.write_text(PRECIOUS)
    if kind == "symbolic":
        path.symlink_to(theirs)
    elif kind == "hard":
        path.hardlink_to(theirs)
    else:
        os.mkfifo(path)

    replace_file(path, b"ours", StorageError)

    assert path.read_bytes() == b"ours"
    assert theirs.read_text() == PRECIOUS


def test_new_file_takes_nobodys_place(tmp_path: Path) -> None:
    create_file(tmp_path / "file", b"first", StorageError)

    with pytest.raises(FileExistsError):
        create_file(tmp_path / "file", b"second", StorageError)

    assert content(tmp_path) == {"file": b"first"}


def test_output_goes_through_a_link_and_into_a_pipe_that_a_person_names(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    read_end, write_end = os.pipe()

    write_output(tmp_path / "link", b"new", StorageError)
    write_output(Path(f"/dev/fd/{write_end}"), b"piped", StorageError)

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert os.read(read_end, 100) == b"piped"
    os.close(read_end)
    os.close(write_end)


def test_read_is_bounded_and_names_the_file_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_if_there(path, 10, SourceError) is None
    with pytest.raises(ConfigError, match=f"^cannot read the policy {path}: No such file or"):
        read_capped(path, 10, ConfigError, name=f"the policy {path}")

    path.write_bytes(b"x" * 10)
    assert read_capped(path, 10, SourceError) == b"x" * 10
    with pytest.raises(SourceError, match=f"^{path} has more than 9 bytes$"):
        read_capped(path, 9, SourceError)


def test_link_is_not_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")

    with pytest.raises(SourceError, match="link: Too many levels of symbolic links"):
        read_capped(tmp_path / "link", 10_000, SourceError, follow_link=False)


def test_failure_that_only_close_reports_leaves_the_old_file(tmp_path: Path) -> None:
    if shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("FUSE is not usable here (fuse3, /dev/fuse)")
    pytest.importorskip("mfusepy", reason="mfusepy is not installed")
    point, served, fails = (tmp_path / name for name in ("point", "served", "fails"))
    point.mkdir()
    served.mkdir()
    program = [sys.executable, "-m", "tests.support.faults.late_failing_disk"]
    server = subprocess.Popen([*program, *map(str, (point, served, fails))])
    try:
        eventually(lambda: os.path.ismount(point), "the FUSE mount")
        replace_file(point / "file", b"old", StorageError, durable=False)
        fails.touch()

        with pytest.raises(StorageError, match="file: Disk quota exceeded"):
            replace_file(point / "file", b"new", StorageError, durable=False)

        assert content(served) == {"file": b"old"}
    finally:
        fails.unlink(missing_ok=True)
        subprocess.run(["fusermount3", "-u", "-z", str(point)], timeout=DEADLINE_S, check=False)
        server.terminate()
        server.wait(DEADLINE_S)
