import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.errors import SourceError
from recovery.launcher.processes.process_tree import (
    KernelProcess,
    MarkKind,
    ProcessRef,
    ancestors,
    descendants,
    fence_leftovers,
    find_marked,
    is_alive,
    is_exiting,
    is_process_exiting,
    kill_all,
    parse_memory,
    parse_stat,
    read_mark,
    read_processes,
    read_state,
    search_marks,
    send_kill,
    settled_pids,
)
from recovery.launcher.processes.standing import ForeignMarks, identify
from tests.support.eventually import deadline_s, eventually
from tests.support.faults import process as faults

pytestmark = [pytest.mark.process, pytest.mark.safety]

REPOSITORY = Path(__file__).parents[3]
JOB = "6ff7bb4e-7c8f-4f4a-93ce-2a1c0f0c5a11"
SLEEPER = b"4242 (sleep) S 4200 4242 4242 0 -1 4194304 118 0 0 0 0 0 0 0 20 0 1 0 173543 2000 256 1"


# One line of the kernel.


def test_stat_line_is_read_field_by_field() -> None:
    page_bytes = os.sysconf("SC_PAGESIZE")

    state = parse_stat(SLEEPER)

    assert state == KernelProcess(
        pid=4242,
        command="sleep",
        letter="S",
        ppid=4200,
        group=4242,
        session=4242,
        flags=4194304,
        threads=1,
        start_ticks=173543,
        resident_bytes=256 * page_bytes,
    )


@given(st.binary(max_size=15))
def test_name_that_imitates_a_stat_line_changes_no_field(name: bytes) -> None:
    line = SLEEPER.replace(b"sleep", name)

    state = parse_stat(line)

    assert (state.ppid, state.start_ticks, state.threads) == (4200, 173543, 1)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: SLEEPER[:40] + data))
def test_nonsense_for_a_stat_line_is_refused_or_a_state(data: bytes) -> None:
    for parse in (parse_stat, parse_memory):
        with contextlib.suppress(SourceError):
            parse(data)


@pytest.mark.parametrize("length", [0, 10, 30, 60])
def test_stat_line_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(SourceError, match="no process state"):
        parse_stat(SLEEPER[:length])


@pytest.mark.parametrize("data", [b"", b"0", b"12 x 0 0 0 0 0\n", SLEEPER])
def test_nonsense_for_sizes_of_memory_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="no memory sizes"):
        parse_memory(data)


def test_process_has_a_memory_map_until_it_exits() -> None:
    process = subprocess.Popen(["sleep", "600"])
    statm = Path(f"/proc/{process.pid}/statm")

    size_pages, resident_bytes = parse_memory(statm.read_bytes())
    process.kill()
    eventually(lambda: (read_state(process.pid) or pytest.fail("no such process")).letter == "Z")

    assert size_pages > 0
    assert resident_bytes > 0
    assert parse_memory(statm.read_bytes()) == (0, 0)
    process.wait()


def test_only_the_exit_flag_says_that_a_thread_is_exiting() -> None:
    assert is_exiting(0x4)
    assert is_exiting(4227148)
    assert not is_exiting(4194304)


@pytest.mark.parametrize(
    ("letter", "threads", "is_gone"),
    [("Z", 0, True), ("Z", 1, True), ("Z", 2, False), ("X", 0, True), ("D", 1, False)],
)
def test_zombie_is_gone_unless_a_thread_of_it_lives(
    letter: str, threads: int, is_gone: bool
) -> None:
    line = SLEEPER.replace(b" S ", f" {letter} ".encode()).replace(
        b" 20 0 1 0 ", b" 20 0 %d 0 " % threads
    )

    assert parse_stat(line).is_gone is is_gone


# A tree, from files.


def add_process(
    root: Path,
    pid: int,
    ppid: int,
    environ: bytes = b"",
    letter: str = "S",
    start: int = 0,
    *,
    flags: int = 0,
    code_at: int = 9,
    environ_at: tuple[int, int] = (7, 7),
) -> None:
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "environ").write_bytes(environ)
    begin, end = environ_at
    (folder / "stat").write_text(
        f"{pid} (a b) {letter} {ppid} {pid} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 "
        f"{start or pid * 10} 0 7 0 {code_at}{' 0' * 23} {begin} {end} 0\n"
    )


