"""Who receives a signal for a rank: the process that trains, whatever stands in front of it.

Real programs: bash, sh, taskset, unshare, torchrun. Stand-ins with the same behaviour, because the machine may lack them: numactl
(executes), uv run (catches and forwards), conda run (waits for a shell that waits), accelerate launch (waits).
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmend.errors import SourceError
from recovery.launcher.guardian.packets import Exited, ProgressHolder, Spawned
from recovery.launcher.guardian.rank_signals import read_masks
from recovery.launcher.processes.process_tree import ProcessRef, find_outer, read_state
from recovery.launcher.ranks.launched import LaunchedRank
from tests.support.eventually import eventually
from tests.support.guardian_ward import PYTHON, Ward
from tests.support.torch_here import needs_torch

pytestmark = pytest.mark.process

# A rank with a worker, as a data loader has: it dies of every signal, and would take the rank's save with it.
RANK = """
import os, select, signal, subprocess, sys
log = open(os.environ["LOG"], "a", buffering=1)
worker = subprocess.Popen(["sleep", "600"])
name = os.environ.get("LOCAL_RANK", "0")
came = []
def note(number, frame):
    came.append(number)
    log.write(f"rank {name} {signal.Signals(number).name}\\n")
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
with open("/proc/self/stat") as file:
    ticks = file.read().rpartition(")")[2].split()[19]
with open(os.environ["LOG"] + ".ready" + name + ".new", "w") as file:
    file.write(f"{os.getpid()} {ticks}")
os.rename(os.environ["LOG"] + ".ready" + name + ".new", os.environ["LOG"] + ".ready" + name)
while not came:
    signal.pause()
log.write(f"worker {name} {'lives' if worker.poll() is None else 'died'}\\n")
worker.kill()
"""
WAITS = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
FORWARDS = """
import os, signal, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
def forward(number, frame):
    with open(os.environ["LOG"], "a") as log:
        log.write("forwarded\\n")
    child.send_signal(number)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, forward)
