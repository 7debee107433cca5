"""The root helper: a fixed list of questions, bounds on every program, and hostile peers."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.root_helper.client import (
    HelperClient,
    SeldomAsked,
    TransceiverMemories,
    parse_memories,
)
from agent.root_helper.listener import HelperService, inherited_listener, listen
from agent.root_helper.program_list import Paths, programs_of
from agent.root_helper.program_runner import OUTPUT_BYTES_MAX, Program, ProgramRunner
from agent.root_helper.questions import (
    QUERY_S_MAX,
    HelperAnswer,
    HelperQuery,
    ProgramOutcome,
    ProgramResult,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from agent.root_helper.transceivers import read_all
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, NoSourceError, SourceError
from tests.support.agent import PATIENT, ROOT, FakeClock, is_listening
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

UID = os.getuid()
TEMPORARY = Path(tempfile.gettempdir())


def make_program(folder: Path, name: str, script: str) -> tuple[str, ...]:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path),)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A node with a BMC, a disk, an NVMe disk, and programs that answer their arguments."""
    for folder in ("dev", "sys/block/sda", "sys/block/loop0", "sys/class/nvme/nvme0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dev/ipmi0").touch()
    return Paths(
        ipmitool=make_program(tmp_path, "ipmitool", 'echo "ipmitool $*"'),
        smartctl=make_program(tmp_path, "smartctl", 'echo "smartctl $*"; exit 4'),
        nvme=make_program(tmp_path, "nvme", 'echo "nvme $*"'),
        devices=tmp_path / "dev",
        sysfs=tmp_path / "sys",
    )


