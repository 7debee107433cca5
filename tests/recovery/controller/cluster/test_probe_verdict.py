"""One probe of the network at a time, so many an hour, and none where people hold back what rankmend does."""

from dataclasses import replace

import pytest

from recovery.controller.cluster.cluster_limits import ClusterPolicy, JobOverride
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.cluster.probe_verdict import HOUR_S, SLACK_S
from recovery.journal.narration.cluster_narrator import narrate_cluster
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    ProbeEnd,
    ProbeLimits,
)
from tests.support.cluster_desk import JOB, make_desk

RULES = ProbeRules(dry_run=False, per_hour_max=2)
LIMITS = ProbeLimits(1.0, 60.0, 1e9, 10**10)
ASKED = FabricProbeAsked("p1", JOB, 1, (3,), 9, ("s0", "s1"), (), (), LIMITS, 1, False)
ENDED = FabricProbeEnded("p1", ProbeEnd.YIELDED, "s0 is needed")


def test_a_second_probe_waits_for_the_first_ones_end_or_its_time() -> None:
    desk, journal, clock = make_desk(ClusterPolicy(fabric_probe=RULES))
    other = replace(ASKED, probe_id="p2")

    first = desk.refuse_probe(ASKED)
    at_once = desk.refuse_probe(other)
    clock.now += LIMITS.limit_s + SLACK_S + 1
    later = desk.refuse_probe(other)
    desk.note_probe_ended(replace(ENDED, probe_id="p2"))

    assert (first, later) == (None, None)
    assert at_once is not None
    assert "p1" in at_once
    assert [type(one.record) for one in journal.entries] == [
        FabricProbeAsked,
        FabricProbeAsked,
        FabricProbeEnded,
    ]


def test_probes_of_an_hour_are_bounded_over_all_jobs() -> None:
    desk, _journal, clock = make_desk(ClusterPolicy(fabric_probe=RULES))
    said = []
    for number in range(3):
        said.append(desk.refuse_probe(replace(ASKED, probe_id=f"p{number}", job_id=f"j{number}")))
        desk.note_probe_ended(replace(ENDED, probe_id=f"p{number}"))
    clock.now += HOUR_S

    assert said[:2] == [None, None]
    assert said[2] == "2 within the last hour; 2 are allowed (per_hour_max)"
    assert desk.refuse_probe(replace(ASKED, probe_id="p4")) is None


@pytest.mark.parametrize("is_alone", [False, True])
def test_probes_for_jobs_of_one_subject_leave_others_a_share_of_the_hour(*, is_alone: bool) -> None:
    desk, _journal, _clock = make_desk(
        ClusterPolicy(fabric_probe=replace(RULES, per_hour_max=3), single_tenant=is_alone)
    )
    desk.owner_of = lambda job_id: job_id[0]
    said = []
    for number, job in enumerate(("m1", "m2", "m3", "a1")):
        said.append(desk.refuse_probe(replace(ASKED, probe_id=f"p{number}", job_id=job)))
        desk.note_probe_ended(replace(ENDED, probe_id=f"p{number}"))

    if is_alone:
        assert said == [None, None, None, "3 within the last hour; 3 are allowed (per_hour_max)"]
    else:
        share = "2 for jobs of m within the last hour, their share of per_hour_max: 2 of 3"
        assert said == [None, None, share, None]


@pytest.mark.parametrize("scope", ["cluster", f"job:{JOB}", "node:s1"])
def test_a_pause_holds_probes(scope: str) -> None:
    desk, journal, _clock = make_desk(ClusterPolicy(fabric_probe=RULES))
    desk.pause(scope, "ann", "upgrade")

    assert desk.refuse_probe(ASKED) == f"{scope} is paused"
    assert len(journal.entries) == 1


def test_probes_are_dry_in_a_dry_run_and_in_observe_mode() -> None:
    base = ClusterPolicy(fabric_probe=RULES)

    assert not base.probe_rules_for("llama").dry_run
    assert replace(base, is_dry=True).probe_rules_for("llama").dry_run
    assert replace(base, observe=True).probe_rules_for("llama").dry_run
    only = replace(base, overrides=(JobOverride("llama", observe=True),))
    assert only.probe_rules_for("llama").dry_run
    assert not only.probe_rules_for("other").dry_run


def test_the_journal_says_it_in_words() -> None:
    assert narrate_cluster(ASKED) == (
        f"job {JOB}: communication of rank 3 is slow: has 2 idle nodes (s0, s1) test the network"
    )
    assert narrate_cluster(ENDED) == "the probe of the network gave way: s0 is needed"
