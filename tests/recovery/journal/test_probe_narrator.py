"""Probes of the network in words: in status, in stories and in a metric."""

from dataclasses import replace

import pytest

from detectors.fabric.probe_evidence import ProbeSays
from recovery.journal.cluster_records import CauseTold
from recovery.journal.ledger import ProbesNow
from recovery.journal.narration.cluster_narrator import (
    describe_now,
    end_of_probe,
    narrate_cluster,
)
from recovery.journal.narration.narrator import narrate
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    ProbeEnd,
    ProbeLimits,
    SlowExplained,
)
from recovery.journal.records import Entry
from recovery.local.report.overview import slow_ranks
from tests.support.job_ledgers import slow

LIMITS = ProbeLimits(1.0, 60.0, 1e9, 10**10)
ASKED = FabricProbeAsked("p", "j", 1, (3,), 9, ("s0", "s1"), (), (), LIMITS, 1, False)
SKIPPED = FabricProbeSkipped(1, (3,), 9, ("s0",))
FOUND = FabricProbeEnded(
    "p", ProbeEnd.JUDGED, says=ProbeSays.SHARED, part="leaf switch leaf1", slow_nodes=("s1",)
)


@pytest.mark.parametrize(
    ("probes", "said"),
    [
        (ProbesNow(), ""),
        (ProbesNow(asked=ASKED), "2 nodes test the network now"),
        (
            ProbesNow(asked=replace(ASKED, is_dry=True)),
            "communication of rank 3 is slow: would have 2 idle nodes (s0, s1) test the network",
        ),
        (
            ProbesNow(skipped=SKIPPED),
            "communication of rank 3 is slow, and the network is not tested: that takes 2 idle nodes (idle: s0)",
        ),
        (
            ProbesNow(asked=ASKED, ended=FOUND),
            "the probe of the network found leaf switch leaf1 slow, on the path of the slow ranks; slow: s1",
        ),
        (
            ProbesNow(
                asked=ASKED,
                ended=replace(FOUND, says=ProbeSays.NOTHING, part="", slow_nodes=()),
            ),
            "the probe of the network found nothing slow: look at the slow ranks' own nodes, NICs and cables",
        ),
        (
            ProbesNow(asked=ASKED, ended=FabricProbeEnded("p", ProbeEnd.YIELDED, "s1 is needed")),
            "the probe of the network gave way: s1 is needed",
        ),
    ],
)
def test_status_says_what_a_probe_does_or_has_found(probes: ProbesNow, said: str) -> None:
    assert describe_now(probes) == said


def test_stories_tell_each_record_and_the_metric_counts_each_end_once() -> None:
    dry = replace(ASKED, is_dry=True)
    records = (ASKED, dry, SKIPPED, FOUND)

    assert all(narrate(one) for one in records)
    assert [end_of_probe(one) for one in records] == [None, "dry", "too_few", "judged"]


def test_of_a_slow_rank_the_newest_reason_counts() -> None:
    first = SlowExplained(1, 0, "nic_errors", "errors", 0.6, ())
    records = (slow(0), first, replace(first, part="rail eth1"))
    entries = tuple(Entry(number, 0.0, 0.0, "", one) for number, one in enumerate(records, 1))

    assert slow_ranks(entries) == ["slow, most likely by nic errors; explained by rail eth1"]


def test_a_message_to_people_is_not_said_to_have_reached_them() -> None:
    """Where no Alertmanager is configured, or none accepts it, it reaches nobody."""
    cause = CauseTold("c-1", 0.0, "", "", "n1", "warning", "GPU 3 is lost", paged_unix_s=1.0)

    assert narrate_cluster(cause) == "c-1 (warning; n1): GPU 3 is lost; a message to people"
