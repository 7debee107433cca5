"""Why it is slow: which cause is named for which readings, and that healthy hardware shows nothing."""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from detectors.formats.prometheus import parse_answer, read_answer, read_page
from detectors.slow.cause_table import CAUSES, METRICS, SELECTIONS
from detectors.slow.causes import explain_slow
from detectors.slow.explanation import (
    Scope,
    Sign,
    SlowExplanation,
    SlowPeriod,
    SlowPlace,
    SlowSection,
    Statistic,
    explanation_page,
)
from detectors.slow.hardware_reading import HardwareReading, reading_of
from rankmend.cli.diagnosis.diagnose_slow import slow
from rankmend.errors import SourceError
from tests.support.slow_traces import NODES, ONSET_S, run_slow, write_trace

WINDOW = SlowPeriod(ONSET_S - 600, ONSET_S + 600, ONSET_S)
LABELS = {
    Scope.GPU: ({"uuid": "GPU-0", "gpu": "0"}, {"uuid": "GPU-1", "gpu": "1"}),
    Scope.NIC: ({"device": "mlx5_0", "port": "1"}, {"device": "mlx5_1", "port": "1"}),
    Scope.CGROUP: ({"cgroup": "/job/rank0"}, {"cgroup": "/job/rank1"}),
    Scope.RANK: ({"job_id": "J"}, {"job_id": "J"}),
    Scope.NODE: ({},),
}
USUAL = {
    "rankmend_gpu_clock_hertz": 1.98e9,
    "rankmend_gpu_power_limit_watts": 700.0,
    "rankmend_gpu_pcie_width_lanes": 16.0,
    "rankmend_gpu_pcie_generation": 5.0,
    "rankmend_gpu_nvlink_up": 1.0,
    "rankmend_nic_rate_bytes_per_second": 5e10,
    "rankmend_ethernet_speed_bytes_per_second": 5e10,
    "rankmend_host_memory_available_bytes": 1e12,
    "rankmend_gpu_temperature_celsius": 60.0,
    "rankmend_gpu_memory_temperature_celsius": 70.0,
    "rankmend_disk_read_bytes_total": 1e6,  # a second
    "rankmend_host_memory_dirty_bytes": 1e7,
}


@dataclass
class Cluster:
    """Readings of four nodes, two devices each, every minute for 20 min; rank 2 is on n1, device 0."""

    seed: int = 1
    noise: float = 0.005
    changed: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def change(
        self, node: str, sign: Sign, device: int, now: float, before: float | None = None
    ) -> None:
        usual = USUAL.get(sign.metric, 0.0)
        self.changed[node, device, sign.metric, sign.where] = (
            usual if before is None else before,
            now,
        )

    def readings(self) -> list[HardwareReading]:
        chance = random.Random(self.seed)
        out = []
        done = set()
        for cause in CAUSES:
            for sign in (*cause.signs, *cause.supports):
                if (sign.metric, sign.where) in done or sign.metric in self.left_out:
                    continue
                done.add((sign.metric, sign.where))
                for number, node in enumerate(NODES):
                    for device, labels in enumerate(LABELS[cause.scope]):
                        if cause.scope is Scope.RANK:
                            labels = labels | {"rank": str(2 * number + device)}  # noqa: PLW2901
                        out += self._series(chance, node, device, sign, labels)
        for number, node in enumerate(NODES):
            for device in range(2):
                rank = {"rank": str(2 * number + device), "job_id": "J"}
                for scope, name in (
                    (Scope.GPU, "gpu"),
                    (Scope.NIC, "nic"),
                    (Scope.CGROUP, "cgroup"),
                ):
                    labels = rank | LABELS[scope][device]
                    out.append(reading_of(f"rankmend_rank_{name}_info", labels, 1.0, ONSET_S, node))
        return out

    def _series(
        self, chance: random.Random, node: str, device: int, sign: Sign, labels: dict[str, str]
    ) -> Iterator[HardwareReading]:
        usual = USUAL.get(sign.metric, 0.0)
        before, now = self.changed.get((node, device, sign.metric, sign.where), (usual, usual))
        if sign.where is not None:
            labels = {**labels, sign.where[0]: min(sign.where[1])}
        total = 1000.0
        for number in range(21):
            at_s = ONSET_S - 600 + 60 * number
            value = now if at_s >= ONSET_S else before
            value *= 1 + self.noise * chance.gauss(0, 1)
            if sign.statistic is Statistic.RATE:
                total += 60 * value
                value = total
            yield reading_of(sign.metric, labels, value, at_s, node)


