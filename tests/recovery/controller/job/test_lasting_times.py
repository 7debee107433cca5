"""For how long things have lasted, over thousands of attempts."""

from recovery.controller.job.situation import LastingTimes


def test_what_is_asked_for_lasts_over_attempts_and_the_rest_is_forgotten() -> None:
    times = LastingTimes()

    for attempt in range(5000):
        for node in range(10):
            times.since(float(attempt), ("rendezvous", attempt, node))
        assert times.since(float(attempt), ("waits", "i-1")) == attempt
        times.begin_attempt()
        assert len(times) <= 11

    assert times.since(5000.0, ("rendezvous", 4999, 0)) == 1.0
    assert times.since(5000.0, ("rendezvous", 4998, 0)) == 0.0


def test_a_pause_counts_for_nothing_whatever_attempt_it_began_in() -> None:
    times = LastingTimes()
    times.since(10.0, ("old",))
    times.begin_attempt()
    times.since(20.0, ("new",))

    times.forgive(5.0)

    assert (times.since(30.0, ("old",)), times.since(30.0, ("new",))) == (15.0, 5.0)
    times.forget()
    assert times.since(30.0, ("old",)) == 0.0
