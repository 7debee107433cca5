import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmend.errors import LaunchError, SourceError
from recovery.launcher.guardian.guardian_client import Guardian
from recovery.launcher.guardian.packets import (
    LISTED_MAX,
    PACKET_BYTES_MAX,
    Emptied,
    Exited,
    Exiting,
    GuardianLost,
    KillPending,
    Spawned,
    SpawnFailed,
    decode,
    encode,
)
from recovery.launcher.processes.process_tree import (
    Survivor,
    descendants,
    fence_leftovers,
    find_marked,
    read_processes,
    search_marks,
)
from recovery.launcher.processes.standing import identify
from tests.support.eventually import DEADLINE_S, deadline_s, eventually
from tests.support.faults import process as faults
from tests.support.guardian_ward import DAEMON, PYTHON, Ward

pytestmark = [pytest.mark.process, pytest.mark.safety]

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(tmp_path)
    yield ward
    assert ward.guardian.close()
    assert find_marked(ward.job_id) == []


def is_running(pid: int) -> bool:
    state = read_processes().get(pid)
    return state is not None and not state.is_gone


# A rank.


@pytest.mark.parametrize("code", [0, 3, 93, 255])
def test_exit_code_of_a_rank_is_told_with_its_pid(ward: Ward, code: int) -> None:
    ward.spawn("sh", "-c", f"exit {code}", rank=5, attempt=2)

    (exited,) = ward.of(Exited)

    (spawned,) = ward.told(Spawned)
    assert isinstance(spawned, Spawned)
    assert exited == Exited(2, 5, spawned.pid, exit_code=code, signal=None, core_dumped=False)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGINT", "SIGPIPE"])
def test_signal_that_ended_a_rank_is_told(ward: Ward, name: str) -> None:
    number = signal.Signals[name]
    ward.spawn("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$; sleep 600")

    (exited,) = ward.of(Exited)

    assert isinstance(exited, Exited)
    assert (exited.exit_code, exited.signal, exited.core_dumped) == (None, number, False)


def test_rank_has_a_session_of_its_own_and_the_folder_it_was_given(ward: Ward) -> None:
    ward.spawn("sh", "-c", "pwd; cut -d' ' -f1,5,6 /proc/$$/stat", cwd=str(ward.folder))

    ward.of(Exited)

    (spawned,) = ward.told(Spawned)
    assert isinstance(spawned, Spawned)
    pid = spawned.pid
    assert ward.output().read_text() == f"{ward.folder}\n{pid} {pid} {pid}\n"


def test_rank_ignores_and_blocks_no_signal(ward: Ward) -> None:
    ward.spawn("cat", "/proc/self/status")

    ward.of(Exited)

    status = dict(line.split(":\t") for line in ward.output().read_text().splitlines())
    theirs = ~(0b11 << 31)  # 32 and 33 belong to the C library: nobody can set them through it
    masks = [int(status[name], 16) & theirs for name in ("SigBlk", "SigIgn", "SigCgt")]
    assert masks == [0, 0, 0]


def test_no_descriptor_but_the_standard_three_leaks_into_a_rank(ward: Ward) -> None:
    code = """
import os
for fd in range(4096):
    try:
        os.fstat(fd)
    except OSError:
        continue
    print(fd, os.readlink(f"/proc/self/fd/{fd}"))
"""
    for rank in range(3):
        ward.spawn(*PYTHON, code, rank=rank)

    ward.of(Exited, count=3)

    for rank in range(3):
        out = str(ward.output(rank))
        assert ward.output(rank).read_text().split() == ["0", "/dev/null", "1", out, "2", out]


