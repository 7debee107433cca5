"""The fork server under a real guardian: what it forks, what it leaves out, and what kills do to it."""

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock
from rankmend.hook import forking
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import (
    Emptied,
    Exited,
    GuardianLost,
    Spawned,
    SpawnFailed,
)
from recovery.launcher.processes.process_tree import (
    fence_leftovers,
    find_marked,
    read_mark,
    read_processes,
    read_state,
)
from recovery.launcher.ranks.fork_server import (
    FAILURES_MAX,
    FORGIVEN_AFTER_S,
    GUESSES_MAX,
    RETRY_S,
    ServerState,
)
from tests.support.eventually import deadline_s, eventually
from tests.support.faults.storage import fill, small_disk
from tests.support.fork_bench import STDLIB, Node
from tests.support.hook import each_python

pytestmark = [pytest.mark.process, pytest.mark.safety]

SUPPORT = Path(__file__).parents[2] / "support"
STAGES = [stage.__name__ for stage in forking.STAGES]
WAITING = [
    "join_the_guardian",
    "die_with_the_guardian",
    "await_a_rank",
]  # the server may have no rank for it
# Before these stages it has its attempt's mark; only then may the guardian hear of it.
MARKED = ["tell_the_guardian", "await_the_guardian", "take_the_program", "begin_random_states"]
MARKED += ["watch_the_steps", "follow_the_variables", "run_the_program"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def is_running(pid: int) -> bool:
    state = read_state(pid)
    return state is not None and not state.is_gone


# A forked rank.


@each_python
def test_a_forked_rank_is_as_one_that_was_started_afresh(node: Node, python: str) -> None:
    node.python = python
    node.server = node.make_server()
    node.base.update(PYTHONHASHSEED="0", LANG="C.UTF-8", PYTHONDONTWRITEBYTECODE="1")
    argv = (str(SUPPORT / "whole_process.py"), "--flag", "a b")
    node.start_afresh(*argv)
    node.of(Exited)
    fresh, fresh_end = told_by(node)
    node.make_ready()

    assert node.fork(*argv, attempt=2)
    node.of(Exited, 2)

    forked, forked_end = told_by(node)
    assert fresh.pop("command line") == [python, "-u", *argv]
    assert forked.pop("command line") == [" ".join((python, "-u", *argv))], "as ps shows it"
    for one in (fresh, forked):
        one["status FDSize"] = None  # room for descriptors, in steps of 64
        one["status SigQ"] = None  # of the whole user
    assert forked.pop("random") != fresh.pop("random")
    assert forked.pop("authkey") != fresh.pop("authkey")
    assert set(fresh.pop("modules")) - set(forked.pop("modules")) <= {"sitecustomize"}
    assert int(forked.pop("mark")[0].partition("=")[2]) == 2
    assert fresh.pop("mark") == ["RANKMEND_ATTEMPT=1"]
    assert forked["environment"].pop("RANKMEND_ATTEMPT") == "2"
    assert fresh["environment"].pop("RANKMEND_ATTEMPT") == "1"
    other = [name for name in fresh if fresh[name] != forked[name]]
    assert [(name, fresh[name], forked[name]) for name in other] == []
    assert forked_end == fresh_end == ["at exit"]


def told_by(node: Node) -> tuple[dict[str, Any], list[str]]:
    first, *rest = node.output().read_text().splitlines()
    return json.loads(first), rest


def test_forked_ranks_have_random_states_of_their_own(node: Node) -> None:
    pytest.importorskip("numpy")
    script = node.script("import random, numpy\nprint(random.random(), numpy.random.rand())")
    node.make_ready([*STDLIB, "numpy", "numpy.random"])
    assert "numpy" not in node.server.left_out

    assert node.fork(script, rank=0)
    assert node.fork(script, rank=1)
    node.of(Exited, 2)

    first, second = (node.output(rank).read_text().split() for rank in (0, 1))
    assert len({*first, *second}) == 4


def test_numpy_computes_in_a_forked_rank_with_all_threads(node: Node) -> None:
    pytest.importorskip("numpy")
    text = "import numpy as n; a = n.arange(1e6).reshape(1000, 1000) % 7; print((a @ a).sum())"
    script = node.script(text)
    node.start_afresh(script)
    node.of(Exited)
    expected = node.output().read_text()
    node.make_ready(["numpy"])

    assert node.fork(script, attempt=2)
    *_first, exited = node.of(Exited, 2)

    assert exited.exit_code == 0
    assert node.output().read_text() == expected


@pytest.mark.parametrize(
    ("text", "code", "signum"),
    [
        ("raise SystemExit(93)", 93, None),
        ("1 / 0", 1, None),
        ("import os; os._exit(255)", 255, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", None, signal.SIGTERM),
    ],
)
def test_the_end_of_a_forked_rank_is_told_exactly(
    node: Node, text: str, code: int | None, signum: int | None
) -> None:
    node.make_ready(["json"])

    assert node.fork(node.script(text), rank=3, attempt=7)

    (exited,) = node.of(Exited)
    (spawned,) = node.of(Spawned)
    assert (exited.attempt, exited.rank, exited.pid) == (7, 3, spawned.pid)
    assert (exited.exit_code, exited.signal) == (code, signum)
    assert "fork_server" not in node.output(3).read_text()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_the_end_of_the_server_stops_no_rank_and_another_one_follows(
    node: Node, signum: signal.Signals
) -> None:
    node.make_ready(["json"])
    assert node.fork(node.script("import time; time.sleep(600)"))
    (spawned,) = node.of(Spawned)
    server = node.server.pid

    os.kill(server, signum)
    if signum == signal.SIGSTOP:  # found out when it forks no rank
        assert node.fork(node.script(""), rank=1)
        (failed,) = node.of(SpawnFailed)
        assert failed.errno == errno.ETIMEDOUT
        node.server.note_failed_fork(node.guardian, failed)
    node.until(
        lambda: node.server.state is ServerState.READY and node.server.pid not in (0, server)
    )

    assert is_running(spawned.pid)
    node.until(lambda: not is_running(server))  # killed, but the kernel may not be done with it
    assert node.fork(node.script("print('hello')"), rank=1)
    node.of(Exited)
    assert node.output(1).read_text() == "hello\n"


def test_a_forked_rank_that_can_not_enter_its_folder_says_so(node: Node) -> None:
    node.make_ready(["json"])
    gone = node.folder / "gone"
    with node.output().open("wb") as file:
        argv = (sys.executable, "-u", node.script(""))
        fds = (file.fileno(), file.fileno())
        assert node.server.fork(node.guardian, Spawn(1, 0, argv, node.base, str(gone), *fds))

    (failed,) = node.of(SpawnFailed)

    assert failed.errno == errno.ENOENT
    assert "take the program" in failed.message


# Kills at every point.


def begin_stopping(node: Node, stage: str) -> None:
    """Start the server; the processes that it forks stop before this stage."""
    shutil.copy(SUPPORT / "faults" / "stop_at_stage.py", node.packages / "sitecustomize.py")
    node.base.update(STOP_AT=stage, STOPPED=str(node.folder / "stopped"))
    node.make_ready(["json"])


def stop_at(node: Node, stage: str) -> int:
    """Fork a rank that stops before a stage, and return its pid."""
    begin_stopping(node, stage)
    assert node.fork(node.script(f"open({str(node.folder / 'ran')!r}, 'w')"))
    node.until(lambda: stopped(node))
    return stopped(node)[0]


def stopped(node: Node) -> list[int]:
    """Return the processes that have stopped, the oldest first."""
    path = node.folder / "stopped"
    *lines, _part = path.read_text().split("\n") if path.exists() else [""]
    return [pid for pid in map(int, lines) if read_letter(pid) == "T"]


def read_letter(pid: int) -> str:
    state = read_state(pid)
    return "" if state is None else state.letter


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_guardian_leaves_no_process_at_any_stage(node: Node, stage: str) -> None:
    pid = stop_at(node, stage)

    node.guardian.end()
    node.of(GuardianLost)
    left = fence_leftovers(node.job_id, None, deadline_s())

    assert left.is_empty
    # Killed, but the kernel may not be done with it; a process that is not killed stays stopped.
    eventually(lambda: not is_running(pid), "the rank is gone")
    assert not (node.folder / "ran").exists()


@pytest.mark.parametrize("stage", STAGES[len(WAITING) :])
def test_an_attempt_that_is_fenced_at_any_stage_runs_no_program(node: Node, stage: str) -> None:
    pid = stop_at(node, stage)
    server = node.server.pid

    node.guardian.kill_through(1)
    node.of(Emptied)

    marked = find_marked(node.job_id, attempt_through=1)
    assert marked == []
    if stage in MARKED:
        assert not is_running(pid)
    else:  # not its attempt's yet: it ends by itself
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        node.until(lambda: not is_running(pid))
    assert not (node.folder / "ran").exists()
    assert is_running(server), "it belongs to no attempt"


@pytest.mark.parametrize("stage", WAITING)
def test_a_process_that_gets_a_rank_of_a_fenced_attempt_ends(node: Node, stage: str) -> None:
    begin_stopping(node, stage)
    node.until(lambda: len(stopped(node)) == 2)
    pids = stopped(node)
    assert node.fork(node.script(f"open({str(node.folder / 'ran')!r}, 'w')"))

    node.guardian.kill_through(1)
    node.of(Emptied)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

    node.until(lambda: [is_running(pid) for pid in pids].count(False) == 1)
    assert not (node.folder / "ran").exists()


@pytest.mark.parametrize("stage", STAGES[len(WAITING) :])
def test_a_server_killed_after_it_gave_a_rank_to_a_process_does_not_stop_it(
    node: Node, stage: str
) -> None:
    pid = stop_at(node, stage)
    os.kill(node.server.pid, signal.SIGKILL)
    node.until(lambda: node.server.state is not ServerState.READY)

    os.kill(pid, signal.SIGCONT)
    (exited,) = node.of(Exited)

    assert (exited.pid, exited.exit_code) == (pid, 0)
    assert (node.folder / "ran").exists()


@pytest.mark.parametrize("stage", WAITING)
def test_processes_that_wait_for_a_rank_end_with_the_server(node: Node, stage: str) -> None:
    begin_stopping(node, stage)
    node.until(lambda: len(stopped(node)) == 2)
    pids = stopped(node)

    os.kill(node.server.pid, signal.SIGKILL)
    node.until(lambda: node.server.state is not ServerState.READY)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

    node.until(lambda: not any(is_running(pid) for pid in pids))


def test_a_rank_is_forked_at_once_where_every_process_that_waited_has_ended(node: Node) -> None:
    node.make_ready(["json"])
    node.until(lambda: len(waiting(node)) == 2)
    killed = waiting(node)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):  # the second may end with the first
            os.kill(pid, signal.SIGKILL)
    node.until(lambda: not killed & waiting(node))

    assert node.fork(node.script("print('hello')"))
    (exited,) = node.of(Exited)

    assert exited.exit_code == 0
    assert node.output().read_text() == "hello\n"


def test_others_wait_again_after_ranks_were_forked(node: Node) -> None:
    node.make_ready(["json"])
    node.until(lambda: len(waiting(node)) == 2)
    before = waiting(node)

    for rank in range(3):  # one more than wait
        assert node.fork(node.script("input()"), rank=rank)
    node.of(Spawned, 3)

    node.until(lambda: len(waiting(node)) == 2)
    assert not before & waiting(node)


def waiting(node: Node) -> set[int]:
    """Return the processes of the server's session that are not the server."""
    return {
        one.pid
        for one in read_processes().values()
        if one.session == node.server.pid and one.pid != node.server.pid and not one.is_gone
    }


@pytest.mark.parametrize("stage", MARKED)
def test_a_rank_has_its_attempts_mark_before_the_guardian_hears_of_it(
    node: Node, stage: str
) -> None:
    pid = stop_at(node, stage)

    marked = read_mark(pid, node.job_id)

    assert marked is not None
    assert marked[1].attempt == 1
    os.kill(pid, signal.SIGKILL)


# Where there is no room.


class LaterClock(SystemClock):
    """The real clock, put forward by a test."""

    later_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.later_s


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_full_runtime_folder_delays_the_server_and_counts_as_no_failure(tmp_path: Path) -> None:
    clock = LaterClock()
    with small_disk(tmp_path / "shm", 1 << 20) as disk:
        node = Node(disk)
        try:
            node.server = node.make_server(clock=clock)
            node.learn(["json"])
            full = fill(disk)
            for _try in range(FAILURES_MAX + 1):
                clock.later_s += RETRY_S
                node.turn()
                assert node.server.state is ServerState.WAITING
                assert "No space left on device" in node.server.why_not
                assert not node.fork("-c", "pass")
            full.end()

            clock.later_s += RETRY_S
            node.begin(ServerState.READY)
        finally:
            node.close()


def test_a_server_that_served_long_clears_the_failures_before_it(node: Node) -> None:
    clock = LaterClock()
    node.server = node.make_server(clock=clock)
    node.make_ready(["json"])

    for _time in range(FAILURES_MAX + 1):
        node.until(lambda: node.server.pid)
        killed = node.server.pid
        clock.later_s += FORGIVEN_AFTER_S
        os.kill(killed, signal.SIGKILL)
        node.until(lambda killed=killed: node.server.pid not in (0, killed))
        node.begin(ServerState.READY)


def test_a_server_is_killed_before_its_ranks_when_memory_runs_out(node: Node) -> None:
    node.make_ready(["json"])
    script = "print(open('/proc/self/oom_score_adj').read()); import time; time.sleep(600)"
    assert node.fork(node.script(script))
    (spawned,) = node.of(Spawned)

    own = Path("/proc/self/oom_score_adj").read_text()
    assert Path(f"/proc/{node.server.pid}/oom_score_adj").read_text() == "1000\n"
    assert Path(f"/proc/{spawned.pid}/oom_score_adj").read_text() == own


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="no memory cgroup")
def test_a_rank_survives_a_shortage_that_the_servers_end_ends(node: Node) -> None:
    node.add_package("big", "kept = bytearray(b'x') * (100 << 20)")
    with memory_cgroup(f"rankmend-test-{node.job_id}", 280 << 20) as tasks:
        own = str(os.getpid())
        before = own_memory_cgroup()
        tasks.write_text(own)
        try:
            node.guardian.close()
            node.guardian = Guardian.start(node.job_id)
            node.server = node.make_server(retry_s=RETRY_S)
        finally:
            before.write_text(own)
        try:
            node.make_ready(["big"])
            server = node.server.pid
            script = node.script(
                "import time; kept = bytearray(b'x') * (220 << 20); print('took it'); time.sleep(600)"
            )

            node.start_afresh(script)
            (spawned,) = node.of(Spawned)
            node.until(lambda: node.output().read_text() == "took it\n")

            assert is_running(spawned.pid)
            assert not is_running(server)
        finally:
            node.close()  # here: the group can go once it is empty


