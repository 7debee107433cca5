"""The socket between launcher and agent: honest launchers, hostile ones."""

import array
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.ranks import RanksCollector
from agent.jobs.processes import RankPods
from agent.page.application import describe_rank
from agent.ranks.launcher_socket import MESSAGES_PER_MINUTE_MAX, RankSocket
from agent.ranks.table import CONNECTIONS_OF_USER_MAX, RANKS_MAX, RankTable, ShownRank
from rankmend.agent_socket import (
    MESSAGE_BYTES_MAX,
    OfferedRank,
)
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, SourceError
from rankmend.hook import layout
from rankmend.progress import ProgressReader
from recovery.launcher.agent_link import AgentLink
from tests.support.agent import (
    JOB_ID,
    PATIENT,
    ROOT,
    FakeClock,
    make_progress_file,
    message,
    tmpfs_folder,
    values_of,
)
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

OTHER_JOB_ID = uuid.UUID("6d0c4b1e-0000-4000-8000-000000000002")
POD_UID = "0b6f1c1e-6f0e-4c62-9a52-6a9a5a1f3a11"


@contextmanager
def listening(folder: Path) -> Iterator[tuple[RankSocket, RankTable]]:
    table = RankTable()
    rank_socket = RankSocket(folder / "agent.sock", table, SystemClock())
    rank_socket.start()
    try:
        yield rank_socket, table
    finally:
        rank_socket.stop()


@pytest.fixture
def shm() -> Iterator[Path]:
    with tmpfs_folder() as folder:
        yield folder


def shown(table: RankTable) -> list[tuple[str, int, int]]:
    """Return (job, attempt, rank) of every rank that the agent has."""
    return [
        (str(sample.identity.job_id)[-1], sample.identity.attempt, sample.identity.rank)
        for sample in table.read(SystemClock().now_s(), 1)
    ]


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(DEADLINE_S)
    connection.connect(str(path))
    return connection