sys.exit(child.wait())
"""
GOES_ON = """
import os, signal, subprocess, sys
def note(number, frame):
    with open(os.environ["LOG"], "a") as log:
        log.write("program in front\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, note)
subprocess.Popen(sys.argv[1:]).wait()
while True:
    signal.pause()
"""
TRAP = 'trap \'echo trap >> "$LOG"\' TERM USR1; "$@"; exit $?'
FORWARDING_TRAP = (
    'trap \'echo forwarded >> "$LOG"; kill -TERM $pid\' TERM USR1; "$@" & pid=$!; wait $pid'
)

ALONE = ["rank 0 {}", "worker 0 lives"]
WRAPPERS = {
    "nothing": ([], ALONE),
    "bash without a trap": (["bash", "-c", '"$@"; exit $?', "-"], ALONE),
    "bash with a trap": (["bash", "-c", TRAP, "-"], [*ALONE, "trap"]),
    "sh with a trap": (["sh", "-c", TRAP, "-"], [*ALONE, "trap"]),
    "bash whose trap forwards": (["bash", "-c", FORWARDING_TRAP, "-"], ALONE),
    "taskset": (["taskset", "-c", "0"], ALONE),
    "numactl (stand-in)": (["sh", "-c", 'exec "$@"', "-"], ALONE),
    "uv run (stand-in)": ([*PYTHON, FORWARDS], ALONE),
    "conda run (stand-in)": ([*PYTHON, WAITS, "bash", "-c", '"$@"; exit $?', "-"], ALONE),
    "accelerate launch (stand-in)": ([*PYTHON, WAITS], ALONE),
    "container": (["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"], ALONE),
}


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(tmp_path)
    yield ward
    ward.guardian.close()


def spawn_rank(ward: Ward, *front: str, rank: int = 0) -> None:
    env = {**ward.environment(1), "LOG": str(ward.folder / "log")}
    ward.spawn(*front, *PYTHON, RANK, rank=rank, env=env)


def holder_of(ward: Ward, name: int = 0) -> ProgressHolder:
    """Return the process of RANK, which has told itself by its own pid."""
    ready = ward.folder / f"log.ready{name}"
    eventually(ready.exists)
    pid, ticks = map(int, ready.read_text().split())
    (spawned,) = ward.of(Spawned)
    assert isinstance(spawned, Spawned)
    outer = find_outer(ProcessRef(pid, ticks), spawned.pid, lambda _pid: False)
    assert outer is not None
    return ProgressHolder(0, outer.pid, outer.start_ticks)


def log_lines(ward: Ward) -> list[str]:
    return (ward.folder / "log").read_text().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_rank_gets_a_signal_once_and_keeps_its_workers(
    ward: Ward, name: str, number: signal.Signals
) -> None:
    front, expected = WRAPPERS[name]
    if front and shutil.which(front[0]) is None:
        pytest.skip(f"{front[0]} is not installed")
    if front[:1] == ["unshare"] and os.getuid() != 0:
        pytest.skip("namespaces need root here")
    spawn_rank(ward, *front)
    holder = holder_of(ward)

    ward.guardian.signal(1, number, holders=[holder])

    (exited,) = ward.of(Exited)
    assert isinstance(exited, Exited)
    assert log_lines(ward) == [line.format(number.name) for line in expected]


def test_every_rank_of_an_inner_torchrun_gets_it_once(ward: Ward) -> None:
    needs_torch()
    script = ward.folder / "rank.py"
    script.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = {**os.environ, **ward.environment(1), "LOG": str(ward.folder / "log")}
    ward.spawn(*torchrun, "--nproc-per-node=2", str(script), env=env)
    holder_of(ward, 1)
    holder = holder_of(ward)

    ward.guardian.signal(1, signal.SIGTERM, holders=[holder])

    ward.of(Exited)
    received = ["rank 0 SIGTERM", "rank 1 SIGTERM", "worker 0 lives", "worker 1 lives"]
    assert sorted(log_lines(ward)) == received


def test_a_program_in_front_that_goes_on_gets_sigterm_after_its_rank(ward: Ward) -> None:
    spawn_rank(ward, *PYTHON, GOES_ON)
    holder = holder_of(ward)

    ward.guardian.signal(1, signal.SIGTERM, holders=[holder])

    ward.of(Exited)
    assert log_lines(ward) == ["rank 0 SIGTERM", "worker 0 lives", "program in front"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("is_known", [True, False])
def test_sigusr1_never_ends_a_rank_that_knows_nothing_of_it(
    ward: Ward, number: signal.Signals, is_known: bool
) -> None:
    ward.spawn("sleep", "600")
    (spawned,) = ward.of(Spawned)
    assert isinstance(spawned, Spawned)
    holders = [ProgressHolder(0, spawned.pid, spawned.start_ticks)] if is_known else []

    ward.guardian.signal(1, number, holders=holders)
    ward.guardian.signal(1, signal.SIGTERM, holders=holders)

    (exited,) = ward.of(Exited)
    assert isinstance(exited, Exited)
    assert exited.signal == signal.SIGTERM


def test_sigterm_without_a_progress_file_goes_to_the_leader_and_not_to_its_workers(
    ward: Ward,
) -> None:
    spawn_rank(ward)
    holder_of(ward)

    ward.guardian.signal(1, signal.SIGTERM)

    ward.of(Exited)
    assert log_lines(ward) == ["rank 0 SIGTERM", "worker 0 lives"]


def test_without_a_progress_file_what_a_shell_waits_for_can_save(ward: Ward) -> None:
    spawn_rank(ward, "bash", "-c", '"$@"; exit $?', "-")
    holder_of(ward)

    ward.guardian.signal(1, signal.SIGTERM)

    (exited,) = ward.of(Exited)
    assert isinstance(exited, Exited)
    assert (exited.exit_code, log_lines(ward)) == (0, ["rank 0 SIGTERM", "worker 0 lives"])


def test_a_pid_that_another_process_has_by_now_is_not_signalled(ward: Ward) -> None:
    spawn_rank(ward)
    holder_of(ward)
    with subprocess.Popen(["sleep", "600"]) as outside:
        state = read_state(outside.pid)
        assert state is not None
        gone = ProgressHolder(0, outside.pid, state.start_ticks - 1)

        ward.guardian.signal(1, signal.SIGTERM, holders=[gone])

        ward.of(Exited)
        code = outside.poll()
        outside.kill()
    assert log_lines(ward) == ["rank 0 SIGTERM", "worker 0 lives"]
    assert code is None


WAITS_FOR_SIGNAL = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
open(os.environ["LOG"] + ".ready0", "w").write("ready")
with open(os.environ["LOG"], "w") as log:
    log.write(signal.Signals(signal.sigwait([signal.SIGUSR1])).name)
"""


def test_rank_that_waits_for_sigusr1_gets_it(ward: Ward) -> None:
    env = {**ward.environment(1), "LOG": str(ward.folder / "log")}
    ward.spawn(*PYTHON, WAITS_FOR_SIGNAL, env=env)
    (spawned,) = ward.of(Spawned)
    assert isinstance(spawned, Spawned)
    waits = Path(f"/proc/{spawned.pid}/wchan")
    eventually(lambda: waits.read_text().startswith("do_sigtimedwait"))

    masks = read_masks(spawned.pid)
    ward.guardian.signal(1, signal.SIGUSR1)

    ward.of(Exited)
    assert log_lines(ward) == ["SIGUSR1"]
    assert (masks.survives(signal.SIGUSR1), masks.survives(signal.SIGTERM)) == (True, False)


class NoProgress:
    """A progress file that nobody has written yet."""

    def read(self, *_args: object, **_named: object) -> Any:
        raise SourceError("no progress yet")


def launched(process: subprocess.Popen[bytes], start_ticks: int | None = None) -> LaunchedRank:
    unused: Any = None
    reader: Any = NoProgress()
    state = read_state(process.pid)
    assert state is not None
    ticks = state.start_ticks if start_ticks is None else start_ticks
    return LaunchedRank(0, 0, unused, reader, pid=process.pid, start_ticks=ticks)


def letter(pid: int) -> str:
    state = read_state(pid)
    return "" if state is None else state.letter


def test_stopped_rank_goes_on_with_all_that_was_stopped_with_it() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as rank:
        eventually(lambda: Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text())
        child = int(Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text())
        try:
            os.killpg(rank.pid, signal.SIGSTOP)
            eventually(lambda: {letter(rank.pid), letter(child)} == {"T"})

            pids = launched(rank).continue_stopped(0.0)

            assert sorted(pids) == sorted([rank.pid, child])
            eventually(lambda: letter(rank.pid) == "S")
        finally:
            os.killpg(rank.pid, signal.SIGKILL)


def test_rank_of_another_start_is_not_continued() -> None:
    with subprocess.Popen(["sleep", "600"]) as rank:
        rank.send_signal(signal.SIGSTOP)
        eventually(lambda: letter(rank.pid) == "T")

        assert launched(rank, start_ticks=1).continue_stopped(0.0) == []
        assert letter(rank.pid) == "T"
        rank.kill()


def test_rank_that_a_debugger_holds_is_not_continued() -> None:
    traced = "import ctypes, os, signal; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-c", traced]) as rank:
        eventually(lambda: letter(rank.pid) == "t")

        assert launched(rank).continue_stopped(0.0) == []
        assert letter(rank.pid) == "t"
        rank.kill()
