from dataclasses import replace

import pytest

from detectors.finding import Blame, SymptomKind
from rankmend.errors import JournalError
from rankmend.rank_values import ScriptEnd
from recovery.controller.job.attempt_health import spent_pause_s
from recovery.controller.job.controller import (
    JOURNAL_PATIENCE_KNOWN_S,
    JOURNAL_PATIENCE_S,
)
from recovery.controller.job.nodes import RESEND_S, JobNodes, resend_pause_s
from recovery.journal.attempt_records import (
    AttemptStarted,
    AttemptVerified,
    Cause,
    Milestone,
)
from recovery.journal.folder.saved_budgets import decode_budgets, encode_budgets
from recovery.journal.incident_machine import Outcome, Phase
from recovery.journal.incident_records import (
    CaughtUp,
    Decided,
    EvidenceCollected,
    IncidentOpened,
    TryFailed,
)
from recovery.journal.job_records import BudgetsReset, JobEnded, OutcomeKind, RecordsLost
from recovery.journal.limits import PlanStep
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.exchange import (
    Collected,
    Order,
    RankError,
    RankExit,
    Report,
    Restore,
    Stop,
    StopReason,
)
from tests.support.controller_bench import POLICY, SETTINGS, Bench, fail

pytestmark = pytest.mark.safety


def test_nothing_is_ordered_before_the_node_was_heard() -> None:
    bench = Bench().start()

    bench.control.tick()
    assert bench.orders == []

    bench.tell()
    (order,) = bench.orders
    assert (order.attempt, order.ranks, order.restore) == (1, (0, 1), None)


def test_the_first_attempt_begins_from_the_newest_valid_checkpoint_behind_its_fence() -> None:
    bench = Bench()
    candidate = Candidate("/c/30", 30, CheckpointFormat.NPZ, 1, 1.0)
    bench.storage.verdicts = [CheckpointVerdict(candidate, True, "whole")]

    bench.start().tell()

    assert bench.orders[-1].restore == Restore("/c/30", 30)
    assert bench.storage.fence == 1
    assert bench.records(AttemptStarted)[0].cause is Cause.FIRST


def test_an_attempt_number_is_above_every_one_that_anybody_knows_of() -> None:
    bench = Bench()
    bench.storage.fence = 6
    bench.empty_through = 4

    bench.start().tell()

    assert bench.orders[-1].attempt == 7
    assert bench.storage.fence == 7


def test_an_order_that_is_not_acknowledged_is_sent_again() -> None:
    bench = Bench().start()
    bench.tell()

    bench.tell(after_s=RESEND_S, revision=0)
    assert len(bench.orders) == 2
    assert bench.orders[0] == bench.orders[1]

    bench.tell(after_s=RESEND_S)
    bench.tell(after_s=RESEND_S)
    assert len(bench.orders) == 2


def test_orders_of_a_large_job_are_sent_again_less_often() -> None:
    assert [resend_pause_s(nodes) for nodes in (1, 2_000, 10_000)] == [RESEND_S, RESEND_S, 5.0]


def test_what_the_ranks_of_a_large_job_spend_is_added_up_less_often() -> None:
    assert [spent_pause_s(5.0, ranks) for ranks in (8, 16_000, 80_000)] == [5.0, 5.0, 16.0]
    assert spent_pause_s(40.0, 80_000) == 40.0


def test_a_node_that_never_reports_ends_the_start() -> None:
    bench = Bench().start()
    bench.control.tick()
    bench.clock.time_s += POLICY.start_timeout_s
    bench.control.tick()

    assert bench.control.outcome is None  # it was this process that stood still

    for _second in range(int(POLICY.start_timeout_s)):
        bench.clock.time_s += 1.0
        bench.control.tick()
    assert bench.control.outcome.kind is OutcomeKind.ESCALATED
    assert "0 of 1 nodes are there" in bench.control.outcome.reason


def test_reports_of_other_jobs_and_nodes_change_nothing() -> None:
    bench = Bench().start()

    bench.tell(job_id="another")
    bench.tell(node="n9")

    assert bench.orders == []