def test_environment_of_600_kb_reaches_the_rank_unchanged(ward: Ward) -> None:
    big = {f"BIG_{number}": chr(97 + number) * 100_000 for number in range(6)}
    env = {**ward.environment(1), **big, "BYTES": "caf\udce9 ☕"}
    expected = hashlib.sha256("".join(big.values()).encode() + b"caf\xe9 \xe2\x98\x95").hexdigest()
    code = """
import hashlib, os
text = b"".join(os.environb[b"BIG_%d" % number] for number in range(6)) + os.environb[b"BYTES"]
print(hashlib.sha256(text).hexdigest(), len(os.environ))
"""

    ward.spawn(*PYTHON, code, env=env)

    (exited,) = ward.of(Exited)
    assert isinstance(exited, Exited)
    # LC_CTYPE is Python's own addition where no locale is set.
    assert exited.exit_code == 0
    assert ward.output().read_text().split()[0] == expected


def test_64_ranks_start_and_end(ward: Ward) -> None:
    for rank in range(64):
        ward.spawn("sleep", "600", rank=rank)
    spawned = ward.of(Spawned, count=64)

    ward.guardian.kill_through(1)
    ward.of(Emptied)

    assert sorted(event.rank for event in spawned if isinstance(event, Spawned)) == list(range(64))
    assert len(ward.told(Exited)) == 64


# A rank that can't be started.


@pytest.mark.parametrize(
    ("program", "number", "part"),
    [
        ("/nowhere/train.py", errno.ENOENT, "No such file or directory"),
        ("no-such-program", errno.ENOENT, "looked for on PATH"),
        ("/proc/version", errno.EACCES, "Permission denied"),
    ],
)
def test_program_that_cant_be_executed_is_named(
    ward: Ward, program: str, number: int, part: str
) -> None:
    ward.spawn(program, "--steps", "3", rank=4)

    (failed,) = ward.of(SpawnFailed)

    assert isinstance(failed, SpawnFailed)
    assert (failed.attempt, failed.rank, failed.errno) == (1, 4, number)
    assert f"cannot execute '{program}'" in failed.message
    assert part in failed.message


def test_script_whose_interpreter_is_missing_is_told_from_a_missing_script(ward: Ward) -> None:
    script = ward.folder / "train.sh"
    script.write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    ward.spawn(str(script))

    (failed,) = ward.of(SpawnFailed)

    assert isinstance(failed, SpawnFailed)
    assert "the interpreter that it names is not" in failed.message


def test_missing_working_folder_is_named(ward: Ward) -> None:
    ward.spawn("true", cwd="/nowhere/at all")

    (failed,) = ward.of(SpawnFailed)

    assert isinstance(failed, SpawnFailed)
    assert failed.message == (
        "cannot enter the working folder '/nowhere/at all': No such file or directory"
    )


def test_variable_that_the_kernel_refuses_is_an_error_and_the_rank_never_exits(ward: Ward) -> None:
    ward.spawn("true", env={**ward.environment(1), "BIG": "x" * (128 << 10)})
    (failed,) = ward.of(SpawnFailed)

    ward.guardian.kill_through(1)
    ward.of(Emptied)

    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.E2BIG
    assert ward.told(Exited) == []


def test_rank_without_a_program_is_refused_at_once(ward: Ward) -> None:
    with pytest.raises(LaunchError, match="rank 0 has no program"):
        ward.spawn()


def test_rank_of_a_fenced_attempt_is_never_started(ward: Ward) -> None:
    ward.guardian.kill_through(3)
    ward.spawn("sleep", "600", attempt=3)

    (failed,) = ward.of(SpawnFailed)

    assert isinstance(failed, SpawnFailed)
    assert failed.errno == errno.ESTALE
    assert "attempt 3 is fenced" in failed.message


# Signals, and the end of an attempt.


