from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.finding import Blame, Evidence, Kind
from detectors.hang.live import (
    EVIDENCE_MAX,
    Hang,
    HangCause,
    HungLimits,
    LimitRule,
    RankStand,
    detect_hung,
    hang_finding,
)
from rankmend.errors import ConfigError
from rankmend.rank_values import ScriptEnd

LIMITS = HungLimits()
MINUTE_S = 60.0


def stand(rank: int, **more: object) -> RankStand:
    """A rank that has stood still for 400 s, in the middle of a step of 0.1 s."""
    whole = RankStand(
        rank=rank,
        process_state="S",
        state_age_s=400.0,
        is_done=False,
        steps_done=35,
        advanced_age_s=400.0,
        section="communication",
        section_age_s=400.0,
        sections_entered=72,
        step_times_s=(0.1, 0.1, 0.9),
    )
    return replace(whole, **more)  # type: ignore[arg-type]


def world(*odd: RankStand, size: int = 4, **more: object) -> list[RankStand]:
    """Ranks that are all alike, but for the odd ones."""
    stands = {rank: stand(rank, **more) for rank in range(size)}
    stands.update({one.rank: one for one in odd})
    return list(stands.values())


def hang_of(stands: list[RankStand], **more: object) -> Hang | None:
    return detect_hung(stands, LIMITS, **{"attempt_age_s": 4000.0, **more})  # type: ignore[arg-type]


def seen(stands: list[RankStand], **more: object) -> Hang:
    hang = hang_of(stands, **more)
    assert hang is not None
    return hang


def test_stopped_rank_is_accused_as_soon_as_nobody_advances_for_the_short_limit() -> None:
    stopped = stand(2, process_state="T", state_age_s=5.4, advanced_age_s=5.5, sections_entered=71)

    hang = seen(world(stopped, advanced_age_s=5.2))

    assert (hang.cause, hang.suspects, hang.victims) == (HangCause.STOPPED, (2,), (0, 1, 3))
    assert hang.limit.rule is LimitRule.STOPPED
    assert (
        hang.why
        == "no rank advanced for 5.2 s; limit 5 s (a stopped process does not continue by itself)"
    )
    assert hang.evidence == (
        Evidence("rankmend", hang.why),
        Evidence(
            "/proc/PID/stat and progress file",
            "rank 2: stopped by a signal for 5.4 s; "
            "35 steps, 71 sections, in communication for 400.0 s",
        ),
        Evidence(
            "/proc/PID/stat and progress file",
            "ranks 0, 1 and 3: sleeping for 400.0 s; "
            "35 steps, 72 sections, in communication for 400.0 s",
        ),
    )


@pytest.mark.parametrize(
    ("stalled_s", "stopped_s", "is_hang"),
    [(5.0, 5.0, True), (4.99, 9.0, False), (9.0, 4.99, False)],
)
def test_stopped_rank_counts_when_it_and_the_stillness_have_lasted(
    stalled_s: float, stopped_s: float, is_hang: bool
) -> None:
    stopped = stand(2, process_state="T", state_age_s=stopped_s, advanced_age_s=stalled_s)

    assert (hang_of(world(stopped, advanced_age_s=stalled_s)) is not None) is is_hang


def test_stopped_rank_among_ranks_that_advance_is_no_hang() -> None:
    stopped = stand(2, process_state="T")

    assert hang_of(world(stopped, stand(0, advanced_age_s=0.1))) is None


def test_long_steps_make_the_limit_of_a_stopped_rank_longer() -> None:
    stands = world(stand(2, process_state="T"))
    steps_of_20_s = [replace(one, step_times_s=(20.0,)) for one in stands]
    steps_of_21_s = [replace(one, step_times_s=(21.0,)) for one in stands]

    assert seen(steps_of_20_s).limit.limit_s == 400.0
    assert hang_of(steps_of_21_s) is None


@pytest.mark.parametrize("state", ["T", "Z", "X", ""])
@pytest.mark.parametrize("section", ["checkpoint", "io", "idle"])
def test_dead_or_stopped_rank_counts_in_every_section_and_after_any_pause(
    state: str, section: str
) -> None:
    stands = world(stand(1, process_state=state, state_age_s=6.0), section=section, steps_done=0)

    assert seen(stands, longest_gap_s=900.0).suspects == (1,)