def test_a_death_by_signal_acts_at_once(training: Bench) -> None:
    training.end(1, signal=9)

    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.ranks == (1,)
    assert (opened.failure.exit_code, opened.failure.step) == (137, 10)
    assert opened.highest_step == 10
    assert opened.fault_age_s == pytest.approx(0.1)
    assert (training.orders[-1].ranks, training.orders[-1].stop) == ((), Stop.KILL)
    assert training.records(Decided)[0].plan.step is PlanStep.RESTART_IN_PLACE


def test_an_exit_waits_until_it_has_settled(training: Bench) -> None:
    training.end(0, exit_code=1)
    training.tell(after_s=0.1)
    assert training.records(IncidentOpened) == []

    training.tell(after_s=0.2)
    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.ranks == (0,)


LOST_PEER = RankError(
    "RuntimeError", "[/pytorch/gloo/transport/tcp/pair.cc:537] Connection closed by peer", ""
)


def lose_peer(bench: Bench, end: ScriptEnd) -> None:
    """Rank 1 lives, and its script has come to this end; rank 0 has died of its loss."""
    lost = RankExit(0.1, 1, None, False, False, LOST_PEER, ())
    bench.ranks[1] = replace(bench.ranks[1], script_end=end)
    bench.ranks[0] = replace(bench.ranks[0], process_state="", exit=lost)
    bench.tell()


def test_word_of_a_peer_that_is_still_dying_is_awaited_and_names_the_cause(
    training: Bench,
) -> None:
    lose_peer(training, ScriptEnd.FAILED)
    training.tell(after_s=4.0)
    assert training.records(IncidentOpened) == []

    training.end(1, exit_code=1)

    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.ranks == (1,)
    assert opened.failure.error.message == "bad batch"


def test_peer_that_takes_too_long_to_die_is_not_awaited(training: Bench) -> None:
    lose_peer(training, ScriptEnd.FAILED)
    training.tell(after_s=4.9)
    assert training.records(IncidentOpened) == []

    training.tell(after_s=0.2)

    assert len(training.records(IncidentOpened)) == 1


def test_lost_peer_whose_script_runs_on_delays_nothing(training: Bench) -> None:
    lose_peer(training, ScriptEnd.RUNNING)

    training.tell(after_s=0.4)

    assert len(training.records(IncidentOpened)) == 1


def test_the_same_exit_on_every_rank_does_not_wait_and_blames_the_program(
    training: Bench,
) -> None:
    training.end(0, exit_code=1)
    training.end(1, exit_code=1)

    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.blame is Blame.PROGRAM
    assert opened.failure.finding.ranks == ()


def test_a_sigterm_from_outside_waits_for_the_launchers_word(training: Bench) -> None:
    training.end(0, signal=15)
    assert training.records(IncidentOpened) == []

    training.tell(stop_requested=StopReason.SIGTERM)

    assert training.records(IncidentOpened) == []
    assert (training.orders[-1].stop, training.orders[-1].grace_s) == (Stop.GRACE, 20.0)


def test_a_rank_that_ends_early_with_0_is_fine_and_all_of_them_are_the_end(
    training: Bench,
) -> None:
    training.end(0, exit_code=0)
    training.tell(after_s=10.0)
    assert training.records(IncidentOpened) == []

    training.end(1, exit_code=0)
    assert training.control.outcome is None
    training.empty()

    assert training.control.outcome.kind is OutcomeKind.DONE
    assert training.control.outcome.exit_code == 0
    assert training.orders[-1].ranks == (0, 1)  # nobody was ordered to stop


def test_no_attempt_starts_before_the_older_one_is_proved_gone(training: Bench) -> None:
    training.end(1, signal=9)
    orders = len(training.orders)
    for _second in range(5):
        training.tell(after_s=1.0)
    assert [one.attempt for one in training.records(AttemptStarted)] == [1]

    training.empty()

    assert [one.attempt for one in training.records(AttemptStarted)] == [1, 2]
    assert len(training.orders) == orders + 1


