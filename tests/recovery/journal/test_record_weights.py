import pytest

from recovery.controller.job.nodes import orders_for
from recovery.journal import record_weights
from recovery.journal.attempt_records import AttemptVerified, Milestone
from recovery.journal.fold.entry_fold import fold
from recovery.journal.incident_records import CaughtUp
from recovery.journal.journal_rows import verify_rows
from recovery.journal.ledger import Ledger
from recovery.journal.record_weights import BOOKKEEPING, WEIGHTS, has_decision
from recovery.journal.records import KINDS, UnknownRecord
from tests.support.simulation import SimWorld, draw_scenario

pytestmark = pytest.mark.safety


def test_each_kind_of_record_has_one_place_in_the_table() -> None:
    assert set(WEIGHTS) == set(KINDS)
    assert not record_weights._BOOKKEEPING & record_weights._DECISIONS


def test_what_only_a_newer_rankmend_knows_counts_as_a_decision() -> None:
    assert has_decision([UnknownRecord("heartbeat", b"{}")])


def acted_on(ledger: Ledger) -> tuple[object, ...]:
    """Return what orders, answers and acts outside the job follow from."""
    incident = ledger.incident
    return (
        *(ledger.revision, ledger.wish, ledger.attempt, ledger.attempt_max, ledger.epoch),
        *(ledger.is_attempt_open, ledger.closing, ledger.ended, ledger.paused_by),
        *(ledger.members, ledger.placement, ledger.started, ledger.restarts, ledger.incidents),
        *(ledger.fence_waits, ledger.confirmed, ledger.commands, ledger.charged),
        None if incident is None else (incident.state, incident.plan, incident.waits),
    )


def test_no_order_and_no_act_follows_from_bookkeeping() -> None:
    seen = set()
    for seed in range(1, 13):
        world = SimWorld(draw_scenario(seed)).run()
        entries, _torn = verify_rows(world.disk.rows, "journal")
        ledger = Ledger()
        for entry in entries:
            after = fold(ledger, entry)
            if type(entry.record) in BOOKKEEPING:
                seen.add(type(entry.record))
                assert acted_on(after) == acted_on(ledger), entry.record
                assert orders_for(after, world.settings) == orders_for(ledger, world.settings)
            ledger = after

    assert {Milestone, AttemptVerified, CaughtUp} <= seen
