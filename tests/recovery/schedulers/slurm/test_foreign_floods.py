"""What launchers name costs Slurm a bounded number of questions: names that it has not, and nodes that are others'."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from recovery.journal.slurm_records import SlurmOutcome
from recovery.journal.store import Journal
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmUnknownError
from recovery.schedulers.slurm.desk import SlurmDesk
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.node_work import OWNERS_ASKED_MAX, WORD_S
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.schedulers.slurm.fakes import FakeSlurm, MovedClock

pytestmark = pytest.mark.process  # a journal on disk


class CountedSlurm(FakeSlurm):
    """Refuses a question about nodes that it has not, as `scontrol` does, and counts all."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.asked: list[str] = []

    def __call__(self, words: Sequence[str]) -> str:
        self.asked.append(words[0])
        if words[:3] == ["scontrol", "show", "node"]:
            unknown = [name for name in words[3].split(",") if name not in self.state]
            if unknown:
                raise SlurmUnknownError(f"Node {unknown[0]} not found")
        return super().__call__(words)


def test_names_that_slurm_has_not_cost_three_questions_however_many_there_are() -> None:
    slurm = CountedSlurm("n1", "n2")
    client = SlurmClient(slurm)

    found = client.nodes(["n1", "n2", *(f"forged-{number}" for number in range(500))])

    assert sorted(found) == ["n1", "n2"]
    assert slurm.asked == ["scontrol", "sinfo", "scontrol"]
    assert client.nodes([f"forged-{number}" for number in range(500)]) == {}


def test_a_job_that_names_all_nodes_of_others_keeps_slurm_and_other_requests_waiting_no_longer(
    tmp_path: Path,
) -> None:
    nodes = [f"n{number}" for number in range(200)]
    slurm, clock = CountedSlurm(*nodes, "good"), MovedClock()
    slurm.users["good"] = "alice 1001"
    journal = Journal(tmp_path / "journal.db", clock, "boot")
    limits = SlurmLimits(enabled=True, act=True, nodes_drained_percent=100.0)
    desk = SlurmDesk(journal, SlurmClient(slurm), limits, clock, tmp_path / "s", look_s=0.0)
    desk.ask(
        SchedulerRequest(
            "forged", SchedulerAction.DRAIN, tuple(nodes), subject="mallory", job_id="m"
        )
    )
    desk.ask(
        SchedulerRequest("real", SchedulerAction.DRAIN, ("good",), subject="alice", job_id="a")
    )

    desk.turn()
    asked = slurm.asked.count("squeue")
    clock.unix += WORD_S
    for _turn in range(20):
        clock.unix += 20.0
        desk.turn()
    works = desk.ledger.works
    journal.close()

    assert asked <= OWNERS_ASKED_MAX + 1
    assert slurm.state["good"] == "IDLE+DRAIN"
    assert works["real"].nodes["good"].outcome is SlurmOutcome.DONE
    assert {one.outcome for one in works["forged"].nodes.values()} == {SlurmOutcome.REFUSED}
    assert len(works["forged"].nodes) == 200
    assert {slurm.state[node] for node in nodes} == {"IDLE"}