@pytest.mark.parametrize(("number", "left"), [(signal.SIGTERM, 8), (signal.SIGKILL, 6)])
def test_signal_reaches_the_named_ranks_only_and_sigkill_their_groups(
    ward: Ward, number: signal.Signals, left: int
) -> None:
    for rank in range(3):
        ward.spawn("sh", "-c", "sleep 600 & sleep 600", rank=rank)
    ward.of(Spawned, count=3)
    eventually(lambda: len(find_marked(ward.job_id)) == 9)

    ward.guardian.signal(1, number, ranks=[1])

    (exited,) = ward.of(Exited)
    assert isinstance(exited, Exited)
    assert (exited.rank, exited.signal) == (1, number)
    eventually(lambda: len(find_marked(ward.job_id)) == left)


def test_signal_for_an_attempt_that_is_not_running_reaches_nobody(ward: Ward) -> None:
    ward.spawn("sleep", "600", attempt=2)
    ward.of(Spawned)

    ward.guardian.signal(1, signal.SIGKILL)
    ward.spawn("true", rank=1, attempt=2)  # answered after the signal was

    (exited,) = ward.of(Exited)
    assert isinstance(exited, Exited)
    assert exited.rank == 1


@pytest.mark.parametrize(("how", "letter"), [("trap '' TERM", "S"), ("kill -STOP $$", "T")])
def test_rank_that_ignores_sigterm_or_is_stopped_is_killed(
    ward: Ward, how: str, letter: str
) -> None:
    ward.spawn("sh", "-c", f"{how}; echo ready; while true; do sleep 600; done")
    (spawned,) = ward.of(Spawned)
    assert isinstance(spawned, Spawned)
    eventually(lambda: letter == "T" or ward.output().read_text())
    eventually(lambda: read_processes()[spawned.pid].letter == letter)
    ward.guardian.signal(1, signal.SIGTERM)

    ward.guardian.kill_through(1)

    (emptied,) = ward.of(Emptied)
    (exited,) = ward.told(Exited)
    assert isinstance(exited, Exited)
    assert isinstance(emptied, Emptied)
    assert exited.signal == signal.SIGKILL
    assert emptied.through_attempt == 1
    assert spawned.pid in emptied.killed_pids
    assert find_marked(ward.job_id) == []


@pytest.mark.parametrize("then", ["time.sleep(600)", "pass"])
def test_daemonised_grandchild_is_killed_with_its_rank_or_after_it(ward: Ward, then: str) -> None:
    pid = ward.spawn_daemon(then=then)
    if then == "pass":
        ward.of(Exited)
    assert is_running(pid)

    ward.guardian.kill_through(1)

    (emptied,) = ward.of(Emptied)
    assert isinstance(emptied, Emptied)
    assert pid in emptied.killed_pids
    assert not is_running(pid)


@pytest.mark.parametrize("then", ["sleep 600", "true"])
def test_orphan_that_dropped_its_environment_and_session_is_killed(ward: Ward, then: str) -> None:
    path = ward.folder / "pid"
    ward.spawn("sh", "-c", f"(setsid env -i sh -c 'echo $$ > {path}; exec sleep 600' &); {then}")
    eventually(lambda: path.exists() and path.read_text())
    pid = int(path.read_text())

    ward.guardian.kill_through(1)

    ward.of(Emptied)
    assert not is_running(pid)


def test_process_that_some_daemon_started_for_the_job_is_found_by_its_mark(ward: Ward) -> None:
    old, new = (
        subprocess.Popen(["sleep", "600"], env=ward.environment(attempt)) for attempt in (1, 2)
    )
    other = subprocess.Popen(
        ["sleep", "600"], env={**ward.environment(1), "RANKMEND_JOB_ID": str(uuid.uuid4())}
    )

    ward.guardian.kill_through(1)

    ward.of(Emptied)
    assert old.wait(DEADLINE_S) == -signal.SIGKILL
    assert (new.poll(), other.poll()) == (None, None)
    for process in (new, other):
        process.kill()
        process.wait()