def test_a_fence_that_fails_escalates_with_the_failing_ranks_exit_code(training: Bench) -> None:
    training.end(1, signal=11)
    for _second in range(140):
        training.tell(after_s=1.0)

    outcome = training.control.outcome
    assert (outcome.kind, outcome.exit_code, outcome.rank) == (OutcomeKind.ESCALATED, 139, 1)
    assert "still there on n1 after 60 s" in outcome.reason
    assert training.records(JobEnded)[0].is_empty is False


def test_recovered_means_two_steps_of_every_rank_that_has_told_any(training: Bench) -> None:
    training.end(1, signal=9)
    training.empty()
    training.run_attempt(2)
    training.step(8, 1)
    assert training.control.ledger.incident.state.phase is Phase.VERIFYING

    training.ranks[0] = replace(training.ranks[0], step=9, steps_done=2)
    training.tell(after_s=1.0)
    assert training.control.ledger.incident.state.phase is Phase.VERIFYING

    training.step(9, 2)
    assert training.control.ledger.incident is None
    assert training.outcomes[-1] is Outcome.SUCCEEDED
    verified = training.records(AttemptVerified)[-1]
    assert (verified.attempt, verified.is_comparable, verified.first_step) == (2, True, 8)


def test_the_rendezvous_of_the_slowest_rank_is_recorded_once_every_rank_has_told_its_own(
    training: Bench,
) -> None:
    assert training.records(AttemptVerified)[-1].rendezvous_ended_age_s is None
    training.end(1, signal=9)
    training.empty()
    training.run_attempt(2)
    training.step(8, 1)
    for rank, began_age_s in ((0, 3.0), (1, 2.5)):
        met = {"rendezvous_began_age_s": began_age_s, "rendezvous_ended_age_s": 2.0}
        training.ranks[rank] = replace(training.ranks[rank], **met)

    training.step(9, 2)

    verified = training.records(AttemptVerified)[-1]
    assert verified.attempt == 2
    assert verified.rendezvous_began_age_s == pytest.approx(2.5), "the last one to begin"
    assert verified.rendezvous_ended_age_s == pytest.approx(2.0)


def test_catching_up_is_recorded_once_when_the_highest_step_is_passed(training: Bench) -> None:
    training.end(1, signal=9)
    training.recover(2, 8)
    training.step(10, 3)
    assert training.records(CaughtUp) == []

    training.step(11, 4)
    training.step(12, 5)
    assert [one.step for one in training.records(CaughtUp)] == [11]
    assert training.control.ledger.restarts_without_progress == 0


def test_ranks_that_are_attached_and_tell_no_steps_are_verified_by_living_longer() -> None:
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1)

    bench.tell(after_s=POLICY.verify_attached_s - 0.1)
    assert bench.records(AttemptVerified) == []
    bench.tell(after_s=0.2)

    (verified,) = bench.records(AttemptVerified)
    assert not verified.is_comparable


def test_programs_that_know_nothing_of_rankmend_are_verified_by_living() -> None:
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1, is_attached=False)

    bench.tell(after_s=POLICY.verify_alive_s - 0.1)
    assert bench.records(AttemptVerified) == []
    bench.tell(after_s=0.2)

    (verified,) = bench.records(AttemptVerified)
    assert verified.telling_ranks == ()


def test_a_rank_that_told_steps_before_is_not_verified_by_living(training: Bench) -> None:
    training.end(1, signal=9)
    training.empty()
    training.run_attempt(2)

    for _second in range(30):
        training.tell(after_s=1.0)

    assert training.control.ledger.incident.state.phase is Phase.VERIFYING


def test_a_failure_while_verifying_is_another_try_of_the_same_incident(training: Bench) -> None:
    training.end(1, signal=9)
    training.empty()
    training.run_attempt(2)
    training.end(0, signal=9)
    assert training.control.ledger.incident.state.try_number == 2
    training.empty()
    training.tell(after_s=POLICY.retry_pause_s)
    training.run_attempt(3)
    training.step(8, 1)
    training.step(9, 2)

    assert len(training.records(IncidentOpened)) == 1
    assert len(training.records(TryFailed)) == 1
    assert training.control.ledger.incident is None