def own_memory_cgroup() -> Path:
    """Return the file that takes a process back to this one's memory cgroup."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next(line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory")
    inside = Path("/sys/fs/cgroup/memory") / path.lstrip("/") / "cgroup.procs"
    return inside if inside.exists() else Path("/sys/fs/cgroup/memory/cgroup.procs")


@contextlib.contextmanager
def memory_cgroup(name: str, limit_bytes: int) -> Iterator[Path]:
    """Make a memory cgroup (v1) with this limit, and yield its list of processes."""
    folder = Path("/sys/fs/cgroup/memory") / name
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder / "cgroup.procs"
    finally:
        eventually(lambda: not (folder / "cgroup.procs").read_text(), "the group is empty")
        folder.rmdir()


# What it imports.


@pytest.mark.parametrize("guesses", [pytest.param(0), GUESSES_MAX])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import socket; kept = socket.socket()", "opens socket:"),
        ("import os; kept = os.open('/dev/full', os.O_RDWR)", "opens /dev/full at import"),
        ("import os; kept = os.pipe()", "opens pipe:"),
        ("kept = open(__file__)", "__init__.py at import"),
        ("import threading as t; t.Thread(target=t.Event().wait, daemon=True, name='beat').start()", "(beat)"),
        ("import _thread, time; _thread.start_new_thread(time.sleep, (600,))", "doesn't end at a fork"),
        ("import os, time; os.fork() or time.sleep(600)", "starts a process at import"),
        ("import users_own", "imports users_own, which is not an installed package"),
        ("import os; os._exit(3)", "ends the process at import"),
        ("import os; os.abort()", "ends the process at import"),
        ("import os; os.chdir('/')", "changes the working folder"),
        ("import os; is_first = os.environ.get('RANK', '0') == '0'", "reads RANK at import, which only a rank has"),
        ("import os; is_first = b'LOCAL_RANK' not in os.environb", "reads LOCAL_RANK at import"),
        ("import os; os.closerange(3, 100)", "ends the process at import"),
        ("raise SystemExit('no licence')", "fails at import: SystemExit: no licence"),
    ],
)  # fmt: skip
def test_what_a_fork_would_break_is_left_out_by_name_and_the_rest_forks(
    node: Node, text: str, reason: str, guesses: int
) -> None:
    node.server = node.make_server(guesses=guesses)
    users = node.folder / "users"
    users.mkdir()
    (users / "users_own.py").write_text("")
    node.base["PYTHONPATH"] += f":{users}"
    node.add_package("broken", text)
    node.add_package("whole", "import json")

    node.make_ready(["json", "broken", "whole"])

    assert list(node.server.left_out) == ["broken"]
    assert reason in node.server.left_out["broken"]
    node.until(
        lambda: {one.pid for one in find_marked(node.job_id)} - waiting(node) == {node.server.pid}
    )
    assert node.fork(
        node.script("import sys; print('whole' in sys.modules, 'broken' in sys.modules)")
    )
    node.of(Exited)
    assert node.output().read_text() == "True False\n"


@pytest.mark.parametrize("guesses", [pytest.param(0), GUESSES_MAX])
def test_package_that_loads_rankmends_entry_point_for_torchrun_is_shared(
    node: Node, guesses: int
) -> None:
    node.server = node.make_server(guesses=guesses)
    node.add_package("elastic", "import rankmend_torchrun")

    node.make_ready(["json", "elastic"])

    assert node.server.left_out == {}


def test_an_import_that_hangs_is_left_out_with_what_it_has_started(node: Node) -> None:
    node.add_package("hanging", "import os, time; os.fork(); time.sleep(600)")
    node.add_package("whole", "")
    # Long enough for what does not hang, on a busy machine, too.
    node.server = node.make_server(try_s_max=20.0, guesses=0)

    node.make_ready(["json", "hanging", "whole"])

    assert node.server.left_out == {
        "hanging": "ends the process at import, or takes over 20 s",
    }
    node.until(
        lambda: {one.pid for one in find_marked(node.job_id)} - waiting(node) == {node.server.pid}
    )
    assert node.fork(node.script("import whole; print('ran')"))
    node.of(Exited)
    assert node.output().read_text() == "ran\n"


SLOW = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
"""