def test_ranks_of_a_newer_attempt_and_what_they_started_are_spared(ward: Ward) -> None:
    old = ward.spawn_daemon(attempt=1)
    new = ward.spawn_daemon(attempt=2, rank=1)
    orphan = ward.spawn_daemon(attempt=2, rank=2, then="pass")
    ward.of(Exited)

    ward.guardian.kill_through(1)

    ward.of(Emptied)
    assert [is_running(pid) for pid in (old, new, orphan)] == [False, True, True]
    assert [event.rank for event in ward.told(Exited) if isinstance(event, Exited)] == [2, 0]


def test_killing_where_nothing_runs_is_told_as_empty(ward: Ward) -> None:
    ward.guardian.kill_through(7)

    (emptied,) = ward.of(Emptied)

    assert isinstance(emptied, Emptied)
    assert (emptied.through_attempt, emptied.killed_pids) == (7, ())


def test_orphans_that_end_leave_no_zombie(ward: Ward) -> None:
    ward.spawn("sh", "-c", "for i in 1 2 3; do (setsid sh -c 'sleep 0.1' &) ; done; sleep 600")
    ward.of(Spawned)

    def has_only_the_rank() -> bool:
        below = descendants(ward.guardian.pid, read_processes())
        return [state.command for state in below] == ["sh", "sleep"]

    eventually(has_only_the_rank)


def test_big_rank_is_told_to_be_dying_before_the_kernel_lets_go_of_it(ward: Ward) -> None:
    code = """
import mmap, time
memory = mmap.mmap(-1, 700 << 20)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _mb in range(len(memory) >> 20):
    memory.write(bytes(1 << 20))
print("ready", flush=True)
time.sleep(600)
"""
    ward.spawn(*PYTHON, code)
    output = ward.output()
    eventually(lambda: output.exists() and "ready" in output.read_text())
    (spawned,) = ward.of(Spawned)
    assert isinstance(spawned, Spawned)
    eventually(watched_as_big(ward.guardian.pid))

    with faults.make_wait(spawned.pid):  # a busy guardian looks late
        os.kill(spawned.pid, signal.SIGKILL)
        ward.of(Exiting)

    ward.of(Exited)
    assert [type(event) for event in ward.events] == [Spawned, Exiting, Exited]
    dying = ward.events[1]
    assert isinstance(dying, Exiting)
    assert (dying.exit_code, dying.signal) == (None, signal.SIGKILL)


def watched_as_big(guardian_pid: int) -> Callable[[], bool]:
    """A guardian that looks at a big rank wakes 50 times a second, and else once: it wakes 5 times within half one."""
    seen = [(time.monotonic(), wakeups(guardian_pid))]

    def look() -> bool:
        (since_s, before), now_s, now = seen[-1], time.monotonic(), wakeups(guardian_pid)
        if now - before < 5:
            return False
        seen.append((now_s, now))
        return now_s - since_s < 0.5

    return look


