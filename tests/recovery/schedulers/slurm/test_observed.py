"""Observe mode: nothing is done in Slurm, but what a person allows; and drains by others are seen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.journal.slurm_records import SlurmOutcome
from recovery.journal.store import Journal
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.desk import CONFIRM_S, SlurmDesk
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.schedulers.slurm.fakes import FakeSlurm, MovedClock

pytestmark = pytest.mark.process


class Site:
    def __init__(self, folder: Path) -> None:
        self.slurm = FakeSlurm("n1", "n2")
        self.clock = MovedClock()
        self.journal = Journal(folder / "journal.db", self.clock, "boot")
        self.observed: str | None = None
        self.nodes: tuple[str, ...] = ()
        self.desk = SlurmDesk(
            self.journal,
            SlurmClient(self.slurm),
            SlurmLimits(enabled=True, act=True),
            self.clock,
            folder / "scripts",
            look_s=0.0,
            drains_look_s=0.0,
            observes=lambda _request: self.observed,
            of_interest=lambda: self.nodes,
        )

    def ask(self, key: str, action: SchedulerAction) -> tuple[SlurmOutcome, str] | None:
        self.desk.ask(SchedulerRequest(key, action, ("n1",), reason="GPU lost"))
        self.turn()
        ended = self.desk.ledger.works[key].ended
        return None if ended is None else (ended.outcome, ended.text)

    def turn(self) -> None:
        for _turn in range(4):
            self.clock.unix += 30.0
            self.desk.turn()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


def test_a_drain_is_only_said_and_is_not_done_later(site: Site) -> None:
    site.observed = "[cluster] observe"

    assert site.ask("k", SchedulerAction.DRAIN) == (
        SlurmOutcome.DRY,
        "observe mode ([cluster] observe): would drain n1",
    )
    site.observed = None
    site.turn()

    assert site.slurm.state["n1"] == "IDLE"
    assert site.ask("k2", SchedulerAction.DRAIN) is not None
    assert "DRAIN" in site.slurm.state["n1"]


def test_a_person_may_take_our_drain_back_all_the_same(site: Site) -> None:
    site.ask("k", SchedulerAction.DRAIN)
    site.observed = "[cluster] observe"

    site.desk.take_back("n1", "ann", "repaired")
    site.turn()

    assert site.slurm.state["n1"] == "IDLE"


def test_a_node_whose_check_failed_is_taken_out_once_and_comes_back_at_a_word(site: Site) -> None:
    assert site.desk.take_out("n1", "check", "preflight: 1 wrong")
    assert not site.desk.take_out("n1", "check", "preflight: 1 wrong"), "it is asked already"
    site.turn()
    assert "DRAIN" in site.slurm.state["n1"]
    assert not site.desk.take_out("n1", "check", "preflight: 2 wrong"), "it is out already"

    site.desk.take_back("n1", "check", "preflight: passed")
    site.turn()

    assert site.slurm.state["n1"] == "IDLE"
    assert site.desk.take_out("n1", "check", "preflight: 3 wrong"), "a later failure is another one"


@pytest.mark.safety
def test_a_drain_by_another_of_a_node_of_interest_is_journaled_once(site: Site) -> None:
    site.slurm.state["n1"], site.slurm.reason["n1"] = "IDLE+DRAIN", "fan is loud"
    site.slurm.state["n2"], site.slurm.reason["n2"] = "IDLE+DRAIN", "not asked about"
    site.nodes = ("n1",)

    site.turn()

    ((_unix_s, seen),) = site.desk.ledger.drains_seen
    assert (seen.node, seen.reason) == ("n1", "fan is loud")
    assert seen.who.startswith("root")


def test_slurm_says_which_nodes_it_knows_of_those_that_launchers_have_named(site: Site) -> None:
    named = ["n1", "forged"]
    site.desk.named = lambda: named

    site.turn()
    asked = site.slurm.listed
    site.turn()

    assert site.desk.known == {"n1"}
    assert asked == site.slurm.listed == 1, "once, however often it is looked for"

    named[:] = ["forged", "n2"]
    site.turn()
    assert site.desk.known == {"n1", "n2"}, "a node that is known needs no further word"


def test_a_node_that_slurm_gets_later_is_found_and_without_names_nothing_is_asked(
    site: Site,
) -> None:
    site.turn()
    assert site.slurm.listed == 0
    site.desk.named = lambda: ("n3",)
    site.turn()
    before = site.desk.known

    site.slurm.state["n3"], site.slurm.reason["n3"] = "IDLE", ""
    site.clock.unix += CONFIRM_S
    site.turn()

    assert before == frozenset()
    assert site.desk.known == {"n3"}
