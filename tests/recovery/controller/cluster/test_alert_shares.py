"""How much of the alert book one sender may fill, and what that costs the others: nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.controller.cluster.active_alerts import ActiveAlerts
from recovery.controller.cluster.alert_shares import NODE_ALERTS_MAX, Sender, Shares, node_sender
from recovery.controller.cluster.cluster_limits import AlertRules, ClusterPolicy
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from tests.support.cluster_desk import make_desk

RULES = AlertRules()
NOW = 1_000_000.0


def alerts(node: str, count: int, text: str = "", *, is_firing: bool = True) -> list[IncomingAlert]:
    return [
        IncomingAlert(
            {"alertname": "RankmendX", "node": node, "device": f"{text}{number}"},
            {"summary": text, "description": text},
            None,
            is_firing,
        )
        for number in range(count)
    ]


def nodes_in(book: ActiveAlerts) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in book.active:
        found[one.target.node] = found.get(one.target.node, 0) + 1
    return found


def test_a_node_that_sends_without_end_fills_its_share_and_pushes_out_nobody() -> None:
    book = ActiveAlerts(RULES)
    book.receive(alerts("n1", 5), {}, NOW, sender=node_sender("node:n1"))

    taken, _heard = book.receive(alerts("n2", 3000), {}, NOW, sender=node_sender("node:n2"))

    assert nodes_in(book) == {"n1": 5, "n2": NODE_ALERTS_MAX}
    assert (taken.accepted, taken.refused) == (NODE_ALERTS_MAX, 3000 - NODE_ALERTS_MAX)
    assert "node:n2 has 1000 alerts here; the limit is 1000" in taken.refusal


def test_an_alert_that_is_known_is_repeated_and_ends_though_its_sender_is_full() -> None:
    book, sender = ActiveAlerts(RULES), replace(node_sender("node:n1"), alerts_max=3)
    book.receive(alerts("n1", 3), {}, NOW, sender=sender)

    again, _heard = book.receive(alerts("n1", 4), {}, NOW + 1, sender=sender)
    ended, _heard = book.receive(alerts("n1", 3, is_firing=False), {}, NOW + 2, sender=sender)

    assert (again.repeated, again.refused, ended.ended) == (3, 1, 3)


def test_new_alerts_in_place_of_ended_ones_count_for_the_flap_window() -> None:
    book, sender = ActiveAlerts(RULES), replace(node_sender("node:n1"), alerts_max=3)
    book.receive(alerts("n1", 3), {}, NOW, sender=sender)
    book.receive(alerts("n1", 3, is_firing=False), {}, NOW + 1, sender=sender)

    at_once, _heard = book.receive(alerts("n1", 3, "new"), {}, NOW + 2, sender=sender)
    later_s = NOW + 3 + RULES.flap_window_s
    book.forget(later_s)
    later, _heard = book.receive(alerts("n1", 3, "new"), {}, later_s, sender=sender)

    assert (at_once.refused, later.accepted) == (3, 3)


def test_long_texts_are_cut_and_their_bytes_counted() -> None:
    book = ActiveAlerts(RULES)

    sender = replace(node_sender("node:n1"), bytes_max=100_000)
    taken, _heard = book.receive(alerts("n1", 100, "x" * 16_000), {}, NOW, sender=sender)

    assert 0 < taken.accepted < 25
    assert "bytes" in taken.refusal
    assert max(len(one.target.device) for one in book.active) == 256
    assert len(book.active) == taken.accepted


def test_in_a_full_book_the_sender_with_the_most_makes_room() -> None:
    book = ActiveAlerts(RULES, Shares(alerts_max=10))
    book.receive(alerts("n1", 9), {}, NOW, sender=Sender("a"))

    book.receive(alerts("n2", 5), {}, NOW, sender=Sender("b"))

    assert nodes_in(book) == {"n1": 5, "n2": 5}
    assert len(book._tracks) == 10, "what is known of flaps goes with its alert"


def test_an_alert_that_another_sender_told_first_stays_that_senders() -> None:
    book = ActiveAlerts(RULES)
    book.receive(alerts("n1", 2), {}, NOW, sender=Sender("alertmanager"))

    book.receive(alerts("n1", 2), {}, NOW, sender=replace(node_sender("node:n1"), alerts_max=1))

    assert nodes_in(book) == {"n1": 2}


def test_the_sender_is_named_once_an_hour() -> None:
    desk, _journal, clock = make_desk(ClusterPolicy())
    sender = replace(node_sender("node:n1"), alerts_max=1)

    for _minute in range(90):
        desk.take_alerts(alerts("n1", 3), {}, sender)
        clock.now += 60.0

    told = [one.text for one in desk.notes if one.text.startswith("node:n1 sends too many alerts")]
    assert len(told) == 1, "of each sender the newest word"
    assert "node:n1 has 1 alerts here; the limit is 1" in told[0]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.sampled_from(["fire", "end", "late"])),
        max_size=120,
    )
)  # fmt: skip
def test_no_order_of_events_breaks_the_bounds_or_the_count(
    events: list[tuple[str, int, str]],
) -> None:
    book = ActiveAlerts(RULES, Shares(alerts_max=12))
    now_s = NOW
    for name, number, what in events:
        sender = Sender(name, alerts_max=8, bytes_max=1_000_000)
        if what == "late":
            now_s += RULES.flap_window_s + 1
            book.forget(now_s)
        told = alerts(name, number, is_firing=what == "fire")
        book.receive(told, {}, now_s, sender=sender)

        counts = nodes_in(book)
        assert sum(counts.values()) <= 12
        assert all(count <= 8 for count in counts.values())
        assert {one.target.key for one in book.active} <= set(book._shares._entries)
        assert set(book._tracks) <= set(book._shares._entries)
        assert book._shares._size_bytes == sum(
            one.size_bytes for one in book._shares._entries.values()
        )


@pytest.mark.parametrize("name", ["gpu3\x1b[2J", "../../etc/passwd", "gpu3\n", "x" * 300, "a b"])
def test_an_alert_about_what_is_no_nodes_name_accuses_nobody(name: str) -> None:
    book = ActiveAlerts(RULES)

    taken, _heard = book.receive(alerts(name, 1), {}, NOW)

    assert book.active == ()
    assert "is not a node name" in taken.passed_over[0]