def wakeups(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def test_events_that_nobody_takes_hold_up_nothing_and_are_not_lost(ward: Ward) -> None:
    ranks = 300  # two events each: more than a socket holds
    for rank in range(ranks):
        ward.spawn("true", rank=rank)
    marker = ward.folder / "marker"
    ward.spawn("touch", str(marker), rank=ranks)
    eventually(marker.exists)

    ward.of(Exited, count=ranks + 1)

    assert len(ward.told(Spawned)) == ranks + 1


# Deaths of rankmend's own processes.


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGPIPE", "SIGQUIT"])
def test_guardian_outlives_what_a_scheduler_may_send_to_everything(ward: Ward, name: str) -> None:
    os.kill(ward.guardian.pid, signal.Signals[name])

    ward.spawn("true")

    ward.of(Exited)


def test_death_of_the_guardian_takes_the_ranks_with_it_and_is_told(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    for rank in range(4):
        ward.spawn("sh", "-c", "trap '' TERM HUP; while true; do sleep 600; done", rank=rank)
    pids = [event.pid for event in ward.of(Spawned, count=4) if isinstance(event, Spawned)]

    os.kill(ward.guardian.pid, signal.SIGKILL)

    assert ward.of(GuardianLost) == [GuardianLost("killed by SIGKILL")]
    eventually(lambda: not any(map(is_running, pids)))
    with pytest.raises(LaunchError, match="did not reach the guardian"):
        ward.guardian.kill_through(1)
    assert not ward.guardian.close()
    fence_leftovers(ward.job_id, None, deadline_s())  # the ranks' sleeps


LAUNCHER = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
folder, job_id, daemon = sys.argv[2:5]
guardian = Guardian.start(job_id)

def spawn(rank, *argv):
    env = {"PATH": os.environ["PATH"], "RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": "1"}
    guardian.spawn(Spawn(1, rank, argv, env, "/", 1, 2))

for rank in range(2):
    path = os.path.join(folder, "daemon-%d" % rank)
    spawn(rank, sys.executable, "-I", "-S", "-c", daemon + "daemonise(); time.sleep(600)", path)
"""
WAITING = "\ntime.sleep(600)\n"
FORKED = "\nif os.fork() == 0:\n    signal.alarm(60)\n" + WAITING
INTERRUPTED = """
told = 0  # all events are taken: a socket closed with some in it drops the commands, too
end = time.monotonic() + 280
while told < 2 and time.monotonic() < end:
    told += len(guardian.read_events())
    time.sleep(0.01)
os.kill(guardian.pid, signal.SIGSTOP)
for rank in range(2, 50):
    spawn(rank, "touch", os.path.join(folder, "started-late"))
with open(os.path.join(folder, "guardian"), "w") as file:
    file.write(str(guardian.pid))
time.sleep(600)
"""


@contextlib.contextmanager
def launcher(folder: Path, job_id: str, end: str) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher in a process of its own, once its two ranks have their daemons."""
    arguments = [str(REPOSITORY), str(folder), job_id, DAEMON]
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER + end, *arguments])
    try:
        files = [folder / f"daemon-{rank}" for rank in range(2)]
        eventually(lambda: all(file.exists() and file.read_text() for file in files))
        eventually(lambda: len(find_marked(job_id)) == 4)
        yield process
    finally:
        process.kill()
        process.wait()
        fence_leftovers(job_id, None, deadline_s())


def is_nothing_left(job_id: str) -> bool:
    marked = search_marks(job_id)
    return not marked.processes and not marked.guardians


@pytest.mark.parametrize("end", [WAITING, FORKED], ids=["alone", "with a forked child"])
def test_kill_of_the_launcher_leaves_nothing(tmp_path: Path, end: str) -> None:
    job_id = str(uuid.uuid4())
    with launcher(tmp_path, job_id, end) as process:
        process.kill()

        eventually(lambda: is_nothing_left(job_id))


def test_guardian_spares_ranks_of_the_same_job_whose_own_launcher_lives(ward: Ward) -> None:
    other = subprocess.Popen(["sleep", "600"])
    env = {**ward.environment(1), "RANKMEND_LAUNCHER": identify(other.pid).mark()}
    rank = subprocess.Popen(["sleep", "600"], env=env)
    try:
        eventually(lambda: find_marked(ward.job_id))
        ward.guardian.kill_through(1)
        ward.of(Emptied)
        assert rank.poll() is None

        other.kill()
        other.wait()
        ward.guardian.kill_through(2)

        ward.of(Emptied, 2)
        assert rank.wait(DEADLINE_S) == -signal.SIGKILL
    finally:
        for process in (other, rank):
            process.kill()
            process.wait()


def test_commands_that_a_killed_launcher_left_unread_are_never_carried_out(tmp_path: Path) -> None:
    job_id = str(uuid.uuid4())
    with launcher(tmp_path, job_id, INTERRUPTED) as process:
        told = tmp_path / "guardian"
        eventually(lambda: told.exists() and told.read_text())
        process.kill()
        process.wait()

        os.kill(int(told.read_text()), signal.SIGCONT)

        eventually(lambda: is_nothing_left(job_id))
        assert not (tmp_path / "started-late").exists()


