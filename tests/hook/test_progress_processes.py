"""Progress blocks between real processes: a writer at full speed, and a full shared memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.progress import RankProgress, Section
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.hook import ROOT, RUN_S_MAX, Rank

pytestmark = pytest.mark.process


def _whole(rank: Rank) -> RankProgress | None:
    """Return what is read; None: torn, or the writer lost its processor in the middle of a block."""
    try:
        return rank.read(records_max=20)
    except SourceError:
        return None


# The section totals of every record are those of its step, so that a mixture of two shows.
FULL_SPEED = """
import sys, zlib
from rankmend.hook import layout, writer
file = writer.Writer(sys.argv[1])
print("on", flush=True)
number = 0
try:
    while True:
        for _ in range(1000):
            number += 1
            with file.section("compute"):
                file.step(number)
            file.begin_collective()
            file.end_collective()
        if number >= 10_000_000:
            break
except KeyboardInterrupt:
    pass
"""


def test_no_torn_read_is_accepted_from_a_writer_at_full_speed(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", FULL_SPEED, str(rank.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    reads, previous = 0, rank.read(0)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        while reads < 2000:
            progress = eventually(lambda: _whole(rank), "a whole file", pause_s=0.0)
            reads += 1
            assert [record.step for record in progress.records] == [
                record.count for record in progress.records
            ]
            for earlier, later in zip(progress.records, progress.records[1:], strict=False):
                assert earlier.count + 1 == later.count
                assert earlier.ended_at_s <= later.ended_at_s
                assert earlier.compute_s <= later.compute_s
            assert 0 <= progress.collectives_entered - progress.collectives_completed <= 1
            assert progress.section in (Section.IDLE, Section.COMPUTE)
            assert progress.step_count >= previous.step_count
            assert progress.sections_entered >= previous.sections_entered
            previous = progress
    finally:
        process.kill()
        process.communicate()

    assert previous.step_count > 0


FULL = """
import sys, uuid
from pathlib import Path
from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.progress import RankIdentity, create
folder = Path(sys.argv[1])
identity = RankIdentity(uuid.uuid4(), 1, 0, 0, 1)
create(folder / "first", identity)
with (folder / "filler").open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
try:
    create(folder / "second", identity)
except SourceError as error:
    print(error)
print(sorted(path.name for path in folder.iterdir()))

import os
import struct
import rankmend
os.environ[layout.ENV_PROGRESS_FILE] = str(folder / "first")
rankmend.step(7)  # its blocks were its own from the start
print(rankmend.attach())
rankmend._writer = None  # and now a file that somebody made without its blocks
with (folder / "hole").open("wb") as file:
    file.truncate(layout.FILE_SIZE)
os.environ[layout.ENV_PROGRESS_FILE] = str(folder / "hole")
print(rankmend.attach())
"""


def test_full_shared_memory_is_an_error_for_the_launcher_and_no_bus_error_in_training(
    tmp_path: Path,
) -> None:
    mount = f'mount -t tmpfs -o size=128k tmpfs {tmp_path} && exec "$0" -c "$1" {tmp_path}'
    command = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", mount]
    if os.geteuid() == 0:
        command = ["unshare", "--mount", "sh", "-c", mount]
    try:
        subprocess.run(
            [*command[:-1], f"mount -t tmpfs tmpfs {tmp_path}"], check=True, timeout=DEADLINE_S
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small tmpfs here: {error}")

    done = subprocess.run(
        [*command, sys.executable, FULL],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.returncode == 0, done.stderr
    size = layout.FILE_SIZE
    assert done.stdout.splitlines() == [
        f"no room for the progress file {tmp_path}/second ({size} bytes): No space left on device",
        "['filler', 'first']",
        "True",
        "False",
    ]
    assert "No space left on device" in done.stderr
