"""`--grow-every` under two real launchers: a job of 1:2 nodes takes in the one that comes later, right after a save."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.folder.job_folder import list_folders
from recovery.local.report.overview import read_entries
from tests.support.eventually import eventually
from tests.system.faults.nodes import LET_GO, PATIENT, Nodes

pytestmark = pytest.mark.process
CHECKED = re.compile(r"pre-flight check (\w+) in \d+ s")


TRIES_MAX = (
    5  # on a busy machine a check may get no answer, and then the job grows onto no such node
)


def start_checked(nodes: Nodes, name: str) -> None:
    """Start a launcher, again where its pre-flight check got no answer."""
    seen = 0

    def look() -> list[str] | None:
        outcomes: list[str] = CHECKED.findall(nodes.said(name))
        return outcomes if len(outcomes) > seen else None

    for _try in range(TRIES_MAX):
        nodes.start(name)
        outcomes = eventually(look, lambda: f"the check of {name}:\n{nodes.output}")
        if outcomes[-1] == "passed":
            return
        seen = len(outcomes)
        nodes.wait_said(name, "start this launcher again")
        nodes.kill(name)
    raise AssertionError(f"no check passed:\n{nodes.output}")


def test_a_job_on_one_node_takes_in_a_second_right_after_a_save(
    make_meeting: Callable[..., Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The check's matrix product takes NumPy instead, whose import a busy machine makes within the check's time.
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "torch.py").write_text("raise ImportError('left out')")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'without'}:{before}".strip(":"))
    arguments = [
        f"--checkpoint-dir={tmp_path / 'checkpoints'}",
        f"--result={tmp_path / 'result.json'}",
        f"--until={tmp_path / LET_GO}",
        *("--steps=10000000", "--every=500"),
    ]
    nodes = make_meeting("1:2", policy=f"{PATIENT}grow_healthy_s = 1\n", arguments=arguments)
    nodes.flags += ["--grow-every=1s", "--rdzv-conf=last_call_timeout=1"]
    nodes.start("a")
    nodes.wait_said("a", "attempt 1 makes progress on 2 ranks")

    start_checked(nodes, "b")
    nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")

    assert nodes.wait_ends("a", "b") == [0, 0], nodes.output
    assert "the job grows from 1 node to 2 after the save of step" in nodes.said("a")
    (hosted,) = list_folders(tmp_path / "state-a")
    records = [entry.record for entry in read_entries(hosted)]
    started = [one for one in records if isinstance(one, AttemptStarted)]
    assert [{place.node for place in one.placement} for one in started] == [{"a"}, {"a", "b"}]
    assert started[1].choice.restore is not None