def test_descendants_are_found_at_every_depth_and_nobody_else(tmp_path: Path) -> None:
    for pid, ppid in [(1, 0), (10, 1), (20, 10), (21, 10), (30, 21), (5, 30), (99, 1)]:
        add_process(tmp_path, pid, ppid)
    (tmp_path / "self").mkdir()
    (tmp_path / "77").mkdir()  # gone between listing and reading
    processes = read_processes(str(tmp_path))

    below = [state.pid for state in descendants(10, processes)]

    assert sorted(below) == [5, 20, 21, 30]
    assert below.index(21) < below.index(30) < below.index(5)
    assert ancestors(5, processes) == {30, 21, 10, 1}
    assert descendants(5, processes) == []


def test_circle_in_a_torn_snapshot_ends(tmp_path: Path) -> None:
    for pid, ppid in [(10, 12), (11, 10), (12, 11)]:
        add_process(tmp_path, pid, ppid)
    processes = read_processes(str(tmp_path))

    assert sorted(state.pid for state in descendants(10, processes)) == [11, 12]
    assert ancestors(10, processes) == {10, 11, 12}


@given(st.dictionaries(st.integers(1, 12), st.integers(0, 12)))
def test_any_set_of_parents_has_finite_descendants_each_once(parents: dict[int, int]) -> None:
    processes = {
        pid: KernelProcess(pid, "", "S", ppid, 0, 0, 0, 1, 0, 0) for pid, ppid in parents.items()
    }

    for pid in range(13):
        below = [state.pid for state in descendants(pid, processes)]

        assert pid not in below
        assert len(below) == len(set(below))
        assert pid not in processes or len(ancestors(pid, processes)) <= 13


def test_marks_are_found_by_job_and_attempt(tmp_path: Path) -> None:
    def mark(attempt: str, job: str = JOB) -> bytes:
        return f"A=1\0RANKMEND_JOB_ID={job}\0RANKMEND_ATTEMPT={attempt}\0".encode()

    add_process(tmp_path, 10, 1, mark("1"))
    add_process(tmp_path, 11, 1, mark("2"))
    add_process(tmp_path, 12, 1, mark("3"))
    add_process(tmp_path, 13, 1, mark("1", "6ff7bb4e-7c8f-4f4a-93ce-2a1c0f0c5a12"))
    add_process(tmp_path, 14, 1, mark("1"), letter="Z")
    add_process(tmp_path, 15, 1, f"RANKMEND_JOB_ID={JOB}\0".encode())
    add_process(tmp_path, 16, 1, f"RANKMEND_GUARDIAN_OF={JOB}\0".encode())
    add_process(tmp_path, 17, 1, f"NOT_RANKMEND_JOB_ID={JOB}\0".encode())
    add_process(tmp_path, 18, 1, f"RANKMEND_JOB_ID={JOB}0\0".encode())
    add_process(tmp_path, 19, 1, b"PADDING=" + b"x" * 600_000 + b"\0" + mark("2"))

    marked = search_marks(JOB, 2, str(tmp_path))

    assert sorted((ref.pid, ref.start_ticks, ref.attempt) for ref in marked.processes) == [
        (10, 100, 1),
        (11, 110, 2),
        (15, 150, None),
        (19, 190, 2),
    ]
    assert marked.guardians == (ProcessRef(16, 160),)
    assert marked.unreadable == ()
    assert len(search_marks(JOB, None, str(tmp_path)).processes) == 5


@pytest.mark.parametrize(
    ("code_at", "environ_at"),
    [(0, (0, 0)), (0, (7, 7)), (9, (7, 99))],
    ids=["no stack yet", "a stack without variables", "done since its environment was read"],
)
def test_process_within_execve_is_looked_at_again_until_it_shows_its_environment(
    tmp_path: Path, code_at: int, environ_at: tuple[int, int]
) -> None:
    mark = f"RANKMEND_JOB_ID={JOB}\0RANKMEND_ATTEMPT=1\0".encode()
    add_process(tmp_path, 10, 1, b"", code_at=code_at, environ_at=environ_at)
    looks: list[int] = []

    def go_on() -> None:
        looks.append(10)
        if len(looks) == 2:
            add_process(tmp_path, 10, 1, mark, environ_at=(7, 7 + len(mark)))

    found = read_mark(10, JOB, str(tmp_path), on_exec=go_on)

    assert found == (MarkKind.RANK, ProcessRef(10, 100, 1))
    assert looks == [10, 10]


