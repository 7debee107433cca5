"""A controller with [slurm]: what jobs leave is asked of Slurm, and shown, whether Slurm answers or not."""

import stat
from pathlib import Path

import msgspec
import pytest

from recovery.slurm.limits import SlurmLimits
from recovery.slurm.requests import SchedulerAction, SchedulerRequest
from tests.support.service import make_folder, running, wait_until

SCONTROL = """#!/bin/sh
case "$*" in
  "show node n1 --oneliner") echo "NodeName=n1 CPUAlloc=0 State=IDLE" ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "scontrol").chmod(stat.S_IRWXU)
    return folder


def test_a_request_is_dry_until_act_is_set_and_is_shown(tmp_path: Path, programs: Path) -> None:
    make_folder(tmp_path / "c")
    limits = SlurmLimits(enabled=True, folder=str(programs))

    with running(tmp_path / "c", lambda one: msgspec.structs.replace(one, slurm=limits)) as up:
        slurm = up.service.slurm
        assert slurm is not None
        slurm.desk.ask(SchedulerRequest("k", SchedulerAction.DRAIN, ("n1",), reason="slow"))
        wait_until(lambda: not slurm.desk.ledger.open, "the request has ended")
        view = up.client("admin").slurm()

    assert (view.enabled, view.acts) == (True, False)
    (shown,) = view.requests
    assert (shown.outcome, shown.text, shown.reason) == ("dry", "would drain n1", "slow")
    assert view.nodes == []
