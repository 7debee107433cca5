"""Findings of a node from what its collectors answer: looks, joins, verdicts, ranks, restarts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.metrics import Metric
from detectors.finding import LABELS, Action, Severity, identity
from detectors.node.check_table import MetricShape, compile_table
from detectors.node.checks import Check
from detectors.node.counter_growth import BUCKETS, POINTS_MAX, Growth, grow, increase
from detectors.node.findings import ABSENT_S, blocked_checks, judge, list_findings, release, restore
from detectors.node.looks import StandingChecks, observe
from detectors.node.node_alerts import alert_annotations, alert_labels
from detectors.node.node_state import HitRank, MetricAnswer, NodeFinding, NodeState, Snapshot

GPU = ("gpu", "uuid", "pci_bus_id")
KNOWN = {
    "rankmend_temp_celsius": MetricShape(GPU, is_counter=False),
    "rankmend_crit_celsius": MetricShape(GPU, is_counter=False),
    "rankmend_busy_ratio": MetricShape(GPU, is_counter=False),
    "rankmend_verdict_id": MetricShape(GPU, is_counter=False),
    "rankmend_errors_total": MetricShape((*GPU, "link"), is_counter=True),
    "rankmend_free_bytes": MetricShape(("mount",), is_counter=False),
    "rankmend_size_bytes": MetricShape(("mount",), is_counter=False),
}
BASE = {
    "component": "gpu",
    "metric": "rankmend_temp_celsius",
    "condition": "value > 95",
    "severity": "warning",
    "action": "watch",
    "summary": "GPU {gpu} is at {value:.0f} C",
    "source": "a data sheet",
    "clear_looks": 1,
}
JOB = "6d0c4b1e-0000-4000-8000-000000000001"


def gpu(number: int) -> tuple[tuple[str, str], ...]:
    return (
        ("gpu", str(number)),
        ("uuid", f"GPU-{number}"),
        ("pci_bus_id", f"00000000:{number:02x}:00.0"),
    )


def checks_of(**rows: dict[str, object]) -> tuple[Check, ...]:
    return compile_table({name: {**BASE, **row} for name, row in rows.items()}, KNOWN, "t")


@dataclass
class Node:
    """A node with checks, whose collectors answer once for each call."""

    checks: tuple[Check, ...]
    state: NodeState = field(default_factory=NodeState)
    now_s: float = 100.0
    unix_s: float = 1.7e9
    still: StandingChecks | None = None
    newest: dict[str, tuple[Sequence[Metric], int]] = field(default_factory=dict)
    number: int = 0
    present: dict[str, int] = field(default_factory=dict)  # of the snapshot before, with revisions

    def answer(
        self,
        *metrics: Metric,
        silent: frozenset[str] = frozenset(),
        is_new: bool = True,
        after_s: float = 1.0,
    ) -> tuple[NodeFinding, ...]:
        self.now_s += after_s
        self.unix_s += after_s
        at_s = self.now_s if is_new else self.now_s - after_s
        readings: dict[str, MetricAnswer] = {}
        for metric in metrics:
            old = readings.get(metric.name)
            series = [*(old.series if old else ()), metric]
            readings[metric.name] = MetricAnswer("gpu", at_s, series)
        for name, reading in readings.items():
            was, revision = self.newest.get(name, ((), 0))
            if list(reading.series) != was:
                revision += 1
            self.newest[name] = (list(reading.series), revision)
            readings[name] = reading._replace(revision=revision)
        present = {name: self.newest[name][1] for name in readings}
        names = {
            name for name in present | self.present if present.get(name) != self.present.get(name)
        }
        self.number, self.present = self.number + 1, present
        snapshot = Snapshot(readings, silent, None if self.still is None else self.number, names)
        self.state, observations = observe(self.state, self.checks, snapshot, self.still)
        self.state = judge(self.state, observations, snapshot, self.now_s, self.unix_s)
        return list_findings(self.state, snapshot, self.now_s)


def temp(number: int, value: float) -> Metric:
    return Metric("rankmend_temp_celsius", value, gpu(number))


def test_bad_value_is_a_finding_with_device_evidence_action_and_age() -> None:
    node = Node(checks_of(hot={"bad_looks": 2, "by": ["gpu", "uuid"]}))
    assert node.answer(temp(0, 96), temp(3, 40)) == ()

    (found,) = node.answer(temp(0, 97), temp(3, 40))

    assert (found.id, found.check, found.device) == ("hot/GPU-0", "hot", "")
    assert (found.severity, found.action) == (Severity.WARNING, Action.WATCH)
    assert found.summary == "GPU 0 is at 97 C"
    assert found.evidence == (
        'rankmend_temp_celsius{gpu="0",uuid="GPU-0",pci_bus_id="00000000:00:00.0"}: 97 (value > 95)',
    )
    assert found.since_age_s == 1.0
    assert found.started_unix_s == 1.7e9 + 1
    assert found.source == "a data sheet"


def test_value_at_the_limit_is_good() -> None:
    assert Node(checks_of(hot={})).answer(temp(0, 95)) == ()
    assert len(Node(checks_of(hot={})).answer(temp(0, 95.001))) == 1


def test_one_answer_seen_many_times_is_one_look() -> None:
    node = Node(checks_of(hot={"bad_looks": 2}))
    node.answer(temp(0, 99))

    for _ in range(5):
        assert node.answer(temp(0, 99), is_new=False, after_s=0.0) == ()


def test_nan_and_missing_partners_are_no_looks() -> None:
    node = Node(checks_of(hot={"condition": "value > rankmend_crit_celsius"}))

    assert node.answer(temp(0, float("nan"))) == ()
    assert node.answer(temp(0, 200)) == ()
    assert len(node.answer(temp(0, 200), Metric("rankmend_crit_celsius", 100, gpu(0)))) == 1


def test_limit_is_taken_from_the_same_device() -> None:
    node = Node(checks_of(hot={"condition": "value >= rankmend_crit_celsius"}))
    limits = [Metric("rankmend_crit_celsius", limit, gpu(n)) for n, limit in ((0, 90), (1, 80))]

    found = node.answer(temp(0, 85), temp(1, 85), *limits)

    assert [finding.labels[0] for finding in found] == [("gpu", "1")]


def test_ratio_and_difference_to_another_metric() -> None:
    ratio = {
        "metric": "rankmend_free_bytes",
        "condition": "value / rankmend_size_bytes < 0.05",
        "component": "disk",
        "summary": "{mount} has {value:.1%} left",
    }
    node = Node(checks_of(full=ratio))
    sizes = [Metric("rankmend_size_bytes", 1000, (("mount", mount),)) for mount in ("/a", "/b")]
    free = [
        Metric("rankmend_free_bytes", n, (("mount", m),))
        for m, n in (("/a", 49), ("/b", 50), ("/c", 0))
    ]

    (found,) = node.answer(*free, *sizes, Metric("rankmend_size_bytes", 0, (("mount", "/c"),)))

    assert found.summary == "/a has 4.9% left"
    assert found.device == "/a"
    below = Node(checks_of(cold={"condition": "value - rankmend_crit_celsius > -5"}))
    crit = Metric("rankmend_crit_celsius", 100, gpu(0))
    assert below.answer(temp(0, 95), crit) == ()
    assert len(below.answer(temp(0, 95.5), crit)) == 1


def test_guard_lets_a_check_speak_only_where_it_means_something() -> None:
    node = Node(checks_of(hot={"when": ["rankmend_busy_ratio > 0.5"]}))
    busy = [Metric("rankmend_busy_ratio", ratio, gpu(n)) for n, ratio in ((0, 0.5), (1, 0.9))]

    found = node.answer(temp(0, 99), temp(1, 99), *busy)

    assert [finding.labels[0][1] for finding in found] == ["1"]


def test_where_chooses_series_by_label() -> None:
    node = Node(checks_of(hot={"where": {"gpu": "[01]"}}))

    assert [f.labels[0][1] for f in node.answer(temp(0, 99), temp(10, 99))] == ["0"]


def errors(link: int, value: float, number: int = 0) -> Metric:
    return Metric("rankmend_errors_total", value, (*gpu(number), ("link", str(link))))


GROWTH: dict[str, object] = {
    "metric": "rankmend_errors_total",
    "condition": "increase >= 3",
    "window_s": 60,
    "summary": "GPU {gpu}: {value:.0f} errors",
    "by": ["gpu", "uuid"],
}


def test_growth_counts_from_the_first_sight_and_within_the_window() -> None:
    node = Node(checks_of(link=GROWTH))
    assert node.answer(errors(1, 1_000_000)) == ()
    assert node.answer(errors(1, 1_000_002)) == ()
    assert len(node.answer(errors(1, 1_000_003))) == 1

    assert node.answer(errors(1, 1_000_003), after_s=61) == ()


def test_growth_goes_on_over_a_counter_that_began_again() -> None:
    node = Node(checks_of(link=GROWTH))
    node.answer(errors(1, 50))
    node.answer(errors(1, 51))

    assert len(node.answer(errors(1, 2))) == 1  # 1 before the reset and 2 after it


def test_counter_of_events_counts_from_zero() -> None:
    node = Node(checks_of(link={**GROWTH, "counts_from_zero": True}))

    assert len(node.answer(errors(1, 3))) == 1


def test_many_series_of_one_device_are_one_finding_with_the_worst_lines() -> None:
    node = Node(checks_of(link={**GROWTH, "counts_from_zero": True}))

    (found,) = node.answer(*(errors(link, 10 + link) for link in range(12)), errors(20, 0))

    assert len(found.evidence) == 9
    assert found.evidence[-1] == "and 4 more series"
    assert 'link="0"' in found.evidence[0]


def test_silent_collector_ends_nothing_and_blocks_its_checks() -> None:
    checks = checks_of(hot={})
    node = Node(checks)
    node.answer(temp(0, 99))

    found = node.answer(silent=frozenset({"gpu"}), after_s=10 * ABSENT_S)

    assert [finding.id for finding in found] == ["hot/GPU-0"]
    snapshot = Snapshot({}, frozenset({"gpu"}))
    assert blocked_checks(node.state, checks, snapshot) == ["hot"]
    assert blocked_checks(node.state, checks, Snapshot({}, frozenset({"disk"}))) == []


def test_device_that_its_collector_no_longer_names_is_gone_in_time() -> None:
    node = Node(checks_of(hot={}))
    node.answer(temp(0, 99))

    assert len(node.answer(temp(1, 40), after_s=ABSENT_S - 1)) == 1
    assert node.answer(temp(1, 40), after_s=1) == ()


def test_drivers_verdict_wins_over_the_action_of_every_row_on_its_gpu() -> None:
    verdict = {
        "metric": "rankmend_verdict_id",
        "condition": "value == 2",
        "summary": "reboot the node",
        "action": "reboot",
        "severity": "critical",
        "overrules": True,
    }
    node = Node(checks_of(broken={"action": "reset_gpu"}, warm={}, verdict=verdict))
    said = Metric("rankmend_verdict_id", 2, gpu(0))

    found = {f.id: f for f in node.answer(temp(0, 99), temp(1, 99), said)}

    assert found["broken/GPU-0"].action is Action.REBOOT
    assert found["broken/GPU-0"].reason == "the driver's verdict: reboot the node"
    assert found["broken/GPU-1"].action is Action.RESET_GPU
    assert found["warm/GPU-0"].action is Action.WATCH  # nothing was to be done about it anyway
    assert found["verdict/GPU-0"].action is Action.REBOOT


def test_what_comes_back_after_two_reboots_is_for_support() -> None:
    node = Node(checks_of(broken={"action": "reboot", "reboots_max": 2}))
    actions = []
    for _boot in range(3):
        (found,) = node.answer(temp(0, 99), after_s=4000)  # more often would be flapping
        actions.append(found.action)
        assert node.answer(temp(0, 40)) == ()
        node.state = restore(node.state, -50.0, is_new_boot=True)

    assert actions == [Action.REBOOT, Action.REBOOT, Action.CONTACT_SUPPORT]
    assert "after 2 reboots" in found.reason


def rank_metrics(*ranks: tuple[int, int]) -> list[Metric]:
    """Return who stands where, as (rank, gpu)."""
    found = []
    for rank, number in ranks:
        who = (("job_id", JOB), ("rank", str(rank)))
        found.append(Metric("rankmend_rank_info", 1, who))
        found.append(Metric("rankmend_rank_gpu_info", 1, (*who, *gpu(number))))
    return found


def test_finding_names_the_ranks_on_its_gpu_and_of_the_node_where_all_share_it() -> None:
    disk = {
        "metric": "rankmend_free_bytes",
        "condition": "value < 1",
        "component": "disk",
        "summary": "{mount} is full",
    }
    node = Node(checks_of(hot={}, full=disk))
    full = Metric("rankmend_free_bytes", 0, (("mount", "/"),))

    found = {f.id: f for f in node.answer(temp(0, 99), full, *rank_metrics((9, 1), (10, 0)))}

    assert found["hot/GPU-0"].ranks == (HitRank(JOB, 10),)
    assert found["full//"].ranks == (HitRank(JOB, 9), HitRank(JOB, 10))


def test_alert_travels_under_known_labels_and_keeps_its_identity_while_ranks_change() -> None:
    node = Node(checks_of(gpu_hot={}, link={**GROWTH, "by": [*GPU, "link"]}))
    node.answer(errors(1, 0), errors(2, 0))
    first = node.answer(temp(0, 99), errors(1, 9), errors(2, 9), *rank_metrics((1, 0)))
    later = node.answer(temp(0, 99), errors(1, 19), errors(2, 19), *rank_metrics((7, 0)))

    labels = [alert_labels(finding, "n1") for finding in first]

    assert labels[0] == {
        "alertname": "RankmendGpuHot",
        "node": "n1",
        "severity": "warning",
        "uuid": "GPU-0",
    }
    assert all(set(each) <= set(LABELS) for each in labels)
    assert len({identity(each) for each in labels}) == 3
    assert [alert_labels(finding, "n1") for finding in later] == labels
    assert alert_annotations(first[0])["ranks"] == f"{JOB}:1"
    assert alert_annotations(later[0])["ranks"] == f"{JOB}:7"
    assert alert_annotations(first[0])["action"] == "watch"


def test_latched_finding_is_released_by_name_only() -> None:
    node = Node(checks_of(hot={"latch": "release"}))
    node.answer(temp(0, 99))
    assert len(node.answer(temp(0, 40))) == 1
    assert release(node.state, "hot/GPU-1") is None

    released = release(node.state, "hot/GPU-0")

    assert released is not None
    node.state = released
    assert node.answer(temp(0, 40)) == ()


def test_state_goes_through_json_and_on_in_the_same_boot() -> None:
    node = Node(checks_of(hot={"bad_looks": 2}, link=GROWTH))
    node.answer(temp(0, 99), errors(1, 5))

    data = json.dumps(msgspec.to_builtins(node.state))
    node.state = restore(msgspec.json.decode(data, type=NodeState), shift_s=0.0, is_new_boot=False)

    found = node.answer(temp(0, 99), errors(1, 8))
    assert [finding.id for finding in found] == ["hot/GPU-0", "link/GPU-0"]


def test_finding_goes_on_over_a_reboot_with_its_age() -> None:
    node = Node(checks_of(hot={}))
    node.answer(temp(0, 99))

    node.state = restore(node.state, shift_s=-90.0, is_new_boot=True)  # booted 90 s into our time
    node.now_s -= 90
    (found,) = node.answer(after_s=30)

    assert found.since_age_s == pytest.approx(30)
    assert node.answer(temp(0, 40)) == ()


def test_worst_comes_first() -> None:
    node = Node(checks_of(aa={}, bb={"severity": "critical"}, cc={"severity": "info"}))

    assert [finding.check for finding in node.answer(temp(0, 99))] == ["bb", "aa", "cc"]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 100)), min_size=1, max_size=80))
def test_growth_is_never_negative_never_more_than_all_and_bounded(
    steps: list[tuple[float, float]],
) -> None:
    growth: Growth | None = None
    at_s = 0.0
    for value, after_s in steps:
        at_s += after_s
        growth = grow(growth, value, at_s, window_s=60)

    assert growth is not None
    assert 0 <= increase(growth, at_s, 60) <= growth.total
    assert len(growth.points) <= POINTS_MAX
    assert growth.points[-1][1] == growth.total


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 40)), min_size=1, max_size=80))
def test_growth_in_a_window_is_right_to_a_thirtieth_of_it(steps: list[tuple[int, float]]) -> None:
    window_s, at_s, value = 60.0, 0.0, 0
    growth = grow(None, value, at_s, window_s)
    history = []
    for more, after_s in steps:
        at_s, value = at_s + after_s, value + more
        history.append((at_s, more))
        growth = grow(growth, value, at_s, window_s)

    least = sum(more for when_s, more in history if when_s > at_s - window_s)
    most = sum(more for when_s, more in history if when_s > at_s - window_s * (1 + 1 / BUCKETS))
    assert least <= increase(growth, at_s, window_s) <= most


def test_growth_that_is_older_than_the_window_does_not_count() -> None:
    growth = grow(None, 5, 0, 60)
    growth = grow(growth, 7, 30, 60)

    assert increase(grow(growth, 7, 90, 60), 90, 60) == 0
    assert increase(grow(growth, 7, 89, 60), 89, 60) == 2


def near(number: int, nic: str, closeness: str) -> Metric:
    address = f"0000:{number:02x}:00.0"
    labels = (("pci_bus_id", address), ("device", nic), ("closeness", closeness))
    return Metric("rankmend_topology_affinity_info", 1, labels)


def test_nic_hits_the_ranks_whose_gpus_have_none_nearer() -> None:
    nic = {
        "metric": "rankmend_port_id",
        "condition": "value != 4",
        "component": "nic",
        "summary": "port {device}/{port}",
    }
    known = KNOWN | {"rankmend_port_id": MetricShape(("device", "port"), is_counter=False)}
    node = Node(compile_table({"down": {**BASE, **nic}}, known, "t"))
    ports = [
        Metric("rankmend_port_id", 1, (("device", name), ("port", "1"))) for name in ("m0", "m1")
    ]
    places = [near(0, "m0", "PIX"), near(0, "m1", "SYS"), near(1, "m0", "NODE")]
    places.append(near(1, "m1", "PXB"))

    found = {f.id: f for f in node.answer(*ports, *places, *rank_metrics((4, 0), (5, 1)))}
    unknown = {f.id: f for f in node.answer(*ports, *rank_metrics((4, 0), (5, 1)))}

    assert found["down/m0/1"].ranks == (HitRank(JOB, 4),)
    assert found["down/m1/1"].ranks == (HitRank(JOB, 5),)
    assert len(unknown["down/m0/1"].ranks) == 2  # nobody can tell: all of the node


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 5.0, float("nan")]), max_size=3), max_size=40))
def test_passing_over_counters_that_stand_still_changes_no_finding(
    looks: list[list[float]],
) -> None:
    rows = {
        "grows": {"metric": "rankmend_errors_total", "condition": "increase > 2", "window_s": 10},
        "rests": {"metric": "rankmend_errors_total", "condition": "increase < 1", "window_s": 10},
    }
    plain, quick = Node(checks_of(**rows)), Node(checks_of(**rows), still=StandingChecks())
    for values in looks:
        answer = [
            Metric("rankmend_errors_total", value, (*gpu(number), ("link", "0")))
            for number, value in enumerate(values)
        ]
        assert quick.answer(*answer) == plain.answer(*answer)
    assert replace(quick.state, looked_at_s={}) == replace(plain.state, looked_at_s={})


@given(
    st.lists(
        st.tuples(
            st.sampled_from([40.0, 96.0, None]),
            st.sampled_from([0.0, 1.0, 99.0, None]),
            st.sampled_from([0.0, 4.0, None]),
        ),
        max_size=20,
    )
)
def test_passing_over_checks_that_read_nothing_new_changes_no_finding(
    looks: list[tuple[float | None, float | None, float | None]],
) -> None:
    grown = {"metric": "rankmend_errors_total", "window_s": 5}
    rows = {
        "hot": {"bad_looks": 2},
        "near": {"condition": "value > rankmend_crit_celsius", "bad_looks": 2},
        "grew": {**grown, "condition": "increase > rankmend_crit_celsius"},
        "grew_hot": {**grown, "condition": "increase > 2", "when": ["rankmend_temp_celsius > 90"]},
    }
    plain, quick = Node(checks_of(**rows)), Node(checks_of(**rows), still=StandingChecks())
    for temperature, limit, errors in looks:
        given_now = {"temp_celsius": temperature, "crit_celsius": limit}
        answer = [
            Metric(f"rankmend_{name}", value, gpu(0))
            for name, value in given_now.items()
            if value is not None
        ]
        if errors is not None:
            answer.append(Metric("rankmend_errors_total", errors, (*gpu(0), ("link", "0"))))
        assert quick.answer(*answer) == plain.answer(*answer)
    assert replace(quick.state, looked_at_s={}) == replace(plain.state, looked_at_s={})


def test_a_limit_that_falls_after_an_answer_is_compared_with_the_next() -> None:
    rows = {"near": {"condition": "value > rankmend_crit_celsius", "bad_looks": 2}}
    node = Node(checks_of(**rows), still=StandingChecks())
    high, low = (Metric("rankmend_crit_celsius", limit, gpu(0)) for limit in (99.0, 90.0))
    node.answer(temp(0, 96), high)
    node.answer(temp(0, 96), low, is_new=False)  # the temperature's answer is the one before

    node.answer(temp(0, 96), low)

    assert node.answer(temp(0, 96), low) != ()
