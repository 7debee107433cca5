"""Which reports make the controller look at once, and which only say that all goes on."""

from dataclasses import replace

import pytest

from recovery.controller.job.report_news import brings_only_progress
from recovery.journal.ledger import Ledger
from recovery.messages.exchange import (
    BadNumber,
    Found,
    NotFinite,
    RankExit,
    RankReport,
    Report,
    StopReason,
)
from tests.support.controller_bench import Bench

TRAINS = RankReport(0, 0, 100, "S", step=7, steps_done=7)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """A job of one node whose ranks were all seen to train."""
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(10, 10)
    bench.tell(after_s=10.0)
    assert bench.control.ledger.is_verified
    return bench.control.ledger


@pytest.fixture
def plain(ledger: Ledger) -> Report:
    return Report(
        version=1,
        node="n1",
        boot_id="boot-1",
        job_id="job",
        revision=ledger.revision,
        attempt=ledger.attempt,
        ranks=(TRAINS, replace(TRAINS, rank=1, local_rank=1)),
        empty_through=0,
        launcher_id="launcher-1",
        number=99,
        epoch=ledger.epoch,
    )


def test_report_of_ranks_that_train_in_a_job_that_is_well_is_no_news(
    plain: Report, ledger: Ledger
) -> None:
    assert brings_only_progress(plain, ledger)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 0},
        {"revision": 0},
        {"epoch": 7},
        {"leaving": True},
        {"node": "n2"},
        {"launcher_id": "launcher-2"},
        {"launch_error": "no such file"},
        {"stop_requested": StopReason.PERSON},
        {"unreachable": ("n2",)},
        {"found": Found(1, ())},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_report_with_anything_else_is_news(
    changes: dict[str, object], plain: Report, ledger: Ledger
) -> None:
    assert not brings_only_progress(replace(plain, **changes), ledger)


@pytest.mark.parametrize(
    "changes",
    [
        {"exit": RankExit(0.1, None, 9, False, False, None, ())},
        {"exit": RankExit(0.1, 0, None, False, False, None, ())},
        {"progress_error": "torn"},
        {"first_bad_loss": BadNumber(7, NotFinite.NAN)},
        {"first_bad_grad_norm": BadNumber(7, NotFinite.INFINITE)},
    ],
    ids=["killed", "done", "unreadable", "loss", "grad_norm"],
)
def test_rank_that_does_more_than_train_is_news(
    changes: dict[str, object], plain: Report, ledger: Ledger
) -> None:
    ranks = (plain.ranks[0], replace(plain.ranks[1], **changes))

    assert not brings_only_progress(replace(plain, ranks=ranks), ledger)


@pytest.mark.parametrize("changes", [{"is_verified": False}, {"goes_back": object()}, {"incident": object()}, {"behind": object()}, {"closing": object()}], ids=lambda changes: next(iter(changes)))  # fmt: skip
def test_every_report_is_news_while_something_is_done_about_the_job(
    changes: dict[str, object], plain: Report, ledger: Ledger
) -> None:
    assert not brings_only_progress(plain, replace(ledger, **changes))
