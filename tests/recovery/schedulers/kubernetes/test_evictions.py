"""How many pods may be evicted: so many an hour of all jobs, and of one subject's a share."""

import pytest

from recovery.journal.records import Entry
from recovery.journal.slurm_records import (
    PodEnded,
    PodsSeen,
    SlurmAct,
    SlurmActs,
    SlurmAsked,
    SlurmEnded,
    SlurmOutcome,
)
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.kubernetes.pod_work import refuse_evictions
from recovery.schedulers.slurm.ledger import SlurmLedger, fold_slurm

LIMITS = KubernetesLimits(enabled=True, act=True)
HOUR_S = 3600.0


def evicted_for(*sharers: str, pods: int = 1) -> SlurmLedger:
    """Return the ledger after a node's pods were evicted at 0 s for each of these subjects."""
    records: list[object] = []
    for number, sharer in enumerate(sharers):
        key, names = f"evict-{number}", tuple(f"jobs/train-{number}-{pod}/u" for pod in range(pods))
        records += [
            SlurmAsked(key, "evict", (f"n{number}",), "", "", sharer=sharer),
            PodsSeen(key, names),
            *(SlurmActs(key, SlurmAct.EVICT, name) for name in names),
            *(PodEnded(key, name, SlurmOutcome.DONE, "gone") for name in names),
            SlurmEnded(key, SlurmOutcome.DONE, "gone"),
        ]
    return fold(records)


def fold(records: list[object]) -> SlurmLedger:
    entries = (Entry(number, 0.0, 0.0, "boot", one) for number, one in enumerate(records, start=1))  # type: ignore[arg-type]
    return fold_slurm(entries)


@pytest.mark.parametrize(
    ("evicted", "sharer", "is_refused"),
    [
        (("mallory",) * 9, "mallory", False),
        (("mallory",) * 10, "mallory", True),
        (("mallory",) * 10, "alice", False),
        (("mallory",) * 10 + ("alice",) * 5, "alice", True),
        (("mallory",) * 10 + ("alice",) * 5, "", False),  # all users are one party, or he is alone
        (("",) * 19, "", False),
        (("",) * 20, "", True),
    ],
)
def test_evictions_for_one_subject_leave_others_a_share_of_an_hour(
    evicted: tuple[str, ...], sharer: str, *, is_refused: bool
) -> None:
    ledger = evicted_for(*evicted)

    assert (refuse_evictions(ledger, LIMITS, 1, 60.0, sharer) is not None) == is_refused
    assert refuse_evictions(ledger, LIMITS, 1, HOUR_S + 1.0, sharer) is None
    assert refuse_evictions(ledger, LIMITS, 0, 60.0, sharer) is None


def test_pods_of_one_node_may_go_together_and_those_of_the_next_wait_for_the_hour() -> None:
    first, second = evicted_for(), evicted_for("mallory", pods=16)

    assert refuse_evictions(first, LIMITS, 16, 60.0, "mallory") is None
    assert refuse_evictions(second, LIMITS, 4, 60.0, "alice") is None
    assert refuse_evictions(second, LIMITS, 1, 60.0, "mallory") == (
        "16 pods of jobs of mallory were evicted by rankmend within an hour: its share of kubernetes.evictions_per_hour_max is 10 of 20"
    )


def test_pods_that_are_about_to_be_evicted_count_and_those_that_were_spared_do_not() -> None:
    asked, seen = (
        SlurmAsked("evict-1", "evict", ("n1",), "", ""),
        PodsSeen("evict-1", ("a/b/c",) * 1),
    )
    limits = KubernetesLimits(enabled=True, act=True, evictions_per_hour_max=1)
    spared = (
        PodEnded("evict-1", "a/b/c", SlurmOutcome.DONE, "gone by itself"),
        SlurmEnded("evict-1", SlurmOutcome.DONE, "gone"),
    )

    assert refuse_evictions(fold([asked, seen]), limits, 1, 60.0) == (
        "1 pod was evicted by rankmend within an hour: kubernetes.evictions_per_hour_max is 1"
    )
    assert refuse_evictions(fold([asked, seen, *spared]), limits, 1, 60.0) is None
