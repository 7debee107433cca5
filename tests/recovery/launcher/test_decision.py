"""What a launcher does next, decided from values alone."""

from dataclasses import replace
from typing import Any

import pytest

from recovery.launcher.decision import pace
from recovery.launcher.decision.decide import (
    FENCE_S_MAX,
    LEASE_STEP_S,
    LEFTOVER_S,
    STOP_ALONE_S,
    decide,
)
from recovery.launcher.decision.launcher_state import (
    ATTEMPT_MAX,
    AskForFence,
    AskRanksToStop,
    AttemptFacts,
    CollectEvidence,
    ContinueRanks,
    FindCheckpoints,
    FollowedOrders,
    ForgetAttempt,
    KeepLease,
    KeptLease,
    KillThrough,
    LauncherAction,
    LauncherState,
    LeaseRanks,
    Leave,
    ReleaseCheckpoint,
    StartRanks,
    WatchCheckpoints,
)
from recovery.messages.candidates import Share
from recovery.messages.exchange import Endpoint, Order, Peer, Restore, Stop

NOW_S = 1000.0
ORDER = Order(
    version=1,
    job_id="job",
    revision=5,
    attempt=2,
    ranks=(0, 1),
    world_size=2,
    group_rank=0,
    group_count=1,
    stop=Stop.KILL,
    grace_s=20.0,
    restore=None,
    restarts=1,
    restarts_max=3,
    node="a",
    epoch=1,
    controller_id="first",
)
PEERS = (Peer("a", "one", Endpoint("10.0.0.1", 1)), Peer("b", "two", Endpoint("10.0.0.2", 1)))
RUNNING = AttemptFacts(1, NOW_S - 100, 2, is_started=True, is_stepping=True)
ENDED = replace(RUNNING, is_started=False, has_ended=True)
CARRIED = (ORDER.epoch, ORDER.revision)


def state(**facts: Any) -> LauncherState:
    return replace(LauncherState(can_collect=True), **facts)


def actions(order: Order | None, before: LauncherState) -> tuple[LauncherAction, ...]:
    return decide(order, before, NOW_S).actions


def order(**changes: Any) -> Order:
    return replace(ORDER, **changes)


def test_without_an_order_nothing_is_done() -> None:
    decision = decide(None, state(), NOW_S)

    assert decision.actions == ()
    assert decision.state == state()


def test_the_first_order_starts_its_ranks_and_counts_as_carried_out() -> None:
    fenced = state(fence_asked=(1, NOW_S), fenced_attempt=1)

    decision = decide(order(attempt=1), fenced, NOW_S)

    assert decision.actions == (StartRanks(order(attempt=1)),)
    assert decision.state.carried == CARRIED


def test_an_order_that_was_carried_out_asks_for_nothing_more() -> None:
    before = state(attempt=replace(RUNNING, number=2), carried=CARRIED, empty_through=1)

    assert decide(ORDER, before, NOW_S).actions == ()


def test_a_newer_attempt_waits_until_no_process_of_the_older_is_left() -> None:
    before = state(attempt=RUNNING, fence_asked=(2, NOW_S), fenced_attempt=2)

    first = decide(ORDER, before, NOW_S)
    waiting = decide(ORDER, first.state, NOW_S)
    gone = decide(ORDER, replace(first.state, attempt=ENDED, empty_through=1), NOW_S)

    assert first.actions == (KillThrough(1),)
    assert waiting.actions == ()
    assert gone.actions == (ForgetAttempt(1), StartRanks(ORDER))
    assert [one.state.carried for one in (first, waiting, gone)] == [(0, 0), (0, 0), CARRIED]


def test_an_order_for_nothing_ends_whatever_runs() -> None:
    assert actions(order(ranks=(), attempt=0), state(attempt=RUNNING)) == (KillThrough(1),)


def test_an_attempt_that_was_reported_as_gone_is_never_started() -> None:
    assert actions(ORDER, state(empty_through=2)) == ()
    assert decide(ORDER, state(empty_through=2), NOW_S).state.carried == CARRIED