@pytest.mark.parametrize("state", ["R", "S", "D", "t"])
def test_running_blocked_or_traced_rank_is_not_certain(state: str) -> None:
    stands = world(stand(2, process_state=state, state_age_s=200.0), advanced_age_s=200.0)

    assert hang_of(stands) is None


def test_all_ranks_stopped_is_a_hang_that_accuses_nobody() -> None:
    hang = seen(world(process_state="T", advanced_age_s=6.0))

    assert (hang.cause, hang.suspects) == (HangCause.STOPPED, ())
    assert hang.reason == "all 4 ranks are alike (stopped by a signal)"


def test_only_rank_of_a_job_is_accused_when_stopped() -> None:
    assert seen([stand(0, process_state="T")]).suspects == (0,)


def test_stopped_rank_of_a_job_that_tells_nothing_counts_after_the_floor() -> None:
    silent = {"advanced_age_s": None, "steps_done": 0, "sections_entered": 0, "section": "idle"}
    short = stand(2, **{**silent, "process_state": "T", "state_age_s": 299.0})  # type: ignore[arg-type]
    long = replace(short, state_age_s=300.0)

    assert hang_of(world(short, **silent)) is None
    assert seen(world(long, **silent)).limit.rule is LimitRule.UNTOLD
    assert hang_of(world(long, **silent), attempt_age_s=299.0) is None


@pytest.mark.parametrize(("stalled_s", "is_hang"), [(299.9, False), (300.0, True)])
def test_ranks_in_the_middle_of_a_step_may_stand_still_up_to_the_floor(
    stalled_s: float, is_hang: bool
) -> None:
    hang = hang_of(world(stand(1, section="compute"), advanced_age_s=stalled_s))

    assert (hang is not None) is is_hang
    if hang is not None:
        assert hang.limit.rule is LimitRule.FLOOR
        assert hang.why.endswith("limit 300 s (the lower limit; 20 x the median step of 0.1 s)")


@pytest.mark.parametrize(
    ("step_s", "limit_s", "rule"),
    [
        (15.0, 300.0, LimitRule.FLOOR),
        (30.0, 600.0, LimitRule.STEP_TIME),
        (89.0, 1780.0, LimitRule.STEP_TIME),
        (90.0, 1800.0, LimitRule.CEIL),
        (500.0, 1800.0, LimitRule.CEIL),
    ],
)
def test_limit_is_a_multiple_of_the_step_time_between_floor_and_ceil(
    step_s: float, limit_s: float, rule: LimitRule
) -> None:
    at_limit = world(step_times_s=(step_s,), advanced_age_s=limit_s)

    hang = seen(at_limit)

    assert (hang.limit.limit_s, hang.limit.rule) == (limit_s, rule)
    assert hang_of([replace(one, advanced_age_s=limit_s - 0.5) for one in at_limit]) is None


def test_twenty_minutes_without_a_step_stop_no_training() -> None:
    unchanged_script = world(section="idle", sections_entered=0, advanced_age_s=20 * MINUTE_S)
    rank_0_evaluates = world(stand(0, section="idle"), advanced_age_s=20 * MINUTE_S)

    assert hang_of(unchanged_script) is None
    assert hang_of([replace(one, advanced_age_s=20 * MINUTE_S) for one in rank_0_evaluates]) is None


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (stand(1, section="checkpoint"), "rank 1 is in section checkpoint"),
        (stand(1, section="io"), "rank 1 is in section io"),
        (stand(1, section="idle"), "rank 1 is in no section of a step and may be evaluating"),
        (stand(1, is_done=True), "rank 1 has ended, so the job may be ending"),
        (stand(1, is_past_training=True), "rank 1 has ended, so the job may be ending"),
    ],
)
def test_rank_outside_a_step_gives_the_job_the_ceil(odd: RankStand, reason: str) -> None:
    stands = [replace(one, advanced_age_s=1799.0) for one in world(odd)]

    hang = seen([replace(one, advanced_age_s=1800.0) for one in stands])

    assert hang_of(stands) is None
    assert (hang.limit.rule, hang.limit.reason) == (LimitRule.OUTSIDE, reason)