@pytest.mark.parametrize(
    ("flags", "code_at", "environ_at"),
    [(0, 9, (7, 7)), (0x00200000, 0, (0, 0)), (0x4, 0, (0, 0)), (0, 1, (0, 0))],
    ids=["none", "kernel thread", "exiting", "hidden from us"],
)
def test_process_without_an_environment_is_looked_at_once(
    tmp_path: Path, flags: int, code_at: int, environ_at: tuple[int, int]
) -> None:
    add_process(tmp_path, 10, 1, b"", flags=flags, code_at=code_at, environ_at=environ_at)

    def refuse() -> None:
        pytest.fail("it is within no execve")

    assert read_mark(10, JOB, str(tmp_path), on_exec=refuse) is None


@given(st.binary(max_size=300))
def test_any_environment_is_read(environ: bytes) -> None:
    data = environ.replace(b"J", f"RANKMEND_JOB_ID={JOB}".encode())
    with scratch_root(data) as root:
        search_marks(JOB, None, root)


@contextlib.contextmanager
def scratch_root(environ: bytes) -> Iterator[str]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        add_process(Path(folder), 10, 1, environ)
        yield folder


# Real processes.


def ref_of(pid: int, attempt: int | None = None) -> ProcessRef:
    state = read_state(pid)
    assert state is not None
    return ProcessRef(pid, state.start_ticks, attempt)


def in_child(work: Callable[[], object]) -> tuple[int, int]:
    """Fork a child that calls ``work`` and then sleeps; return its pid and a pipe of its answer."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, repr(work()).encode())
            os.close(write_end)
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    return pid, read_end


def end_child(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def become_somebody() -> None:
    """Leave root, which may read everything; whoever is none already may read only his own."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: nobody may look


def test_own_process_that_may_not_be_read_is_counted_and_those_of_others_are_not() -> None:
    hidden, ready = in_child(become_somebody)
    assert os.read(ready, 100) == b"None"

    def search() -> list[int]:
        become_somebody()
        marked = search_marks(str(uuid.uuid4()))
        assert marked.processes == ()
        return list(marked.unreadable)

    searcher, answer = in_child(search)
    with os.fdopen(answer, "rb") as file:
        unreadable = json.loads(file.read())
    for pid in (hidden, searcher):
        end_child(pid)
    os.close(ready)

    assert hidden in unreadable
    assert 1 not in unreadable or os.geteuid() != 0


def test_process_whose_main_thread_has_ended_is_neither_gone_nor_exiting() -> None:
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
SYS_exit = {"x86_64": 60, "aarch64": 93}[__import__("os").uname().machine]
ctypes.CDLL(None).syscall(SYS_exit, 0)
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    ref = ref_of(process.pid)
    eventually(lambda: (read_state(process.pid) or pytest.fail("no such process")).letter == "Z")

    state = read_state(process.pid)

    assert state is not None
    assert is_exiting(state.flags)
    assert not is_process_exiting(process.pid)
    assert is_alive(ref)
    assert kill_all([ref], deadline_s()) == ()
    assert not is_alive(ref)
    process.wait()


def test_zombie_that_nobody_reaps_counts_as_gone() -> None:
    process = subprocess.Popen(["sleep", "600"])
    ref = ref_of(process.pid)

    survivors = kill_all([ref], deadline_s())

    assert survivors == ()
    assert (read_state(process.pid) or pytest.fail("reaped")).letter == "Z"
    process.wait()


def test_pid_that_is_another_process_by_now_is_not_killed() -> None:
    process = subprocess.Popen(["sleep", "600"])
    old = ProcessRef(process.pid, ref_of(process.pid).start_ticks - 1)

    was_there = send_kill(old)

    assert not was_there
    assert not is_alive(old)
    assert process.poll() is None
    process.kill()
    process.wait()
    assert not send_kill(old)


