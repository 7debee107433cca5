"""The third keeper of a lease, in real interpreters: a rank whose launcher and guardian stand still ends itself."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.hook import layout
from rankmend.hook.lease import EXIT_CODE
from recovery.launcher.membership.node_membership import RankDeadline, boot_time_s
from recovery.launcher.ranks.launched import RankLease
from tests.support.eventually import DEADLINE_S
from tests.support.hook import Rank, each_python

pytestmark = [pytest.mark.process, pytest.mark.safety, each_python]

STEPS = """
import rankmend, sys
for line in sys.stdin:
    {call}
    print(line.strip(), flush=True)
"""
STEP = "rankmend.step(int(line))"
SAVE = "rankmend.attach()\n    with rankmend.section('checkpoint'): pass"
HOUR_S = 3600.0


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def lease(rank: Rank) -> Iterator[RankLease]:
    made = RankLease(rank.path)
    yield made
    made.close()


def say(process: "subprocess.Popen[str]", line: str) -> str:
    """Have the rank make a step, and return what it prints behind it; nothing: it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def over_in(until_s: float, ends_s: float | None) -> RankDeadline:
    now_s = boot_time_s()
    return RankDeadline(now_s + until_s, None if ends_s is None else now_s + ends_s)


def wait_until(at_s: float) -> None:
    while boot_time_s() < at_s + 0.11:  # and until the rank looks again
        time.monotonic()


@pytest.mark.parametrize("call", [STEP, SAVE], ids=["step", "save"])
def test_a_rank_past_its_lease_and_the_kill_bound_ends_itself(
    rank: Rank, lease: RankLease, python: str, call: str
) -> None:
    process = rank.start(python, STEPS.format(call=call))
    lease.set(over_in(HOUR_S, HOUR_S))

    before = say(process, "1")
    deadline = over_in(0.2, 0.4)
    lease.set(deadline)
    wait_until(deadline.ends_s or 0.0)
    after = say(process, "2")

    assert (before, after) == ("1", "")
    assert process.wait(DEADLINE_S) == EXIT_CODE
    assert lease.has_ended_rank


@pytest.mark.parametrize(
    "deadline",
    [(-1.0, HOUR_S), (-1.0, None), (HOUR_S, HOUR_S)],
    ids=["kill bound not over", "older controller", "kept"],
)
def test_a_rank_goes_on_while_a_guardian_may_still_be_killing_it(
    rank: Rank, lease: RankLease, python: str, deadline: tuple[float, float | None]
) -> None:
    process = rank.start(python, STEPS.format(call=STEP))
    lease.set(over_in(*deadline))

    steps = [say(process, "1"), say(process, "2")]
    process.communicate(timeout=DEADLINE_S)

    assert (steps, process.returncode) == (["1", "2"], 0)
    assert not lease.has_ended_rank


def test_a_rank_of_one_node_has_no_lease_and_goes_on(rank: Rank, python: str) -> None:
    process = rank.start(python, STEPS.format(call=STEP))

    steps = [say(process, "1"), say(process, "2")]
    process.communicate(timeout=DEADLINE_S)

    assert (steps, process.returncode) == (["1", "2"], 0)


def test_a_lease_of_another_time_namespace_ends_nothing(
    rank: Rank, lease: RankLease, python: str
) -> None:
    lease.set(over_in(-2.0, -1.0))
    with rank.path.open("r+b") as file:
        file.seek(layout.LEASE_AT + 16)
        file.write((1).to_bytes(8, "little"))
    process = rank.start(python, STEPS.format(call=STEP))

    step = say(process, "1")
    process.communicate(timeout=DEADLINE_S)

    assert (step, process.returncode) == ("1", 0)


def test_a_full_pipe_that_nobody_reads_does_not_hold_up_the_end(
    rank: Rank, lease: RankLease, python: str
) -> None:
    lease.set(over_in(-2.0, -1.0))
    code = (
        "import os, rankmend\n"
        "os.set_blocking(2, False)\n"
        "try:\n    while os.write(2, b'x' * 4096): pass\n"
        "except BlockingIOError: pass\n"
        "os.set_blocking(2, True)\n"
        "rankmend.step(1)\n"
    )
    command = rank.command(python, code)
    with subprocess.Popen(command, env=rank.variables(), stderr=subprocess.PIPE) as process:
        assert process.wait(DEADLINE_S) == EXIT_CODE


@pytest.mark.parametrize(("until_s", "published"), [(HOUR_S, "True"), (-1.0, "False")])
def test_nothing_is_published_once_the_guardian_was_due(
    rank: Rank, lease: RankLease, python: str, until_s: float, published: str
) -> None:
    fence = rank.folder / "fence"
    fence.write_text("3")
    rank.environment[layout.ENV_FENCE_FILE] = str(fence)
    lease.set(over_in(until_s, HOUR_S))

    told = rank.run(python, "import rankmend\nprint(rankmend.may_publish('a'))")

    assert told.strip() == published


@pytest.mark.parametrize(("until_s", "kept"), [(HOUR_S, "True"), (-1.0, "False")])
def test_no_snapshot_is_kept_once_the_guardian_was_due(
    rank: Rank, lease: RankLease, python: str, until_s: float, kept: str
) -> None:
    folder = rank.folder / "snapshots"
    folder.mkdir()
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    variables |= {layout.ENV_JOB_ID: "6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10"}
    rank.environment |= {layout.ENV_SNAPSHOTS: str(folder), **variables}
    lease.set(over_in(until_s, HOUR_S))

    told = rank.run(python, "import rankmend\nprint(rankmend.snapshot(1, {'a': b'1'}))")

    assert told.strip() == kept
