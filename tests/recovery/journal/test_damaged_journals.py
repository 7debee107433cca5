"""Journals whose makers and writers were killed, whose disk is full, or whose file is damaged."""

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal.attempt_records import Milestone
from recovery.journal.job_records import JobOpened, TailCut
from recovery.journal.store import Journal, open_readonly
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.journal_files import change

pytestmark = [pytest.mark.process, pytest.mark.safety]

ROOT = Path(__file__).parents[3]
JOB = JobOpened("6f1c0a5e-0000-4000-8000-000000000001", "digits")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Journal]:
    journal = Journal(path, SystemClock(), "boot-1")
    try:
        yield journal
    finally:
        journal.close()


def write(path: Path, steps: int) -> None:
    with opened(path) as journal:
        journal.append(JOB)
        for step in range(1, steps + 1):
            journal.append(Milestone(1, step))


def test_a_reader_takes_a_journal_being_made_for_empty_and_never_for_another_programs(
    tmp_path: Path,
) -> None:
    source = f"""
from itertools import count
from pathlib import Path
from rankmend.clock import SystemClock
from recovery.journal.store import Journal
folder = Path({str(tmp_path)!r})
for number in count():
    Journal(folder / f"{{number}}.db", SystemClock(), "boot-1").close()
    if (folder / "enough").exists():
        break
"""
    looked_at: set[int] = set()

    def look() -> bool:
        newest = len(looked_at)
        if (tmp_path / f"{newest}.db").is_file():
            assert open_readonly(tmp_path / f"{newest}.db").entries == ()
        if (tmp_path / f"{newest + 1}.db").is_file():
            looked_at.add(newest)
        return len(looked_at) == 60

    with subprocess.Popen([sys.executable, "-c", source], cwd=ROOT) as maker:
        try:
            eventually(look, "60 journals are made", pause_s=0)
        finally:
            (tmp_path / "enough").touch()

    assert maker.returncode == 0


def test_a_journal_whose_maker_was_killed_half_way_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    source = f"""
import os, signal, sqlite3
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.execute("PRAGMA cache_size=1")  # so that pages are on disk before the commit
connection.execute("BEGIN")
connection.execute("CREATE TABLE record (body BLOB)")
for _row in range(100):
    connection.execute("INSERT INTO record VALUES (zeroblob(4000))")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", source], check=False, cwd=ROOT)
    assert path.with_name("journal.db-journal").stat().st_size > 0

    assert open_readonly(path).entries == ()
    with opened(path) as journal:
        journal.append(JOB)
    assert len(open_readonly(path).entries) == 1


def test_a_journal_opened_after_a_kill_outlives_its_readers(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write_and_die = f"""
import os, signal
from pathlib import Path
from rankmend.clock import SystemClock
from recovery.journal.attempt_records import Milestone
from recovery.journal.store import Journal
journal = Journal(Path({str(path)!r}), SystemClock(), "boot-1")
for step in range(50):
    journal.append(Milestone(1, step))
os.kill(os.getpid(), signal.SIGKILL)
"""
    read = f"from pathlib import Path; from recovery.journal.store import open_readonly; print(len(open_readonly(Path({str(path)!r})).entries))"
    go_on = f"""
import subprocess, sys
from pathlib import Path
from rankmend.clock import SystemClock
from recovery.journal.attempt_records import Milestone
from recovery.journal.store import Journal
journal = Journal(Path({str(path)!r}), SystemClock(), "boot-1")
for step in range(4):
    journal.append(Milestone(2, step))
    subprocess.run([sys.executable, "-c", {read!r}], check=True)