OUTAGE = "HTTPSConnectionPool(host='tracker', port=443): Max retries exceeded with url: /api/log"


def test_each_restart_after_an_outage_waits_longer_and_it_is_no_failure_repeated(
    training: Bench,
) -> None:
    error = RankError("ConnectionError", OUTAGE, f"requests.ConnectionError: {OUTAGE}")
    waited_s = []
    for number in range(2, 8):
        training.step(10, 10)
        ended = RankExit(0.1, 1, None, False, False, error, ())
        training.ranks[0] = replace(training.ranks[0], process_state="", exit=ended)
        training.tell()
        training.tell(after_s=1.0)
        training.empty()
        began_s = training.clock.time_s
        while training.orders[-1].attempt != number:
            training.tell(after_s=0.5)
            assert training.control.outcome is None
        waited_s.append(round(training.clock.time_s - began_s))
        training.run_attempt(number)
        training.step(9, 1)

    symptoms = {one.failure.finding.symptom.kind for one in training.records(IncidentOpened)}
    assert symptoms == {SymptomKind.SERVICE}
    assert len(training.records(IncidentOpened)) == 6
    assert waited_s == [0, 1, 2, 4, 8, 16]


@pytest.mark.parametrize(("signal", "restarts"), [(11, 3), (9, 20)])
def test_tries_are_bounded_and_kills_from_outside_are_not_one_failure_repeated(
    training: Bench, signal: int, restarts: int
) -> None:
    training.step(11, 11)
    training.end(0, signal=signal)
    for number in range(2, 30):
        training.empty()
        for _second in range(int(POLICY.pause_before_s(number))):
            training.tell(after_s=1.0)
        if training.control.outcome is not None:
            break
        training.run_attempt(number)
        training.end(0, signal=signal)

    outcome = training.control.outcome
    assert outcome.kind is OutcomeKind.ESCALATED
    told = {11: "3 restarts after the same failure", 9: "all 20 tries failed"}
    assert told[signal] in outcome.reason
    assert training.control.ledger.restarts == restarts


def test_an_error_when_starting_is_tried_again_and_then_told() -> None:
    bench = Bench().start()
    bench.tell()
    for number in (1, 2):
        bench.attempt = number
        bench.tell(launch_error="no such file: train.py")
        bench.empty()
        bench.tell(after_s=1.0)
    bench.tell()

    outcome = bench.control.outcome
    assert outcome.kind is OutcomeKind.ESCALATED
    assert "no such file: train.py" in outcome.reason
    assert outcome.exit_code == 1


def test_a_stopped_rank_is_a_hang_and_named(training: Bench) -> None:
    training.ranks[1] = replace(training.ranks[1], process_state="T")
    for _second in range(135):  # 5 s, SIGCONT, and the long limit of a job that has saved nothing
        for rank, told in training.ranks.items():
            training.ranks[rank] = replace(told, step_age_s=told.step_age_s + 1.0)
        training.tell(after_s=1.0)

    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.ranks == (1,)
    assert opened.failure.finding.signature == "hung:stopped"
    assert opened.failure.exit_code == 1


def test_silence_of_the_launcher_is_no_hang(training: Bench) -> None:
    training.ranks[1] = replace(training.ranks[1], process_state="T")
    training.tell(after_s=1.0)

    for _second in range(300):
        training.clock.time_s += 1.0
        training.control.tick()

    assert training.records(IncidentOpened) == []


def test_an_old_report_takes_nothing_back(training: Bench) -> None:
    before = dict(training.ranks)
    training.end(1, signal=9)
    training.empty()
    training.run_attempt(2)

    training.tell(attempt=1, ranks=tuple(before.values()), empty_through=0, revision=3)

    assert training.control.ledger.attempt == 2
    assert training.control.ledger.incident.state.phase is Phase.VERIFYING
    assert training.orders[-1].attempt == 2


