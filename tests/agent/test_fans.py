"""Fans: one at its lowest speed is healthy, a slow one is watched, and with heat the node is drained."""

from agent.assembly.families import FAMILIES
from agent.findings.policy_files import load_checks
from agent.metrics import Metric
from detectors.finding import Action
from detectors.node.findings import judge, list_findings
from detectors.node.looks import observe
from detectors.node.node_state import MetricAnswer, NodeFinding, NodeState, Snapshot

CHECKS = load_checks(FAMILIES)
FAN = (("device", "applesmc-0"), ("sensor", "fan1"))
CHIP = (("device", "coretemp-0"), ("sensor", "temp1"))


class Board:
    """A chip with one fan of at least 2,000 rpm and one temperature of at most 80 C."""

    def __init__(self) -> None:
        self.state = NodeState()
        self.now_s = 0.0

    def look(self, rpm: float, celsius: float = 40.0, times: int = 1) -> dict[str, NodeFinding]:
        for _ in range(times):
            self.now_s += 10.0
            metrics = [
                Metric("rankmend_thermal_fan_rpm", rpm, FAN),
                Metric("rankmend_thermal_fan_min_rpm", 2_000, FAN),
                Metric("rankmend_thermal_fan_turned", 1, FAN),
                Metric("rankmend_thermal_temperature_celsius", celsius, CHIP),
                Metric("rankmend_thermal_max_celsius", 80, CHIP),
            ]
            snapshot = Snapshot({m.name: MetricAnswer("thermal", self.now_s, [m]) for m in metrics})
            self.state, looks = observe(self.state, CHECKS, snapshot)
            self.state = judge(self.state, looks, snapshot, self.now_s, 1.7e9 + self.now_s)
        return {one.check: one for one in list_findings(self.state, snapshot, self.now_s)}


def test_fan_at_1998_of_2000_rpm_is_no_finding() -> None:
    assert Board().look(1_998, times=360) == {}


def test_fan_that_dips_now_and_then_is_no_finding() -> None:
    board = Board()

    for _ in range(60):
        assert board.look(1_700) == {}
        assert board.look(2_100, times=2) == {}


def test_slow_fan_is_watched_after_a_minute_and_ends_when_it_turns_again() -> None:
    board = Board()

    assert board.look(1_700, times=5) == {}
    (slow,) = board.look(1_700).values()

    assert (slow.check, slow.action) == ("fan_slow", Action.WATCH)
    assert slow.summary == "fan applesmc-0 fan1 turns at 85% of its lowest speed"
    assert board.look(1_900, times=6) == {}


def test_fan_that_stands_still_is_watched_and_not_drained_while_nothing_is_hot() -> None:
    (stopped,) = Board().look(0, times=9).values()

    assert (stopped.check, stopped.action) == ("fan_stopped", Action.WATCH)


def test_slow_fan_beside_a_hot_sensor_drains_the_node_and_says_why() -> None:
    board = Board()
    board.look(1_700, times=6)

    found = board.look(1_700, celsius=85, times=6)

    assert found["fan_slow"].action is Action.DRAIN
    assert found["fan_slow"].reason == "with sensor_hot"
    assert found["sensor_hot"].action is Action.WATCH
    cool = board.look(1_700, celsius=60, times=6)
    assert cool["fan_slow"].action is Action.WATCH


def test_hot_sensor_without_a_slow_fan_drains_nobody() -> None:
    (hot,) = Board().look(2_400, celsius=85, times=9).values()

    assert (hot.check, hot.action) == ("sensor_hot", Action.WATCH)
