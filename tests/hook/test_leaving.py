"""How a script has ended is reported while something of it still runs."""

from pathlib import Path

import pytest

from rankmend.hook import layout
from rankmend.rank_values import ScriptEnd
from tests.support.eventually import eventually
from tests.support.hook import Rank, each_python, with_torch_stand_in

pytestmark = pytest.mark.process
C10D = """\
class GroupMember:
    WORLD = object()
def init_process_group(backend):
    pass
def destroy_process_group(group=None):
    pass
"""
BEGIN = """
import sys, threading, time
import rankmend
rankmend.step(1)
def run_on():
    threading.Thread(target=time.sleep, args=(600,)).start()
"""
TORCH = """
import rankmend
from torch.distributed import *
from torch.distributed.distributed_c10d import GroupMember
init_process_group("gloo")
rankmend.step(1)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path, environment={layout.ENV_AUTO: "1"})


def skips_below_3_9(python: str) -> None:
    if "3.8" in python:
        pytest.skip("Python 3.8 tells of no end before it waits for its threads")


@each_python
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("run_on()", ScriptEnd.RETURNED),
        ("run_on(); sys.exit()", ScriptEnd.EXITED),
        ("run_on(); sys.exit(0)", ScriptEnd.EXITED),
        ("run_on(); sys.exit(3)", ScriptEnd.FAILED),
        ("run_on(); sys.exit('no such split')", ScriptEnd.FAILED),
        ("run_on(); {}['a']", ScriptEnd.FAILED),
    ],
)
def test_end_of_the_script_is_reported_while_a_thread_runs_on(
    rank: Rank, python: str, code: str, end: ScriptEnd
) -> None:
    skips_below_3_9(python)
    process = rank.start(python, f"{BEGIN}{code}\n")
    try:
        eventually(lambda: rank.read().script_end is not ScriptEnd.RUNNING, "the end of the script")
        assert rank.read().script_end is end
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=300)


@each_python
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("time.sleep(0)", ScriptEnd.RETURNED),
        ("os._exit(0)", ScriptEnd.RUNNING),
        ("os.fork() or sys.exit(3); os.wait()", ScriptEnd.RETURNED),
        ("os.fork() or os._exit(3); os.wait()", ScriptEnd.RETURNED),
    ],
)
def test_end_of_a_process_is_its_own_and_not_its_childs(
    rank: Rank, python: str, code: str, end: ScriptEnd
) -> None:
    rank.run(python, f"{BEGIN}import os\n{code}\n")

    assert rank.read().script_end is end


@each_python
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("destroy_process_group()", ScriptEnd.RETURNED),
        ("destroy_process_group(GroupMember.WORLD)", ScriptEnd.RETURNED),
        ("destroy_process_group(object())", ScriptEnd.RUNNING),
        ("destroy_process_group(); init_process_group('gloo')", ScriptEnd.RUNNING),
        ("\ntry:\n    try:\n        1 / 0\n    finally:\n        destroy_process_group()\nexcept ZeroDivisionError:\n    pass", ScriptEnd.RUNNING),
    ],
)  # fmt: skip
def test_destroyed_default_group_ends_the_training(
    rank: Rank, python: str, code: str, end: ScriptEnd
) -> None:
    stand_in = with_torch_stand_in(rank, distributed_c10d=C10D)

    stand_in.run(python, f"{TORCH}{code}\nimport os; os._exit(0)\n")

    assert stand_in.read().script_end is end


@each_python
def test_sys_exit_does_what_it_did(rank: Rank, python: str) -> None:
    code = (
        "import sys, rankmend; rankmend.attach(); print(sys.exit.__name__, sys.exit.__doc__[:4])\n"
    )
    code += "try:\n    sys.exit(7)\nexcept SystemExit as error:\n    print(error.code)\n"
    code += "try:\n    sys.exit(1, 2)\nexcept TypeError:\n    print('TypeError')\n"

    assert rank.run(python, code).split() == ["exit", "Exit", "7", "TypeError"]