def test_a_stop_is_no_incident_and_ends_with_the_signals_code(training: Bench) -> None:
    training.control.request_stop(StopReason.SIGINT, 7.0)
    training.tell()
    assert (training.orders[-1].ranks, training.orders[-1].grace_s) == ((), 7.0)
    training.end(0, exit_code=0)
    training.end(1, exit_code=1)
    training.empty()

    assert training.records(IncidentOpened) == []
    assert training.control.outcome.kind is OutcomeKind.STOPPED
    assert training.control.outcome.exit_code == 130


def test_a_stop_whose_ranks_do_not_go_ends_all_the_same(training: Bench) -> None:
    training.tell(stop_requested=StopReason.TIME_LIMIT)
    for _second in range(int(SETTINGS.grace_s + POLICY.fence_timeout_s) + 1):
        training.tell(after_s=1.0)

    outcome = training.control.outcome
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.TIME_LIMIT, 124)
    assert "ranks may be left on n1: not proved gone after 80 s" in outcome.reason


def test_a_journal_that_fails_stops_nothing_and_decides_nothing(training: Bench) -> None:
    orders = len(training.orders)
    training.journal.is_failing = True
    training.end(1, signal=9)
    for _second in range(20):
        training.tell(after_s=1.0)
    assert len(training.orders) == orders
    assert "ENOSPC" in training.control.journal_error
    trouble = training.control.journal_trouble
    assert trouble is not None
    assert trouble.startswith("decisions can't be recorded (since 2023-11-14 22:30:02 UTC), ")
    assert trouble.endswith(f"so nothing is restarted: {training.control.journal_error}")
    assert training.control.outcome is None

    training.journal.is_failing = False
    for _second in range(10):
        training.tell(after_s=1.0)

    assert training.control.journal_error is None
    assert len(training.records(IncidentOpened)) == 1
    assert training.orders[-1].ranks == ()


def test_a_stop_is_obeyed_without_a_journal_under_the_revision_it_then_gets(
    training: Bench,
) -> None:
    training.journal.is_failing = True
    training.tell(stop_requested=StopReason.SIGTERM)
    unwritten = training.orders[-1]
    assert (unwritten.ranks, unwritten.stop) == ((), Stop.GRACE)

    training.journal.is_failing = False
    for _second in range(6):
        training.tell(after_s=1.0)

    assert training.control.ledger.revision == unwritten.revision
    training.empty()
    assert training.control.outcome.kind is OutcomeKind.STOPPED
    assert "not in the journal" not in training.control.outcome.reason


def test_a_job_that_is_done_does_not_wait_long_for_its_journal(training: Bench) -> None:
    training.journal.is_failing = True
    training.end(0, exit_code=0)
    training.end(1, exit_code=0)
    training.tell(after_s=JOURNAL_PATIENCE_KNOWN_S - 0.1)
    assert training.control.outcome is None
    training.tell(after_s=0.2)

    outcome = training.control.outcome
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.DONE, 0)
    assert "not in the journal" in outcome.reason


def test_a_job_that_failed_waits_longer_for_its_journal(training: Bench) -> None:
    training.journal.is_failing = True
    training.end(0, exit_code=3)
    training.end(1, exit_code=3)
    for _second in range(int(JOURNAL_PATIENCE_S) - 1):
        training.tell(after_s=1.0)
    assert training.control.outcome is None
    for _second in range(3):
        training.tell(after_s=1.0)

    assert training.control.outcome.exit_code == 3


def test_evidence_that_is_told_while_the_disk_is_full_is_on_record_once_it_is_not(
    training: Bench,
) -> None:
    training.journal.is_failing = True
    training.tell(collected=Collected("i-1", 1, "/evidence", 1, 10, 0.1, ()))
    training.tell()
    training.journal.is_failing = False
    for _report in range(3):
        training.tell(after_s=6.0)

    (collected,) = training.records(EvidenceCollected)
    assert collected.saved[0].folder == "/evidence"