def test_rank_that_ended_well_is_named_and_not_accused() -> None:
    hang = seen(world(stand(1, is_done=True, steps_done=9), advanced_age_s=1800.0))

    assert hang.suspects == ()
    assert hang.victims == (0, 2, 3)
    assert (
        Evidence("wait status", "rank 1 ended with exit code 0 while others are alive")
        in hang.evidence
    )


def test_rank_whose_training_has_ended_is_not_told_as_one_that_has_ended_well() -> None:
    hang = seen(world(stand(1, is_past_training=True, steps_done=9), advanced_age_s=1800.0))

    assert hang.victims == (0, 2, 3)
    said = "rank 1: the training process has ended, what started it runs on"
    assert Evidence("/proc/PID/stat", said) in hang.evidence
    assert not [line for line in hang.evidence if line.source == "wait status"]


def test_ranks_that_are_all_past_their_training_are_no_hang() -> None:
    stands = world(stand(0), advanced_age_s=9999.0)

    assert hang_of([replace(one, is_past_training=True) for one in stands]) is None


def test_rank_blocked_in_the_kernel_all_the_time_is_not_evaluating() -> None:
    blocked = stand(1, process_state="D", section="idle")

    hang = seen(world(blocked, section="idle"))

    assert (hang.cause, hang.suspects) == (HangCause.BLOCKED, (1,))
    assert hang.limit.rule is LimitRule.FLOOR
    assert hang_of(world(replace(blocked, state_age_s=299.0), section="idle")) is None
    assert hang_of(world(replace(blocked, section="checkpoint"), section="idle")) is None


def test_moment_in_state_d_accuses_nobody() -> None:
    hang = seen(world(stand(1, process_state="D", state_age_s=4.9)))

    assert (hang.cause, hang.suspects) == (HangCause.NOBODY, ())


@pytest.mark.parametrize(("gap_s", "is_hang"), [(150.0, True), (200.0, True), (200.5, False)])
def test_limit_is_twice_the_longest_pause_that_ended_by_itself(gap_s: float, is_hang: bool) -> None:
    hang = hang_of(world(), longest_gap_s=gap_s)

    assert (hang is not None) is is_hang
    if hang is not None:
        assert hang.limit.rule is (LimitRule.FLOOR if gap_s == 150.0 else LimitRule.GAP)


@pytest.mark.parametrize("steps_done", [0, 1])
def test_start_of_an_attempt_has_a_limit_of_its_own(steps_done: int) -> None:
    starting = world(steps_done=steps_done, advanced_age_s=1799.0)

    hang = seen([replace(one, advanced_age_s=1800.0) for one in starting])

    assert hang_of(starting) is None
    assert hang.limit.rule is LimitRule.STARTUP


@pytest.mark.parametrize(("has_stepped_before", "is_hang"), [(False, False), (True, True)])
def test_job_that_never_told_of_anything_is_not_judged(
    has_stepped_before: bool, is_hang: bool
) -> None:
    attached_only = world(
        steps_done=0, sections_entered=0, section="idle", step_times_s=(), advanced_age_s=9000.0
    )

    hang = hang_of(attached_only, has_stepped_before=has_stepped_before)

    assert (hang is not None) is is_hang


def test_rank_that_never_attached_is_behind_those_that_did() -> None:
    absent = stand(3, advanced_age_s=None, steps_done=0, sections_entered=0, section="idle")
    others = world(absent, steps_done=0, sections_entered=1, advanced_age_s=1800.0)

    hang = seen(others)

    assert (hang.cause, hang.suspects) == (HangCause.BEHIND, (3,))
    assert hang.evidence[1] == Evidence(
        "/proc/PID/stat", "rank 3: sleeping for 400.0 s; never attached"
    )


def test_rank_that_entered_the_fewest_sections_is_waited_for() -> None:
    hang = seen(world(stand(1, sections_entered=71), stand(3, sections_entered=71, steps_done=34)))

    assert (hang.cause, hang.suspects) == (HangCause.BEHIND, (1, 3))
    assert hang.reason == "ranks 1 and 3: 71 sections entered, others up to 72"