def explain(
    cluster: Cluster | list[HardwareReading],
    section: SlowSection = SlowSection.UNKNOWN,
    **who: Any,
) -> SlowExplanation:
    accused = SlowPlace(**{"section": section, "rank": 2, "node": "n1"} | who)
    readings = cluster.readings() if isinstance(cluster, Cluster) else cluster
    (explanation,) = explain_slow([accused], readings, WINDOW)
    return explanation


def worse(sign: Sign, times: float = 3.0) -> float:
    usual = USUAL.get(sign.metric, 0.0)
    step = max(sign.least * usual if sign.is_share else sign.least, sign.floor) * times
    return usual - step if sign.is_low else usual + step


EACH_SIGN = [(cause, sign) for cause in CAUSES for sign in cause.signs]


@pytest.mark.parametrize(
    ("cause", "sign"), EACH_SIGN, ids=[f"{c.name}-{n}" for n, (c, _s) in enumerate(EACH_SIGN)]
)
def test_each_sign_names_its_cause_where_the_section_allows_it(cause: Any, sign: Sign) -> None:
    cluster = Cluster()
    times = 3.0 if sign.metric != "rankmend_gpu_nvlink_up" else 2.0
    cluster.change("n1", sign, 0, worse(sign, times))
    readings = cluster.readings()

    for section in (*cause.sections, SlowSection.UNKNOWN):
        explanation = explain(readings, section)
        named = {one.cause for one in explanation.causes}
        assert cause.name in named, explanation
        best = explanation.causes[0]
        assert (best.node, best.evidence[0].source) == ("n1", sign.metric)
    for section in {
        SlowSection.COMPUTE,
        SlowSection.IO,
        SlowSection.COMMUNICATION,
    } - cause.sections:
        explanation = explain(readings, section)
        assert cause.name not in {one.cause for one in explanation.causes}
        assert explanation.beside


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.005, 0.02]))
def test_healthy_hardware_shows_nothing_and_says_what_was_looked_at(
    seed: int, noise: float
) -> None:
    explanation = explain(Cluster(seed, noise))

    assert explanation.causes == ()
    assert explanation.reason.startswith("hardware shows nothing")
    assert set(explanation.looked_at) == {cause.name for cause in CAUSES}
    assert explanation.missing == ()


def sign_of(name: str) -> Sign:
    return next(cause for cause in CAUSES if cause.name == name).signs[0]


def test_what_all_nodes_show_is_no_cause() -> None:
    cluster = Cluster()
    for node in NODES:
        for device in range(2):
            cluster.change(node, sign_of("gpu_power_cap"), device, 0.9)
            cluster.change(node, sign_of("gpu_hot"), device, 95.0)

    assert explain(cluster).causes == ()


def test_the_trouble_of_another_device_of_the_node_is_no_cause() -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("gpu_thermal_slowdown"), 1, 0.9)
    cluster.change("n2", sign_of("gpu_clock_low"), 0, 1.2e9)

    assert explain(cluster).causes == ()


def test_a_quota_that_is_used_up_explains_why_its_rank_waits_for_a_cpu() -> None:
    crowded = Cluster()
    crowded.change("n1", sign_of("cpu_taken"), 0, 0.5)
    throttled = replace(crowded, changed=dict(crowded.changed))
    throttled.change("n1", sign_of("cpu_throttled"), 0, 0.5)

    assert [one.cause for one in explain(crowded).causes] == ["cpu_taken"]
    assert [one.cause for one in explain(throttled).causes] == ["cpu_throttled"]


def test_what_was_there_before_the_onset_is_trusted_half() -> None:
    fresh, old = Cluster(), Cluster()
    fresh.change("n1", sign_of("cpu_throttled"), 0, 0.5)
    old.change("n1", sign_of("cpu_throttled"), 0, 0.5, before=0.5)

    (new_cause, *_), (old_cause, *_) = explain(fresh).causes, explain(old).causes

    assert (new_cause.confidence, old_cause.confidence) == (0.9, 0.45)
    assert "the same before the onset" in old_cause.evidence[0].text