def test_storage_that_fails_in_an_incident_costs_a_try(training: Bench) -> None:
    training.end(1, signal=9)
    training.storage.is_failing = True
    training.empty()
    (failed,) = training.records(TryFailed)
    assert "the checkpoint folder does not answer" in failed.reason

    training.storage.is_failing = False
    training.tell(after_s=2.0)
    assert training.orders[-1].ranks == (0, 1)
    assert decode_budgets(training.storage.copy).attempt == 2, "the copy is written again"


def test_milestones_are_few(training: Bench) -> None:
    before = len(training.records(Milestone))
    for step in range(11, 111):
        training.step(step, step, after_s=0.1)

    assert len(training.records(Milestone)) - before == 2  # 10 s at one in 5 s


def again(bench: Bench) -> Bench:
    """Return rankmend started again on what the first one left behind."""
    after = Bench(opened=bench.journal.entries)
    after.clock.time_s = bench.clock.time_s + 30.0
    after.storage = bench.storage
    after.launcher = bench.launcher + 1
    after.empty_through = bench.control.ledger.attempt
    return after


def test_after_the_launchers_death_the_job_is_taken_over_without_an_incident(
    training: Bench,
) -> None:
    after = again(training).start()
    after.tell()

    started = after.records(AttemptStarted)[-1]
    assert (started.attempt, started.cause) == (2, Cause.TAKEOVER)
    assert after.control.ledger.restarts_without_progress == 1
    assert after.records(IncidentOpened) == []


def test_evidence_that_a_launcher_still_tells_is_not_put_on_record_again_by_the_next_controller(
    training: Bench,
) -> None:
    training.extra = {"collected": Collected("i-1", 1, "/evidence", 1, 10, 0.1, ())}
    training.tell()
    training.tell(after_s=6.0)
    assert len(training.records(EvidenceCollected)) == 1

    after = again(training)
    after.extra = training.extra
    after.start()
    for _report in range(5):
        after.tell(after_s=6.0)

    assert len(after.records(EvidenceCollected)) == 1


def test_a_takeover_waits_for_the_proof_that_the_old_ranks_are_gone(training: Bench) -> None:
    after = again(training)
    after.empty_through = 0
    after.start().tell()
    assert (after.orders[-1].ranks, after.orders[-1].attempt) == ((), 1)

    after.tell(after_s=1.0, empty_through=1)
    assert after.orders[-1].attempt == 2


def test_a_takeover_goes_on_with_an_open_incident(training: Bench) -> None:
    training.end(1, signal=9)
    after = again(training).start()
    after.tell()

    assert after.orders[-1].attempt == 2
    assert after.records(AttemptStarted)[-1].cause is Cause.INCIDENT
    assert len(after.records(IncidentOpened)) == 1


def test_a_takeover_while_verifying_is_a_failed_try(training: Bench) -> None:
    training.end(1, signal=9)
    training.empty()
    training.run_attempt(2)
    after = again(training).start()
    after.tell()
    after.tell(after_s=2.0)

    (failed,) = after.records(TryFailed)
    assert "attempt 2 is not running" in failed.reason
    assert after.orders[-1].attempt == 3


def test_ranks_that_outlived_the_controller_alone_are_left_to_run(training: Bench) -> None:
    after = again(training)
    after.launcher, after.reports = training.launcher, training.reports
    after.empty_through = 0
    after.attempt, after.ranks = 1, training.ranks
    after.start().tell()
    after.step(11, 11)

    assert [one.attempt for one in after.records(AttemptStarted)] == [1]
    assert after.orders[-1].ranks == (0, 1)
    assert after.orders[-1].revision == training.orders[-1].revision


def test_takeovers_spend_the_budget(training: Bench) -> None:
    bench = training
    for _death in range(50):
        bench = again(bench).start()
        bench.tell()
    assert bench.control.ledger.attempt == 51
    last = again(bench).start()
    last.tell()

    assert last.control.outcome.kind is OutcomeKind.ESCALATED
    assert "50 restarts brought no new step and no newer checkpoint" in last.control.outcome.reason
    assert "--reset-budgets" in last.control.outcome.reason


