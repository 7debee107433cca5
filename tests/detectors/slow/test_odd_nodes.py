"""Host metrics alone: the odd node is named, and nobody where all shift or too little is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.scoreboard.host_cases import FAULTS, LEVELS, host_job
from detectors.diagnosis import Verdict
from detectors.formats.traces.host_csv import read
from detectors.slow.hardware_reading import HardwareReading, reading_of
from detectors.slow.host_table import QUANTITIES, HostTable, table_of
from detectors.slow.odd_nodes import HostLimits, HostReason, _distances, diagnose_hosts
from rankmend.cli.diagnosis.diagnose_hosts import hosts
from rankmend.errors import SourceError
from tests.support.agent import ROOT

FIRST_CLASS = {
    "cpu drop": "odd_cpu_busy",
    "pause frames": "odd_pause_frames",
    "gpu slowdown": "odd_gpu_power",
    "gpu duty drop": "odd_gpu_duty",
    "pcie downgrade": "odd_pcie_width",
    "storage hang": "odd_storage_wait",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("nodes", [3, 8, 40])
def test_each_fault_names_its_node_with_class_and_onset(fault: str, nodes: int) -> None:
    table = host_job(5, nodes, fault=fault, rows=(nodes - 1,), onset_s=900)

    found = diagnose_hosts(table)

    assert [one.host for one in found.culprits] == [f"n{nodes - 1}"]
    assert found.cause == FIRST_CLASS[fault]
    assert found.onset is not None
    assert found.onset.unix_s is not None
    assert 0 <= found.onset.unix_s - (table.times_s[0] + 900) <= 120
    assert 0.4 < found.confidence <= 0.7


@given(
    st.integers(0, 10_000),
    st.integers(3, 32),
    st.sampled_from([0.3, 1.0]),
    st.sampled_from([0.0, 0.1]),
)
def test_healthy_jobs_accuse_nobody(seed: int, nodes: int, noise: float, missing: float) -> None:
    found = diagnose_hosts(host_job(seed, nodes, noise=noise, missing=missing))

    assert found.verdict is Verdict.NOBODY, found


@pytest.mark.parametrize("fault", FAULTS)
def test_what_all_nodes_show_at_once_accuses_nobody(fault: str) -> None:
    found = diagnose_hosts(host_job(2, 8, fault=fault, rows=tuple(range(8))))

    assert (found.verdict, found.cause) == (Verdict.NOBODY, HostReason.ALIKE.value)


def test_two_odd_nodes_of_many_are_both_named_and_a_third_of_them_is_not() -> None:
    two = diagnose_hosts(host_job(3, 16, fault="gpu slowdown", rows=(4, 9)))
    many = diagnose_hosts(host_job(3, 16, fault="gpu slowdown", rows=(1, 2, 3, 4, 5)))

    assert [one.host for one in two.culprits] == ["n4", "n9"]
    assert many.verdict is Verdict.NOBODY


def test_a_node_that_always_differed_is_told_and_not_named() -> None:
    found = diagnose_hosts(host_job(3, 8, fault="gpu slowdown", rows=(2,), onset_s=0))

    assert (found.verdict, found.cause) == (Verdict.NOBODY, "stable_differences")
    assert found.reason.startswith("No node is to blame: n2 differed")


@pytest.mark.parametrize(("minutes", "named"), [(2.5, 0), (6.0, 1)])
def test_an_episode_is_named_from_the_continuity_time_on(minutes: float, named: int) -> None:
    end_s = 900 + 60 * minutes
    table = host_job(4, 8, noise=0.1, fault="gpu duty drop", rows=(2,), onset_s=900, end_s=end_s)

    assert len(diagnose_hosts(table).culprits) == named


def test_too_few_nodes_samples_or_series_are_unknown() -> None:
    table = host_job(1, 8, fault="cpu drop", rows=(1,))
    few = HostTable(table.nodes[:2], table.times_s, {k: v[:2] for k, v in table.values.items()})
    short = HostTable(
        table.nodes, table.times_s[:20], {k: v[:, :20] for k, v in table.values.items()}
    )
    lone = np.full_like(table.values["cpu_busy"], np.nan)
    lone[:2] = 1.0
    missing = HostTable(table.nodes, table.times_s, {"cpu_busy": lone})

    for one in (few, short, missing, HostTable(table.nodes, table.times_s, {})):
        assert diagnose_hosts(one).verdict is Verdict.UNKNOWN
    assert "2 nodes" in diagnose_hosts(few).reason
    assert "at least 8 over 480 s" in diagnose_hosts(short).reason
    assert "2 nodes have it" in diagnose_hosts(missing).evidence[-1].text


def test_a_silent_node_costs_confidence_and_is_no_odd_node() -> None:
    table = host_job(1, 8, fault="cpu drop", rows=(1,))
    table.values["cpu_busy"][5, 10:] = np.nan

    found = diagnose_hosts(table)

    assert [one.host for one in found.culprits] == ["n1"]
    assert found.confidence == pytest.approx(0.7 * 0.9)
    assert any("cpu_busy: too few samples of n5" in line.text for line in found.evidence)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_sums_of_distances_are_those_of_all_pairs(values: list[float]) -> None:
    column = np.array(values)[:, None]

    sums = _distances(column)

    expected = np.abs(column - column.T).sum(axis=1)
    assert np.allclose(sums[:, 0], expected, atol=1e-6)


def agent_readings() -> list[HardwareReading]:
    """Return counters and gauges of four nodes with two GPUs; n2 loses GPU duty and CPU."""
    out = []
    for node in range(4):
        total = 1e6
        for number in range(120):
            at_s = 1.7e9 + 15 * number
            is_bad = node == 2 and number >= 60
            total += 15 * (6.0 if is_bad else 24.0)
            if node == 1 and number == 30:
                total = 0.0  # rebooted
            out.append(
                reading_of(
                    "rankmend_host_cpu_seconds_total", {"mode": "user"}, total, at_s, f"n{node}"
                )
            )
            idle = {"mode": "idle"}
            out.append(reading_of("rankmend_host_cpu_seconds_total", idle, 9e6, at_s, f"n{node}"))
            for gpu in range(2):
                value = 0.3 if is_bad and gpu == 1 else 0.95
                labels = {"uuid": f"GPU-{node}{gpu}", "gpu": str(gpu)}
                out.append(
                    reading_of("rankmend_gpu_utilization_ratio", labels, value, at_s, f"n{node}")
                )
    return out


def test_quantities_are_made_of_the_agents_series() -> None:
    table = table_of(agent_readings())

    found = diagnose_hosts(table)

    assert set(table.values) == {"cpu_busy", "gpu_duty"}
    assert np.nanmedian(table.values["cpu_busy"][0]) == pytest.approx(24.0)
    assert table.values["gpu_duty"][2, -1] == pytest.approx(0.3)
    assert [one.host for one in found.culprits] == ["n2"]
    assert "cpu_busy, gpu_duty" in found.reason


def test_readings_of_nothing_that_is_known_are_an_error() -> None:
    with pytest.raises(SourceError, match="no metric of a node has two samples"):
        table_of([reading_of("up", {}, 1.0, 0.0, "n0")])


def run(*arguments: object) -> Any:
    return CliRunner().invoke(hosts, [str(one) for one in arguments])


def test_command_reads_both_forms_of_csv_and_saved_queries(tmp_path: Path) -> None:
    table = host_job(6, 5, fault="gpu slowdown", rows=(3,))
    rows = [
        f"{node},{at:.0f},{name},{table.values[name][row, place]}"
        for name in ("gpu_clock", "gpu_power")
        for row, node in enumerate(table.nodes)
        for place, at in enumerate(table.times_s)
    ]
    (tmp_path / "long.csv").write_text("\n".join(["node,time,metric,value", *rows]))
    wide = [
        ",".join([f"{at:.0f}", *(str(value) for value in table.values["gpu_clock"][:, place])])
        for place, at in enumerate(table.times_s)
    ]
    (tmp_path / "gpu_clock.csv").write_text("\n".join([",".join(["time", *table.nodes]), *wide]))
    series: dict[str, Any] = {}
    for one in agent_readings():
        key = {"__name__": one.metric, "instance": f"{one.node}:9476", **dict(one.labels)}
        key |= {"uuid": one.device} if one.device else {}
        entry = series.setdefault(json.dumps(key), {"metric": key, "values": []})
        entry["values"].append([one.at_s, str(one.value)])
    answer = {"data": {"resultType": "matrix", "result": list(series.values())}}
    (tmp_path / "range.json").write_text(json.dumps(answer))

    long = json.loads(run(tmp_path / "long.csv", "--json").stdout)
    clock = json.loads(run(tmp_path / "gpu_clock.csv", "--json").stdout)
    saved = run(tmp_path / "range.json")

    assert [one["host"] for one in long["culprits"]] == ["n3"]
    assert (long["verdict"], long["class"]) == ("culprits", "odd_gpu_power")
    assert [one["host"] for one in clock["culprits"]] == ["n3"]
    assert saved.exit_code == 0
    assert saved.stdout.startswith("n2: cpu_busy, gpu_duty became unlike the other nodes")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the table is empty"),
        ("node,value\na,1\n", "no column time"),
        ("node,time,value\na,x,1\n", "not a number"),
        ("node,time,value\na,,1\n", "no row of the host metrics has a time"),
        ("time,n0\n0,1\n1,1\n2,1\n1e15,1\n", "1 nodes x"),
    ],
)
def test_command_ends_with_2_on_unreadable_input(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(text)

    got = run(tmp_path / "bad.csv")

    assert (got.exit_code, said in got.stderr) == (2, True), got.output


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.floats(allow_nan=True)),
        min_size=1,
        max_size=60,
    )
)
def test_any_numbers_end_in_a_verdict_or_a_named_error(rows: list[tuple[str, int, float]]) -> None:
    columns = {
        "node": [row[0] for row in rows],
        "time": [30 * row[1] for row in rows],
        "value": [row[2] for row in rows],
    }

    found = diagnose_hosts(read(columns, "anything"))

    assert found.verdict in set(Verdict)


def test_limits_and_quantities_are_those_of_the_documentation() -> None:
    thresholds = (ROOT / "docs/reference/thresholds.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/use/diagnose-hosts.md").read_text(encoding="utf-8")

    limits = HostLimits()
    for name in limits.__dataclass_fields__:
        assert f"| `{name}` (hosts) | {getattr(limits, name):g} " in thresholds
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    shown = [line.split("`")[1] for line in rows][: len(QUANTITIES)]
    assert shown == [quantity.name for quantity in QUANTITIES]
    assert all(quantity.metric in page for quantity in QUANTITIES)
    assert set(LEVELS) == {quantity.name for quantity in QUANTITIES}
    assert all(f"`{reason.value}" in page for reason in HostReason if reason.value != "odd_node")


def test_noise_that_lifts_a_level_over_the_figure_is_no_change() -> None:
    table = host_job(1, 8, noise=0.1)
    duty = table.values["gpu_duty"]
    duty[:] = 0.96
    duty[2, :60] = 0.87  # 0.09 below: not enough
    duty[2, 60:] = 0.84

    found = diagnose_hosts(HostTable(table.nodes, table.times_s, {"gpu_duty": duty}))

    assert (found.verdict, found.cause) == (Verdict.NOBODY, "stable_differences")