def test_ranks_get_the_ordered_grace_and_are_killed_when_it_is_over() -> None:
    stop = order(ranks=(), attempt=1, stop=Stop.GRACE)
    before = state(attempt=RUNNING)

    asked = decide(stop, before, NOW_S)
    in_time = decide(stop, asked.state, NOW_S + 19.9)
    late = decide(stop, asked.state, NOW_S + 20.0)

    assert asked.actions == (AskRanksToStop(1),)
    assert in_time.actions == ()
    assert late.actions == (KillThrough(1),)


def test_ranks_without_grace_are_asked_and_killed_at_once() -> None:
    stop = order(ranks=(), attempt=1, stop=Stop.GRACE, grace_s=0.0)

    asked = decide(stop, state(attempt=RUNNING), NOW_S)

    assert asked.actions == (AskRanksToStop(1),)
    assert actions(stop, asked.state) == (KillThrough(1),)


def test_an_interrupt_that_ends_the_grace_kills_where_no_order_came() -> None:
    before = state(attempt=RUNNING, carried=CARRIED, grace_until_s=NOW_S)

    assert actions(ORDER, before) == (KillThrough(1),)
    assert actions(None, replace(before, carried=(0, 0))) == (KillThrough(1),)
    assert actions(ORDER, replace(before, grace_until_s=NOW_S + 0.1)) == ()


def test_evidence_is_collected_once_and_holds_up_the_kill_within_its_time() -> None:
    hung = order(collect="inc-1", collect_s=8.0)

    asked = decide(hung, state(attempt=RUNNING), NOW_S)
    waiting = decide(hung, replace(asked.state, evidence_wait_s=3.0), NOW_S)
    done = decide(hung, replace(asked.state, evidence_wait_s=0.0), NOW_S)

    assert asked.actions == (CollectEvidence("inc-1", 1, 8.0),)
    assert waiting.actions == ()
    assert done.actions == (KillThrough(1),)


def test_dead_ranks_are_asked_nothing_and_their_dumps_are_saved_before_they_are_forgotten() -> None:
    before = state(attempt=ENDED, empty_through=1, kill_sent_through=1)

    done = actions(order(collect="inc-1", collect_s=8.0), before)

    assert done[:2] == (CollectEvidence("inc-1", 1, 0.0), ForgetAttempt(1))


def test_a_launcher_that_can_collect_nothing_kills_at_once() -> None:
    hung = order(collect="inc-1", collect_s=8.0)

    assert actions(hung, state(attempt=RUNNING, can_collect=False)) == (KillThrough(1),)


def test_children_that_outlive_their_ranks_get_a_moment() -> None:
    before = state(attempt=replace(ENDED, has_leftovers=True), carried=CARRIED)

    seen = decide(ORDER, before, NOW_S)
    in_time = decide(ORDER, seen.state, NOW_S + LEFTOVER_S - 0.1)
    late = decide(ORDER, seen.state, NOW_S + LEFTOVER_S)

    assert seen.state.leftover_until_s == NOW_S + LEFTOVER_S
    assert (seen.actions, in_time.actions) == ((), ())
    assert late.actions == (KillThrough(1),)


def test_an_attempt_that_ended_without_children_is_closed_at_once_and_only_once() -> None:
    ended = decide(ORDER, state(attempt=ENDED, carried=CARRIED), NOW_S)

    assert ended.actions == (KillThrough(1),)
    assert actions(ORDER, ended.state) == ()


def test_a_member_starts_only_once_the_storage_has_answered() -> None:
    wanted = order(restore=Restore("/ckpt/step-7", 7))

    asked = decide(wanted, state(empty_through=1), NOW_S)
    waiting = decide(wanted, asked.state, NOW_S + FENCE_S_MAX - 1)
    answered = decide(wanted, replace(asked.state, fenced_attempt=2), NOW_S + 1)

    assert asked.actions == (AskForFence(2, "/ckpt/step-7"),)
    assert waiting.actions == ()
    assert answered.actions == (StartRanks(wanted),)


def test_a_storage_that_never_answers_is_not_waited_for_for_ever() -> None:
    asked = decide(ORDER, state(empty_through=1), NOW_S)

    assert decide(ORDER, asked.state, NOW_S + FENCE_S_MAX).actions == (StartRanks(ORDER),)


