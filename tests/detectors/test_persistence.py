"""When a bad look becomes a finding and when it ends: exact boundaries, then properties."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.persistence import (
    FORGET_S,
    Latch,
    Persistence,
    Track,
    after_reboot,
    is_forgotten,
    look,
    released,
    shifted,
    vanished,
)

GOOD, BAD = False, True


def follow(rules: Persistence, looks: list[bool], track: Track | None = None) -> Track | None:
    """One look a second, from the second after the track's last one."""
    at_s = 0.0 if track is None else track.last_look_at_s
    for is_bad in looks:
        at_s += 1
        track = look(track, rules, is_bad=is_bad, at_s=at_s)
    return track


def is_active(track: Track | None) -> bool:
    return track is not None and track.is_active


def test_healthy_subject_leaves_nothing_to_keep() -> None:
    assert follow(Persistence(), [GOOD] * 5) is None


@pytest.mark.parametrize(
    ("looks", "active"),
    [
        ([BAD, BAD], False),  # one below N
        ([BAD, BAD, BAD], True),  # N in a row
        ([BAD, GOOD, BAD, GOOD, BAD], True),  # N among M
        ([BAD, GOOD, GOOD, BAD, GOOD, BAD], False),  # the first has left the M
        ([BAD, GOOD, BAD, BAD], True),
    ],
)
def test_three_bad_looks_among_the_newest_five_raise(looks: list[bool], active: bool) -> None:
    rules = Persistence(bad_looks=3, of_looks=5)

    assert is_active(follow(rules, looks)) is active


def test_finding_began_with_the_first_bad_look_that_counted() -> None:
    track = follow(Persistence(bad_looks=2, of_looks=2), [BAD, GOOD, BAD, BAD])

    assert track is not None
    assert track.since_s == 3


def test_one_answer_looked_at_often_is_one_look() -> None:
    rules = Persistence(bad_looks=2, of_looks=2)
    track = follow(rules, [BAD])

    for _ in range(10):
        track = look(track, rules, is_bad=True, at_s=1.0)

    assert not is_active(track)
    assert is_active(look(track, rules, is_bad=True, at_s=1.001))


def test_good_looks_end_it_only_in_a_row() -> None:
    rules = Persistence(clear_looks=3)

    assert is_active(follow(rules, [BAD, GOOD, GOOD]))
    assert is_active(follow(rules, [BAD, GOOD, GOOD, BAD, GOOD, GOOD]))
    assert not is_active(follow(rules, [BAD, GOOD, GOOD, GOOD]))


def test_sticky_time_counts_from_the_last_bad_look_to_the_second() -> None:
    rules = Persistence(clear_looks=1, sticky_s=10)
    track = follow(rules, [BAD])

    assert is_active(look(track, rules, is_bad=False, at_s=10.999))
    assert not is_active(look(track, rules, is_bad=False, at_s=11))


def test_silence_of_the_source_ends_nothing_and_absence_of_the_subject_does_in_time() -> None:
    track = follow(Persistence(), [BAD])
    assert track is not None

    assert vanished(track, now_s=600.9, absent_s=600).is_active
    assert not vanished(track, now_s=601, absent_s=600).is_active


def test_latch_until_boot_holds_against_good_looks_and_a_boot_lets_them_count() -> None:
    rules = Persistence(clear_looks=2, latch=Latch.BOOT)
    track = follow(rules, [BAD] + [GOOD] * 50)
    assert track is not None
    assert track.is_active
    assert vanished(track, 1e6, 600).is_active

    booted = after_reboot(track, rules)

    assert booted.is_active
    assert is_active(follow(rules, [GOOD], booted))
    assert not is_active(follow(rules, [GOOD, GOOD], booted))


def test_latch_until_release_outlives_boots() -> None:
    rules = Persistence(clear_looks=1, latch=Latch.RELEASE)
    track = follow(rules, [BAD, GOOD])
    assert track is not None

    booted = after_reboot(after_reboot(track, rules), rules)

    assert is_active(follow(rules, [GOOD] * 9, booted))
    assert not is_active(follow(rules, [GOOD], released(booted)))


def test_third_raise_within_the_window_is_flapping_and_needs_a_whole_good_window() -> None:
    rules = Persistence(clear_looks=1, flap_raises=3, flap_window_s=100)
    track = follow(rules, [BAD, GOOD, BAD, GOOD])
    assert track is not None
    assert not track.is_active

    track = follow(rules, [BAD, GOOD], track)

    assert track is not None
    assert (track.is_active, track.is_flapping, track.raises) == (True, True, 3)
    assert is_active(look(track, rules, is_bad=False, at_s=104.9))
    calm = look(track, rules, is_bad=False, at_s=105)
    assert calm is not None
    assert (calm.is_active, calm.is_flapping) == (False, False)