def test_rank_that_made_the_fewest_steps_is_waited_for_where_no_sections_are_told() -> None:
    hang = seen(world(stand(1, sections_entered=0, steps_done=34), sections_entered=0))

    assert (hang.suspects, hang.reason) == ((1,), "rank 1: 34 steps made, others up to 35")


def test_one_rank_with_more_sections_of_its_own_makes_the_others_no_suspects() -> None:
    assert seen(world(stand(0, sections_entered=90))).suspects == ()


def test_hang_without_a_straggler_accuses_nobody() -> None:
    finding = hang_finding(seen(world()), job_id="j", attempt=3, node="n1")

    assert finding.kind is Kind.RANK_HUNG
    assert (finding.blame, finding.ranks, finding.victims) == (Blame.NOBODY, (), (0, 1, 2, 3))
    assert finding.signature == "hung:nobody"
    assert finding.since_age_s == 400.0


def test_finding_carries_the_suspects_and_the_limit_that_was_in_force() -> None:
    hang = seen(world(stand(2, process_state="T", state_age_s=7.0)))

    finding = hang_finding(hang, job_id="j", attempt=3, node="n1")

    assert (finding.blame, finding.ranks, finding.victims) == (Blame.NOBODY, (2,), (0, 1, 3))
    assert (finding.job_id, finding.attempt, finding.node) == ("j", 3, "n1")
    assert finding.signature == "hung:stopped"
    assert finding.summary == "no rank advances; rank 2: stopped by a signal"
    assert finding.evidence[0].text == hang.why


@pytest.mark.parametrize("letter", ["Z", "X", ""])
def test_process_that_is_gone_blames_its_rank_and_a_stopped_one_nobody(letter: str) -> None:
    gone = stand(2, process_state=letter, state_age_s=7.0)
    hang = seen(world(gone, stand(1, process_state="T", state_age_s=7.0)))

    finding = hang_finding(hang, job_id="j", attempt=3, node="n1")

    assert (finding.signature, finding.blame, finding.ranks) == ("hung:gone", Blame.RANK, (2,))


def test_nothing_alive_is_no_hang() -> None:
    assert hang_of([]) is None
    assert hang_of(world(is_done=True)) is None


def test_evidence_is_bounded_when_every_rank_stands_elsewhere() -> None:
    stands = [stand(rank, sections_entered=rank + 1) for rank in range(100)]

    evidence = seen(stands).evidence

    assert len(evidence) == EVIDENCE_MAX
    assert evidence[-1].text == "86 more lines are not shown"


