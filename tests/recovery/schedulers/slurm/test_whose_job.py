"""A watched job's number is its user's word: what Slurm says of it decides whether it is touched."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from recovery.journal.slurm_records import SlurmOutcome
from recovery.journal.store import Journal
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.desk import SlurmDesk
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.schedulers.slurm.fakes import MovedClock

pytestmark = pytest.mark.process

JOB = "JobId=41 JobName=pretrain\n   {user} GroupId=ml(7)\n   JobState=RUNNING Reason=None\n   NodeList=n1,n2 BatchFlag=1 Requeue=1"
ACTIONS = [SchedulerAction.CANCEL, SchedulerAction.REQUEUE]


class OneJob:
    """`recovery.schedulers.slurm.commands.Run` for a job that runs on n1 and n2."""

    def __init__(self, user: str = "UserId=ada(1000)", copies: int = 1) -> None:
        self.text = "\n\n".join([JOB.format(user=user)] * copies)
        self.acts: list[list[str]] = []

    def __call__(self, words: Sequence[str]) -> str:
        if words[:3] == ["scontrol", "show", "job"]:
            return self.text
        if words[:3] == ["scontrol", "show", "node"]:
            return ""
        if words[:3] == ["scontrol", "write", "batch_script"]:
            return "#!/bin/sh\n"
        self.acts.append(list(words))
        return ""


def ask(folder: Path, slurm: OneJob, action: SchedulerAction, owner: str, *seen_on: str) -> str:
    """Return what came of a request, or nothing while it is open."""
    clock = MovedClock()
    journal = Journal(folder / "journal.db", clock, "boot")
    limits = SlurmLimits(enabled=True, act=True, cancel=True, requeue=True)
    desk = SlurmDesk(journal, SlurmClient(slurm), limits, clock, folder / "scripts", look_s=0.0)
    desk.ask(SchedulerRequest("k", action, (), "41", "hung", owner, seen_on))
    for _turn in range(4):
        desk.turn()
    ended = desk.ledger.works["k"].ended
    journal.close()
    assert ended is None or ended.outcome is SlurmOutcome.LEFT
    return "" if ended is None else ended.text


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("owner", "seen_on", "why"),
    [
        ("bob", ["n1"], "job 41 is ada's, and the ranks are bob's"),
        ("1001", ["n1"], "job 41 is ada's, and the ranks are 1001's"),
        ("ada", ["n7"], "job 41 runs on n1,n2, and the ranks on n7"),
        ("ada", [], "job 41 runs on n1,n2, and the ranks on "),
    ],
)
def test_job_of_another_user_or_on_other_nodes_is_left(
    tmp_path: Path, action: SchedulerAction, owner: str, seen_on: list[str], why: str
) -> None:
    slurm = OneJob()

    assert ask(tmp_path, slurm, action, owner, *seen_on) == why
    assert slurm.acts == []


@pytest.mark.parametrize("action", ACTIONS)
def test_job_whose_user_slurm_does_not_tell_is_left(
    tmp_path: Path, action: SchedulerAction
) -> None:
    slurm = OneJob(user="Account=ml")

    assert ask(tmp_path, slurm, action, "ada", "n1") == "Slurm does not tell whose job 41 is"
    assert slurm.acts == []


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("owner", ["ada", "1000"])
def test_job_of_the_ranks_is_acted_on(tmp_path: Path, action: SchedulerAction, owner: str) -> None:
    slurm = OneJob()

    assert ask(tmp_path, slurm, action, owner, "n2", "n9") == ""
    assert slurm.acts


@pytest.mark.parametrize("action", ACTIONS)
def test_where_all_users_are_one_party_only_a_slip_of_the_number_is_refused(
    tmp_path: Path, action: SchedulerAction
) -> None:
    """Without an owner: `single_tenant`, or a controller on loopback without tokens."""
    ours, slip = OneJob(user="Account=ml"), OneJob()
    (tmp_path / "slip").mkdir()

    assert ask(tmp_path, ours, action, "", "n1") == ""
    assert ours.acts
    assert ask(tmp_path / "slip", slip, action, "", "n7") == (
        "job 41 runs on n1,n2, and the ranks on n7"
    )
    assert slip.acts == []


def test_one_element_of_an_array_cancels_no_other(tmp_path: Path) -> None:
    slurm = OneJob(copies=3)

    assert "is an array" in ask(tmp_path, slurm, SchedulerAction.CANCEL, "ada", "n1")
    assert slurm.acts == []


@pytest.mark.parametrize("action", ACTIONS)
def test_job_that_slurm_does_not_know_yet_is_asked_for_again_within_a_bound(
    tmp_path: Path, action: SchedulerAction
) -> None:
    clock, slurm = MovedClock(), OneJob()
    known, slurm.text = slurm.text, ""
    journal = Journal(tmp_path / "journal.db", clock, "boot")
    limits = SlurmLimits(enabled=True, act=True, cancel=True)
    desk = SlurmDesk(journal, SlurmClient(slurm), limits, clock, tmp_path / "scripts", look_s=0.0)

    for key in ("early", "late"):
        slurm.text = ""
        desk.ask(SchedulerRequest(key, action, (), "41"))
        desk.turn()
        clock.unix += 29.0
        desk.turn()
        assert "does not know job 41" in desk.waits_for(key)
        slurm.text = known if key == "early" else ""
        clock.unix += 15.0
        desk.turn()

    early, late = desk.ledger.works["early"], desk.ledger.works["late"]
    journal.close()
    assert early.acts or early.before is not None
    assert late.ended is not None
    assert late.ended.outcome is SlurmOutcome.FAILED