def test_a_rank_waits_for_a_server_that_imports_by_a_guess_and_for_no_trial(node: Node) -> None:
    """It is ahead of ranks that would import the same afresh, each for itself; a trial may take minutes."""
    gate = node.folder / "gate"
    node.add_package("slow", SLOW.format(gate=str(gate)))
    node.learn(["slow"])
    node.begin(ServerState.STARTING)

    assert node.fork(node.script("import sys; print('slow' in sys.modules)"))

    gate.touch()
    node.of(Exited)
    assert node.output().read_text() == "True\n"

    gate.unlink()
    node.server.close()
    node.server = node.make_server(guesses=0)
    node.learn(["slow"])
    node.begin(ServerState.STARTING)

    assert not node.fork(node.script("print('ran')"))
    gate.touch()


def test_a_rank_that_waited_for_a_wrong_guess_is_told_of_and_starts_afresh(node: Node) -> None:
    gate = node.folder / "gate"
    thread = (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    node.add_package("slow", SLOW.format(gate=str(gate)) + thread)
    node.learn(["slow"])
    node.begin(ServerState.STARTING)
    assert node.fork(node.script("print('ran')"))

    gate.touch()

    (failed,) = node.of(SpawnFailed)
    assert failed.rank == 0


def test_a_server_that_dies_in_a_trial_leaves_no_process_of_it(node: Node) -> None:
    node.add_package("hanging", "import time; time.sleep(600)")
    node.server = node.make_server(guesses=0)
    node.learn(["hanging"])
    node.begin(ServerState.STARTING)
    node.until(lambda: len(find_marked(node.job_id)) == 2)
    server = node.server.pid
    trial = next(one.pid for one in find_marked(node.job_id) if one.pid != server)

    os.kill(server, signal.SIGKILL)

    node.until(lambda: not is_running(trial))


def test_a_module_that_fails_is_left_to_the_ranks_and_the_rest_is_imported(node: Node) -> None:
    node.add_package("broken", "raise ImportError('needs a GPU')")
    node.add_package("whole", "")

    node.make_ready(["broken", "whole"])

    assert node.server.left_out == {}
    assert node.fork(
        node.script("import sys; print('whole' in sys.modules, 'broken' in sys.modules)")
    )
    node.of(Exited)
    assert node.output().read_text() == "True False\n"


def test_a_variable_that_an_import_sets_is_set_in_a_forked_rank_as_well(node: Node) -> None:
    node.add_package("setting", "import os; os.environ['SET_AT_IMPORT'] = 'yes'")
    node.learn(["setting"], {"setting": {"SET_AT_IMPORT": "yes"}})
    node.begin(ServerState.READY)

    assert node.fork(node.script("import os; print(os.environ['SET_AT_IMPORT'])"))

    node.of(Exited)
    assert node.output().read_text() == "yes\n"


def test_no_rank_of_a_script_that_changes_its_environment_nobody_knows_when_is_forked(
    node: Node,
) -> None:
    node.learn(["json"], unordered={"OMP_PROC_BIND": "true"})

    node.begin(ServerState.GIVEN_UP)

    assert node.server.why_not == (
        "the script changes OMP_PROC_BIND, which a library may read at import"
    )
    assert not node.fork(node.script(""))


def test_after_an_upgrade_of_a_package_no_rank_is_forked_until_it_is_learned_again(
    node: Node,
) -> None:
    node.add_package("upgraded", "version = 1")
    node.make_ready(["upgraded"])
    (node.packages / "upgraded" / "__init__.py").write_text("version = 'two'")

    assert node.fork(node.script(""))
    (failed,) = node.of(SpawnFailed)
    assert failed.errno == errno.ESRCH
    node.until(lambda: node.server.is_learning and "has changed" in node.server.why_not)

    node.learn(["upgraded"])
    node.begin(ServerState.READY)
    assert node.fork(node.script("import upgraded; print(upgraded.version)"))
    node.of(Exited)
    assert node.output().read_text() == "two\n"


def test_a_server_that_can_not_start_is_given_up_after_three_tries(tmp_path: Path) -> None:
    node = Node(tmp_path)
    try:
        node.learn(["json"])
        node.runtime.site.joinpath("rankmend").unlink()
        broken = node.runtime.site / "rankmend"
        broken.mkdir()
        (broken / "__init__.py").write_text("raise SystemExit('a broken disk')")

        node.begin(ServerState.GIVEN_UP)

        assert "a broken disk" in node.server.why_not
        assert not node.fork(node.script(""))
    finally:
        node.close()
