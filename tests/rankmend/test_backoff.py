from rankmend.backoff import Backoff


def test_wait_grows_by_the_factor_up_to_the_cap() -> None:
    backoff = Backoff(first_s=0.5, cap_s=15.0)

    assert [backoff.wait_s(n) for n in (1, 2, 3, 5, 6, 60)] == [0.5, 1.0, 2.0, 8.0, 15.0, 15.0]
    assert Backoff(1.0, 100.0, factor=10.0).wait_s(3) == 100.0
    assert backoff.wait_s(0) == 0.5


def test_wait_stays_at_the_cap_however_often_it_failed() -> None:
    assert Backoff(first_s=1.0, cap_s=60.0).wait_s(10**9) == 60.0


def test_chance_takes_off_at_most_the_jitter() -> None:
    backoff = Backoff(first_s=10.0, cap_s=10.0, jitter=0.5)

    assert [backoff.wait_s(1, draw) for draw in (0.0, 0.5, 1.0)] == [5.0, 7.5, 10.0]
