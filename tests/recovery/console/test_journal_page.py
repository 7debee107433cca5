"""What a journal's page says of each record."""

import pytest

from detectors.node.charges import ChargeKind
from recovery.console.journal_page import kind_words, newest_plain, row_of
from recovery.journal.attempt_records import Milestone, StepsSeen
from recovery.journal.cluster_records import (
    CLUSTER_KINDS,
    Acknowledged,
    BlameConfirmed,
    BlameTakenBack,
    CauseTold,
    Hold,
    LemonFound,
    NodeBlamed,
    NodeErrorNoted,
    NodeHeld,
    NodeReleased,
    NotDone,
    NotDoneAct,
    Paused,
    PowerOffAsked,
    Spent,
    Unpaused,
    WatchedAsked,
    WindowAdded,
    WindowRemoved,
)
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    ProbeEnd,
    ProbeLimits,
)
from recovery.journal.records import Entry, Record

PROBE_LIMITS = ProbeLimits(1.0, 60.0, 1e9, 10**10)
SAID: dict[Record, str] = {
    NodeBlamed("n1", "j", "j-1", "rank 1 failed"): "n1 is blamed in j-1: rank 1 failed",
    NodeErrorNoted("n1", "j", "j-1", ChargeKind.PROGRAM, "exception:KeyError", "a.py:1", True): (
        "j-1 counts nothing against n1: KeyError, from one job"
    ),
    BlameConfirmed("n1", "j", ("j-1",)): "n1 has had job j, by its agent: j-1 counts",
    BlameTakenBack("j", ("j-1",), ("n1",), ("n1",), "the program itself fails"): (
        "taken back from n1: what j-1 counted: the program itself fails; n1 may be used again"
    ),
    LemonFound("n1", "device", 3, 3, 28.0, False, "a lemon: 3 faults"): (
        "keeps n1 out of use until a person takes it back: a lemon: 3 faults"
    ),
    NodeHeld("n1", Hold.DRAIN, "ann", "fan", None): "n1 is drained by ann: fan",
    NodeHeld("n1", Hold.QUARANTINE, "policy", "", 0.0): (
        "n1 is quarantined until 1970-01-01 00:00:00 UTC by policy"
    ),
    NodeReleased("n1", "ann", "mended"): "n1 is taken back by ann: mended",
    Paused("cluster", "ann", "move"): "the whole cluster is paused by ann: move",
    Unpaused("node:n1", "ann", ""): "node n1 is resumed by ann",
    Spent("j", "j-1", 2, "restart_in_place", (), True): "allowed for j-1, try 2: restart in place",
    Spent("j", "j-1", 1, "move", ("n1",), True): "allowed for j-1, try 1: move, leaving n1",
    WindowAdded("w1", ("n*",), 0.0, 3600.0, "ann", "fans"): (
        "maintenance of n* from 1970-01-01 00:00:00 UTC to 1970-01-01 01:00:00 UTC, by ann: fans"
    ),
    WindowRemoved("w1", "ann", ""): "maintenance window w1 is removed by ann",
    Acknowledged("j-1", "ann", "seen"): "j-1 is acknowledged by ann: seen",
    PowerOffAsked("n1", "j", "j-1"): (
        "asks the BMC of n1, which is lost, to switch its power off"
    ),
    WatchedAsked("k", "j", "train", "77", "drain", ("n1",), "hangs", True): (
        "would ask Slurm: drain about job 77 (train), for n1: hangs"
    ),
    NotDone(NotDoneAct.POWER_OFF, "n1", "j", "j-1", "lost"): (
        "observe mode: would switch off the power of n1: lost"
    ),
    CauseTold("j-1", 0.0, "j", "train", "n1", "critical", "a rank failed", gpus_idle=8): (
        "j-1 (critical; train, n1): a rank failed; 8 ranks idle"
    ),
    CauseTold("j-1", 0.0, "j", "train", "", "info", "a rank failed", is_over=True, end="trains"): (
        "over: j-1 (info; train): a rank failed; trains"
    ),
    FabricProbeAsked("p", "j", 1, (3,), 9, ("n1", "n2"), (), (), PROBE_LIMITS, 1, False): (
        "communication of rank 3 is slow: has 2 idle nodes (n1, n2) test the network"
    ),
    FabricProbeEnded("p", ProbeEnd.LATE, "no verdict within 60 s"): (
        "the probe of the network did not end in time: no verdict within 60 s"
    ),
}  # fmt: skip


def entry_of(record: Record, number: int = 1) -> Entry:
    return Entry(number, 0.0, 0.0, "b", record)


@pytest.mark.parametrize(("record", "said"), SAID.items(), ids=lambda one: type(one).__name__)
def test_each_record_of_the_cluster_is_told_in_a_sentence(record: Record, said: str) -> None:
    row = row_of(entry_of(record))

    assert (row.text, row.is_plain) == (said, True)


def test_no_kind_of_the_clusters_journal_is_without_words() -> None:
    assert {type(record) for record in SAID} == set(CLUSTER_KINDS.values())


def test_figures_of_a_record_without_words_are_short() -> None:
    record = StepsSeen(1, 2, 50, 5.120146787998237, 5.0, 0.0, 0.0, 0.0, 0.0)

    assert "step s 5.12," in row_of(entry_of(record)).text


def test_the_newest_of_a_job_are_not_its_milestones() -> None:
    told = entry_of(Acknowledged("j-1", "ann", "seen"))
    milestones = [entry_of(Milestone(1, step), step) for step in range(2, 100)]

    assert [row.number for row in newest_plain([told, *milestones], 8)] == [1]


def test_kinds_whose_stored_name_is_no_word_for_people_have_another() -> None:
    assert [kind_words(kind) for kind in ("cause_told", "spent", "node_held")] == [
        "cause",
        "plan allowed",
        "node held",
    ]
