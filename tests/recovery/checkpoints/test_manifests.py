"""Sidecar manifests: what they save, what they find, and that a bad one does no harm."""

import json
import logging
import os
import shutil
import struct
from pathlib import Path

import pytest

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.manifests import BYTES_MAX, Manifests
from recovery.messages.candidates import CheckpointSettings, CheckpointVerdict, Hindrance, Share
from tests.support.checkpoint_saves import flip_last_member, save_folder, save_npz

pytestmark = pytest.mark.process

NOON_UNIX_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


class TestClock:
    """Stands still until a test moves it on."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 1000.0

    def now_s(self) -> float:
        return self.now

    def unix_s(self) -> float:
        return NOON_UNIX_S


class Launcher:
    """A launcher's finder, which a test has look when it likes."""

    def __init__(self, folder: Path, share: Share | None = None) -> None:
        self.clock = TestClock()
        manifests = Manifests(folder, is_writer=True)
        settings = CheckpointSettings(grace_s=10)
        self.finder = CheckpointFinder(folder, settings, self.clock, manifests)
        self.finder.share = share or Share()
        self.read_bytes = 0  # in the last look

    def look(self, *, is_awaited: bool = False) -> list[CheckpointVerdict]:
        deadline = Deadline(self.clock, 3600, is_awaited=is_awaited)
        verdicts: tuple[CheckpointVerdict, ...] = ()
        for latest in self.finder.look(deadline, enough=5):
            verdicts = latest
        self.read_bytes = deadline.read_bytes
        return list(verdicts)

    def settle(self) -> None:
        """See the checkpoints, and see them again unchanged after the grace."""
        self.look()
        self.clock.now += 11
        self.look()


def kept(folder: Path) -> dict[str, list[str]]:
    """Return which files each manifest speaks for."""
    root = folder / ".rankmend/manifests"
    found = sorted(root.glob("*/*.json"))
    return {
        str(one.relative_to(root)): sorted(json.loads(one.read_text())["files"]) for one in found
    }