journal.close()
"""
    subprocess.run([sys.executable, "-c", write_and_die], check=False, cwd=ROOT)
    assert path.with_name("journal.db-wal").stat().st_size > 0

    done = subprocess.run([sys.executable, "-c", go_on], check=False, cwd=ROOT, capture_output=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [b"51", b"52", b"53", b"54"]


@pytest.mark.parametrize("torn_from", [2, 4, 5])
def test_a_torn_tail_is_cut_and_said_so(tmp_path: Path, torn_from: int) -> None:
    path = tmp_path / "journal.db"
    write(path, steps=4)  # records 1 to 5
    change(path, "UPDATE record SET checksum = zeroblob(16) WHERE number >= ?", torn_from)

    assert open_readonly(path).torn == 6 - torn_from
    with opened(path) as journal:
        (warning,) = journal.warnings
        kept = len(journal.opened)
        journal.append(Milestone(1, 9))
    again = open_readonly(path)

    assert f"from number {torn_from} on" in warning
    assert "journal.db" in warning
    assert kept == torn_from  # those before it, and the TailCut itself
    assert isinstance(again.entries[torn_from - 1].record, TailCut)
    assert again.entries[torn_from].record == Milestone(1, 9)
    assert (len(again.entries), again.torn) == (torn_from + 1, 0)


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE record SET body = \'{"attempt":1,"step":77}\' WHERE number = 3',
        "UPDATE record SET unix_s = unix_s + 1 WHERE number = 3",
        "UPDATE record SET boot_id = 'another' WHERE number = 3",
        "UPDATE record SET kind = 'caught_up' WHERE number = 3",
        "UPDATE record SET major = 'x' WHERE number = 3",
        "UPDATE record SET body = NULL WHERE number = 3",
    ],
)
def test_a_torn_middle_is_refused_with_the_record_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.db"
    write(path, steps=4)
    if "NULL" in damage:
        damage = "UPDATE record SET body = x'00' WHERE number = 3"
    change(path, damage)

    with pytest.raises(JournalError, match=r"journal\.db: record 3 is damaged.*Restore the file"):
        Journal(path, SystemClock(), "boot-1")


@pytest.mark.parametrize("offset", [0, 100, 4096, 8192 - 64])
def test_a_malformed_database_is_refused_with_what_to_do(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "journal.db"
    write(path, steps=4)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 64)

    with pytest.raises(JournalError, match=r"journal\.db"):
        Journal(path, SystemClock(), "boot-1")


DAMAGES: tuple[Callable[[bytearray, int], None], ...] = (
    lambda body, at: body.__setitem__(at, body[at] ^ 1 << at % 8),
    lambda body, at: body.__setitem__(slice(at - at % 4096, at - at % 4096 + 4096), bytes(4096)),
    lambda body, at: body.__delitem__(slice(at, None)),
    lambda body, at: body.__setitem__(slice(at, at + 512), Random(at).randbytes(512)),
)


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal", "journal.db-shm"])
@pytest.mark.parametrize("damage", DAMAGES, ids=["flip", "zeroed page", "cut", "torn"])
def test_no_damage_gives_a_record_that_was_not_written(
    tmp_path: Path, damage: Callable[[bytearray, int], None], name: str
) -> None:
    """Of a journal whose writer was killed: refused with its name, or what was written, whole or up to a place."""
    wrote = [JOB, *(Milestone(1, step) for step in range(1, 60))]
    journal = Journal(tmp_path / "journal.db", SystemClock(), "boot-1")
    for record in wrote:
        journal.append(record)
    shutil.copytree(tmp_path, tmp_path / "killed")
    journal.close()
    random, seen = Random(9), 0
    for _place in range(12):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "killed", folder)
        body = bytearray((folder / name).read_bytes())
        damage(body, random.randrange(len(body)))
        (folder / name).write_bytes(bytes(body))

        try:
            with opened(folder / "journal.db") as again:
                records = [entry.record for entry in again.opened]
        except JournalError as error:
            assert "journal.db" in str(error)  # noqa: PT017 - either is right
            continue
        read = [record for record in records if not isinstance(record, TailCut)]
        assert read == wrote[: len(read)]
        seen += 1

    assert seen or name == "journal.db"


def test_a_newer_major_version_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write(path, steps=1)
    change(path, "PRAGMA user_version=2")

    with pytest.raises(JournalError, match="journal version 2, this rankmend reads 1"):
        Journal(path, SystemClock(), "boot-1")


def test_an_unfinished_write_at_the_end_of_the_log_is_cut_and_said_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, SystemClock(), "boot-1")
    journal.append_many([JOB, Milestone(1, 1)])
    journal.append(Milestone(1, 2))
    copy = tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    wal = bytearray((tmp_path / "journal.db-wal").read_bytes())
    journal.close()
    page_size = struct.unpack_from(">I", wal, 8)[0]
    wal[-page_size // 2] ^= 0xFF  # the last frame's page: its commit never happened
    (copy.parent / "journal.db-wal").write_bytes(wal)

    with opened(copy) as reopened:
        (warning,) = reopened.warnings
        assert "frames of the write-ahead log were cut off" in warning
        assert [entry.number for entry in reopened.opened] == [1, 2, 3]
        assert reopened.append(Milestone(1, 2)).number == 4  # 3 is the TailCut


FULL_DISK = """
import os
import sys
from pathlib import Path
from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal.store import Journal
from recovery.journal.records import BudgetsReset, Milestone
folder = Path(sys.argv[1])
journal = Journal(folder / "journal.db", SystemClock(), "boot-1")
filler = folder / "filler"
descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
try:
    while True:
        os.write(descriptor, b"x" * 4096)