def test_a_checkpoint_is_held_until_every_rank_here_trains() -> None:
    asked = decide(order(restore=Restore("/ckpt/step-7", 7)), state(empty_through=1), NOW_S)
    carried = replace(asked.state, carried=CARRIED)
    loading = AttemptFacts(2, NOW_S, 2, is_started=True)

    def after(facts: AttemptFacts | None) -> tuple[LauncherAction, ...]:
        return actions(ORDER, replace(carried, attempt=facts))

    assert after(None) == ()
    assert after(loading) == ()
    assert after(replace(loading, rank_count=0, is_stepping=True)) == ()  # none is made yet
    assert after(replace(loading, number=1, is_stepping=True)) == ()
    assert after(replace(loading, is_stepping=True)) == (ReleaseCheckpoint(2),)


def test_ranks_that_all_ended_have_not_proved_that_they_could_read_their_checkpoint() -> None:
    ended = AttemptFacts(2, NOW_S, 2, has_ended=True, is_stepping=True)  # of none that lives
    before = state(attempt=ended, pinned_attempt=2, carried=CARRIED, kill_sent_through=2)

    assert actions(ORDER, before) == ()


def test_a_checkpoint_is_released_once() -> None:
    before = state(attempt=replace(RUNNING, number=2), pinned_attempt=2, carried=CARRIED)

    released = decide(ORDER, before, NOW_S)

    assert released.actions == (ReleaseCheckpoint(2),)
    assert actions(ORDER, released.state) == ()


def test_an_answer_for_an_older_attempt_is_no_answer() -> None:
    before = state(empty_through=1, fenced_attempt=1)

    assert actions(ORDER, before) == (AskForFence(2, None),)


def test_checkpoints_are_watched_beside_ranks_and_found_once_without() -> None:
    member = state(empty_through=2, fenced_attempt=3)
    look = order(ranks=(), finds_checkpoints=True)

    found = decide(look, member, NOW_S)

    assert found.actions == (FindCheckpoints(2, 5),)
    assert actions(look, replace(found.state, carried=(0, 0))) == ()
    running = order(attempt=3, share=Share(1, 4))
    assert actions(running, member) == (
        AskForFence(3, None),
        StartRanks(running),
        WatchCheckpoints(Share(1, 4)),
    )


def test_only_the_share_of_the_order_is_read() -> None:
    member = state(empty_through=2)
    look = order(ranks=(), finds_checkpoints=True, share=Share(1, 4))

    assert actions(look, member) == (FindCheckpoints(2, 5, Share(1, 4)),)


def test_a_node_without_a_share_watches_no_checkpoints() -> None:
    running = order(attempt=3)

    assert actions(running, state(empty_through=2, fenced_attempt=3)) == (
        AskForFence(3, None),
        StartRanks(running),
    )


def test_a_lease_follows_the_time_at_which_somebody_was_reached() -> None:
    leased = order(attempt=1, peers=PEERS, lease_s=60.0, neighbours=PEERS[:1])
    before = state(attempt=RUNNING, carried=CARRIED, reached_at_s=50.0)

    first = decide(leased, before, NOW_S)
    little = replace(first.state, reached_at_s=50.0 + LEASE_STEP_S / 2)
    moved = replace(first.state, reached_at_s=50.0 + LEASE_STEP_S)

    kept = KeptLease(1, PEERS, 60.0, neighbours=PEERS[:1])
    assert first.actions == (KeepLease(kept), LeaseRanks(1, 110.0))
    assert actions(leased, little) == ()
    assert actions(leased, moved) == (LeaseRanks(1, 110.0 + LEASE_STEP_S),)


@pytest.mark.parametrize(
    "changes", [{"attempt": 2}, {"ranks": ()}, {"lease_s": 0.0}], ids=["newer", "stop", "none"]
)
def test_a_lease_is_not_prolonged_by_an_order_that_ends_the_ranks(changes: dict[str, Any]) -> None:
    kept = KeptLease(1, PEERS, 60.0)
    before = state(attempt=RUNNING, lease=kept, leased_until_s=70.0, reached_at_s=50.0)
    ending = replace(order(attempt=1, peers=PEERS, lease_s=60.0), **changes)

    done = decide(ending, before, NOW_S)

    assert not [one for one in done.actions if isinstance(one, LeaseRanks | KeepLease)]
    assert done.state.lease == kept


