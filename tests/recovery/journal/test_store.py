import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal import records
from recovery.journal.attempt_records import Milestone
from recovery.journal.folder.network_storage import (
    NETWORK_FUSE_TYPES,
    NETWORK_TYPES,
    refuse_network_file_system,
)
from recovery.journal.journal_rows import GENESIS, JournalRow, make_row, verify_rows
from recovery.journal.records import Entry, UnknownRecord, decode_record
from recovery.journal.store import Journal, open_readonly
from tests.support.journal_files import change

pytestmark = pytest.mark.safety

ROOT = Path(__file__).parents[3]


def rows_of(count: int) -> list[JournalRow]:
    rows, head = [], GENESIS
    for number in range(1, count + 1):
        row = make_row(Entry(number, 100.0 + number, 5.0, "boot-1", Milestone(1, number)), head)
        rows.append(row)
        head = row.checksum
    return rows


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"no journal at .*journal\.db"):
        open_readonly(tmp_path / "journal.db")


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    change(path, "CREATE TABLE mine (a)")
    before = path.read_bytes()

    with pytest.raises(JournalError, match="another program's database"):
        Journal(path, SystemClock(), "boot-1")
    assert path.read_bytes() == before


def test_a_newer_minor_versions_kind_is_kept_and_skipped() -> None:
    record = decode_record("heartbeat", 1, records.MINOR + 1, b'{"a":1}')

    assert record == UnknownRecord("heartbeat", b'{"a":1}')
    assert records.encode_record(record) == b'{"a":1}'
    with pytest.raises(JournalError, match="kind 'heartbeat' does not exist"):
        decode_record("heartbeat", 1, records.MINOR, b"{}")


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot open .*missing/journal\.db"):
        Journal(tmp_path / "missing" / "journal.db", SystemClock(), "boot-1")


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home rw shared:2 - {kind} server:/export rw
41 22 0:36 / /home/local rw - ext4 /dev/vdb rw
42 22 0:37 / /with\\040space rw - {kind} server:/b rw
43 22 0:38 / /mnt rw - {kind} server:/c rw
44 22 0:39 / /mnt rw - xfs /dev/vdc rw
broken line
"""


@pytest.mark.parametrize("kind", sorted(NETWORK_TYPES | NETWORK_FUSE_TYPES))
def test_a_network_file_system_is_refused_by_name_with_the_way_out(
    tmp_path: Path, kind: str
) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTS.format(kind=kind))

    for path in ("/home/someone/state/journal.db", "/with space/journal.db"):
        with pytest.raises(JournalError, match=f"lies on {kind} .*--state-dir"):
            refuse_network_file_system(Path(path), mountinfo)
    for path in ("/tmp/j.db", "/home/local/j.db", "/homework/j.db", "/mnt/j.db"):
        refuse_network_file_system(Path(path), mountinfo)


def test_a_journal_on_a_network_file_system_is_not_even_made(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"22 1 0:1 / {tmp_path} rw - nfs4 server:/x rw\n")

    with pytest.raises(JournalError, match="nfs4"):
        Journal(tmp_path / "journal.db", SystemClock(), "boot-1", mountinfo=mountinfo)
    assert not (tmp_path / "journal.db").exists()


@given(st.integers(1, 12), st.data())
def test_any_one_change_to_a_row_is_seen(count: int, data: st.DataObject) -> None:
    rows = rows_of(count)
    place = data.draw(st.integers(0, count - 1))
    changed = data.draw(
        st.sampled_from(
            [
                {"kind": "caught_up"},
                {"major": 2},
                {"minor": 99},
                {"unix_s": 1.0},
                {"monotonic_s": -1.0},
                {"boot_id": ""},
                {"body": b""},
                {"body": None},
                {"checksum": b"\0" * 16},
                {"checksum": "text"},
            ]
        )
    )
    rows[place] = rows[place]._replace(**changed)

    try:
        entries, torn = verify_rows(rows, "journal")
    except JournalError:
        assert place < count - 1  # in the middle: refused
    else:
        # at the end: cut; a changed checksum takes the row behind it along
        assert torn >= 1
        assert len(entries) + torn == count


@given(st.sampled_from(sorted(records.KINDS)), st.binary(max_size=300))
def test_no_bytes_make_the_decoder_raise_anything_but_a_journal_error(
    kind: str, body: bytes
) -> None:
    with contextlib.suppress(JournalError):
        decode_record(kind, records.MAJOR, records.MINOR, body)


def test_every_kind_of_record_is_listed_in_the_documentation() -> None:
    text = (ROOT / "docs/reference/journal.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]

    assert listed == list(records.KINDS)


def test_a_journal_that_is_being_made_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.touch()

    view = open_readonly(path)

    assert view.entries == ()
