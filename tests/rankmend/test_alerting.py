"""Alerts: what targets are told and when, with an honest, a lying and a real Alertmanager."""

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agent.findings.collector import target_metrics
from rankmend.alerting import (
    BATCH_MAX,
    RESOLVED_S,
    Alert,
    AlertError,
    AlertmanagerTarget,
    encode,
    make_post,
    target_url,
)
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from tests.support.agent import FakeClock, values_of
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.monitoring import active_alerts, running_alertmanager

pytestmark = pytest.mark.process

URL = "http://am:9093/api/v2/alerts"


def alert(name: str, **annotations: str) -> Alert:
    return Alert({"alertname": name, "node": "n1"}, annotations, 1.7e9)


class FakePost:
    """Takes messages, or refuses them while ``error`` is set."""

    def __init__(self) -> None:
        self.bodies: list[list[dict[str, object]]] = []
        self.error: str | None = None
        self.clock: FakeClock | None = None  # of the receiver, where it says what time it is
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, url: str, body: bytes) -> float | None:
        self.meanwhile()
        if self.error is not None:
            raise AlertError(self.error)
        self.bodies.append(json.loads(body))
        return None if self.clock is None else self.clock.unix_s()


def make_target() -> tuple[AlertmanagerTarget, FakePost, FakeClock]:
    post, clock = FakePost(), FakeClock()
    return AlertmanagerTarget(URL, clock, post), post, clock


def told(body: list[dict[str, object]], clock: FakeClock) -> dict[str, bool]:
    """Return alert name to whether it is firing."""
    now = encode(alert("x"), clock.unix_s())["endsAt"]
    return {entry["labels"]["alertname"]: entry["endsAt"] > now for entry in body}  # type: ignore[index]


def test_alert_has_the_form_of_alertmanagers_api() -> None:
    assert encode(alert("A", summary="hot"), 1.7e9 + 240) == {
        "labels": {"alertname": "A", "node": "n1"},
        "annotations": {"summary": "hot"},
        "startsAt": "2023-11-14T22:13:20.000Z",
        "endsAt": "2023-11-14T22:17:20.000Z",
    }


def test_all_that_is_active_is_told_every_time_and_holds_for_four_resends() -> None:
    target, post, clock = make_target()
    target.update([alert("A"), alert("B")])

    first_wait_s = target.send()
    target.send()

    assert first_wait_s == 60
    assert [told(body, clock) for body in post.bodies] == [{"A": True, "B": True}] * 2
    assert post.bodies[0][0]["endsAt"] == encode(alert("A"), clock.unix_s() + 240)["endsAt"]


def test_end_is_told_until_it_is_taken_and_then_never_again() -> None:
    target, post, clock = make_target()
    target.update([alert("A")])
    target.send()
    target.update([])
    post.error = "refused"
    target.send()
    post.error = None

    target.send()
    target.send()

    assert [told(body, clock) for body in post.bodies[1:]] == [{"A": False}, {}]


def test_alert_that_ended_once_more_while_its_end_was_told_is_told_again() -> None:
    target, post, clock = make_target()
    target.update([alert("A")])
    target.update([])

    def flap() -> None:
        clock.time_s += 1
        target.update([alert("A")])
        target.update([])

    post.meanwhile = flap
    target.send()
    post.meanwhile = lambda: None
    target.send()

    assert [told(body, clock) for body in post.bodies] == [{"A": False}, {"A": False}]


def test_end_has_words_of_its_own_also_of_an_alert_that_an_earlier_process_sent() -> None:
    target, post, clock = make_target()
    target.update([alert("A", summary="it stands")])
    target.send()

    target.update([], [alert("A", summary="it trains"), alert("B", summary="over meanwhile")])
    target.send()

    assert told(post.bodies[1], clock) == {"A": False, "B": False}
    words = [one["annotations"] for one in post.bodies[1]]
    assert words == [{"summary": "it trains"}, {"summary": "over meanwhile"}]


def test_alert_that_comes_back_is_not_told_as_ended() -> None:
    target, post, clock = make_target()
    target.update([alert("A")])
    target.update([])
    target.update([alert("A")])

    target.send()

    assert told(post.bodies[0], clock) == {"A": True}