def test_lost_time_comes_before_heat_and_heat_is_told_beside_it() -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("gpu_thermal_slowdown"), 0, 0.8)
    cluster.change("n1", sign_of("gpu_clock_low"), 0, 1.3e9)
    cluster.change("n1", sign_of("gpu_hot"), 0, 96.0)

    explanation = explain(cluster, SlowSection.COMPUTE)

    assert [one.cause for one in explanation.causes] == [
        "gpu_thermal_slowdown",
        "gpu_clock_low",
        "gpu_hot",
    ]
    texts = [line.text for line in explanation.causes[0].evidence]
    assert texts[0].startswith("clocks held for heat of GPU-0: 80% of the time, its peers 0%")
    assert any(text.startswith("SM clock of GPU-0: 1.3 GHz, its peers 1.98 GHz") for text in texts)
    assert any(text.startswith("temperature of the memory of GPU-0: 9") for text in texts)


def test_a_limit_of_the_group_above_the_rank_is_the_ranks() -> None:
    cluster = Cluster()
    readings = cluster.readings()
    for number in range(21):
        at_s = ONSET_S - 600 + 60 * number
        held_s = max(0.0, at_s - ONSET_S) * 0.4
        readings.append(
            reading_of(
                "rankmend_cgroup_cpu_throttled_seconds_total",
                {"cgroup": "/job"},
                held_s,
                at_s,
                "n1",
            )
        )

    (explanation,) = explain_slow([SlowPlace(SlowSection.COMPUTE, 2, "n1")], readings, WINDOW)

    assert (explanation.causes[0].cause, explanation.causes[0].device) == ("cpu_throttled", "/job")


def test_node_of_a_rank_comes_from_the_readings_and_a_long_name_is_the_short_one() -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("pcie_degraded"), 0, 8.0)

    assert explain(cluster, node=None).causes[0].node == "n1"
    assert explain(cluster, node="n1.cluster.example").causes[0].node == "n1"
    assert explain(cluster, node=None, job_id="another").reason.startswith("the node of rank 2")


def test_without_knowing_the_ranks_device_any_of_the_node_is_trusted_less() -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("gpu_clock_low"), 1, 1.2e9)

    best = explain(cluster, rank=None).causes[0]
    named = explain(cluster, rank=None, device="gpu1").causes[0]

    assert (best.device, best.confidence) == ("GPU-1", pytest.approx(0.8 * 0.8))
    assert (named.device, named.confidence) == ("GPU-1", pytest.approx(0.8))


def test_a_lone_node_is_compared_with_its_past_and_counted_time_with_none() -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("cpu_crowded"), 0, 0.5)
    readings = [one for one in cluster.readings() if one.node == "n1"]

    (now,) = explain_slow([SlowPlace(SlowSection.COMPUTE, 2, "n1")], readings, WINDOW)
    (never,) = explain_slow(
        [SlowPlace(SlowSection.COMPUTE, 2, "n1")], readings, SlowPeriod(ONSET_S, ONSET_S + 600)
    )

    assert (now.causes[0].cause, now.causes[0].confidence) == ("cpu_crowded", pytest.approx(0.49))
    assert never.causes == ()


def test_what_nobody_measured_is_missing_and_not_healthy() -> None:
    explanation = explain(Cluster(left_out=frozenset({"rankmend_gpu_clocks_event_seconds_total"})))
    (nothing,) = explain_slow([SlowPlace(SlowSection.IO, 2, "n1")], [], WINDOW)

    assert {"gpu_thermal_slowdown", "gpu_power_cap"} <= set(explanation.missing)
    assert (
        nothing.reason == "nothing was measured that could explain why rank 2 on n1 is slow in io"
    )
    assert nothing.looked_at == ()