def rewrite(path: Path, at: int, data: bytes) -> None:
    """Change bytes and keep size and time, as a bad disk does."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def save_large(path: Path, size_bytes: int) -> Path:
    """Write a safetensors file, which has no checksum of its own."""
    path.parent.mkdir(exist_ok=True)
    tensor = {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}
    header = json.dumps({"w": tensor}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + size_bytes)
    return path


def test_a_manifest_is_written_once_the_checkpoint_has_settled(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")
    launcher = Launcher(tmp_path)

    launcher.look()
    launcher.clock.now += 9
    launcher.look()
    early = kept(tmp_path)
    launcher.clock.now += 2
    launcher.look()

    assert early == {}
    names = [".metadata", "__0_0.distcp", "__1_0.distcp", "config.json"]
    assert kept(tmp_path) == {"step-7/0-of-1.json": names}


def test_a_look_that_somebody_waits_for_writes_nothing(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")
    launcher = Launcher(tmp_path)

    for _ in range(3):
        launcher.look(is_awaited=True)
        launcher.clock.now += 11

    assert kept(tmp_path) == {}


def test_a_new_process_reads_a_sample_and_not_the_files(tmp_path: Path) -> None:
    save_large(tmp_path / "step-1/model.safetensors", 20 * BLOCK_BYTES)
    Launcher(tmp_path).settle()
    later = Launcher(tmp_path)

    verdict = later.look(is_awaited=True)[0]

    assert verdict.is_valid
    assert verdict.reason.endswith("; 1 unchanged since they were checked")
    assert 7 * BLOCK_BYTES < later.read_bytes < 9 * BLOCK_BYTES  # the last block is short


def test_bytes_that_changed_behind_size_and_time_are_found(tmp_path: Path) -> None:
    file = save_large(tmp_path / "step-1/model.safetensors", 3 * BLOCK_BYTES)
    Launcher(tmp_path).settle()
    rewrite(file, BLOCK_BYTES + 77, b"flipped")

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert not verdict.is_valid
    assert verdict.hindrance is Hindrance.DAMAGED
    assert verdict.reason == (
        "model.safetensors: its bytes changed since it was checked at 2027-01-15T08:00:00Z"
    )


def test_a_reader_that_trusts_no_manifest_reads_all_and_compares(tmp_path: Path) -> None:
    file = save_large(tmp_path / "step-1/model.safetensors", 40 * BLOCK_BYTES)
    Launcher(tmp_path).settle()

    def look() -> CheckpointVerdict:
        finder = CheckpointFinder(tmp_path, manifests=Manifests(tmp_path, trusts=False))
        return finder.find(NOON_UNIX_S)[0]

    before = look()
    rewrite(file, 33 * BLOCK_BYTES, b"flipped")
    after = look()

    assert before.reason.endswith("; 1 file checked")
    assert after.reason.startswith("model.safetensors: its bytes changed since it was checked at ")
    assert list(kept(tmp_path)) == ["step-1/0-of-1.json"]


def test_a_file_that_was_cut_since_is_named_with_what_changed(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    shard = path / "__1_0.distcp"
    size_bytes = shard.stat().st_size
    status = shard.stat()
    os.truncate(shard, size_bytes - 5)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert verdict.reason == (
        "__1_0.distcp: truncated: no zip directory at its end; since it was checked at "
        f"2027-01-15T08:00:00Z its size changed from {size_bytes} to {size_bytes - 5} bytes"
    )


def test_a_file_with_another_time_is_read_again_and_found_whole_or_not(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    for shard in path.glob("*.distcp"):
        os.utime(shard, (1000.0, 1000.0))

    copied = Launcher(tmp_path).look(is_awaited=True)[0]
    flip_last_member(path / "__0_0.distcp")
    torn = Launcher(tmp_path).look(is_awaited=True)[0]

    assert copied.reason.endswith("2 files checked, 2 unchanged since they were checked")
    assert torn.reason.startswith("__0_0.distcp: CRC of ")
    assert torn.reason.endswith("; since it was checked at 2027-01-15T08:00:00Z its time changed")


def test_a_manifest_hides_no_file_that_is_missing(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    (path / "__1_0.distcp").unlink()

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert "__1_0.distcp, which it names, is missing" in verdict.reason


# Shares


def test_shares_that_cover_all_files_make_a_whole_verdict_on_each_node(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")
    first, second = (Launcher(tmp_path, Share(number, 2)) for number in range(2))

    first.settle()
    alone = first.look()[0]
    second.settle()
    joined = first.look()[0]

    assert (alone.is_valid, alone.share) == (True, Share(0, 2))
    assert (joined.is_valid, joined.share) == (True, Share())
    assert [len(files) for files in kept(tmp_path).values()] == [2, 2]
    assert list(kept(tmp_path)) == ["step-7/0-of-2.json", "step-7/1-of-2.json"]


def test_another_number_of_launchers_takes_what_the_former_ones_kept(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")
    for number in range(3):
        Launcher(tmp_path, Share(number, 3)).settle()

    alone = Launcher(tmp_path).look(is_awaited=True)[0]
    halves = [Launcher(tmp_path, Share(number, 2)).look()[0] for number in range(2)]

    assert alone.is_valid
    assert "; 4 unchanged since they were checked" in alone.reason
    assert [one.share for one in halves] == [Share(), Share()]


def test_a_launcher_reads_what_the_others_have_not(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    Launcher(tmp_path, Share(0, 2)).settle()  # .metadata and __0_0
    flip_last_member(path / "__1_0.distcp")

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert verdict.reason.startswith("__1_0.distcp: CRC of ")


def test_a_single_file_is_kept_by_the_first_launcher_and_whole_for_the_others(
    tmp_path: Path,
) -> None:
    save_npz(tmp_path / "step-20.npz")
    Launcher(tmp_path, Share(0, 2)).settle()

    second = Launcher(tmp_path, Share(1, 2)).look()[0]

    assert kept(tmp_path) == {"step-20.npz/0-of-2.json": ["step-20.npz"]}
    assert (second.is_valid, second.share) == (True, Share())
    assert second.reason == "complete: unchanged since it was checked"


# Bad manifests


def manifest_of(folder: Path) -> Path:
    return next((folder / ".rankmend/manifests").glob("*/*.json"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff" * 100,
        b"[" * 100_000,
        b'{"version": 2, "checkpoint": "step-7", "files": {}}',
        b'{"version": 1, "checkpoint": "../step-8", "files": {}}',
        b'{"version": 1, "checkpoint": "step-7", "files": {"__1_0.distcp": 5}}',
        b'{"version": 1, "checkpoint": "step-7", "files": {"__1_0.distcp": {"size_bytes": 1e400}}}',
    ],
)
def test_a_manifest_that_is_no_manifest_costs_a_read(tmp_path: Path, content: bytes) -> None:
    path = save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    manifest_of(tmp_path).write_bytes(content)

    whole = Launcher(tmp_path).look(is_awaited=True)[0]
    flip_last_member(path / "__1_0.distcp")
    torn = Launcher(tmp_path).look(is_awaited=True)[0]

    assert whole.is_valid
    assert "2 files checked" in whole.reason
    assert torn.reason.startswith("__1_0.distcp: CRC of ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("digests", "00"), ("digests", "no"), ("checked_unix_s", -1), ("checked_unix_s", 1e300)],
)
def test_a_record_that_can_not_be_true_is_left_out(
    tmp_path: Path, field: str, value: object
) -> None:
    save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    document = json.loads(manifest_of(tmp_path).read_text())
    document["files"]["__1_0.distcp"][field] = value
    manifest_of(tmp_path).write_text(json.dumps(document))

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert verdict.is_valid
    assert "; 4 unchanged" not in verdict.reason


def test_a_manifest_that_lies_about_digests_makes_no_torn_file_whole(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    document = json.loads(manifest_of(tmp_path).read_text())
    document["files"]["__1_0.distcp"]["digests"] = "00" * 8
    manifest_of(tmp_path).write_text(json.dumps(document))

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert "its bytes changed since" in verdict.reason


@pytest.mark.parametrize("kind", ["huge", "link", "pipe", "writable", "folder"])
def test_a_manifest_that_is_huge_or_no_file_of_ours_is_not_read(tmp_path: Path, kind: str) -> None:
    save_folder(tmp_path / "step-7")
    Launcher(tmp_path).settle()
    manifest = manifest_of(tmp_path)
    aside = tmp_path / "aside.json"
    if kind == "huge":
        os.truncate(manifest, BYTES_MAX + 1)
    elif kind == "link":
        manifest.rename(aside)
        manifest.symlink_to(aside)
    elif kind == "writable":
        manifest.chmod(0o666)
    else:
        manifest.unlink()
        os.mkfifo(manifest) if kind == "pipe" else manifest.mkdir()

    verdict = Launcher(tmp_path).look(is_awaited=True)[0]

    assert verdict.is_valid
    assert "2 files checked" in verdict.reason


def test_a_folder_that_takes_no_manifest_is_told_once_and_looks_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_folder(tmp_path / "step-7")
    save_folder(tmp_path / "step-8")
    (tmp_path / ".rankmend").mkdir()
    (tmp_path / ".rankmend/manifests").write_text("in the way")
    launcher = Launcher(tmp_path)

    with caplog.at_level(logging.WARNING):
        launcher.settle()
        launcher.look()

    assert all(one.is_valid for one in launcher.look())
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "Not a directory" in caplog.text


def test_manifests_of_checkpoints_that_are_gone_are_removed(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")
    save_folder(tmp_path / "step-8")
    launcher = Launcher(tmp_path)
    launcher.settle()
    before = list(kept(tmp_path))
    shutil.rmtree(tmp_path / "step-7")

    launcher.look()

    assert before == ["step-7/0-of-1.json", "step-8/0-of-1.json"]
    assert list(kept(tmp_path)) == ["step-8/0-of-1.json"]


def test_a_checkpoint_written_anew_under_its_name_gets_a_new_manifest(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    launcher = Launcher(tmp_path)
    launcher.settle()
    old = manifest_of(tmp_path).read_bytes()
    shutil.rmtree(path)
    save_folder(path)

    launcher.settle()

    assert manifest_of(tmp_path).read_bytes() != old
    assert "; 4 unchanged" in Launcher(tmp_path).look(is_awaited=True)[0].reason


def test_names_that_are_no_plain_file_names_get_a_folder_of_their_own(tmp_path: Path) -> None:
    inner = tmp_path / "lightning_logs/version_0/checkpoints"
    inner.mkdir(parents=True)
    save_npz(inner / "epoch=1-step=20.npz")
    save_npz(tmp_path / f"step-5-{'x' * 200}.npz")

    Launcher(tmp_path).settle()

    folders = sorted(one.name for one in (tmp_path / ".rankmend/manifests").iterdir())
    assert len(folders) == 2
    assert folders[0].startswith("lightning_logs_version_0_checkpoints_epoch=1-step=20.npz~")
    assert folders[1].startswith("step-5-xxx")
    assert max(map(len, folders)) < 120
    assert all(one.is_valid for one in Launcher(tmp_path).look(is_awaited=True))
