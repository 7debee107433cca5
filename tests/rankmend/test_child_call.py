"""A call that may hang: in a child that is left behind, a bounded number of them."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rankmend.child_call import SLOTS, ChildSilentError, call_in_child, call_in_children
from rankmend.errors import SourceError
from tests.support.eventually import DEADLINE_S, eventually, fault_lasts

pytestmark = pytest.mark.process


def fail() -> None:
    raise SourceError("cannot read x: no")


def break_down() -> None:
    raise ZeroDivisionError("oops")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_result_comes_back() -> None:
    assert call_in_child(lambda: {"a": [1, "x"]}, 200) == {"a": [1, "x"]}


def test_an_expected_error_keeps_its_text() -> None:
    with pytest.raises(SourceError, match=r"^cannot read x: no$"):
        call_in_child(fail, 200)


def test_a_defect_is_named_as_one() -> None:
    with pytest.raises(SourceError, match="internal error: ZeroDivisionError: oops"):
        call_in_child(break_down, 200)


def test_a_child_that_dies_gave_no_answer() -> None:
    with pytest.raises(ChildSilentError, match="without an answer"):
        call_in_child(die, 200)


def test_a_hang_ends_at_the_timeout_and_leaves_nothing() -> None:
    before = children()

    with pytest.raises(ChildSilentError, match="no answer within 1 s"):
        call_in_child(lambda: fault_lasts(600), 1)

    eventually(lambda: children() <= before, "the end of the child")


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if is_alive(child.pid)}


def test_a_hang_is_called_one_though_the_child_ended_itself_before_the_caller_looked() -> None:
    def overslept() -> None:
        os.kill(os.getpid(), signal.SIGALRM)  # as of the timer for a caller that was stopped

    with pytest.raises(ChildSilentError, match="no answer within 200 s"):
        call_in_child(overslept, 200)


def test_a_child_holds_no_stream_of_the_caller(tmp_path: Path) -> None:
    """slurmd waits for the end of its prolog's streams, not only of the prolog."""
    code = (
        "import os, sys, time\n"
        "from rankmend import child_call\n"
        # As if the kernel did not let it go.
        f"child_call._end = lambda pid: open({str(tmp_path / 'pid')!r}, 'w').write(str(pid))\n"
        "try: child_call.call_in_child(lambda: time.sleep(1000), 1)\n"
        "except child_call.ChildSilentError: print('silent')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )  # which ends with the last holder of its streams

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # and this child still lives
    assert done.stdout == "silent\n"


def test_stuck_children_hold_their_slots_and_no_further_one_starts(tmp_path: Path) -> None:
    import fcntl

    held = []
    for number in range(SLOTS):
        held.append(os.open(tmp_path / f"check-{number}.lock", os.O_RDWR | os.O_CREAT))
        fcntl.flock(held[-1], fcntl.LOCK_EX)

    with pytest.raises(ChildSilentError, match="4 earlier checks"):
        call_in_child(lambda: 1, 200, tmp_path)
    os.close(held.pop())
    assert call_in_child(lambda: 1, 200, tmp_path) == 1

    for descriptor in held:
        os.close(descriptor)


def test_without_a_folder_for_slots_the_call_is_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert call_in_child(lambda: 1, 200, tmp_path / "file" / "slots") == 1


def test_of_several_one_that_hangs_costs_the_others_nothing() -> None:
    answers = call_in_children(
        {
            "hangs": lambda: fault_lasts(600),
            "answers": lambda: {"a": 1},
            "fails": fail,
            "is large": lambda: "x" * 1_000_000,  # more than a pipe holds while nobody reads
        },
        12,  # in which those that answer have to: the machine may stand still for seconds
    )

    assert answers["answers"] == {"a": 1}
    assert isinstance(answers["hangs"], ChildSilentError)
    assert str(answers["fails"]) == "cannot read x: no"


def test_of_several_each_has_slots_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    held = [
        os.open(tmp_path / "a" / f"check-{n}.lock", os.O_RDWR | os.O_CREAT) for n in range(SLOTS)
    ]
    for descriptor in held:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    answers = call_in_children({"a": lambda: 1, "b": lambda: 2}, 200, tmp_path)
    for descriptor in held:
        os.close(descriptor)

    assert isinstance(answers["a"], ChildSilentError)
    assert answers["b"] == 2
    assert call_in_children({"a": lambda: 1}, 200, tmp_path) == {"a": 1}


def test_ctrl_c_leaves_none_of_several_behind(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "from rankmend.child_call import call_in_children\n"
        "def hang(name):\n"
        f"    open(os.path.join({str(tmp_path)!r}, name), 'w').write(str(os.getpid()))\n"
        f"    os.rename(os.path.join({str(tmp_path)!r}, name), os.path.join({str(tmp_path)!r}, name + '.pid'))\n"
        "    time.sleep(600)\n"
        "call_in_children({name: (lambda name=name: hang(name)) for name in 'abc'}, 600)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    eventually(lambda: len(list(tmp_path.glob("*.pid"))) == 3, "the children")
    # Until it waits for them: it may just be coming back from the last fork.
    eventually(lambda: not is_running(caller.pid), "the caller to wait")

    caller.send_signal(signal.SIGINT)
    caller.wait(DEADLINE_S)

    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    eventually(lambda: not any(map(is_alive, pids)), "the end of the children")


def test_child_whose_caller_is_killed_ends_by_itself(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "from rankmend.child_call import call_in_child\n"
        "def hang():\n"
        f"    open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid()))\n"
        f"    os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r})\n"
        "    time.sleep(600)\n"
        "call_in_child(hang, 3)\n"
    )
    callers: list[subprocess.Popen[bytes]] = []

    def has_begun() -> bool:
        """Return whether the child runs; on a busy machine its time may be over before."""
        if not callers or callers[-1].poll() is not None:
            callers.append(
                subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
            )
        return (tmp_path / "pid").exists()

    eventually(has_begun, "the child")

    callers[-1].kill()
    callers[-1].wait(DEADLINE_S)

    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_alive(pid), "the end of the child")


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S"


def is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it may go at any moment
        return False