except OSError:
    os.close(descriptor)
os.truncate(filler, filler.stat().st_size - 64 * 1024)  # room for a few records
acknowledged, refused = 0, ""
for number in range(1, 500):
    try:
        journal.append(BudgetsReset("somebody", "r" * 2000))
        acknowledged = number
    except JournalError as error:
        refused = str(error)
        break
if "dies" in sys.argv:
    print(acknowledged, flush=True)
    os._exit(0)  # as by kill -9: nothing is closed
for _again in range(3):  # the caller tries again while the disk stays full
    try:
        journal.append(Milestone(1, 1))
    except JournalError:
        pass
    else:
        acknowledged += 1
filler.unlink()
entry = journal.append(Milestone(1, 2))
journal.close()
print(acknowledged, entry.number, refused, sep="|")
"""
OPENED_ON_A_FULL_DISK = """
import sys
from pathlib import Path
from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal.store import Journal
from recovery.journal.records import BudgetsReset, Milestone, TailCut
disk = Path(sys.argv[1])
journal = Journal(disk / "journal.db", SystemClock(), "boot-1")
cuts = sum(isinstance(entry.record, TailCut) for entry in journal.opened)
refused = ""
try:
    journal.append(BudgetsReset("somebody", "r" * 20000))
except JournalError as error:
    refused = str(error)
(disk / "filler").unlink()
number = journal.append(Milestone(1, 2)).number
journal.close()
print(number, refused, cuts, sep="|")
"""


def run_on_a_small_disk(tmp_path: Path, *scripts: str) -> list[str]:
    """Return what each script printed; the disk is its first argument, words after a script the others."""
    disk = tmp_path / "disk"
    disk.mkdir()
    steps = [f"mount -t tmpfs -o size=1m tmpfs {disk}"]
    for number, script in enumerate(scripts):
        source, _, words = script.partition("\0")
        file = tmp_path / f"script-{number}.py"
        file.write_text(source)
        steps.append(f"{sys.executable} {file} {disk} {words}")
    result = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", " && ".join(steps)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"no mount namespace here: {result.stderr.strip()}")

    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_full_disk_is_named_writes_nothing_and_passes(tmp_path: Path) -> None:
    (told,) = run_on_a_small_disk(tmp_path, FULL_DISK)

    acknowledged, number, refused = told.split("|")
    assert "journal.db" in refused
    assert "ENOSPC" in refused
    assert int(acknowledged) > 0
    assert int(number) == int(acknowledged) + 1  # no gap, nothing half written


def test_a_journal_whose_writer_died_on_a_full_disk_opens_while_it_is_full(tmp_path: Path) -> None:
    acknowledged, told = run_on_a_small_disk(tmp_path, f"{FULL_DISK}\0dies", OPENED_ON_A_FULL_DISK)

    number, refused, unfinished = told.split("|")
    assert "ENOSPC" in refused
    # A small record still fits: that of what the refused write has left.
    assert int(number) == int(acknowledged) + 1 + int(unfinished)
