"""The reader of progress files, against a real writer and against everything that is none."""

import dataclasses
import os
import struct
import time
import uuid
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.hook.writer import _CODES, Writer
from rankmend.progress import (
    ProgressReader,
    RankIdentity,
    RankProgress,
    Section,
    create,
    open_owned,
)
from tests.support.hook import Rank

pytestmark = pytest.mark.process

IDENTITY = RankIdentity(uuid.UUID(int=7), attempt=2, rank=5, local_rank=1, world_size=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank5"


def _read(path: Path, records_max: int = 1, now_s: float | None = None) -> RankProgress:
    reader = ProgressReader(os.open(path, os.O_RDONLY), path.name)
    try:
        return reader.read(time.monotonic() if now_s is None else now_s, records_max)
    finally:
        reader.close()


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _with_crc(body: bytes) -> bytes:
    return body + layout.CRC.pack(zlib.crc32(body))


# What was written is what is read ------------------------------------------------------------


def test_new_file_says_who_it_is_for_and_that_nobody_attached(path: Path) -> None:
    os.close(create(path, IDENTITY))

    progress = _read(path)

    assert progress.identity == IDENTITY
    assert (progress.pid, progress.step_count, progress.records) == (0, 0, ())
    assert (progress.section, progress.section_since_s) == (Section.IDLE, None)
    assert progress.advanced_at_s is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_a_writer_tells_is_what_a_reader_reads(path: Path) -> None:
    before_s = time.monotonic()
    os.close(create(path, IDENTITY))
    writer = Writer(str(path))
    writer.step(10)
    writer.mark_resumed()
    with writer.section("communication"):
        for _ in range(4):
            writer.begin_collective()
        for _ in range(3):
            writer.end_collective()
        inside = _read(path)
    writer.step(11)

    progress = _read(path, records_max=10)

    assert (progress.pid, progress.step_count) == (os.getpid(), 2)
    assert [(record.count, record.step) for record in progress.records] == [(1, 10), (2, 11)]
    assert (inside.section, inside.sections_entered) == (Section.COMMUNICATION, 1)
    assert (progress.section, progress.sections_entered) == (Section.IDLE, 1)
    assert (progress.collectives_entered, progress.collectives_completed) == (4, 3)
    assert (progress.is_auto, progress.is_relative) == (False, False)
    assert progress.attached_at_s is not None
    assert progress.resumed_at_s is not None
    assert progress.first_section_at_s is not None
    times = [
        before_s,
        progress.attached_at_s,
        progress.records[0].ended_at_s,
        progress.resumed_at_s,
        progress.first_section_at_s,
        progress.section_since_s or 0.0,
        progress.records[1].ended_at_s,
    ]
    times.append(time.monotonic())
    assert times == sorted(times)
    assert progress.advanced_at_s == progress.records[1].ended_at_s
    assert progress.last is progress.records[-1]
    assert progress.records[0].communication_s == 0.0
    assert progress.records[1].communication_s > 0.0


@pytest.mark.parametrize("flags", [0, layout.FLAG_AUTO, layout.FLAG_AUTO | layout.FLAG_RELATIVE])
def test_flags_tell_how_steps_are_counted(path: Path, flags: int) -> None:
    os.close(create(path, IDENTITY))
    Writer(str(path), flags)

    progress = _read(path)

    assert progress.is_auto is bool(flags & layout.FLAG_AUTO)
    assert progress.is_relative is bool(flags & layout.FLAG_RELATIVE)


@pytest.mark.parametrize(
    ("told", "records_max", "first", "count"),
    [
        (3, 0, None, 0),
        (3, 1, 3, 1),
        (3, 2, 2, 2),
        (3, 100, 1, 3),
        (255, 1000, 1, 255),
        (256, 1000, 2, 255),  # the 256th slot is the one that is written next
        (1000, 1000, 746, 255),
    ],
)
def test_ring_gives_the_newest_records_oldest_first(
    path: Path, told: int, records_max: int, first: int | None, count: int
) -> None:
    os.close(create(path, IDENTITY))
    writer = Writer(str(path))
    for number in range(1, told + 1):
        writer.step(number * 10)

    progress = _read(path, records_max)

    assert progress.step_count == told
    assert len(progress.records) == count
    assert [record.step for record in progress.records] == [
        number * 10 for number in range(first or 0, told + 1) if first
    ]


def test_names_of_the_sections_are_those_of_the_layout() -> None:
    told = tuple(section.name.lower() for section in Section)
    assert (*told, "wait") == layout.SECTIONS, "waiting shows as communication"
    assert [section.value for section in Section] == list(range(len(told)))


def test_blocks_of_the_layout_do_not_overlap() -> None:
    crc = layout.CRC.size
    blocks = [
        (layout.IDENTITY_AT, layout.IDENTITY.size + crc),
        (layout.ATTACHMENT_AT, layout.ATTACHMENT.size + crc),
        (layout.RENDEZVOUS_AT, layout.RENDEZVOUS.size + crc),
        (layout.LIVE_AT, layout.LIVE.size + crc),
        (layout.COLLECTIVES_AT, layout.COLLECTIVES.size + crc),
        (layout.TIMEOUT_AT, layout.TIMEOUT.size + crc),
        (layout.HEAD_AT, 8),
        (layout.NUMBERS_HEAD_AT, 8),
        (layout.FIRST_BAD_AT, layout.FIRST_BAD.size + crc),
        (layout.NUMBERS_AT, layout.NUMBERS_SLOTS * layout.NUMBERS_SIZE),
        (layout.SNAPSHOTS_AT, layout.SNAPSHOTS.size + crc),
        (layout.WORK_AT, layout.WORK.size + crc),
        (layout.HIDDEN_AT, layout.HIDDEN.size + crc),
        (layout.BACKGROUND_AT, layout.BACKGROUND.size + crc),
        (layout.PLACE_AT, layout.PLACE.size + crc),
        (layout.RING_AT, layout.RING_SLOTS * layout.RECORD_SIZE),
    ]

    ends = [start + size for start, size in blocks]
    assert all(end <= start for end, (start, _size) in zip(ends, blocks[1:], strict=False))
    assert ends[-1] == layout.FILE_SIZE
    assert layout.RECORD.size + crc <= layout.RECORD_SIZE
    assert layout.HEAD_AT % 8 == 0  # one aligned store
    assert layout.RING_SLOTS & (layout.RING_SLOTS - 1) == 0  # the writer masks


# A writer at work ----------------------------------------------------------------------------


def test_each_step_has_the_times_of_what_came_before_it(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    writer = Writer(str(rank.path))

    writer.step(1)
    with writer.section("compute"):
        pass
    writer.step(2)
    writer.add_wait(10**9)
    writer.step(3)
    writer.enter(_CODES["communication"])
    writer.step(4)  # inside: its time so far counts
    writer.step(5)
    writer.leave()
    writer.step(6)
    with writer.section("io"), writer.section("checkpoint"):
        pass
    writer.step(7)
    writer.step(8)

    one, two, three, four, five, six, seven, eight = rank.read(records_max=8).records
    assert one.compute_s == 0 < two.compute_s == eight.compute_s
    assert (two.waited_s, three.waited_s, eight.waited_s) == (0, 1.0, 1.0)
    assert three.communication_s < four.communication_s < five.communication_s
    assert five.communication_s < six.communication_s == eight.communication_s
    assert 0 == six.io_s < seven.io_s == eight.io_s
    assert 0 == six.checkpoint_s < seven.checkpoint_s == eight.checkpoint_s


@pytest.mark.parametrize("number", [-1, 2**63, 2**64, 2**70, 1.5, "3", None])
def test_a_step_that_is_no_step_number_is_not_told(tmp_path: Path, number: object) -> None:
    rank = Rank(tmp_path)
    writer = Writer(str(rank.path))

    writer.step(number)
    writer.step(number, loss=1.0)
    writer.step(2**63 - 1)

    assert [record.step for record in rank.read(records_max=8).records] == [2**63 - 1]


# Files that are wrong ------------------------------------------------------------------------


@cache
def _whole_file() -> bytes:
    """Return the bytes of a file with every block in use."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rank5"
        os.close(create(path, IDENTITY))
        writer = Writer(str(path), layout.FLAG_AUTO)
        writer.mark_resumed()
        for number in range(1, 256):
            with writer.section("io"):
                writer.step(number)
        writer.begin_collective()
        writer.section("compute").__enter__()
        return path.read_bytes()


def _read_bytes(path: Path, data: bytes, now_s: float) -> RankProgress:
    path.write_bytes(data)
    return _read(path, records_max=300, now_s=now_s)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(0, layout.HEAD_AT + 7) | st.integers(0, layout.FILE_SIZE - 1),
            st.integers(0, 7),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_flipped_bits_give_an_error_or_what_was_written(
    tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    now_s = time.monotonic()
    whole = _read_bytes(tmp_path / "whole", _whole_file(), now_s)
    spoiled = bytearray(_whole_file())
    for offset, bit in flips:
        spoiled[offset] ^= 1 << bit

    try:
        progress = _read_bytes(tmp_path / "spoiled", bytes(spoiled), now_s)
    except SourceError:
        return

    # Only the head has no checksum: it may name an older record, where there is one.
    assert (
        dataclasses.replace(progress, records=whole.records, step_count=whole.step_count) == whole
    )
    assert set(progress.records) <= set(whole.records)
    assert progress.step_count == (progress.records[-1].count if progress.records else 0)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, layout.FILE_SIZE - 1))
def test_truncated_file_is_an_error_that_says_its_size(tmp_path: Path, size: int) -> None:
    with pytest.raises(SourceError, match=f"{size} bytes long"):
        _read_bytes(tmp_path / "short", _whole_file()[:size], time.monotonic())


def test_file_cut_off_while_it_is_open_is_an_error(path: Path) -> None:
    reader = ProgressReader(create(path, IDENTITY), "rank5")
    os.truncate(path, 100)

    with pytest.raises(SourceError, match="cut off at"):
        reader.read(time.monotonic())
    reader.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(*[st.integers(0, 2**32 - 1)] * 2, *[st.integers(0, 2**64 - 1)] * 4),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 2),
    st.integers(0, 2**64 - 1) | st.integers(0, 5),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 8),
)
def test_hostile_values_with_fitting_checksums_give_values_in_range_or_an_error(
    tmp_path: Path,
    attachment: tuple[int, ...],
    live: tuple[int, ...],
    count: int,
    record: tuple[int, ...],
) -> None:
    path = tmp_path / "hostile"
    path.unlink(missing_ok=True)
    os.close(create(path, IDENTITY))
    _overwrite(path, layout.ATTACHMENT_AT, _with_crc(layout.ATTACHMENT.pack(*attachment)))
    _overwrite(path, layout.LIVE_AT, _with_crc(layout.LIVE.pack(*live)))
    _overwrite(path, layout.HEAD_AT, count.to_bytes(8, "little"))
    slot_at = layout.RING_AT + count % layout.RING_SLOTS * layout.RECORD_SIZE
    _overwrite(path, slot_at, _with_crc(layout.RECORD.pack(count, *record[1:])))

    try:
        progress = _read(path, 300, now_s=1e6)
    except SourceError:
        return

    limit_s = 1e6 + 1
    for at_s in (progress.attached_at_s, progress.resumed_at_s, progress.section_since_s):
        assert at_s is None or 0 <= at_s <= limit_s
    for told in progress.records:
        assert 0 <= told.step <= layout.STEP_MAX
        assert told.ended_at_s <= limit_s


@pytest.mark.parametrize(
    ("offset", "form", "values", "message"),
    [
        (layout.LIVE_AT, layout.LIVE, (6, 1), "section code 6 is unknown"),
        (layout.LIVE_AT, layout.LIVE, (1, 2**63), "section entered [0-9]+ s in the future"),
        (
            layout.ATTACHMENT_AT,
            layout.ATTACHMENT,
            (1, 0, 1, 2**63, 0, 0),
            "attached [0-9]+ s in the future",
        ),
        (
            layout.IDENTITY_AT,
            layout.IDENTITY,
            (layout.MAGIC, 2, 0, layout.FILE_SIZE, b"j" * 16, 1, 8, 0, 8, 256, 72),
            "rank 8 of 8",
        ),
        (
            layout.IDENTITY_AT,
            layout.IDENTITY,
            (layout.MAGIC, 2, 0, layout.FILE_SIZE, b"j" * 16, 1, 0, 0, 8, 2**31, 72),
            "impossible identity",
        ),
        (
            layout.IDENTITY_AT,
            layout.IDENTITY,
            (layout.MAGIC, 1, 0, layout.FILE_SIZE, b"j" * 16, 1, 0, 0, 8, 256, 72),
            "version 1; this rankmend reads version 2",
        ),
        (
            layout.IDENTITY_AT,
            layout.IDENTITY,
            (b"GARBAGE!", 2, 0, layout.FILE_SIZE, b"j" * 16, 1, 0, 0, 8, 256, 72),
            "it begins with b'GARBAGE!'",
        ),
    ],
)
def test_impossible_value_is_named(
    path: Path, offset: int, form: struct.Struct, values: tuple[object, ...], message: str
) -> None:
    os.close(create(path, IDENTITY))
    _overwrite(path, offset, _with_crc(form.pack(*values)))

    with pytest.raises(SourceError, match=message):
        _read(path)


@pytest.mark.parametrize("count", [1, 2, 257, 2**64 - 1])
def test_head_that_names_a_record_which_is_not_there_is_an_error(path: Path, count: int) -> None:
    os.close(create(path, IDENTITY))
    Writer(str(path))
    _overwrite(path, layout.HEAD_AT, count.to_bytes(8, "little"))

    with pytest.raises(SourceError, match=f"slot of step {count} holds 0"):
        _read(path, records_max=0)


def test_record_that_racing_threads_have_leapt_over_hides_no_newer_one(path: Path) -> None:
    os.close(create(path, IDENTITY))
    writer = Writer(str(path))
    for step in range(300):
        writer.step(step)
    offset = layout.RING_AT + 298 % layout.RING_SLOTS * layout.RECORD_SIZE
    stale = 298 - layout.RING_SLOTS
    _overwrite(path, offset, _with_crc(layout.RECORD.pack(stale, 0, 1, 0, 0, 0, 0, 0)))

    assert [record.count for record in _read(path, records_max=10).records] == [299, 300]

    _overwrite(path, offset, _with_crc(layout.RECORD.pack(stale + 1, 0, 1, 0, 0, 0, 0, 0)))
    with pytest.raises(SourceError, match="slot of step 298 holds 43"):
        _read(path, records_max=10)


def test_steps_without_a_process_are_an_error(path: Path) -> None:
    os.close(create(path, IDENTITY))
    Writer(str(path)).step(1)
    _overwrite(path, layout.ATTACHMENT_AT, bytes(layout.ATTACHMENT.size + 4))

    with pytest.raises(SourceError, match="1 steps and no process attached"):
        _read(path)


class LookedAtAt(ProgressReader):
    """Calls `act` before the read of one block."""

    def __init__(self, path: Path, number: int, act: Callable[[], None]) -> None:
        super().__init__(os.open(path, os.O_RDONLY), path.name)
        self.until, self.act = number, act

    def _pread(self, size: int, offset: int) -> bytes:
        if hasattr(self, "act"):
            if self.until == 0:
                self.act()
            self.until -= 1
        return super()._pread(size, offset)


@pytest.mark.parametrize("number", range(12))
def test_a_read_beside_the_attachment_shows_nothing_without_its_process(
    path: Path, number: int
) -> None:
    os.close(create(path, IDENTITY))

    def attach() -> None:
        writer = Writer(str(path))
        with writer.section("compute"):
            writer.begin_collective()

    reader = LookedAtAt(path, number, attach)
    try:
        progress = reader.read(time.monotonic() + 1.0, 10)
    finally:
        reader.close()

    assert reader.until < 0
    assert progress.pid or not (progress.sections_entered or progress.collectives_entered)


# Files that are not there, or not ours ---------------------------------------------------------


def test_link_in_place_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    os.close(create(tmp_path / "real", IDENTITY))
    path.symlink_to(tmp_path / "real")

    with pytest.raises(SourceError, match=r"cannot open the progress file .*rank5"):
        open_owned(path, os.getuid())
    with pytest.raises(SourceError, match=r"cannot make the progress file .*rank5"):
        create(path, IDENTITY)


def test_file_of_another_user_is_refused_by_uid(path: Path) -> None:
    os.close(create(path, IDENTITY))

    with pytest.raises(SourceError, match=f"belongs to uid {os.getuid()}, not to 12345"):
        open_owned(path, 12345)
    descriptor = open_owned(path, os.getuid())
    assert ProgressReader(descriptor, "rank5").identity == IDENTITY
    os.close(descriptor)


def test_missing_file_is_named(path: Path) -> None:
    with pytest.raises(SourceError, match=r"rank5: No such file"):
        open_owned(path, os.getuid())


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_descriptor_of_something_else_is_refused_at_once(path: Path, kind: str) -> None:
    if kind == "pipe":  # opening one must not wait for its other end
        os.mkfifo(path)
        descriptor = open_owned(path, os.getuid())
    elif kind == "folder":
        path.mkdir()
        descriptor = open_owned(path, os.getuid())
    elif kind == "socket":
        import socket

        descriptor = socket.socket(socket.AF_UNIX).detach()
    else:
        descriptor = os.open("/dev/zero", os.O_RDONLY)

    with pytest.raises(SourceError, match="theirs: not a regular file"):
        ProgressReader(descriptor, "theirs")


def test_file_is_never_made_twice(path: Path) -> None:
    os.close(create(path, IDENTITY))

    with pytest.raises(SourceError, match=r"rank5: File exists"):
        create(path, IDENTITY)


def test_file_in_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone/rank5: No such file"):
        create(tmp_path / "gone" / "rank5", IDENTITY)


# A full file system ----------------------------------------------------------------------------