def test_what_is_left_when_launcher_and_guardian_are_killed_at_once_is_fenced(
    tmp_path: Path,
) -> None:
    job_id = str(uuid.uuid4())
    with launcher(tmp_path, job_id, WAITING) as process:
        (guardian,) = search_marks(job_id).guardians
        daemons = {int((tmp_path / f"daemon-{rank}").read_text()) for rank in range(2)}
        os.kill(guardian.pid, signal.SIGSTOP)  # so that it can't see the launcher die
        process.kill()
        os.kill(guardian.pid, signal.SIGKILL)
        eventually(lambda: {ref.pid for ref in find_marked(job_id)} == daemons)

        leftovers = fence_leftovers(job_id, 1, deadline_s())

        assert leftovers.is_empty
        assert {ref.pid for ref in leftovers.killed} == daemons
        assert is_nothing_left(job_id)


def test_guardian_of_a_killed_launcher_that_is_stopped_is_fenced_too(tmp_path: Path) -> None:
    job_id = str(uuid.uuid4())
    with launcher(tmp_path, job_id, WAITING) as process:
        (guardian,) = search_marks(job_id).guardians
        os.kill(guardian.pid, signal.SIGSTOP)
        process.kill()

        leftovers = fence_leftovers(job_id, 1, deadline_s())

        assert leftovers.is_empty
        assert guardian.pid in {ref.pid for ref in leftovers.killed}
        assert is_nothing_left(job_id)


def test_guardian_of_a_killed_launcher_spares_what_a_newer_launcher_has_started(
    tmp_path: Path,
) -> None:
    job_id = str(uuid.uuid4())
    env = {**os.environ, "RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": "2"}
    newer = subprocess.Popen(["sleep", "600"], env=env)
    try:
        with launcher_beside(tmp_path, job_id) as process:
            process.kill()

            eventually(lambda: not search_marks(job_id).guardians)

            assert [ref.pid for ref in find_marked(job_id)] == [newer.pid]
    finally:
        newer.kill()
        newer.wait()


@contextlib.contextmanager
def launcher_beside(folder: Path, job_id: str) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(REPOSITORY), str(folder), job_id, DAEMON]
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER + WAITING, *arguments])
    try:
        eventually(lambda: len(find_marked(job_id, attempt_through=1)) == 4)
        yield process
    finally:
        process.kill()
        process.wait()


def test_guardian_that_a_busy_node_starts_late_serves(tmp_path: Path) -> None:
    late = tmp_path / "python"
    late.write_text(f'#!/bin/sh\nsleep 11\nexec {sys.executable} "$@"\n')
    late.chmod(0o755)

    guardian = Guardian.start(str(uuid.uuid4()), executable=str(late))

    assert guardian.close()


@pytest.mark.parametrize(
    ("executable", "part"), [("/nowhere/python", "No such file"), ("false", "exit code 1")]
)
def test_guardian_that_does_not_start_is_an_error_with_the_reason(
    executable: str, part: str
) -> None:
    with pytest.raises(LaunchError, match=part):
        Guardian.start("job", executable)