@contextmanager
def serving(paths: Paths, socket_path: Path, uid: int = UID) -> Iterator[HelperClient]:
    helper = HelperService(listen(socket_path, UID), uid, SystemClock(), paths, excluded=["sdx*"])
    thread = Thread(target=helper.serve)
    thread.start()
    try:
        yield HelperClient(socket_path, SystemClock(), answer_s_max=200.0)
    finally:
        helper.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def say(path: Path, data: bytes) -> bytes:
    """Send raw bytes as a peer and return all that comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(DEADLINE_S)
        peer.connect(str(path))
        peer.sendall(data)
        reply = peer.recv(65536)
        assert reply.endswith(b"\n"), reply
        return reply


def test_helper_runs_the_fixed_programs_on_devices_that_it_finds_itself(
    paths: Paths, tmp_path: Path
) -> None:
    with serving(paths, tmp_path / "run" / "helper.sock") as client:
        smart = client.ask(HelperQuery.DISK_SMART)
        ipmi = client.ask(HelperQuery.IPMI_SENSORS)

    assert [(r.name, r.outcome, r.exit_code) for r in smart.results] == [
        ("sda", ProgramOutcome.ANSWERED, 4),  # smartctl's exit code tells of the disk
        ("nvme0", ProgramOutcome.ANSWERED, 4),
    ]
    assert smart.results[0].output.endswith(f"--attributes {tmp_path}/dev/sda\n")
    assert [r.output for r in ipmi.results] == [
        "ipmitool -c -v sdr elist full\n",
        "ipmitool -c sdr elist compact\n",
    ]


def test_idle_helper_ends_and_leaves_the_socket_to_systemd(paths: Paths, tmp_path: Path) -> None:
    path = tmp_path / "run" / "helper.sock"
    listener = listen(path, UID)
    kept = listener.dup()  # as systemd keeps it
    helper = HelperService(listener, UID, SystemClock(), paths, idle_s=0.5)
    thread = Thread(target=helper.serve)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(DEADLINE_S)
        peer.connect(
            str(path)
        )  # before the helper starts: it cannot be idle before it has answered
        peer.sendall(encode_question(HelperQuery.IPMI_SENSORS))
        thread.start()
        line = b"".join(iter(lambda: peer.recv(65536), b""))
    answer = decode_answer(line, HelperQuery.IPMI_SENSORS)
    thread.join(DEADLINE_S)
    is_ended = not thread.is_alive()
    helper.stop()

    with kept, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(str(path))  # waits there for the next helper

    assert is_ended
    assert len(answer.results) == 2


def test_helper_that_has_left_a_program_behind_stays(paths: Paths, tmp_path: Path) -> None:
    helper = HelperService(
        listen(tmp_path / "run" / "helper.sock", UID), UID, SystemClock(), paths, idle_s=0.0
    )
    stuck = subprocess.Popen(["sleep", "60"])
    helper._runner._stuck[("sleep", "60")] = stuck
    try:
        assert not helper._is_idle_since(float("-inf"))
    finally:
        stuck.kill()
        stuck.wait()
    assert helper._is_idle_since(float("-inf"))
    helper.stop()
    helper.serve()  # closes its socket


def test_node_without_the_program_or_the_device_is_absent(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "dev/ipmi0").unlink()
    without = replace(paths, nvme=(str(tmp_path / "no-nvme"),))

    with serving(without, tmp_path / "run" / "helper.sock") as client:
        assert client.ask(HelperQuery.IPMI_SENSORS).results == ()
        assert [r.outcome for r in client.ask(HelperQuery.NVME_SMART).results] == [
            ProgramOutcome.ABSENT
        ]

    with pytest.raises(NoSourceError):
        HelperClient(tmp_path / "no-helper.sock", SystemClock()).ask(HelperQuery.IPMI_SENSORS)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (b"\n", "not JSON"),
        (b"[" * 200 + b"\n", "not JSON"),
        (b"[]\n", "not an object"),
        (b'{"version": 1, "query": "ipmi_sensors; reboot"}\n', "no query"),
        (b'{"version": 1, "query": ["ipmi_sensors"]}\n', "no query"),
        (b'{"version": 2, "query": "ipmi_sensors"}\n', "version 2"),
        (b'{"version": 1, "query": "disk_smart", "device": "/dev/sda"}\n', "keys"),
        (b'{"version": 1, "query": "' + b"x" * 300 + b'"}\n', "more than 256 bytes"),
        (b"\xff\xfe\x00\n", "not JSON"),
    ],
)
def test_hostile_question_is_refused_and_logged_and_runs_nothing(
    question: bytes,
    reason: str,
    paths: Paths,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = tmp_path / "ran"
    hostile = replace(paths, ipmitool=make_program(tmp_path, "ipmitool", f"touch {ran}"))

    with serving(hostile, tmp_path / "run" / "helper.sock"):
        reply = json.loads(say(tmp_path / "run" / "helper.sock", question))

    assert reason in reply["refused"]
    assert any(record.message == "question refused" for record in caplog.records)
    assert not ran.exists()


@pytest.mark.skipif(UID != 0, reason="needs root to become somebody else")
def test_uid_that_is_not_the_agents_is_refused(paths: Paths, tmp_path: Path) -> None:
    socket_path = tmp_path / "run" / "helper.sock"
    with serving(paths, socket_path, uid=4242):
        os.chown(socket_path, 12345, -1)
        for folder in (socket_path.parent, *socket_path.parents):
            if folder != TEMPORARY and folder.is_relative_to(TEMPORARY):
                folder.chmod(0o755)
        asked = subprocess.run(
            [
                sys.executable,
                "-c",
                "import os, socket, sys; os.setuid(12345); s = socket.socket(socket.AF_UNIX);"
                "s.connect(sys.argv[1]); print(s.recv(999).decode())",
                str(socket_path),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    assert "uid 12345 may not send queries" in asked.stdout, asked.stderr


def test_second_question_of_one_kind_is_refused_while_the_first_runs(
    paths: Paths, tmp_path: Path
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    script = f"touch {started}; while [ ! -e {go} ]; do sleep 0.05; done; echo done"
    slow = replace(paths, nvme=make_program(tmp_path, "nvme", script))
    answers: list[HelperAnswer] = []

    with serving(slow, tmp_path / "run" / "helper.sock") as client:
        first = Thread(target=lambda: answers.append(client.ask(HelperQuery.NVME_SMART)))
        first.start()
        eventually(started.exists, "the first run")
        with pytest.raises(SourceError, match="query is in progress"):
            client.ask(HelperQuery.NVME_SMART)
        assert client.ask(HelperQuery.DISK_SMART).results  # another kind is answered meanwhile
        go.touch()
        first.join(DEADLINE_S)

    assert answers[0].results[0].output == "done\n"


def test_answer_is_given_again_with_its_age_instead_of_asking_the_bmc_again(
    paths: Paths, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    counting = replace(paths, nvme=make_program(tmp_path, "nvme", f"echo run >> {count}"))

    with serving(counting, tmp_path / "run" / "helper.sock") as client:
        first, second = client.ask(HelperQuery.NVME_SMART), client.ask(HelperQuery.NVME_SMART)

    assert count.read_text() == "run\n"
    assert second.age_s > first.age_s


def run_script(folder: Path, script: str, timeout_s: float = 20.0) -> ProgramResult:
    program = Program("x", make_program(folder, "program", script), (), timeout_s)
    clock = SystemClock()
    return ProgramRunner(clock).run(program, clock.now_s() + 60)


def test_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"

    result = run_script(tmp_path, f"sleep 1000 & echo $! > {child}; echo hello; wait", 5.0)

    assert (result.outcome, result.error) == (ProgramOutcome.FAILED, "it took too long")
    assert result.output == "hello\n"
    pid = int(child.read_text())
    eventually(lambda: not _lives(pid), "the end of the child")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_program_that_says_too_much_is_ended(tmp_path: Path) -> None:
    result = run_script(tmp_path, "yes")

    assert result.outcome is ProgramOutcome.FAILED
    assert len(result.output) == OUTPUT_BYTES_MAX
    assert "bytes of output" in result.error


def test_child_that_holds_the_pipe_does_not_hold_the_answer(tmp_path: Path) -> None:
    result = run_script(tmp_path, "sleep 1000 & echo hello")

    assert (result.outcome, result.exit_code, result.output) == (
        ProgramOutcome.ANSWERED,
        0,
        "hello\n",
    )


def test_program_gets_no_environment_of_the_helper_and_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD_CHECK", "x")

    result = run_script(tmp_path, "cat; /usr/bin/env | grep -c CHECK; pwd; echo oops >&2")

    assert (result.output, result.error) == ("0\n/\n", "oops")


def test_program_that_others_may_write_is_not_run(tmp_path: Path) -> None:
    paths = make_program(tmp_path, "program", "echo hello")
    Path(paths[0]).chmod(0o777)

    result = ProgramRunner(SystemClock()).run(
        Program("x", paths, (), 1.0), SystemClock().now_s() + 9
    )

    assert result.outcome is ProgramOutcome.FAILED
    assert "other users may write to" in result.error


def test_helper_refuses_a_folder_that_others_may_write(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(ConfigError, match="other users may write to"):
        listen(tmp_path / "open" / "helper.sock", UID)


def test_second_helper_does_not_take_the_socket_of_the_first(tmp_path: Path) -> None:
    with listen(tmp_path / "helper.sock", UID):
        with pytest.raises(ConfigError, match="another helper"):
            listen(tmp_path / "helper.sock", UID)
    again = listen(tmp_path / "helper.sock", UID)  # what a killed helper leaves
    again.close()

    assert stat.S_IMODE((tmp_path / "helper.sock").stat().st_mode) == 0o600


def test_every_program_is_absolute_and_reads_only(paths: Paths) -> None:
    for query in HelperQuery:
        for program in programs_of(query, replace(Paths(), devices=paths.devices), ()):
            assert all(path.startswith("/") for path in program.paths)
            assert 0 < program.timeout_s <= QUERY_S_MAX


def test_excluded_device_is_not_opened(paths: Paths) -> None:
    names = [program.name for program in programs_of(HelperQuery.DISK_SMART, paths, ["nvme*"])]

    assert names == ["sda"]


def test_client_hears_why_it_is_refused(paths: Paths, tmp_path: Path) -> None:
    listener = listen(tmp_path / "helper.sock", UID)
    helper = HelperService(listener, 1, SystemClock(), paths)
    helper._allowed_uids = frozenset()
    thread = Thread(target=helper.serve)
    thread.start()

    with pytest.raises(SourceError, match=f"uid {UID} may not send queries"):
        HelperClient(tmp_path / "helper.sock", SystemClock(), 200.0).ask(HelperQuery.NVME_SMART)
    helper.stop()
    thread.join(DEADLINE_S)


def test_silent_peer_is_dropped_and_the_next_one_answered(paths: Paths, tmp_path: Path) -> None:
    socket_path = tmp_path / "run" / "helper.sock"
    with serving(paths, socket_path) as client:
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(20)]
        for peer in silent:
            peer.connect(str(socket_path))

        def is_answered() -> bool:
            try:
                return bool(client.ask(HelperQuery.NVME_SMART).results)
            except SourceError:  # all places are taken, for two seconds
                return False

        eventually(is_answered, "an answer beside silent peers")
        for peer in silent:
            peer.close()


def test_socket_of_systemd_goes_on_listening_when_a_helper_stops(
    paths: Paths, tmp_path: Path
) -> None:
    path = tmp_path / "helper.sock"
    with listen(path, UID) as held_by_systemd:
        for _start in range(2):
            helper = HelperService(held_by_systemd.dup(), UID, SystemClock(), paths)
            thread = Thread(target=helper.serve)
            thread.start()
            answer = HelperClient(path, SystemClock(), 200.0).ask(HelperQuery.NVME_SMART)
            helper.stop()
            thread.join(DEADLINE_S)

            assert answer.results[0].outcome is ProgramOutcome.ANSWERED


def test_helper_takes_the_socket_that_systemd_passes(tmp_path: Path) -> None:
    path = tmp_path / "helper.sock"
    script = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3);"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
        "os.execv(sys.executable, [sys.executable, '-m', 'rankmend.cli.__main__',"
        " 'agent-helper', '--user', sys.argv[2]])"
    )
    with listen(path, UID) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(listener.fileno()), str(UID)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno()],
        )
        try:
            answer = HelperClient(path, SystemClock(), 200.0).ask(HelperQuery.TRANSCEIVERS)
            process.send_signal(signal.SIGTERM)
            _out, error_text = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert answer.results[0].name == "all"
    assert process.returncode == 0, error_text
    assert path.exists()  # it is systemd's to remove
    with pytest.raises(ConfigError, match="expected 1"):
        inherited_listener(str(os.getpid()), "2")
    assert inherited_listener("1", "1") is None


def test_transceivers_are_read_for_devices_of_hardware_only(tmp_path: Path) -> None:
    for name in ("eth0", "eth1", "eth2", "eth3"):
        (tmp_path / "class/net" / name / "device").mkdir(parents=True)
    (tmp_path / "class/net/lo").mkdir()

    def read(device: str) -> bytes:
        if device == "eth1":
            raise NoSourceError("no module")
        if device == "eth2":
            raise SourceError("bus error")
        return b"\x03\x04"

    lines = list(read_all(tmp_path, ["eth3"], read))

    assert [json.loads(line) for line in lines] == [
        {"device": "eth0", "memory": "0304"},
        {"device": "eth2", "error": "bus error"},
    ]


def answer_of(output: str, outcome: ProgramOutcome = ProgramOutcome.ANSWERED) -> HelperAnswer:
    return HelperAnswer(
        HelperQuery.TRANSCEIVERS, 0.1, (ProgramResult("all", outcome, 0, output, "it hangs"),)
    )


def test_memory_of_a_transceiver_comes_from_one_question_for_all() -> None:
    asked: list[HelperQuery] = []

    def ask(query: HelperQuery) -> HelperAnswer:
        asked.append(query)
        return answer_of('{"device": "eth0", "memory": "0304"}\n{"device": "eth1", "error": "bus"}')

    clock = FakeClock()
    memories = TransceiverMemories(ask, clock)

    assert memories.read("eth0") == b"\x03\x04"
    with pytest.raises(SourceError, match="bus"):
        memories.read("eth1")
    with pytest.raises(NoSourceError):
        memories.read("eth2")
    assert len(asked) == 1
    clock.time_s += 30
    memories.read("eth0")
    assert len(asked) == 2


def test_transceivers_read_before_a_driver_hung_are_not_lost() -> None:
    cut = answer_of('{"device": "eth0", "memory": "03"}\n{"dev', ProgramOutcome.FAILED)

    assert parse_memories(cut) == {"eth0": b"\x03"}
    with pytest.raises(SourceError, match="it hangs"):
        parse_memories(answer_of("", ProgramOutcome.FAILED))


def test_transceiver_program_runs_by_itself(tmp_path: Path) -> None:
    clock = SystemClock()
    (program,) = programs_of(HelperQuery.TRANSCEIVERS, replace(Paths(), sysfs=tmp_path), ())

    result = ProgramRunner(clock).run(program, clock.now_s() + 60)

    assert (result.outcome, result.exit_code, result.output) == (ProgramOutcome.ANSWERED, 0, ""), (
        result
    )


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b"x" * 100,
        b'{"version": 1, "query": "disk_smart", "age_s": 0, "results": []}\n',
        b'{"version": 1, "query": "nvme_smart", "age_s": "old", "results": []}\n',
        b'{"version": 1, "query": "nvme_smart", "age_s": 0, "results": [{"name": 1}]}\n',
        b'{"version": 1, "query": "nvme_smart", "age_s": 0, "results": [[]]}\n',
    ],
)
def test_answer_that_makes_no_sense_is_an_error_of_the_source(reply: bytes, tmp_path: Path) -> None:
    listener = listen(tmp_path / "helper.sock", UID)

    def answer() -> None:
        connection, _ = listener.accept()
        connection.recv(999)
        connection.sendall(reply)
        connection.close()

    thread = Thread(target=answer)
    thread.start()
    with pytest.raises(SourceError):
        HelperClient(tmp_path / "helper.sock", SystemClock()).ask(HelperQuery.NVME_SMART)
    thread.join(DEADLINE_S)
    listener.close()


def test_helper_that_never_answers_does_not_hold_the_agent(tmp_path: Path) -> None:
    with listen(tmp_path / "helper.sock", UID):
        with pytest.raises(SourceError, match="does not answer"):
            HelperClient(tmp_path / "helper.sock", SystemClock(), 0.2).ask(HelperQuery.NVME_SMART)


@PATIENT
@given(st.binary(max_size=300))
def test_question_is_understood_or_refused(line: bytes) -> None:
    try:
        query = decode_question(line)
    except SourceError:
        return
    assert isinstance(query, HelperQuery)


@PATIENT
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "query", "age_s", "results", "name", "outcome"]), inner
            )
        ),
    )
)
def test_answer_is_understood_or_refused(message: object) -> None:
    try:
        answer = decode_answer(json.dumps(message).encode(), HelperQuery.NVME_SMART)
    except SourceError:
        return
    assert answer.query is HelperQuery.NVME_SMART


def test_answer_survives_the_way() -> None:
    answer = answer_of("é\n\x00", ProgramOutcome.FAILED)

    assert decode_answer(encode_answer(answer), HelperQuery.TRANSCEIVERS) == answer


def test_helper_command_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "run" / "helper.sock"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rankmend.cli.__main__", "agent-helper"),
            *("--socket", str(path), "--user", str(UID)),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: is_listening(path), "the helper's socket")
        answer = HelperClient(path, SystemClock(), 200.0).ask(HelperQuery.TRANSCEIVERS)
        process.send_signal(signal.SIGTERM)
        _out, error_text = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()

    assert answer.results[0].name == "all"
    assert process.returncode == 0, error_text
    assert "helper stopped" in error_text
    assert not path.exists()


class CountedHelper:
    """A helper that gives one answer to each query and counts the questions."""

    def __init__(self, *results: ProgramResult) -> None:
        self.results = results
        self.questions = 0

    def ask(self, query: HelperQuery) -> HelperAnswer:
        self.questions += 1
        return HelperAnswer(query, 0.5, self.results)


@pytest.mark.parametrize(
    ("query", "results", "is_kept"),
    [
        (HelperQuery.IPMI_SENSORS, (), True),
        (HelperQuery.NVME_SMART, (ProgramResult("nvme0", ProgramOutcome.ABSENT),), True),
        (HelperQuery.TRANSCEIVERS, (ProgramResult("all", ProgramOutcome.ANSWERED, 0),), True),
        (HelperQuery.TRANSCEIVERS, (ProgramResult("all", ProgramOutcome.ANSWERED, 1),), False),
        (HelperQuery.TRANSCEIVERS, (ProgramResult("all", ProgramOutcome.ANSWERED, 0, "x"),), False),
        (HelperQuery.PCIE_ACS, (ProgramResult("all", ProgramOutcome.ANSWERED, 0, "x"),), True),
        (HelperQuery.PCIE_ACS, (ProgramResult("all", ProgramOutcome.FAILED),), False),
        (HelperQuery.IPMI_SENSORS, (ProgramResult("full", ProgramOutcome.ANSWERED, 0),), False),
        (HelperQuery.DISK_SMART, (ProgramResult("sda", ProgramOutcome.FAILED),), False),
    ],
)
def test_helper_is_asked_seldom_for_what_is_not_there_or_does_not_change(
    query: HelperQuery, results: tuple[ProgramResult, ...], is_kept: bool
) -> None:
    clock, helper = FakeClock(), CountedHelper(*results)
    seldom = SeldomAsked(helper.ask, clock)

    seldom.ask(query)
    clock.time_s += 60.0
    again = seldom.ask(query)
    questions_of_a_minute = helper.questions
    clock.time_s += 540.0
    seldom.ask(query)

    assert questions_of_a_minute == (1 if is_kept else 2)
    assert again.age_s == (60.5 if is_kept else 0.5)
    assert helper.questions == (2 if is_kept else 3)