def test_a_lease_goes_on_while_ranks_save_in_the_grace_of_a_planned_stop() -> None:
    kept = KeptLease(1, PEERS, 60.0, kill_bound_s=10.0)
    before = state(attempt=RUNNING, lease=kept, leased_until_s=70.0, reached_at_s=50.0)
    stopping = order(attempt=1, ranks=(), stop=Stop.GRACE)

    first = decide(stopping, before, NOW_S)
    killed = decide(stopping, replace(first.state, reached_at_s=90.0, kill_sent_through=1), NOW_S)

    assert [one for one in first.actions if isinstance(one, LeaseRanks)] == [
        LeaseRanks(1, 110.0, 10.0)
    ]
    assert not [one for one in killed.actions if isinstance(one, LeaseRanks)]


def test_ranks_that_are_being_killed_get_no_longer_lease() -> None:
    leased = order(attempt=1, peers=PEERS, lease_s=60.0)
    before = state(attempt=RUNNING, carried=CARRIED, kill_sent_through=1, reached_at_s=50.0)

    assert actions(leased, before) == ()


def test_a_lease_ends_with_its_attempt() -> None:
    before = state(
        attempt=ENDED,
        empty_through=1,
        kill_sent_through=1,
        carried=CARRIED,
        lease=KeptLease(1, PEERS, 60.0),
        leased_until_s=110.0,
    )

    ended = decide(order(attempt=1), before, NOW_S)

    assert ended.actions == (LeaseRanks(0, None), KeepLease(None))
    assert actions(order(attempt=1), ended.state) == ()


def test_an_order_without_a_lease_keeps_none() -> None:
    started = state(attempt=RUNNING, carried=CARRIED, reached_at_s=50.0)

    assert actions(order(attempt=1), started) == ()


def test_a_member_whose_controller_is_silent_stops_its_ranks_itself_and_then_leaves() -> None:
    before = state(
        attempt=RUNNING,
        carried=CARRIED,
        stop_asked_at_s=NOW_S - STOP_ALONE_S,
        grace_s=30.0,
    )

    patient = decide(ORDER, replace(before, stop_asked_at_s=NOW_S - STOP_ALONE_S + 0.1), NOW_S)
    asked = decide(ORDER, before, NOW_S)
    killed = decide(ORDER, asked.state, NOW_S + 30.0)
    gone = decide(ORDER, replace(killed.state, attempt=ENDED, empty_through=1), NOW_S + 31.0)

    assert patient.actions == ()
    assert asked.actions == (AskRanksToStop(1, is_alone=True),)
    assert killed.actions == (KillThrough(1),)
    assert Leave() in gone.actions


def test_a_member_whose_controller_has_ordered_the_stop_does_not_stop_alone() -> None:
    before = state(stop_asked_at_s=NOW_S - 60, carried=CARRIED)

    assert actions(order(stop=Stop.GRACE, ranks=()), before) == ()


# Which orders count.


FOLLOWED = FollowedOrders("job", "a", "one", slots=2, followed_at_s=0.0).follow(ORDER, 1.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job_id": "another"}, "it is for node 'a' of job another"),
        ({"node": "b"}, "it is for node 'b' of job job"),
        ({"launcher_id": "two"}, "it is for launcher two; this is one"),
        ({"epoch": 0}, "it comes from controller epoch 0, but epoch 1 was already seen"),
        ({"controller_id": "second"}, "it comes from another controller of epoch 1: second"),
        (
            {"attempt": ATTEMPT_MAX + 1},
            f"its attempt is {ATTEMPT_MAX + 1}; the limit is {ATTEMPT_MAX}",
        ),
        ({"ranks": (0, 1, 2)}, "it has 3 ranks; this node runs at most 2"),
        ({"revision": 5}, ""),
    ],
)
def test_an_order_that_does_not_count_is_refused_with_its_reason(
    changes: dict[str, Any], reason: str
) -> None:
    assert FOLLOWED.refusal(replace(ORDER, **{"revision": 6, **changes})) == reason