def test_process_that_is_not_gone_in_time_is_named_with_its_state() -> None:
    code = """
import mmap, time
memory = mmap.mmap(-1, 400 << 20)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _mb in range(len(memory) >> 20):
    memory.write(bytes(1 << 20))
print("ready", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    ref = ref_of(process.pid)

    with faults.make_wait(process):  # a busy machine may free its memory before it is looked at
        survivors = kill_all([ref], deadline_s=0.0)

    assert [(one.pid, one.start_ticks) for one in survivors] == [(ref.pid, ref.start_ticks)]
    assert survivors[0].letter in "RSDZ"
    assert kill_all([ref], deadline_s()) == ()
    process.stdout.close()
    process.wait()


def start_marked(
    job_id: str, attempt: int, *argv: str, launcher: str = ""
) -> subprocess.Popen[bytes]:
    env = {**os.environ, "RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": str(attempt)}
    env["RANKMEND_LAUNCHER"] = launcher
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)


def test_process_that_becomes_one_program_after_the_other_is_never_overlooked() -> None:
    """One look in twenty fell within an execve, and found nothing."""
    job_id = str(uuid.uuid4())
    again = 'exec sh -c "$0" "$0"'
    process = start_marked(job_id, 1, "sh", "-c", again, again)
    assert process.stdout is not None

    found = [read_mark(process.pid, job_id) for _look in range(500)]

    process.kill()
    process.wait()
    process.stdout.close()
    assert None not in found


def test_leftovers_of_old_attempts_are_killed_with_their_children_and_newer_ones_are_not() -> None:
    job_id = str(uuid.uuid4())
    # The child has dropped the mark: it is found below its parent.
    old = start_marked(job_id, 1, "sh", "-c", "env -i sleep 600 & echo $!; wait")
    new = start_marked(job_id, 2, "sleep", "600")
    assert old.stdout is not None
    child = int(old.stdout.readline())

    leftovers = fence_leftovers(job_id, 1, deadline_s())

    assert leftovers.is_empty
    assert {(ref.pid, ref.attempt) for ref in leftovers.killed} == {(old.pid, 1), (child, 1)}
    assert old.wait() == -signal.SIGKILL
    state = read_state(child)
    assert state is None or state.is_gone
    assert [ref.pid for ref in find_marked(job_id)] == [new.pid]
    for process in (old, new):
        assert process.stdout is not None
        process.stdout.close()
    new.kill()
    new.wait()


def test_a_process_that_begins_while_others_are_read_is_listed_too(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    listed = settled_pids(str(tmp_path))

    assert next(listed) == 7
    (tmp_path / "7").rmdir()  # it has forked, and has ended before its mark was read
    (tmp_path / "3").mkdir()

    assert list(listed) == [3]


def test_rank_whose_launcher_lives_is_never_killed_and_one_of_a_dead_launcher_is() -> None:
    job_id = str(uuid.uuid4())
    other = subprocess.Popen(["sleep", "600"])
    rank = start_marked(job_id, 1, "sleep", "600", launcher=identify(other.pid).mark())
    try:
        spared = fence_leftovers(job_id, None, deadline_s(), is_foreign=ForeignMarks(identify()))
        assert [ref.pid for ref in spared.foreign] == [rank.pid]
        assert (spared.killed, spared.is_empty) == ((), False)
        assert rank.poll() is None

        other.kill()
        other.wait()
        killed = fence_leftovers(job_id, None, deadline_s(), is_foreign=ForeignMarks(identify()))

        assert killed.is_empty
        assert rank.wait() == -signal.SIGKILL
    finally:
        for process in (other, rank):
            process.kill()
            process.wait()
        assert rank.stdout is not None
        rank.stdout.close()


def test_fencing_without_leftovers_kills_nothing() -> None:
    leftovers = fence_leftovers(str(uuid.uuid4()), None, deadline_s())

    assert leftovers.is_empty
    assert leftovers.killed == ()


def test_launcher_below_an_old_process_of_its_job_does_not_kill_what_it_stands_on() -> None:
    job_id = str(uuid.uuid4())
    code = f"""
import os, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from recovery.launcher.processes.process_tree import fence_leftovers
if os.fork() == 0:
    left = fence_leftovers({job_id!r}, None, time.monotonic() + 280)
    print(left.is_empty, left.killed, [(one.pid, one.note) for one in left.alive], flush=True)
    os._exit(0)
os.wait()
"""
    process = start_marked(job_id, 1, sys.executable, "-c", code)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read().decode()

    assert process.wait() == 0
    note = "not killed: this launcher runs below it"
    assert said == f"False () [({process.pid}, '{note}')]\n"