@pytest.mark.parametrize("name", ["multiple", "floor_s", "ceil_s", "stopped_floor_s", "startup_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_limit_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"hung limit {name} is"):
        HungLimits(**{name: value})


# A rank that computes outside of a step, while the others wait for it.


def test_one_rank_outside_of_a_step_is_found_before_pytorch_ends_the_collective() -> None:
    busy = stand(2, process_state="R", section="idle", sections_entered=71)
    stands = world(busy, collective_timeout_s=600.0, advanced_age_s=509.0)
    later = world(
        replace(busy, advanced_age_s=511.0), collective_timeout_s=600.0, advanced_age_s=511.0
    )

    assert hang_of(stands) is None
    hang = seen(later)
    assert (hang.limit.rule, hang.limit.limit_s) == (LimitRule.COLLECTIVE, 510.0)
    assert hang.suspects == (2,)


def test_an_evaluation_by_every_rank_has_the_longest_limit_whatever_the_time_out() -> None:
    stands = world(section="idle", collective_timeout_s=600.0, advanced_age_s=1700.0)

    assert hang_of(stands) is None


def test_ranks_ahead_in_collectives_wait_although_their_hosts_go_on() -> None:
    behind = stand(1, section="idle", collectives_entered=6, advanced_age_s=520.0)
    ahead = {"section": "idle", "collectives_entered": 7, "collective_timeout_s": 600.0}
    stands = world(behind, advanced_age_s=520.0, **ahead)

    assert seen(stands).limit.rule is LimitRule.COLLECTIVE
    assert hang_of(world(behind, advanced_age_s=520.0, has_pairs=True, **ahead)) is None


def test_a_long_pause_that_the_job_had_before_does_not_outlast_the_time_out() -> None:
    busy = stand(2, section="idle", advanced_age_s=520.0)
    stands = world(busy, collective_timeout_s=600.0, advanced_age_s=520.0)

    assert seen(stands, longest_gap_s=500.0).limit.rule is LimitRule.COLLECTIVE


def test_a_time_out_longer_than_the_limits_changes_nothing() -> None:
    stands = world(collective_timeout_s=7200.0, advanced_age_s=301.0)

    assert seen(stands).limit.rule is LimitRule.FLOOR


@pytest.mark.parametrize("limits", [{"floor_s": 1801.0}, {"floor_s": 4.0}, {"ceil_s": 299.0}])
def test_limits_out_of_order_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="not in ascending order"):
        HungLimits(**limits)


AGES_S = st.floats(0, 4000)


@st.composite
def any_stand(draw: st.DrawFn, rank: int) -> RankStand:
    return RankStand(
        rank=rank,
        process_state=draw(st.sampled_from(["R", "S", "D", "T", "t", "Z", "X", "", "I"])),
        state_age_s=draw(AGES_S),
        is_done=draw(st.booleans()),
        steps_done=draw(st.integers(0, 4)),
        advanced_age_s=draw(st.none() | AGES_S),
        section=draw(st.sampled_from(["idle", "compute", "communication", "io", "checkpoint"])),
        section_age_s=draw(st.none() | AGES_S),
        sections_entered=draw(st.integers(0, 4)),
        step_times_s=tuple(draw(st.lists(st.floats(0, 200), max_size=3))),
        collectives_entered=draw(st.integers(0, 4)),
        collective_timeout_s=draw(st.none() | st.floats(0, 4000)),
        has_pairs=draw(st.booleans()),
    )


@given(st.data(), st.integers(1, 6), AGES_S, st.floats(0, 2000), st.booleans(), st.randoms())
def test_hang_names_only_live_ranks_and_no_order_of_them_changes_it(
    data: st.DataObject,
    size: int,
    attempt_age_s: float,
    longest_gap_s: float,
    has_stepped_before: bool,
    random: Random,
) -> None:
    stands = [data.draw(any_stand(rank)) for rank in range(size)]
    more = {
        "attempt_age_s": attempt_age_s,
        "longest_gap_s": longest_gap_s,
        "has_stepped_before": has_stepped_before,
    }

    hang = hang_of(stands, **more)

    assert hang_of(random.sample(stands, size), **more) == hang
    if hang is not None:
        live = {one.rank for one in stands if not one.is_done}
        assert set(hang.suspects) | set(hang.victims) == live
        assert not set(hang.suspects) & set(hang.victims)
        assert hang.stalled_s >= hang.limit.limit_s
        assert hang_finding(hang, job_id="j", attempt=1, node="n").ranks == hang.suspects


@given(st.data(), st.integers(2, 6))
def test_ranks_that_are_all_alike_accuse_nobody(data: st.DataObject, size: int) -> None:
    one = data.draw(any_stand(0))
    stands = [replace(one, rank=rank) for rank in range(size)]

    hang = hang_of(stands)

    assert hang is None or hang.suspects == ()


@given(st.data(), st.integers(1, 6))
def test_rank_that_just_advanced_means_no_hang(data: st.DataObject, size: int) -> None:
    stands = [data.draw(any_stand(rank)) for rank in range(size)]
    fresh = replace(stands[0], is_done=False, advanced_age_s=1.0)

    assert hang_of([fresh, *stands[1:]]) is None


# -- the end of a training


def done(rank: int, **more: object) -> RankStand:
    """A rank that has ended with 0 after as many steps as the others."""
    return stand(rank, is_done=True, process_state="", **more)


RETURNED = {"script_end": ScriptEnd.RETURNED, "section": "idle"}
IDLE = {"section": "idle"}
WAITS = "rank 2 ended with exit code 0 while ranks 0, 1 and 3 wait for it"
RUNS = "rank 2 ended with exit code 0 while ranks 0, 1 and 3 still run"
MADE = "rank 2 finished its training; ranks 0, 1 and 3 made as many steps and still run"
ALL = "every rank has finished its training (rank 2 ended), and ranks 0, 1 and 3 still run"
PLAIN = "the ranks are alive, and no rank is behind the others"


@pytest.mark.parametrize(
    ("odd", "others", "cause", "reason"),
    [
        (done(2), {}, HangCause.EXITED, WAITS),
        (done(2), {"section": "wait"}, HangCause.EXITED, WAITS),
        (done(2), {"steps_done": 36, **IDLE}, HangCause.EXITED, WAITS),
        (done(2), {"collectives_entered": 1, **IDLE}, HangCause.EXITED, WAITS),
        (done(2, **RETURNED), {}, HangCause.EXITED, WAITS),
        (done(2), IDLE, HangCause.EXITED, RUNS),
        (done(2, script_end=ScriptEnd.EXITED), IDLE, HangCause.EXITED, RUNS),
        (done(2, **RETURNED), IDLE, HangCause.ENDING, MADE),
        (done(2, **RETURNED), {"collectives_entered": 1, "has_pairs": True, **IDLE}, HangCause.ENDING, MADE),
        (done(2, **RETURNED), {"section": "checkpoint"}, HangCause.EXITED, RUNS),
        (done(2, **RETURNED), RETURNED, HangCause.FINISHED, ALL),
        (done(2), RETURNED, HangCause.FINISHED, ALL),
        (done(2), {**RETURNED, "script_end": ScriptEnd.EXITED}, HangCause.FINISHED, ALL),
        (stand(2, **RETURNED), RETURNED, HangCause.FINISHED, "every rank has finished its training, and ranks 0, 1, 2 and 3 still run"),
        (done(2), {**RETURNED, "script_end": ScriptEnd.FAILED}, HangCause.EXITED, "the script of ranks 0, 1 and 3 ended with an error, and they still run"),
        # What proves nothing.
        (done(2, steps_done=0, sections_entered=0), {}, HangCause.NOBODY, PLAIN),
        (done(2, knows_exit=False), {}, HangCause.NOBODY, PLAIN),
        (done(2, steps_done=36), IDLE, HangCause.NOBODY, PLAIN),
        (done(2, steps_done=26), {}, HangCause.NOBODY, PLAIN),
        (stand(2, **RETURNED), IDLE, HangCause.ENDING, "rank 2 finished its training; ranks 0, 1 and 3 made as many steps and ranks 0, 1, 2 and 3 still run"),
        (stand(2, **IDLE), RETURNED, HangCause.ENDING, "ranks 0, 1 and 3 finished their training; rank 2 made as many steps and ranks 0, 1, 2 and 3 still run"),
        (stand(2), RETURNED, HangCause.EXITED, "ranks 0, 1 and 3 left the training while rank 2 waits for them"),
        (stand(2, **RETURNED), {"steps_done": 36, **IDLE}, HangCause.EXITED, "rank 2 left the training while ranks 0, 1 and 3 wait for it"),
        (stand(2, is_past_training=True), IDLE, HangCause.NOBODY, PLAIN),
    ],
)  # fmt: skip
def test_rank_that_has_ended_says_what_the_others_wait_for(
    odd: RankStand, others: dict[str, object], cause: HangCause, reason: str
) -> None:
    odd = replace(odd, advanced_age_s=4000.0)
    hang = seen(world(odd, advanced_age_s=4000.0, **others))

    assert (hang.cause, hang.reason) == (cause, reason)


def test_rank_that_ended_in_its_training_is_the_programs_fault_and_no_nodes() -> None:
    hang = seen(world(done(2), advanced_age_s=4000.0))

    finding = hang_finding(hang, job_id="j", attempt=1, node="n1")

    assert (finding.blame, finding.ranks, finding.victims) == (Blame.PROGRAM, (), (0, 1, 3))
    assert finding.summary == WAITS


def test_stopped_rank_is_named_whoever_has_ended() -> None:
    stopped = stand(1, process_state="T")

    assert seen(world(stopped, done(2))).suspects == (1,)