def send(connection: socket.socket, data: bytes, *paths: Path) -> None:
    descriptors = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in paths]
    try:
        socket.send_fds(connection, [data], descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def is_refused(connection: socket.socket) -> bool:
    """Wait for the agent's answer to something that it must refuse: the end."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_launcher_shows_its_ranks_and_takes_them_back(shm: Path) -> None:
    with listening(shm) as (rank_socket, table):
        link = AgentLink([shm / "nobody.sock", rank_socket.path], SystemClock())
        ranks = [(OfferedRank(n, n, 100 + n), make_progress_file(shm, n)) for n in range(4)]

        link.offer(JOB_ID, "digits", 1, ranks)
        eventually(lambda: len(shown(table)) == 4, "four ranks")
        link.offer(JOB_ID, "digits", 2, [(OfferedRank(1, 1, 7), make_progress_file(shm, 1, 2))])
        eventually(lambda: shown(table) == [("1", 2, 1)], "the next attempt alone")
        link.close()
        eventually(lambda: shown(table) == [], "no rank")

    assert not rank_socket.path.exists()


def test_launcher_that_is_killed_leaves_no_rank_behind(shm: Path) -> None:
    path = make_progress_file(shm)
    script = (
        "import sys, time, uuid; from pathlib import Path;"
        "from rankmend.agent_socket import OfferedRank;"
        "from recovery.launcher.agent_link import AgentLink;"
        "from rankmend.clock import SystemClock;"
        "link = AgentLink([Path(sys.argv[1])], SystemClock());"
        "link.offer(uuid.UUID(sys.argv[3]), 'x', 1, [(OfferedRank(0, 0, 1), Path(sys.argv[2]))]);"
        "time.sleep(600)"
    )
    with listening(shm) as (rank_socket, table):
        launcher = subprocess.Popen(
            [sys.executable, "-c", script, str(rank_socket.path), str(path), str(JOB_ID)], cwd=ROOT
        )
        try:
            eventually(lambda: shown(table) == [("1", 1, 0)], "the rank")
        finally:
            launcher.kill()
            launcher.wait()
        eventually(lambda: shown(table) == [], "no rank")


def test_rank_that_writes_by_the_hook_is_measured_through_its_descriptor(shm: Path) -> None:
    path = make_progress_file(shm)
    script = (
        "import rankmend, sys, time\n"
        "for step in range(1, 41):\n"
        "    with rankmend.section('compute'):\n"
        "        sum(range(2000))\n"
        "    with rankmend.section('checkpoint'):\n"
        "        time.sleep(0.001)\n"
        "    rankmend.step(step)\n"
        "with rankmend.section('communication'):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    clock = SystemClock()
    with listening(shm) as (rank_socket, table):
        rank = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, layout.ENV_PROGRESS_FILE: str(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
            link = AgentLink([rank_socket.path], clock)
            link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, rank.pid), path)])
            path.unlink()  # the descriptor is enough
            eventually(lambda: len(shown(table)) == 1, "the rank")
            in_pod = shm / "proc" / str(rank.pid)
            in_pod.mkdir(parents=True)
            (in_pod / "cgroup").write_text(f"0::/kubepods/burstable/pod{POD_UID}/ranks\n")
            (shm / "pods" / f"team_train-0_{POD_UID}").mkdir(parents=True)
            pods = RankPods(shm / "proc", shm / "pods")
            values = values_of(list(RanksCollector(table, clock, pods=pods).collect()))
            link.close()
        finally:
            rank.communicate(b"")

    key = f"{JOB_ID},0"
    assert values[f"rank_info{{{key},{rank.pid},1,digits}}"] == 1
    assert values[f"rank_pod_info{{{key},train-0,team,{POD_UID}}}"] == 1
    assert values[f"rank_step_number{{{key}}}"] == 40
    assert values[f"rank_steps_total{{{key}}}"] == 40
    assert 0 < values[f"rank_section_ratio{{{key},compute}}"] <= 1
    assert values[f"rank_section_ratio{{{key},io}}"] == 0
    assert values[f"rank_checkpoint_seconds_total{{{key}}}"] >= 40 * 0.001
    assert values[f"rank_section_age_seconds{{{key},communication}}"] >= 0
    assert values[f"rank_step_median_seconds{{{key}}}"] > 0


def test_corrupt_progress_file_shows_that_and_nothing_else(shm: Path) -> None:
    clock = SystemClock()
    good, bad = make_progress_file(shm, 0), make_progress_file(shm, 1)
    with listening(shm) as (rank_socket, table):
        link = AgentLink([rank_socket.path], clock)
        ranks = [(OfferedRank(0, 0, 1), good), (OfferedRank(1, 1, 2), bad)]
        link.offer(JOB_ID, "digits", 1, ranks)
        eventually(lambda: len(shown(table)) == 2, "two ranks")
        with bad.open("r+b") as file:
            file.seek(layout.LIVE_AT)
            file.write(b"\xff" * 20)
        collector = RanksCollector(table, clock)
        values = values_of(list(collector.collect()))
        with bad.open("r+b") as file:
            file.truncate(10)
        after_truncation = values_of(list(collector.collect()))
        link.close()

    assert values[f"rank_progress_success{{{JOB_ID},0}}"] == 1
    assert {name: value for name, value in values.items() if f"{JOB_ID},1" in name} == {
        f"rank_progress_success{{{JOB_ID},1}}": 0
    }
    assert after_truncation == values


def _foreign(folder: Path) -> Path:
    path = make_progress_file(folder, rank=3)
    os.chown(path, 12345, 12345)
    return path


def _short(folder: Path) -> Path:
    path = make_progress_file(folder, rank=4)
    os.truncate(path, 100)
    return path


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def _noise(folder: Path) -> Path:
    (folder / "noise").write_bytes(os.urandom(layout.FILE_SIZE))
    return folder / "noise"


def _on_disk(_folder: Path) -> Path:
    return Path(__file__)  # no tmpfs: could be a file system of the peer's own, that hangs


NO_TMPFS = "is not a file on a tmpfs"
HOSTILE_FILES = {
    "somebody else's": (_foreign, "belongs to uid 12345"),
    "too short": (_short, "bytes long instead of"),
    "a pipe": (_fifo, NO_TMPFS),
    "a folder": (lambda folder: folder, NO_TMPFS),
    "a device": (lambda _folder: Path("/dev/zero"), NO_TMPFS),
    "noise": (_noise, "wrong checksum of the identity block"),
    "not in memory": (_on_disk, NO_TMPFS),
    "another rank's": (
        lambda folder: make_progress_file(folder, rank=5),
        "belongs to RankIdentity",
    ),
    "another job's": (
        lambda folder: make_progress_file(folder, job_id=OTHER_JOB_ID),
        "belongs to RankIdentity",
    ),
    "another attempt's": (
        lambda folder: make_progress_file(folder, attempt=9),
        "belongs to RankId",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_FILES)
def test_file_that_is_no_progress_file_of_the_peer_ends_only_its_connection(
    case: str, shm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = HOSTILE_FILES[case]
    if case == "somebody else's" and os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    with listening(shm) as (rank_socket, table), caplog.at_level(logging.WARNING):
        honest = AgentLink([rank_socket.path], SystemClock())
        honest.offer(
            OTHER_JOB_ID,
            "honest",
            1,
            [(OfferedRank(7, 7, 1), make_progress_file(shm, 7, 1, OTHER_JOB_ID))],
        )
        eventually(lambda: len(shown(table)) == 1, "the honest rank")
        before = descriptor_count()
        hostile = connect(rank_socket.path)
        send(hostile, message(), make(shm))

        assert is_refused(hostile)
        hostile.close()
        eventually(lambda: table.connection_count == 1, "the hostile connection to be forgotten")
        eventually(lambda: descriptor_count() == before, "every received file to be closed")
        assert shown(table) == [("2", 1, 7)]
        assert table.refused_total == 1
        honest.close()

    assert [record for record in caplog.records if reason in vars(record).get("error", "")]


def test_hostile_packets_end_only_their_connection(shm: Path) -> None:
    path = make_progress_file(shm)
    packets: list[tuple[bytes, list[Path]]] = [
        (b"\xff\xfe", []),
        (message(), []),  # a rank and no file
        (message(), [path, path]),  # more files than ranks
        (message() + b" " * (2 * MESSAGE_BYTES_MAX), [path]),  # cut off by the agent
        (b"{}", [path] * 200),
    ]
    with listening(shm) as (rank_socket, table):
        before = descriptor_count()
        for data, paths in packets:
            connection = connect(rank_socket.path)
            send(connection, data, *paths)
            assert is_refused(connection)
            connection.close()
        eventually(lambda: descriptor_count() == before, "every received file to be closed")

        assert table.refused_total == len(packets)
        honest = AgentLink([rank_socket.path], SystemClock())
        honest.offer(JOB_ID, "honest", 1, [(OfferedRank(0, 0, 1), path)])
        eventually(lambda: len(shown(table)) == 1, "an honest rank after all that")
        honest.close()


def test_flood_of_messages_ends_the_connection(shm: Path) -> None:
    path = make_progress_file(shm)
    with listening(shm) as (rank_socket, table):
        connection = connect(rank_socket.path)
        for _message in range(MESSAGES_PER_MINUTE_MAX):
            send(connection, message(), path)
        eventually(lambda: len(shown(table)) == 1, "the rank")
        send(connection, message(), path)

        assert is_refused(connection)
        eventually(lambda: shown(table) == [], "no rank")


def test_connections_of_one_user_are_bounded(shm: Path) -> None:
    with listening(shm) as (rank_socket, table):
        kept = [connect(rank_socket.path) for _ in range(CONNECTIONS_OF_USER_MAX)]
        eventually(lambda: table.connection_count == len(kept), "all connections")
        one_more = connect(rank_socket.path)

        assert is_refused(one_more)
        for connection in kept:
            connection.close()
        eventually(lambda: table.connection_count == 0, "no connection")


def shown_rank(folder: Path, rank: int, attempt: int = 1, job_id: uuid.UUID = JOB_ID) -> ShownRank:
    path = make_progress_file(folder, rank, attempt, job_id)
    return ShownRank(ProgressReader(os.open(path, os.O_RDONLY), path.name), 1, "digits")


def test_user_cannot_speak_for_the_job_of_another(tmp_path: Path) -> None:
    table = RankTable()
    table.open(1, uid=1000)
    table.open(2, uid=2000)
    table.show(1, [shown_rank(tmp_path, 0)])

    with pytest.raises(SourceError, match="belongs to uid 1000"):
        table.show(2, [shown_rank(tmp_path, 0, attempt=2)])
    table.drop(1)
    table.show(2, [shown_rank(tmp_path, 0, attempt=3)])

    assert shown(table) == [("1", 3, 0)]
    table.drop(2)


def test_newer_attempt_of_a_rank_counts_while_both_are_shown(tmp_path: Path) -> None:
    table = RankTable()
    for number, attempt in ((1, 2), (2, 3), (3, 1)):
        table.open(number, uid=1000)
        table.show(number, [shown_rank(tmp_path, 0, attempt)])

    assert shown(table) == [("1", 3, 0)]
    for number in (1, 2, 3):
        table.drop(number)


def test_ranks_of_one_user_are_bounded_and_leave_room_for_another(tmp_path: Path) -> None:
    table = RankTable()
    one = shown_rank(tmp_path, 0)
    table.open(1, uid=1000)
    table.open(2, uid=2000)
    with pytest.raises(SourceError, match="more than 384 ranks of uid 1000"):
        table.show(1, [one] * 385)
    table.show(1, [one] * 384)

    table.show(2, [shown_rank(tmp_path, 0, 1, OTHER_JOB_ID)])
    with pytest.raises(SourceError, match=f"more than {RANKS_MAX} ranks"):
        table.show(2, [one] * (RANKS_MAX - 384 + 1))


def test_silent_connection_is_closed(tmp_path: Path) -> None:
    clock, table = FakeClock(), RankTable()
    rank_socket = RankSocket(tmp_path / "agent.sock", table, clock)
    rank_socket.start()
    try:
        connection = connect(rank_socket.path)
        eventually(lambda: table.connection_count == 1, "the connection")
        clock.time_s += 10.1

        assert is_refused(connection)
    finally:
        rank_socket.stop()


def test_second_agent_on_one_socket_is_refused_and_a_dead_ones_socket_is_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.sock"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(path))
    dead.close()

    first = RankSocket(path, RankTable(), FakeClock())
    with pytest.raises(ConfigError, match="another agent listens"):
        RankSocket(path, RankTable(), FakeClock())
    first.start()
    first.stop()


@pytest.mark.parametrize("name", ["x" * 120, "file/agent.sock"])
def test_socket_that_cannot_be_made_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=name[:20]):
        RankSocket(tmp_path / name, RankTable(), FakeClock())


def test_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("precious")

    with pytest.raises(ConfigError, match=r"agent\.sock"):
        RankSocket(path, RankTable(), FakeClock())
    assert path.read_text() == "precious"


class TestLinkWithoutAnAgent:
    def test_it_does_nothing_and_says_why(self, tmp_path: Path) -> None:
        link = AgentLink([tmp_path / "agent.sock"], FakeClock())

        link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, 1), make_progress_file(tmp_path))])

        assert not link.is_connected
        assert link.problem is not None
        assert "agent.sock" in link.problem
        link.close()

    def test_it_looks_less_and_less_often_but_at_least_every_30_s(self, tmp_path: Path) -> None:
        clock = FakeClock()
        link = AgentLink([tmp_path / "agent.sock"], clock)
        link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, 1), make_progress_file(tmp_path))])
        tried_at_s = []
        for _second in range(120):
            clock.time_s += 1
            link.problem = None
            link.tick()
            if link.problem is not None:
                tried_at_s.append(clock.time_s - 1000)
        link.close()

        assert tried_at_s == [1, 3, 7, 15, 31, 61, 91]

    def test_it_offers_again_once_an_agent_appears(self, shm: Path) -> None:
        clock = FakeClock()
        link = AgentLink([shm / "agent.sock"], clock)
        link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, 1), make_progress_file(shm))])
        with listening(shm) as (_socket, table):
            clock.time_s += 2
            link.tick()
            eventually(lambda: len(shown(table)) == 1, "the rank")
        eventually(lambda: not (link.tick(), link.is_connected)[1], "the end to be noticed")
        with listening(shm) as (_socket, table):
            clock.time_s += 60
            link.tick()
            eventually(lambda: len(shown(table)) == 1, "the rank at the next agent")
        link.close()

    def test_missing_progress_file_is_a_problem_and_no_exception(self, tmp_path: Path) -> None:
        before = descriptor_count()
        link = AgentLink([tmp_path / "agent.sock"], FakeClock())
        good = (OfferedRank(0, 0, 1), make_progress_file(tmp_path))

        link.offer(JOB_ID, "digits", 1, [good, (OfferedRank(1, 1, 1), tmp_path / "gone")])

        assert link.problem is not None
        assert "gone" in link.problem
        assert descriptor_count() == before

    def test_agent_that_does_not_read_is_left_and_nobody_waits(self, shm: Path) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(shm / "agent.sock"))
        listener.listen(1)
        link = AgentLink([shm / "agent.sock"], FakeClock())
        rank = (OfferedRank(0, 0, 1), make_progress_file(shm))

        for _offer in range(10000):
            link.offer(JOB_ID, "digits", 1, [rank])
            if not link.is_connected:
                break

        assert link.problem is not None
        assert "does not accept the offer" in link.problem
        link.close()
        listener.close()


def test_descriptors_of_two_control_messages_are_all_closed(shm: Path) -> None:
    path = make_progress_file(shm)
    with listening(shm) as (rank_socket, table):
        before = descriptor_count()
        connection = connect(rank_socket.path)
        descriptor = os.open(path, os.O_RDONLY)
        rights = (
            socket.SOL_SOCKET,
            socket.SCM_RIGHTS,
            array.array("i", [descriptor, descriptor]).tobytes(),
        )
        connection.sendmsg([b"x"], [rights])
        os.close(descriptor)

        assert is_refused(connection)
        connection.close()
        eventually(lambda: descriptor_count() == before, "every received file to be closed")
        assert table.refused_total == 1


BLOCKS = (
    (layout.ATTACHMENT_AT, layout.ATTACHMENT),
    (layout.LIVE_AT, layout.LIVE),
    (layout.COLLECTIVES_AT, layout.COLLECTIVES),
    *(
        (layout.RING_AT + slot * layout.RECORD_SIZE, layout.RECORD)
        for slot in range(1, layout.RING_SLOTS)
    ),
)
NEAR_NOW = st.integers(min_value=0, max_value=1_001_000_000_000)
WORDS = st.integers(min_value=0, max_value=2**64 - 1) | st.integers(0, 300) | NEAR_NOW


@PATIENT
@given(data=st.data(), count=st.integers(0, 40) | WORDS)
def test_rank_that_writes_what_it_likes_breaks_only_its_own_series(
    data: st.DataObject, count: int
) -> None:
    """The checksums fit: only the meaning is hostile."""
    with tmpfs_folder() as folder:
        rank = shown_rank(folder, 0)
        path = next(folder.iterdir())
        with path.open("r+b") as file:
            for place, (offset, form) in enumerate(BLOCKS[: 3 + min(count, 12)]):
                numbers = [data.draw(WORDS) for _ in range(len(form.unpack(bytes(form.size))))]
                if form is layout.ATTACHMENT:
                    numbers[:2] = [number % 2**32 for number in numbers[:2]]
                if form is layout.RECORD and data.draw(st.booleans()):
                    numbers[0] = place - 2
                body = form.pack(*numbers)
                file.seek(offset)
                file.write(body + layout.CRC.pack(zlib.crc32(body)))
            file.seek(layout.HEAD_AT)
            file.write(struct.pack("<Q", count))
        table = RankTable()
        table.open(1, 1000)
        table.show(1, [rank])
        collector = RanksCollector(table, FakeClock())

        metrics = list(collector.collect())
        described = [describe_rank(sample, 1000.0) for sample in collector.newest.samples]
        table.drop(1)

    values = values_of(metrics)
    if values[f"rank_progress_success{{{JOB_ID},0}}"] == 0:
        assert len(values) == 1
        assert described[0]["error"]
    assert all(math.isfinite(value) for value in values.values())
    assert len(values) == len(metrics)
