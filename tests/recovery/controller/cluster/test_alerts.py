"""Alerts from outside: what is understood, known again, mapped to ranks, and refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.controller.cluster.active_alerts import ActiveAlert, ActiveAlerts, JobNode
from recovery.controller.cluster.alert_shares import READ_BACK
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import (
    AlertsError,
    IncomingAlert,
    decode_posted,
    decode_webhook,
    target_of,
)

NOW = 1_800_000_000.0
RULES = AlertRules()
JOB, OTHER = "job-a", "job-b"
JOBS_ON = {
    "n1": (JobNode(JOB, (0, 1)),),
    "n2": (JobNode(JOB, (2, 3)), JobNode(OTHER, (0,))),
}
LOST = {"alertname": "RankmendGpuLost", "node": "n2", "uuid": "GPU-7", "severity": "critical"}


def webhook(*alerts: dict[str, Any], **others: Any) -> bytes:
    group = {"version": "4", "groupKey": "{}", "truncatedAlerts": 0, "status": "firing"}
    return json.dumps({**group, "receiver": "r", "alerts": list(alerts), **others}).encode()


def firing(labels: dict[str, str] = LOST, **others: Any) -> dict[str, Any]:
    one = {"status": "firing", "labels": labels, "annotations": {}, "fingerprint": "f"}
    times = {"startsAt": "2027-01-15T07:59:00.5Z", "endsAt": "0001-01-01T00:00:00Z"}
    return {**one, **times, **others}


def alert(
    labels: dict[str, str] = LOST,
    *,
    is_firing: bool = True,
    starts_unix_s: float = NOW - 60,
    **notes: str,
) -> IncomingAlert:
    return IncomingAlert(labels, notes, starts_unix_s, is_firing)


@pytest.mark.parametrize(
    ("severity", "action", "rules_out"),
    [
        ("critical", "replace", True),
        ("critical", "drain", True),
        ("critical", "watch", False),
        ("critical", "restart_app", False),
        ("critical", "none", False),
        ("critical", "", False),
        ("critical", "throw it away", False),
        ("warning", "drain", False),
    ],
)
def test_only_a_critical_alert_with_an_action_that_ends_use_rules_a_node_out(
    severity: str, action: str, rules_out: bool
) -> None:
    book = ActiveAlerts(RULES)

    book.receive([alert(LOST | {"severity": severity, "action": action})], JOBS_ON, NOW)

    assert [(one.node, one.ends_use) for one in book.active] == [("n2", rules_out)]


def test_a_webhook_is_understood_also_with_fields_that_nobody_knows() -> None:
    body = webhook(firing(), firing(status="resolved", values={"A": 1}), orgId=1, title="[FIRING]")

    alerts, left_out = decode_webhook(body)

    assert [one.is_firing for one in alerts] == [True, False]
    assert alerts[0].labels == LOST
    assert alerts[0].starts_unix_s == 1_799_999_940.5
    assert left_out == 0


def test_a_webhook_says_how_many_alerts_it_left_out() -> None:
    assert decode_webhook(webhook(firing(), truncatedAlerts=7))[1] == 7


def test_posted_alerts_are_over_when_their_end_has_passed() -> None:
    body = json.dumps(
        [
            {"labels": LOST},
            {"labels": LOST, "endsAt": "2000-01-01T00:00:00Z"},
            {"labels": LOST, "endsAt": "2100-01-01T00:00:00+02:00"},
        ]
    ).encode()

    assert [one.is_firing for one in decode_posted(body, NOW)] == [True, False, True]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "webhook"),
        (b"\xff\xfe{", "webhook"),
        (b"[" * 100_000, "webhook"),
        (webhook(version="3"), "version"),
        (webhook(firing(labels="x")), "labels"),
        (webhook(firing(labels={"a": 1})), "labels"),
        (webhook(firing(labels={f"l{n}": "x" for n in range(65)})), "labels"),
        (webhook(firing(labels={"a": "x" * 20_000})), "labels"),
        (webhook(firing(startsAt="yesterday")), "startsAt"),
        (webhook(firing(startsAt="2027-01-15T07:59:00")), "without a zone"),
        (json.dumps({"version": "4"}).encode(), "alerts"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_and_named(body: bytes, named: str) -> None:
    with pytest.raises(AlertsError, match=named):
        decode_webhook(body)


def test_a_message_with_too_many_alerts_is_refused() -> None:
    body = json.dumps([{"labels": {"a": "b"}}] * 10_001).encode()

    with pytest.raises(AlertsError, match="10000"):
        decode_posted(body, NOW)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_the_named_error(body: bytes) -> None:
    for decode in (lambda: decode_webhook(body), lambda: decode_posted(body, NOW)):
        try:
            decode()
        except AlertsError:
            continue


def test_two_replicas_and_two_attempts_tell_of_one_alert() -> None:
    told = [
        {**LOST, "replica": "a", "attempt": "1"},
        {**LOST, "replica": "b", "attempt": "2", "severity": "warning"},
    ]

    assert len({target_of(alert(one), RULES).key for one in told}) == 1
    assert target_of(alert({**LOST, "uuid": "GPU-8"}), RULES).key != target_of(alert(), RULES).key


@pytest.mark.parametrize(
    ("labels", "node", "device"),
    [
        ({"Hostname": "n2.cluster.example", "UUID": "GPU-7", "gpu": "3"}, "n2", "GPU-7"),
        ({"instance": "n2:9400"}, "n2", ""),
        ({"instance": "10.1.2.3:9100"}, "10.1.2.3", ""),
        ({"instance": "[fd00::1]:9100"}, "fd00::1", ""),
        ({"node": "n2.example", "device": "mlx5_0"}, "n2.example", "mlx5_0"),
    ],
)
def test_labels_of_other_exporters_are_understood(
    labels: dict[str, str], node: str, device: str
) -> None:
    target = target_of(alert({"alertname": "X", **labels}), RULES)

    assert (target.node, target.device) == (node, device)


def test_an_alert_reaches_every_job_with_ranks_on_its_node_and_is_told_once() -> None:
    book = ActiveAlerts(RULES)

    taken, heard = book.receive([alert(), alert()], JOBS_ON, NOW)
    again, nothing = book.receive([alert()], JOBS_ON, NOW + 60)

    assert [(job, one.ranks) for job, one in heard] == [(JOB, (2, 3)), (OTHER, (0,))]
    assert all(one.node == "n2" and one.device == "GPU-7" for _job, one in heard)
    assert (taken.accepted, taken.repeated) == (1, 1)
    assert (again.accepted, again.repeated) == (0, 1)
    assert nothing == []


def test_the_agents_word_on_which_ranks_stand_on_a_device_narrows_it_down() -> None:
    _taken, heard = ActiveAlerts(RULES).receive([alert(ranks=f"{JOB}:3, {OTHER}:0")], JOBS_ON, NOW)

    assert [(job, one.ranks) for job, one in heard] == [(JOB, (3,)), (OTHER, (0,))]


def test_ranks_of_an_earlier_placement_count_for_nothing() -> None:
    _taken, heard = ActiveAlerts(RULES).receive([alert(ranks=f"{JOB}:7")], JOBS_ON, NOW)

    assert dict(heard)[JOB].ranks == (2, 3)


def test_an_alert_that_names_its_job_reaches_no_other() -> None:
    _taken, heard = ActiveAlerts(RULES).receive([alert({**LOST, "job_id": OTHER})], JOBS_ON, NOW)

    assert [job for job, _one in heard] == [OTHER]


def test_a_burst_is_one_alert_each_and_old_ones_keep_their_age() -> None:
    book = ActiveAlerts(RULES)
    burst = [alert({**LOST, "device": f"nic{n}"}) for n in range(1000)]

    taken, heard = book.receive(burst, {"n2": (JobNode(JOB, (2, 3)),)}, NOW)

    assert taken.accepted == len(heard) == 1000
    assert {one.since_age_s for _job, one in heard} == {60.0}


def test_resolved_is_passed_on_as_an_end_and_fires_anew_afterwards() -> None:
    book = ActiveAlerts(RULES)
    book.receive([alert()], JOBS_ON, NOW)

    taken, heard = book.receive([alert(is_firing=False)], JOBS_ON, NOW + 5)
    unknown, nothing = book.receive([alert(is_firing=False)], JOBS_ON, NOW + 6)
    anew, fired = book.receive([alert(starts_unix_s=NOW + 7)], JOBS_ON, NOW + 7)

    assert taken.ended == 1
    assert [one.is_active for _job, one in heard] == [False, False]
    assert (unknown.ended, nothing) == (0, [])
    assert anew.accepted == 1
    assert len(fired) == 2


def test_a_firing_copy_that_comes_after_its_end_accuses_nobody_again() -> None:
    """From the second Alertmanager of a pair whose gossip is cut; first it is the end that overtakes."""
    book = ActiveAlerts(RULES)
    early_end, _nothing = book.receive([alert(is_firing=False)], JOBS_ON, NOW)
    overtaken = book.receive([alert()], JOBS_ON, NOW + 1)
    book.receive([alert(starts_unix_s=NOW + 2)], JOBS_ON, NOW + 2)
    book.receive([alert(starts_unix_s=NOW + 2, is_firing=False)], JOBS_ON, NOW + 10)

    late = book.receive([alert(starts_unix_s=NOW + 2)], JOBS_ON, NOW + 25)
    much_later = book.receive([alert(starts_unix_s=NOW + 2)], JOBS_ON, NOW + 600)

    assert early_end.ended == 0
    assert [(taken.late, heard) for taken, heard in (overtaken, late)] == [(1, []), (1, [])]
    assert much_later[0].accepted == 1  # a controller must not disbelieve it for ever


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"alertname": "KubePodCrash", "node": "n2"}, "alerts.accept"),
        ({"alertname": "RankmendGpuLost"}, "names no node"),
    ],
)
def test_what_accuses_nobody_is_passed_over_with_the_reason(
    labels: dict[str, str], why: str
) -> None:
    taken, heard = ActiveAlerts(RULES).receive([alert(labels)], JOBS_ON, NOW)

    assert heard == []
    assert why in taken.passed_over[0]


def test_a_job_that_comes_to_a_node_hears_what_is_active_there() -> None:
    book = ActiveAlerts(RULES)
    book.receive([alert()], {}, NOW)

    heard = book.retell("n2", JOBS_ON["n2"], NOW + 30)

    assert [job for job, _one in heard] == [JOB, OTHER]
    assert book.retell("n2", JOBS_ON["n2"], NOW + 31) == []
    assert book.retell("n1", JOBS_ON["n1"], NOW + 31) == []


def test_each_attempt_that_stays_on_an_accused_node_hears_of_it_once() -> None:
    def there(attempt: int) -> dict[str, tuple[JobNode, ...]]:
        return {"n2": (JobNode(JOB, (2, 3), attempt),)}

    book = ActiveAlerts(RULES)
    book.receive([alert()], there(1), NOW)

    heard = [
        book.receive([alert()], there(1), NOW + 30)[1],
        book.receive([alert()], there(2), NOW + 60)[1],
        book.retell("n2", there(2)["n2"], NOW + 65),
        book.retell("n2", there(3)["n2"], NOW + 70),
        book.receive([alert()], there(3), NOW + 90)[1],
    ]

    assert [[job for job, _one in told] for told in heard] == [[], [JOB], [], [JOB], []]
    over = book.forget(NOW + 90 + RULES.forget_s + 1)
    assert [job for job, _one in over] == [JOB]


def test_what_nobody_repeats_is_forgotten() -> None:
    book = ActiveAlerts(RULES)
    book.receive([alert()], JOBS_ON, NOW)

    book.forget(NOW + RULES.forget_s - 1)
    assert len(book.active) == 1
    over = book.forget(NOW + RULES.forget_s + 1)
    assert book.active == ()
    assert {job for job, _one in over} == {JOB, OTHER}, "who was told hears that it is over"
    assert not any(one.is_active for _job, one in over)


def test_an_alert_from_the_future_is_as_young_as_can_be() -> None:
    _taken, heard = ActiveAlerts(RULES).receive(
        [IncomingAlert(LOST, {}, NOW + 3600, True)], JOBS_ON, NOW
    )

    assert {one.since_age_s for _job, one in heard} == {0.0}


def test_an_active_alert_is_one_value() -> None:
    book = ActiveAlerts(RULES)
    book.receive([alert(summary="GPU lost")], JOBS_ON, NOW)

    (active,) = book.active
    assert isinstance(active, ActiveAlert)
    assert (active.summary, active.times) == ("GPU lost", 1)


def of(replica: str, **changes: Any) -> IncomingAlert:
    return alert({**LOST, "prometheus": replica}, **changes)


def test_an_end_by_one_prometheus_is_none_while_the_other_of_the_pair_fires() -> None:
    book = ActiveAlerts(RULES)
    book.receive([of("a"), of("b")], JOBS_ON, NOW)

    one_message = book.receive([of("a", is_firing=False), of("b")], JOBS_ON, NOW + 5)
    again, _heard = book.receive([of("a", starts_unix_s=NOW + 8)], JOBS_ON, NOW + 10)
    alone = book.receive([of("a", is_firing=False)], JOBS_ON, NOW + 15)
    last, ends = book.receive([of("b", is_firing=False)], JOBS_ON, NOW + 20)

    assert [(taken.damped, taken.ended, heard) for taken, heard in (one_message, alone)] == [
        (1, 0, []),
        (1, 0, []),
    ]
    assert (one_message[0].late, again.late, again.repeated) == (0, 0, 1)
    assert (last.damped, last.ended) == (0, 1)
    assert [evidence.is_active for _job, evidence in ends] == [False, False]


@pytest.mark.parametrize(("at_s", "ended"), [(239.0, 0), (240.0, 1)])
def test_a_copy_that_names_its_end_counts_until_then(at_s: float, ended: int) -> None:
    book = ActiveAlerts(RULES)
    posted = replace(of("a"), ends_unix_s=NOW + 240)  # 4 resends, as Prometheus has it
    book.receive([posted, of("b")], JOBS_ON, NOW)

    taken, _heard = book.receive([of("b", is_firing=False)], JOBS_ON, NOW + at_s)

    assert taken.ended == ended


def test_what_an_alertmanager_returns_when_it_is_asked_is_no_copy_from_before() -> None:
    book = ActiveAlerts(RULES)
    book.receive([alert()], JOBS_ON, NOW)
    book.receive([alert(is_firing=False)], JOBS_ON, NOW + 5)  # one of a pair; the other goes on

    late, _nothing = book.receive([alert()], JOBS_ON, NOW + 30)
    asked, heard = book.receive([alert()], JOBS_ON, NOW + 31, sender=READ_BACK)

    assert (late.late, asked.late, asked.accepted) == (1, 0, 1)
    assert [evidence.is_active for _job, evidence in heard] == [True, True]


def test_copies_of_one_alert_are_bounded() -> None:
    book = ActiveAlerts(RULES)

    for number in range(100):
        book.receive([of(str(number))], JOBS_ON, NOW + number)

    assert [len(copies) for copies in book._copies.values()] == [16]
    book.receive([of(str(number), is_firing=False) for number in range(84, 100)], JOBS_ON, NOW)
    assert (len(book.active), book._copies) == (0, {})
