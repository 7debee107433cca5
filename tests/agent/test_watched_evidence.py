"""The agent asks ranks of a hung job where they are, and believes no file that another user has made."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.ranks.watched import WatchedJob
from agent.watch.evidence import AskedRank, EvidenceGatherer
from agent.watch.job_logs import JobLogs, parse_patterns
from detectors.hang.flight_dump import FlightDump
from rankmend.hook import layout
from rankmend.watched_report import ReportedEvidence
from tests.support.eventually import eventually
from tests.support.hook import ROOT, each_python

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
PROC = Path("/proc")
RANK = """
import sys, threading
from rankmend.hook import watched_stacks
for _time in range(int(sys.argv[2])):  # again: somebody has removed its files
    watched_stacks.offer(sys.argv[1])
def collective():
    print("stands", flush=True)
    threading.Event().wait()
collective()
"""
DUMP = {"version": "2.5", "entries": [], "pg_config": {}, "pg_status": {}}


class Rank:
    """A process that offers its stacks beside a progress file."""

    def __init__(self, folder: Path, python: str, offers: int = 1) -> None:
        self.progress = folder / "rank-1.progress"
        self.progress.touch()
        self.process = subprocess.Popen(
            [python, "-c", RANK, str(self.progress), str(offers)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "stands\n"

    @property
    def files(self) -> AskedRank:
        pid = self.process.pid
        return AskedRank(("job", 1, pid), pid, os.getuid(), self.progress, step_age_s=100.0)

    def beside(self, suffix: str) -> Path:
        return self.progress.with_name(self.progress.name + suffix)

    def collect(self, **changes: object) -> ReportedEvidence | None:
        gatherer = EvidenceGatherer(PROC)
        gatherer.start([replace(self.files, **changes)], 0.0)  # type: ignore[arg-type]
        eventually(lambda: not gatherer.is_busy, "the end of the gathering")
        return gatherer.found().get(self.files.key)

    def tell_recorder(self, dump: Path) -> None:
        self.beside(".recorder").write_text(json.dumps({"dump": str(dump)}))


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    yield from start(tmp_path, sys.executable)


def start(folder: Path, python: str, offers: int = 1) -> Iterator[Rank]:
    rank = Rank(folder, python, offers)
    yield rank
    rank.process.kill()
    rank.process.communicate()


@each_python
@pytest.mark.parametrize("offers", [1, 3])
def test_rank_tells_where_it_stands_and_goes_on(tmp_path: Path, python: str, offers: int) -> None:
    for rank in start(tmp_path, python, offers):
        told = [rank.collect() for _time in range(2)]

        for one in told:
            assert one is not None
            assert "collective" in [frame.function for frame in one.frames]
        assert rank.process.poll() is None


@needs_root
def test_agent_that_may_signal_nobody_has_the_stacks(rank: Rank) -> None:
    rank.progress.parent.chmod(0o755)
    for folder in rank.progress.parents:
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    show = f"import os; os.setgid(65534); os.setuid(65534); os.write(os.open({str(rank.beside('.ask'))!r}, os.O_WRONLY), b'x')"

    subprocess.run([sys.executable, "-c", show], check=True)

    answers = os.open(rank.beside(".stacks"), os.O_RDONLY)
    told = bytearray()

    def is_told() -> bool:  # written line by line
        told.extend(os.read(answers, 65536))
        return b"in collective" in told

    eventually(is_told, lambda: told)
    os.close(answers)


def test_rank_that_is_stopped_is_not_asked(rank: Rank) -> None:
    rank.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, rank.process.pid, os.WSTOPPED | os.WNOWAIT)

    told = rank.collect()

    assert told is not None
    assert told.frames == ()
    assert told.notes == ("no Python stacks: its process is in state T and handles no signals",)


def test_whoever_asks_without_end_gets_sixteen_answers_and_ends_nobody(rank: Rank) -> None:
    rank.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, rank.process.pid, os.WSTOPPED | os.WNOWAIT)
    pipe = os.open(rank.beside(".ask"), os.O_WRONLY | os.O_NONBLOCK)
    for _time in range(16):
        os.write(pipe, b"x")
    with pytest.raises(BlockingIOError):
        os.write(pipe, b"x")
    os.close(pipe)
    rank.process.send_signal(signal.SIGCONT)

    told = rank.collect()

    assert told is not None
    assert "no Python stacks: it has answered as often as it does" in told.notes
    assert rank.process.poll() is None


def test_process_with_a_handler_of_its_own_offers_nothing(tmp_path: Path) -> None:
    code = f"import signal; signal.signal({layout.STACKS_SIGNAL}, lambda *_: None)\n" + RANK
    progress = tmp_path / "rank-1.progress"

    process = subprocess.Popen(
        [sys.executable, "-c", code, str(progress), "1"],
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stands\n"
    process.kill()
    process.communicate()

    assert list(tmp_path.iterdir()) == []


def test_dump_that_was_written_since_the_job_stands_still_is_told(
    rank: Rank, tmp_path: Path
) -> None:
    dump = tmp_path / "flight-1"
    dump.write_text(json.dumps(DUMP))
    rank.tell_recorder(dump)

    new = rank.collect(step_age_s=1000.0)
    os.utime(dump, (1, 1))
    old = rank.collect(step_age_s=1000.0)

    assert new is not None
    assert old is not None
    told = msgspec.json.decode(new.dump, type=FlightDump)
    assert told.version == "2.5"
    assert old.dump == ""


def test_dump_that_is_none_is_named_and_never_run(rank: Rank, tmp_path: Path) -> None:
    dump = tmp_path / "flight-1"
    dump.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    rank.tell_recorder(dump)

    told = rank.collect()

    assert told is not None
    assert "its flight-recorder dump can't be read: dump begins with" in told.notes[0]
    assert not (tmp_path / "ran").exists()


@needs_root
def test_files_of_another_user_are_not_read(rank: Rank, tmp_path: Path) -> None:
    dump = tmp_path / "flight-1"
    dump.write_text(json.dumps(DUMP))
    rank.tell_recorder(dump)
    for path in (dump, rank.beside(".stacks")):
        os.chown(path, 1000, 1000)

    told = rank.collect()

    assert told is not None
    assert (told.frames, told.dump) == ((), "")


def test_dump_that_is_a_device_is_not_opened(rank: Rank) -> None:
    rank.tell_recorder(Path("/dev/zero"))

    told = rank.collect(uid=0)

    assert told is not None
    assert told.dump == ""


def test_the_log_files_that_the_site_names_are_judged_with_the_rank(
    rank: Rank, tmp_path: Path
) -> None:
    (tmp_path / "slurm-41.out").write_text("srun: error: n1: task 1: Out Of Memory\n")
    job_id = uuid.UUID("0c1d6a52-0000-4000-8000-000000000001")
    job = WatchedJob(job_id, "pretrain", "kim", "srun", "41")
    logs = JobLogs(parse_patterns([f"{tmp_path}/slurm-{{slurm_job}}.out"]))
    asked = replace(rank.files, key=(str(job_id), 1, rank.process.pid))
    gatherer = EvidenceGatherer(PROC, logs=logs)

    gatherer.start([asked], 0.0, [job])
    eventually(lambda: not gatherer.is_busy, "the end of the gathering")

    told = gatherer.found()[asked.key]
    assert told.log[0].startswith("restart: rank 1 on n1: oom killed: ")
    assert told.log[1] == "slurm-41.out:1: srun: error: n1: task 1: Out Of Memory"