def test_a_counter_that_begins_again_is_no_leap() -> None:
    metric = "rankmend_cgroup_cpu_throttled_seconds_total"
    readings = [
        reading_of(metric, {"cgroup": "/c"}, value, ONSET_S + 30 * number, node)
        for node in ("n0", "n1")
        for number, value in enumerate([1e6, 1e6 + 0.1, 0.0, 0.1] if node == "n1" else [0.0] * 4)
    ]

    (explanation,) = explain_slow([SlowPlace(SlowSection.COMPUTE, None, "n1")], readings, WINDOW)

    assert explanation.causes == ()


def throttled(by_node: dict[str, list[float]]) -> list[HardwareReading]:
    metric = "rankmend_cgroup_cpu_throttled_seconds_total"
    return [
        reading_of(metric, {"cgroup": "/c"}, value, ONSET_S + 30 * number, node)
        for node, values in by_node.items()
        for number, value in enumerate(values)
    ]


def test_time_lost_on_both_sides_of_a_counters_new_beginning_counts() -> None:
    readings = throttled({"n0": [0.0] * 4, "n1": [100.0, 115.0, 15.0, 30.0]})

    (explanation,) = explain_slow([SlowPlace(SlowSection.COMPUTE, None, "n1")], readings, WINDOW)

    text = explanation.causes[0].evidence[0].text
    assert text.startswith("kept from running by the CPU quota of /c: 50% of the time")


def test_what_peers_differ_by_among_themselves_is_no_sign() -> None:
    peers = {f"n{number + 2}": [0.0, 3.0 * number, 6.0 * number] for number in range(8)}
    readings = throttled({"n1": [0.0, 24.0, 48.0], **peers})  # 80 %, the others 0 to 70 %

    (explanation,) = explain_slow([SlowPlace(SlowSection.COMPUTE, None, "n1")], readings, WINDOW)

    assert explanation.causes == ()
    assert "cpu_throttled" in explanation.looked_at


def test_another_slow_rank_is_no_peer() -> None:
    readings = throttled({"n0": [0.0, 0.0], "n1": [0.0, 15.0], "n2": [0.0, 15.0]})
    both = [SlowPlace(SlowSection.COMPUTE, None, node) for node in ("n1", "n2")]

    first, second = explain_slow(both, readings, WINDOW)

    assert first.causes[0].cause == second.causes[0].cause == "cpu_throttled"
    assert "its only peer 0% of the time" in first.causes[0].evidence[0].text


def test_the_network_device_of_a_ranks_nic_is_the_ranks() -> None:
    paused = "rankmend_ethernet_pause_seconds_total"
    readings = Cluster().readings()
    readings = [one for one in readings if one.metric != paused]
    for node in NODES:
        for number in range(2):
            port = {"device": f"mlx5_{number}", "port": "1", "network_device": f"eth{number}"}
            readings.append(reading_of("rankmend_nic_port_info", port, 1.0, ONSET_S, node))
            for place in range(10):
                held_s = 30.0 * place if (node, number) == ("n1", 0) else 0.0
                at_s = ONSET_S + 60 * place
                labels = {"device": f"eth{number}", "direction": "receive"}
                readings.append(reading_of(paused, labels, held_s, at_s, node))

    (mine,) = explain_slow([SlowPlace(SlowSection.COMMUNICATION, 2, "n1")], readings, WINDOW)
    (other,) = explain_slow([SlowPlace(SlowSection.COMMUNICATION, 3, "n1")], readings, WINDOW)

    assert (mine.causes[0].cause, mine.causes[0].device) == ("nic_paused", "eth0")
    assert other.causes == ()


def test_every_metric_of_the_table_is_one_of_the_agents() -> None:
    assert set(FAMILIES) >= METRICS
    for cause in CAUSES:
        for sign in (*cause.signs, *cause.supports):
            kind = FAMILIES[sign.metric].type.value
            assert (kind == "counter") is (sign.statistic is Statistic.RATE), sign.metric
            assert sign.where is None or sign.where[0] in FAMILIES[sign.metric].labels


# -- what Prometheus says, and the agent


def matrix(readings: list[HardwareReading]) -> dict[str, Any]:
    """Return readings as the answer to a range query."""
    series: dict[str, Any] = {}
    for one in readings:
        labels = {"__name__": one.metric, "node": one.node, **dict(one.labels)}
        name = next((n for n in ("cgroup", "nic") if n in one.metric), "")
        key = "uuid" if one.device.startswith("GPU") else "cgroup" if name == "cgroup" else "device"
        if one.device:
            labels[key] = one.device
        entry = series.setdefault(json.dumps(labels), {"metric": labels, "values": []})
        entry["values"].append([one.at_s, str(one.value)])
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series.values())}}