def test_a_person_can_give_the_restarts_back(training: Bench) -> None:
    bench = training
    for _death in range(3):
        bench = again(bench).start()
        bench.tell()
    last = again(bench)
    last.settings = replace(SETTINGS, budgets_reset_by="ada")
    last.start().tell()

    assert last.control.outcome is None
    assert last.records(BudgetsReset)[0].who == "ada"
    assert last.control.ledger.restarts == 1


def test_lost_records_are_said_loudly_and_the_stricter_budgets_hold(training: Bench) -> None:
    kept = training.journal.entries[:3]
    after = Bench(opened=kept)
    after.storage.copy = encode_budgets(replace(training.control.ledger, restarts=7, number=99))
    after.start()

    assert "records were lost: the journal ends at 3" in after.control.warnings[0]
    assert len(after.records(RecordsLost)) == 1
    assert after.control.ledger.restarts == 7


def test_an_attempt_that_is_over_is_waited_for_on_no_node_though_the_journal_is_lost(
    training: Bench,
) -> None:
    """A job that ended on some nodes starts on others, which have no journal of it: as after a requeue."""
    assert decode_budgets(training.storage.copy).nodes == ("n1",)

    training.end(0, exit_code=0)
    training.end(1, exit_code=0)
    training.empty()

    assert decode_budgets(training.storage.copy).nodes == ()


def test_the_copy_names_the_nodes_of_each_attempt_before_they_receive_its_order(
    training: Bench,
) -> None:
    """Else a new host would not wait for the last attempt, where the controller and its journal are lost just then."""
    named: list[tuple[int, tuple[str, ...]]] = []

    def send(order: Order) -> None:
        copy = decode_budgets(training.storage.copy)
        named.append((copy.attempt, copy.nodes))
        training.orders.append(order)

    training.send = send  # type: ignore[method-assign]
    fail(training)

    assert training.orders[-1].attempt == 2
    assert named[-1] == (2, ("n1",))
    assert {nodes for _attempt, nodes in named} == {("n1",)}, "also while none runs"


@pytest.mark.parametrize("body", [b"garbage", b""])
def test_a_damaged_copy_of_the_budgets_is_said_and_harms_nothing(body: bytes) -> None:
    bench = Bench()
    bench.storage.copy = body

    bench.start().tell()

    assert "copy of the budgets can't be used" in bench.control.warnings[0]
    assert bench.orders[-1].attempt == 1


def test_another_jobs_journal_is_refused(training: Bench) -> None:
    after = again(training)
    after.settings = replace(SETTINGS, job_id="another")

    with pytest.raises(JournalError, match="belongs to job 0c1d6a52-job, not to another"):
        after.start()


def test_a_job_whose_ranks_were_done_is_not_started_again_by_a_takeover(training: Bench) -> None:
    training.end(0, exit_code=0)
    training.end(1, exit_code=0)
    after = again(training).start()

    after.tell()
    after.tell(after_s=RESEND_S)

    assert after.control.outcome.kind is OutcomeKind.DONE
    assert all(order.ranks == () for order in after.orders)


def test_a_proof_of_emptiness_stays_one_when_an_older_report_comes() -> None:
    bench = Bench().start()
    bench.tell()
    nodes = JobNodes(SETTINGS, bench)
    report = Report(
        1,
        "n1",
        "boot-1",
        SETTINGS.job_id,
        4,
        2,
        (),
        empty_through=2,
        launcher_id="launcher-1",
        slots=2,
    )

    ledger = replace(bench.control.ledger, attempt=2)
    nodes.hear(report, ledger, 1.0)
    nodes.hear(replace(report, empty_through=1, revision=3), ledger, 2.0)

    assert nodes.are_empty(ledger)
    assert not nodes.are_empty(replace(ledger, attempt=3))
