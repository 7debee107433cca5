"""Alerts that come and go: evidence once, until they have been quiet for long."""

from recovery.controller.cluster.active_alerts import ActiveAlerts, JobNode
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.notices import NoticeKind

LABELS = {"alertname": "RankmendNicPortDown", "node": "n1", "device": "mlx5_0"}
JOBS_ON = {"n1": (JobNode("job-a", (0, 1)),)}
MINUTE_S = 60.0


def message(*, is_firing: bool) -> list[IncomingAlert]:
    return [IncomingAlert(LABELS, {}, None, is_firing)]


def flap(book: ActiveAlerts, times: int, start_s: float = 0.0) -> list[int]:
    """Fire and resolve a minute apart; return how often jobs were told at each firing."""
    told = []
    for number in range(times):
        at_s = start_s + number * 2 * MINUTE_S
        told.append(len(book.receive(message(is_firing=True), JOBS_ON, at_s)[1]))
        book.receive(message(is_firing=False), JOBS_ON, at_s + MINUTE_S)
    return told


def test_an_alert_that_fires_again_and_again_within_an_hour_is_told_three_times_at_most() -> None:
    assert flap(ActiveAlerts(AlertRules()), 10) == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_an_end_of_what_flaps_is_not_believed_and_jobs_that_come_are_told() -> None:
    book = ActiveAlerts(AlertRules())
    flap(book, 2)
    book.receive(message(is_firing=True), JOBS_ON, 300.0)

    taken, heard = book.receive(message(is_firing=False), JOBS_ON, 360.0)
    late = book.retell("n1", (JobNode("job-b", (0,)),), 400.0)

    assert (taken.ended, taken.damped, heard) == (0, 1, [])
    assert [job_id for job_id, _evidence in late] == ["job-b"]


def test_after_a_quiet_hour_it_is_over_and_the_next_firing_is_news() -> None:
    book = ActiveAlerts(AlertRules())
    flap(book, 3)  # silent since 300 s

    book.forget(300.0 + 3600.0)
    assert len(book.active) == 1
    book.forget(300.1 + 3600.0)

    assert book.active == ()
    assert flap(book, 1, 5000.0) == [1]


def test_one_that_flapped_and_fires_on_is_kept_without_being_repeated() -> None:
    book = ActiveAlerts(AlertRules())
    flap(book, 3)
    book.receive(message(is_firing=True), JOBS_ON, 400.0)

    book.forget(400.0 + 2 * 3600.0)  # Alertmanager repeats after 4 h

    assert len(book.active) == 1


def test_seldom_firings_are_news_each_time() -> None:
    book = ActiveAlerts(AlertRules())

    assert [flap(book, 1, hour * 3600.0) for hour in range(4)] == [[1]] * 4


def test_what_is_remembered_of_flaps_is_bounded_and_forgotten() -> None:
    book = ActiveAlerts(AlertRules())
    flap(book, 1)

    book.forget(2 * 3600.0)

    assert not book._tracks
    assert book.active == ()


def test_a_word_to_people_never_comes_back_as_an_accusation() -> None:
    book = ActiveAlerts(AlertRules())
    for kind in NoticeKind:
        labels = {"alertname": kind.value, "node": "n1"}
        taken, heard = book.receive([IncomingAlert(labels, {}, None, True)], JOBS_ON, 0.0)

        assert heard == []
        assert "own notification" in taken.passed_over[0]


def test_other_rules_hold_from_the_reload_on() -> None:
    book = ActiveAlerts(AlertRules())
    gpu = [IncomingAlert({"alertname": "GpuBad", "Hostname": "n1"}, {}, None, True)]
    assert book.receive(gpu, JOBS_ON, 0.0)[0].accepted == 0

    book.take_rules(AlertRules(accept=("Gpu*",)))

    assert book.receive(gpu, JOBS_ON, 1.0)[0].accepted == 1