def test_an_answer_of_prometheus_says_the_same_as_the_readings() -> None:
    readings = Cluster().readings()

    again = read_answer(parse_answer(json.dumps(matrix(readings))), METRICS)

    assert sorted(again, key=str) == sorted(readings, key=str)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"status": "error", "error": "query timed out"}, "query timed out"),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}, "no matrix"),
        ([3], "an answer of Prometheus is int"),
        ({"data": {"resultType": "matrix", "result": [{"values": []}]}}, "no labels"),
        (
            {
                "data": {
                    "resultType": "matrix",
                    "result": [{"metric": {"__name__": "m", "node": "n"}, "values": [[1]]}],
                }
            },
            "not a sample",
        ),
        (
            {
                "data": {
                    "resultType": "vector",
                    "result": [{"metric": {"__name__": "m"}, "value": [1, "2"]}],
                }
            },
            "of which node",
        ),
    ],
)
def test_an_answer_that_is_none_is_a_named_error(document: Any, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        read_answer(document, {"m"})


@given(st.text(max_size=200))
def test_any_text_is_a_page_or_a_named_error(text: str) -> None:
    with suppress(SourceError):
        read_page(text, {"m"}, "n", 0.0)


def test_pages_with_time_stamps_of_either_format_are_dated_by_them() -> None:
    plain = 'm{node="a",uuid="GPU-1"} 4 1700000000000\n'
    open_metrics = '# TYPE m gauge\nm{instance="b:9476"} 5 1700000001\nm2 6\n# EOF\n'

    assert read_page(plain, {"m"}, None, 0.0) == [
        HardwareReading("a", "m", 4.0, 1_700_000_000.0, "GPU-1", ())
    ]
    assert read_page(open_metrics, {"m"}, None, 0.0) == [
        HardwareReading("b", "m", 5.0, 1_700_000_001.0, "", ())
    ]


def test_command_joins_a_saved_range_query_with_the_trace(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("gpu_thermal_slowdown"), 0, 0.8)
    saved = tmp_path / "range.json"
    saved.write_text(json.dumps(matrix(cluster.readings())), encoding="utf-8")
    trace = write_trace(tmp_path / "trace.csv")

    page = run_slow(trace, "--metrics", saved)
    shown = CliRunner().invoke(slow, [str(trace), "--metrics", str(saved)])

    assert (page["culprits"][0]["rank"], page["culprits"][0]["device"]) == (2, "GPU-0")
    (why,) = page["hardware"]
    assert (why["causes"][0]["cause"], why["causes"][0]["confidence"]) == (
        "gpu_thermal_slowdown",
        0.9,
    )
    assert why["section"] == "compute"
    assert "most likely because the GPU throttles because of heat (n1 GPU-0)" in shown.stdout
    assert "before the onset 0% of the time" in shown.stdout


def test_the_page_of_an_explanation_is_json() -> None:
    cluster = Cluster()
    cluster.change("n1", sign_of("nic_paused"), 0, 0.5)

    page = json.loads(json.dumps(explanation_page(explain(cluster, SlowSection.COMMUNICATION))))

    assert page["causes"][0]["action"] == "watch"
    assert (page["section"], page["rank"], page["host"]) == ("communication", 2, "n1")


def test_prometheus_is_asked_for_the_series_that_are_looked_at_and_no_others() -> None:
    assert SELECTIONS["rankmend_gpu_clock_hertz"] == ("clock", frozenset({"sm"}))
    assert SELECTIONS["rankmend_gpu_nvlink_errors_total"] == (
        "kind",
        frozenset({"crc", "crc_flit", "crc_data", "replay", "recovery"}),
    )
    assert SELECTIONS["rankmend_pressure_some_seconds_total"] == (
        "resource",
        frozenset({"cpu", "memory", "io"}),
    )
    assert SELECTIONS["rankmend_rank_info"] is None
    assert set(SELECTIONS) == METRICS