def test_receiver_that_was_down_learns_all_from_one_message() -> None:
    target, post, clock = make_target()
    post.error = "connection refused"
    for names in (["A"], ["A", "B"], ["B"], ["B", "C"]):
        target.update([alert(name) for name in names])
        target.send()
    post.error = None

    target.send()

    assert [told(body, clock) for body in post.bodies] == [{"B": True, "C": True, "A": False}]


def test_retries_back_off_to_a_bound_and_begin_anew_after_a_success() -> None:
    target, post, _clock = make_target()
    target.update([alert("A")])
    post.error = "503"
    waits_s = [target.send() for _ in range(9)]
    post.error = None
    target.send()
    post.error = "503"

    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert target.send() == 1


def test_end_that_nobody_takes_is_given_up_and_counted() -> None:
    target, post, clock = make_target()
    target.update([alert("A")])
    target.update([])
    post.error = "down"
    target.send()
    clock.time_s += RESOLVED_S + 1
    target.send()

    values = values_of(list(target_metrics(target)))

    assert values["alert_dropped_total{am:9093}"] == 1
    assert values["alert_ended_waiting{am:9093}"] == 0
    assert values["alert_failures_total{am:9093}"] == 2
    assert values["alert_success{am:9093}"] == 0


def test_what_waits_is_bounded() -> None:
    target, _post, _clock = make_target()
    for number in range(30):
        target.update([alert(f"A{number}-{index}") for index in range(100)])

    values = values_of(list(target_metrics(target)))

    assert values["alert_ended_waiting{am:9093}"] == 2000
    assert values["alert_dropped_total{am:9093}"] == 900


def test_many_alerts_go_in_messages_of_bounded_size() -> None:
    target, post, _clock = make_target()
    target.update([alert(f"A{number}") for number in range(2 * BATCH_MAX + 1)])

    target.send()

    assert [len(body) for body in post.bodies] == [BATCH_MAX, BATCH_MAX, 1]


class SlowClock(SystemClock):
    """The clock of a node that is an hour slow."""

    def unix_s(self) -> float:
        return super().unix_s() - 3600