def test_raises_outside_the_window_are_no_flapping() -> None:
    rules = Persistence(clear_looks=1, flap_raises=2, flap_window_s=100)
    track = follow(rules, [BAD, GOOD])

    track = look(track, rules, is_bad=True, at_s=101.1)

    assert track is not None
    assert (track.is_active, track.is_flapping) == (True, False)


def test_boots_with_evidence_are_counted_once_each() -> None:
    rules = Persistence(clear_looks=1)
    track = follow(rules, [BAD, GOOD, BAD])
    assert track is not None
    assert track.bad_boots == 1

    second = follow(rules, [BAD, BAD], after_reboot(track, rules))
    assert second is not None
    third = follow(rules, [GOOD], after_reboot(second, rules))

    assert second.bad_boots == 2
    assert third is not None
    assert third.bad_boots == 2


def test_ended_finding_is_forgotten_after_a_week() -> None:
    rules = Persistence(clear_looks=1)
    track = follow(rules, [BAD, GOOD])
    assert track is not None

    assert not is_forgotten(track, 1 + FORGET_S)
    assert is_forgotten(track, 1.1 + FORGET_S)
    late = look(track, rules, is_bad=True, at_s=1.1 + FORGET_S)
    assert late is not None
    assert late.raises == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"bad_looks": 0},
        {"bad_looks": 3, "of_looks": 2},
        {"of_looks": 1001},
        {"clear_looks": 0},
        {"sticky_s": -1},
        {"sticky_s": float("nan")},
        {"flap_window_s": 1e9},
        {"flap_raises": 1},
    ],
)
def test_impossible_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"look|time|rais"):
        Persistence(**wrong)  # type: ignore[arg-type]


@st.composite
def any_rules(draw: st.DrawFn) -> Persistence:
    of_looks = draw(st.integers(1, 6))
    return Persistence(
        bad_looks=draw(st.integers(1, of_looks)),
        of_looks=of_looks,
        clear_looks=draw(st.integers(1, 4)),
        sticky_s=draw(st.sampled_from([0.0, 2.0, 7.5])),
        latch=draw(st.sampled_from(Latch)),
        flap_raises=draw(st.integers(2, 4)),
        flap_window_s=draw(st.sampled_from([0.0, 5.0, 20.0])),
    )


SEQUENCES = st.lists(st.booleans(), max_size=60)


@given(any_rules(), SEQUENCES)
def test_nothing_is_raised_without_n_bad_among_the_newest_m(
    rules: Persistence, looks: list[bool]
) -> None:
    track: Track | None = None
    for number, is_bad in enumerate(looks, start=1):
        before = is_active(track)
        track = look(track, rules, is_bad=is_bad, at_s=float(number))
        if is_active(track) and not before:
            newest = looks[max(0, number - rules.of_looks) : number]
            assert sum(newest) >= rules.bad_looks


@given(any_rules(), SEQUENCES)
def test_enough_good_time_ends_everything_that_is_not_latched(
    rules: Persistence, looks: list[bool]
) -> None:
    track = follow(rules, looks)
    if track is not None:
        track = released(track)

    track = follow(rules, [GOOD] * (rules.clear_looks + 30), track)

    assert not is_active(track)


@given(any_rules(), SEQUENCES)
def test_raises_within_a_flap_window_are_bounded(rules: Persistence, looks: list[bool]) -> None:
    track: Track | None = None
    raised_at_s: list[float] = []
    for number, is_bad in enumerate(looks, start=1):
        before = is_active(track)
        track = look(track, rules, is_bad=is_bad, at_s=float(number))
        if is_active(track) and not before:
            raised_at_s.append(float(number))
    for at_s in raised_at_s:
        window = [other for other in raised_at_s if at_s - rules.flap_window_s < other <= at_s]
        assert len(window) <= rules.flap_raises


@given(any_rules(), SEQUENCES, SEQUENCES)
def test_saved_and_restored_track_goes_on_as_if_nothing_had_happened(
    rules: Persistence, before: list[bool], after: list[bool]
) -> None:
    track = follow(rules, before)
    restored = msgspec.json.decode(msgspec.json.encode(track), type=Track | None)
    assert restored == track

    assert follow(rules, after, restored) == follow(rules, after, track)


@given(any_rules(), SEQUENCES, SEQUENCES)
def test_moving_the_clock_changes_no_verdict(
    rules: Persistence, before: list[bool], after: list[bool]
) -> None:
    track = follow(rules, before)
    if track is None:
        return

    moved = follow(rules, after, shifted(track, 1024.0))
    plain = follow(rules, after, track)

    assert moved is not None
    assert plain is not None
    assert (moved.is_active, moved.raises) == (plain.is_active, plain.raises)