def test_guardian_that_gets_nonsense_says_why_it_goes_and_leaves_no_rank(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    pid = ward.spawn_daemon()
    with socket.socket(fileno=os.dup(ward.guardian.fileno())) as link:
        link.send(b"[]")

    (lost,) = ward.of(GuardianLost)

    assert isinstance(lost, GuardianLost)
    assert "not a guardian's message: b'[]'" in lost.reason
    eventually(lambda: not is_running(pid))
    ward.guardian.close()


# When it looks for processes below the guardian: each look takes processors from the ranks that end.

LOOKS = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
from recovery.launcher.guardian.kill import TreeKill
spared = subprocess.Popen(["sleep", "600"])
kill = TreeKill(sys.argv[3], lambda *_: None, lambda *_: None, sys.argv[2])
kill.widen(1, 1)
pauses, killed = [], []
def advance(now_s, are_ranks_ending):
    kill.advance(now_s, {spared.pid}, are_ranks_ending=are_ranks_ending)
    pauses.append(kill.due_s - now_s)
    killed.append(daemon.pid in kill.killed_pids)
try:
    daemon = spared
    advance(100.0, True)
    daemon = subprocess.Popen(["sleep", "600"])
    advance(100.01, True)
    advance(100.1, True)
    daemon.wait()
    advance(100.11, False)
finally:
    spared.kill()
print(json.dumps([pauses, killed]))
"""


def test_looks_are_rare_while_ranks_end_and_follow_each_other_once_one_finds_nothing(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, str(REPOSITORY), str(tmp_path), str(uuid.uuid4())],
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )

    pauses, killed = json.loads(done.stdout)
    assert pauses[0] == 0, "the first look has found nothing"
    assert killed[1:] == [False, True, True], "10 ms after a look none follows"
    assert pauses[3] == 0, "the first look after the kill has found nothing"


# A process whose environment can't be read, as that of one stuck in a driver.

BLOCKED_SEARCH = """
import json, os, select, sys, time
sys.path.insert(0, sys.argv[1])
from recovery.launcher.guardian.kill import TreeKill
watched = set()
kill = TreeKill(sys.argv[3], lambda fd, *_: watched.add(fd), watched.discard, sys.argv[2])
kill.widen(1, 1)
while not kill.advance(time.monotonic(), (), are_ranks_ending=False):
    select.select(watched, [], [], 0.1)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
print(json.dumps([kill.killed_pids, kill.unreadable_pids]))
"""


def test_process_that_blocks_who_reads_its_environment_is_passed_over_and_named(
    tmp_path: Path,
) -> None:
    job_id = str(uuid.uuid4())
    env = {"RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": "1"}
    marked = subprocess.Popen(["sleep", "600"], env={**os.environ, **env})
    for pid in (1, marked.pid, 4_194_305):
        (tmp_path / str(pid)).mkdir()
    os.mkfifo(tmp_path / "1" / "environ")  # blocks who opens it, as nobody writes
    os.mkfifo(tmp_path / "4194305" / "environ")
    for name in ("environ", "stat"):
        (tmp_path / str(marked.pid) / name).symlink_to(f"/proc/{marked.pid}/{name}")

    done = subprocess.run(
        [sys.executable, "-c", BLOCKED_SEARCH, str(REPOSITORY), str(tmp_path), job_id],
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert json.loads(done.stdout) == [[marked.pid], [1, 4_194_305]]
    assert marked.wait() == -signal.SIGKILL


# Messages.


def test_largest_messages_fit_a_packet() -> None:
    pids = tuple(4_194_304 - number for number in range(LISTED_MAX))
    survivors = tuple(
        Survivor(pid, 2**63, "D", "x" * 128, "not killed: this launcher runs below it")
        for pid in pids[:100]
    )

    packets = [
        encode(Emptied(2**62, pids, pids)),
        encode(KillPending(2**62, survivors)),
        encode(SpawnFailed(2**62, 2**31, 2, "\U0001f525" * 2000)),
    ]

    assert max(map(len, packets)) <= PACKET_BYTES_MAX
    assert decode(packets[1]) == KillPending(2**62, survivors)


@pytest.mark.parametrize(
    "packet", [b"", b"[]", b"{}", b'["Nothing", {}]', b'["Exiting", {"rank": 1}]', b"[" * 9000]
)
def test_packet_that_is_no_message_is_refused(packet: bytes) -> None:
    with pytest.raises(SourceError, match="not a guardian's message"):
        decode(packet)