class SetClock(FakeClock):
    """A clock whose wall time somebody has set."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self.ahead_s = ahead_s

    def unix_s(self) -> float:
        return super().unix_s() + self.ahead_s


@pytest.mark.parametrize("ahead_s", [-86_400.0, -3600.0, 3600.0, 86_400.0])
def test_alerts_of_a_node_whose_clock_is_wrong_hold_and_end_by_the_receivers_clock(
    ahead_s: float,
) -> None:
    post, ours, theirs = FakePost(), SetClock(ahead_s), FakeClock()
    post.clock = theirs
    target = AlertmanagerTarget(URL, ours, post)
    target.update([alert("A"), alert("B")])
    target.update([alert("A")])

    waits_s = [target.send(), target.send(), target.send()]

    assert waits_s == [1, 60, 60]  # the first answer says what time it is there
    assert [told(body, theirs) for body in post.bodies[1:]] == [
        {"A": True, "B": False},
        {"A": True},
    ]
    assert post.bodies[1][0]["endsAt"] == encode(alert("A"), theirs.unix_s() + 240)["endsAt"]


def test_clock_that_is_set_neither_ends_an_alert_nor_lets_it_begin_in_the_future() -> None:
    post, ours, theirs = FakePost(), SetClock(0.0), FakeClock()
    post.clock = theirs
    target = AlertmanagerTarget(URL, ours, post)
    began = Alert({"alertname": "A"}, {}, ours.unix_s())
    target.update([began])
    target.send()

    for ahead_s in (-3600.0, 3600.0, -86_400.0):
        ours.ahead_s = ahead_s
        assert target.send() == 60

    assert [told(body, theirs) for body in post.bodies] == [{"A": True}] * 4
    now = encode(alert("x"), theirs.unix_s())["endsAt"]
    assert all(body[0]["startsAt"] <= now for body in post.bodies)  # type: ignore[operator]


def test_receivers_with_different_clocks_behind_one_address_are_not_told_anew_for_ever() -> None:
    post, ours = FakePost(), FakeClock()
    target = AlertmanagerTarget(URL, ours, post)
    target.update([alert("A")])
    waits_s = []
    for number in range(6):
        post.clock = SetClock(3600.0 * (number % 2))
        waits_s.append(target.send())

    assert waits_s == [60, 1, 60, 1, 60, 1]


@pytest.mark.parametrize(
    ("before", "after", "is_due"),
    [
        ({"summary": "96 C"}, {"summary": "97 C"}, False),
        ({"action": "watch"}, {"action": "drain"}, True),
        ({"ranks": "j:1"}, {"ranks": "j:2"}, True),
    ],
)
def test_other_words_wait_for_the_resend_and_another_action_does_not(
    before: dict[str, str], after: dict[str, str], is_due: bool
) -> None:
    target, _post, _clock = make_target()
    target.update([alert("A", **before)])
    target.send()

    target.update([alert("A", **after)])

    assert target._is_due is is_due


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://am:9093", "http://am:9093/api/v2/alerts"),
        ("https://am/prefix/", "https://am/prefix/api/v2/alerts"),
        ("http://[::1]:9093/api/v2/alerts", "http://[::1]:9093/api/v2/alerts"),
    ],
)
def test_target_is_a_base_or_the_whole_address(text: str, url: str) -> None:
    assert target_url(text) == url


@pytest.mark.parametrize(
    "text", ["am:9093", "file:///etc/passwd", "http://", "http://a:b:c", "http://a?x=1", ""]
)
def test_target_that_is_no_http_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="alert target"):
        target_url(text)


def test_certificates_that_cant_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")

    with pytest.raises(ConfigError, match=r"empty\.pem"):
        make_post(cert_file=str(tmp_path / "empty.pem"))


def test_receiver_that_hangs_holds_up_nobody() -> None:
    post = FakePost()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = AlertmanagerTarget(
            f"http://127.0.0.1:{silent.getsockname()[1]}/x", SystemClock(), make_post()
        )
        honest = AlertmanagerTarget(URL, SystemClock(), post)
        for target in (hanging, honest):
            target.start()
            target.update([alert("A")])
        eventually(lambda: bool(post.bodies), "the honest one to be told")
        hanging.update([alert("A"), alert("B")])  # returns at once
        for target in (hanging, honest):
            target.stop()

    assert len(post.bodies[0]) == 1


@pytest.mark.parametrize("status", [400, 503])
def test_refusal_is_a_failure_that_names_the_status(status: int) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.handle_request, daemon=True)
    thread.start()
    with pytest.raises(AlertError, match=f"127.0.0.1:{server.server_port}"):
        make_post()(f"http://127.0.0.1:{server.server_port}/api/v2/alerts", b"[]")
    thread.join(DEADLINE_S)
    server.server_close()


def test_real_alertmanager_shows_an_alert_with_its_start_and_forgets_it_when_it_ends(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    started_unix_s = clock.unix_s() - 60
    firing = Alert(
        {"alertname": "RankmendGpuLost", "node": "n1", "uuid": "GPU-0", "severity": "critical"},
        {"summary": "GPU 0 is lost", "action": "reboot", "description": "two\nlines"},
        started_unix_s,
    )
    with running_alertmanager(tmp_path) as base:
        target = AlertmanagerTarget(target_url(base), clock, make_post())
        target.start()
        target.update([firing])
        # Also over its first refusals.
        (shown,) = eventually(lambda: active_alerts(base), "the alert")
        target.update([])
        eventually(lambda: not active_alerts(base), "its end")
        target.stop()

    assert shown["labels"] == firing.labels
    assert shown["annotations"] == firing.annotations
    assert shown["startsAt"] == encode(firing, 0)["startsAt"]


def test_real_alertmanager_takes_the_alert_of_a_node_whose_clock_is_an_hour_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SlowClock()
    firing = Alert({"alertname": "RankmendGpuLost", "node": "n1"}, {}, clock.unix_s() - 60)
    with running_alertmanager(tmp_path) as base:
        target = AlertmanagerTarget(target_url(base), clock, make_post())
        target.start()
        target.update([firing])
        eventually(lambda: len(active_alerts(base)) == 1, "the alert")
        target.update([])
        eventually(lambda: not active_alerts(base), "its end")
        target.stop()

    assert "the receiver has another time" in caplog.text