def test_an_order_counts_that_is_newer_or_of_a_newer_controller() -> None:
    assert FOLLOWED.refusal(order(revision=6)) is None
    assert FOLLOWED.refusal(order(revision=1, epoch=2, controller_id="second")) is None


def test_a_launcher_claims_what_it_runs_only_towards_another_controller() -> None:
    at_home = FOLLOWED.hear(1, "first", 4.0)
    abroad = at_home.hear(2, "second", 9.0)

    assert FOLLOWED.claim(10.0) is None
    assert at_home.claim(10.0) is None
    claim = abroad.claim(10.0)
    assert claim is not None
    assert (claim.contact_age_s, claim.attempt, claim.ranks) == (6.0, 2, (0, 1))


def test_an_order_without_ranks_does_not_change_who_has_which_ranks() -> None:
    later = FOLLOWED.follow(order(revision=6, ranks=()), 2.0)

    assert later.standing == ORDER
    assert later.follow(order(revision=7, attempt=3, ranks=()), 3.0).standing != ORDER


# How often it reports.


def test_reports_are_quick_until_every_rank_steps() -> None:
    calm = state(attempt=RUNNING, carried=CARRIED)

    def pause_s(before: LauncherState) -> float:
        return pace.report_pause_s(ORDER, before, NOW_S)

    assert pause_s(calm) == pace.REPORT_S
    assert pause_s(replace(calm, carried=(1, 4))) == pace.REPORT_FAST_S
    beginning = replace(calm, attempt=replace(RUNNING, is_stepping=False))
    assert pause_s(beginning) == pace.REPORT_FAST_S
    assert (
        pause_s(replace(beginning, report_pause_min_s=pace.REMOTE_REPORT_S_MIN))
        == pace.REMOTE_REPORT_S_MIN
    )
    assert pace.report_pause_s(ORDER, beginning, NOW_S + pace.HURRY_S_MAX) == pace.REPORT_S


def test_launchers_of_a_large_job_share_what_a_controller_takes() -> None:
    assert pace.shared_pause_s(0.5, 8) == 0.5
    assert pace.shared_pause_s(0.5, 20_000) == 10.0


def test_the_loop_wakes_for_the_earliest_of_its_deadlines() -> None:
    calm = state(attempt=RUNNING, carried=CARRIED)

    def wait_s(before: LauncherState) -> float:
        return pace.wait_s(ORDER, before, NOW_S, NOW_S)

    assert wait_s(calm) == pace.REPORT_S
    assert wait_s(replace(calm, grace_until_s=NOW_S + 0.25)) == 0.25
    assert wait_s(replace(calm, leftover_until_s=NOW_S - 1)) == 0.0
    assert wait_s(replace(calm, evidence_wait_s=0.125)) == 0.125


def test_standbys_start_only_while_every_rank_trains() -> None:
    calm = state(attempt=RUNNING, carried=CARRIED)

    assert pace.is_calm(ORDER, calm, NOW_S)
    assert not pace.is_calm(ORDER, replace(calm, stop_asked_at_s=1.0), NOW_S)
    assert not pace.is_calm(ORDER, replace(calm, attempt=ENDED), NOW_S)
    assert not pace.is_calm(None, calm, NOW_S)


def test_stopped_ranks_are_told_to_go_on_once_for_each_record() -> None:
    order = replace(ORDER, continues=(1,), continue_number=7)
    running = LauncherState(attempt=replace(RUNNING, number=2), empty_through=1, carried=CARRIED)

    first = decide(order, running, NOW_S)
    again = decide(order, first.state, NOW_S)
    next_record = decide(replace(order, continue_number=9), first.state, NOW_S)

    assert first.actions == (ContinueRanks(2, (1,)),)
    assert again.actions == ()
    assert next_record.actions == (ContinueRanks(2, (1,)),)


def test_ranks_that_are_being_killed_are_not_told_to_go_on() -> None:
    order = replace(ORDER, continues=(1,), continue_number=7)
    state = LauncherState(
        attempt=replace(RUNNING, number=2), empty_through=1, carried=CARRIED, kill_sent_through=2
    )

    assert decide(order, state, NOW_S).actions == ()
    other = replace(state, attempt=RUNNING, kill_sent_through=0)
    assert ContinueRanks(2, (1,)) not in decide(order, other, NOW_S).actions
