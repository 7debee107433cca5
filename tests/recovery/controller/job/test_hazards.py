"""docs/internals/hazards.md against the tests that it names, and those of its hazards that are shown nowhere else."""

import re
from signal import SIGSEGV

from recovery.controller.cluster.cluster_limits import ClusterPolicy, Quarantine
from recovery.controller.job.observation import Observation
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.incident_records import IncidentOpened
from recovery.messages.exchange import RankReport
from tests.support.agent import ROOT
from tests.support.cluster_desk import JOB, blame, make_desk
from tests.support.nodes_bench import FakeNode, make_training

NAMED = re.compile(r"`([a-z_/]+\.py)::(test_\w+)`")


def page() -> str:
    return (ROOT / "docs/internals/hazards.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    missing = []
    for file, name in NAMED.findall(page()):
        path = ROOT / "tests" / file
        if not path.is_file() or f"def {name}(" not in path.read_text():
            missing.append(f"{file}::{name}")

    assert missing == []


def test_every_row_of_the_page_names_a_test() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| --- ", "| what happened "))]

    assert len(rows) > 40
    assert [row for row in rows if NAMED.search(row.rsplit("|", 2)[1]) is None] == []


def test_nodes_that_come_again_or_are_too_many_stop_nothing() -> None:
    bench = make_training()

    again = FakeNode("c")  # the spare's launcher is started anew, and a fourth one of three comes
    again.launcher_id, again.started_s = "c-2", 50.0
    bench.nodes |= {"c": again, "d": FakeNode("d")}
    for step in (5, 6, 7, 8):
        bench.beat(1.0, step)

    assert len(bench.records(AttemptStarted)) == 1
    assert bench.records(IncidentOpened) == []
    assert sorted(bench.control.ledger.members) == ["a", "b", "c"]
    assert bench.control.ledger.members["c"].launcher_id == "c-2"
    assert [order.ranks for order in bench.nodes["d"].orders] == []


def test_every_node_is_told_the_same_count_of_restarts_also_one_that_was_not_there() -> None:
    bench = make_training()

    for _death in range(2):  # the second one in a row that blames b moves the job to c
        bench.kill("b", SIGSEGV)
        bench.beat(5.0)

    assert bench.placed == ["a", "c"]
    assert [bench.nodes[name].orders[-1].restarts for name in "ac"] == [2, 2]


def test_a_node_that_a_person_takes_back_is_free_at_once_and_its_past_forgotten() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(quarantine=Quarantine(blames=2)))
    desk.note_running(f"n{number}" for number in range(40))
    for incident in ("i-1", "i-2"):
        blame(desk, "n2", f"job of {incident}", incident)
    assert desk.unusable("n2") is not None

    desk.release("n2", "ann", "the cable was loose")

    assert desk.unusable("n2") is None
    blame(desk, "n2", JOB, "i-3")
    assert desk.unusable("n2") is None  # one blame, not the third


def test_a_pause_that_ended_with_the_ranks_is_nothing_that_the_next_attempt_is_allowed() -> None:
    seen, node = Observation(1, 1), FakeNode("a")
    node.attempt = 1

    def hear(step: int, sections: int, now_s: float) -> None:
        told = RankReport(
            0, 0, 100, "S", attached_age_s=now_s, step=step, step_age_s=0.0, steps_done=step,
            section="communication", section_age_s=0.0, sections_entered=sections,
        )  # fmt: skip
        node.ranks = {0: told}
        seen.observe(node.report(), now_s)

    for step in range(1, 9):
        hear(step, step, float(step))
    assert seen.proved_gap_s == 1.0

    hear(8, 9, 48.0)  # it leaves its section as it dies
    assert (seen.longest_gap_s, seen.proved_gap_s) == (40.0, 1.0)

    hear(9, 10, 49.0)  # or it does not: then it was a pause that the job makes
    assert seen.proved_gap_s == 40.0
