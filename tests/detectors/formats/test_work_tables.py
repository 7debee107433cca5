"""Traces and records in, work tables out: what is read, what is refused and what is noted."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.diagnosis import Verdict
from detectors.formats.traces import kineto, nccl_inspector, neutral, pai, straggler_analysis
from detectors.slow.from_records import diagnose_slow
from detectors.slow.work_table import WorkTable
from rankmend.cli.diagnosis.diagnose_traces import load
from rankmend.errors import SourceError


def trace_columns(steps: int = 20, slow: tuple[int, int] | None = None) -> dict[str, list[Any]]:
    """Return a trace of 2 replicas x 3 stages, 2 micro-batches."""
    rows = []
    for step in range(steps):
        for replica in range(2):
            for stage in range(3):
                factor = 1.3 if (replica, stage) == slow and step >= 8 else 1.0
                jitter = 1 + 0.002 * ((step * 5 + replica * 3 + stage) % 7)
                for kind, base in (("forward-compute", 0.1), ("backward-compute", 0.2)):
                    rows.extend(
                        (replica, stage, replica + 2 * stage, step, kind, base * factor * jitter, n)
                        for n in range(2)
                    )
                rows.append((replica, stage, replica + 2 * stage, step, "forward-send", 0.3, 0))
    names = ("dp_rank", "stage", "rank", "step", "optype", "duration", "seq_id")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def test_operation_trace_keeps_own_work_only() -> None:
    table = straggler_analysis.read(trace_columns())

    assert table.kinds == ("forward-compute", "backward-compute")
    assert table.seconds.shape == (2, 6, 20)
    assert table.seconds[0, 0, 0] == pytest.approx(0.2, rel=0.02)
    assert {worker.peers for worker in table.workers} == {
        ("stage", stage, "place", 0) for stage in range(3)
    }


def test_operation_trace_as_csv_says_the_same_as_columns(tmp_path: Path) -> None:
    columns = trace_columns(slow=(1, 2))
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    (tmp_path / "trace.csv").write_text("\n".join(lines), encoding="utf-8")

    table = load(tmp_path)

    assert isinstance(table, WorkTable)
    found = diagnose_slow(table)
    assert [(one.dp_rank, one.stage, one.rank) for one in found.culprits] == [(1, 2, 5)]


@pytest.mark.parametrize("column", ["dp_rank", "stage", "step", "optype", "duration"])
def test_an_absent_column_is_named(column: str) -> None:
    columns = trace_columns()
    del columns[column]

    with pytest.raises(SourceError, match=f"no column {column}"):
        straggler_analysis.read(columns)


@pytest.mark.parametrize("value", [float("nan"), -1.0, float("inf"), 1e9, None])
def test_a_few_bad_durations_lower_the_confidence_and_name_nobody_else(value: float | None) -> None:
    columns = trace_columns(slow=(0, 1))
    clean = diagnose_slow(straggler_analysis.read(columns))
    for row in range(0, 600, 97):
        columns["duration"][row] = value

    found = diagnose_slow(straggler_analysis.read(columns))

    assert [(one.dp_rank, one.stage) for one in found.culprits] == [(0, 1)]
    assert found.confidence < clean.confidence
    assert any("left out" in line for line in found.evidence)


def test_mostly_bad_durations_are_an_error() -> None:
    columns = trace_columns()
    columns["duration"][::5] = [-1.0] * len(columns["duration"][::5])

    with pytest.raises(SourceError, match="unusable"):
        straggler_analysis.read(columns)


def test_clock_jumps_between_hosts_change_nothing() -> None:
    columns = trace_columns(slow=(0, 1))
    start = {"start_ts": [1e6 * rank for rank in columns["rank"]]}

    found = diagnose_slow(straggler_analysis.read({**columns, **start}))

    assert [(one.dp_rank, one.stage) for one in found.culprits] == [(0, 1)]


def test_bytes_that_are_no_parquet_are_an_error() -> None:
    pytest.importorskip("pyarrow")

    with pytest.raises(SourceError, match="not a parquet file"):
        straggler_analysis.read_parquet(b"PAR1" + bytes(64) + b"PAR1")


def test_rows_of_a_trace_that_are_there_twice_count_once() -> None:
    rows = {
        "dp_rank": [0, 0, 1, 1, 1],
        "stage": [0] * 5,
        "rank": [0, 0, 1, 1, 1],
        "step": [1] * 5,
        "optype": ["forward-compute"] * 5,
        "start_ts": [0.0, 0.5, 0.0, 0.5, 0.5],
        "duration": [0.3, 0.3, 0.3, 0.3, 0.3],
    }

    table = straggler_analysis.read(rows)
    unknown = straggler_analysis.read({**rows, "start_ts": [0.0] * 5})

    assert table.seconds[0, :, 0].tolist() == [0.6, 0.6]
    assert table.notes == ("1 rows left out: they repeat others",)
    assert unknown.seconds[0, 1, 0] == pytest.approx(0.9), "without times equal is not the same"


def test_mini_batch_times_are_averaged_where_one_iteration_is_there_twice() -> None:
    columns = {"worker": [0, 0, 1], "time": [1, 1, 1], "batch_time_norm": [10, 30, 50]}

    table = pai.read(columns)

    assert table.seconds[0].tolist() == [[20.0], [50.0]]
    assert table.does_same_work is False


def test_a_table_by_hand_may_have_spaces_in_its_header_and_empty_lines() -> None:
    columns = neutral.read_csv("rank, step ,seconds\n0,1,0.5\n\n1,1,0.6\n\n")

    assert columns == {"rank": ["0", "1"], "step": ["1", "1"], "seconds": ["0.5", "0.6"]}


def test_neutral_rows_of_waiting_are_left_out() -> None:
    rows = {"rank": [0, 0, 1, 1], "step": [0] * 4, "seconds": [1, 9, 2, 8]}

    table = neutral.read({**rows, "kind": ["compute", "communication"] * 2})

    assert table.kinds == ("compute",)
    assert table.seconds[0, :, 0].tolist() == [1.0, 2.0]
    with pytest.raises(SourceError, match="only waiting"):
        neutral.read({**rows, "kind": ["communication"] * 4})


def test_delays_are_read_as_a_matrix_of_medians() -> None:
    names, matrix = neutral.read_delays(
        {"src": ["10", "10", "2", "2"], "dst": ["2", "2", "10", "2"], "seconds": [1, 3, 5, 7]}
    )

    assert names == ("2", "10")
    assert np.isnan(matrix[0, 0])
    assert (matrix[0, 1], matrix[1, 0]) == (5.0, 2.0)


def inspector_rows(late: int | None, count: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 4},
            "metadata": {"hostname": f"node{rank}"},
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_exec_time_us": 10_000
                + (rank * 7 + number * 3) % 11
                + (5_000 if late is not None and number >= 20 and rank != late else 0),
            },
        }
        for rank in range(4)
        for number in range(count)
    ]


def test_the_shortest_collective_time_is_the_late_rank() -> None:
    found = diagnose_slow(nccl_inspector.read(inspector_rows(late=2)))

    assert [(one.rank, one.host) for one in found.culprits] == [(2, "node2")]
    assert found.onset == 20
    assert diagnose_slow(nccl_inspector.read(inspector_rows(late=None))).culprits == ()


def test_records_of_the_inspector_that_are_broken_are_an_error() -> None:
    with pytest.raises(SourceError, match="unusable"):
        nccl_inspector.read([{"header": {}, "coll_perf": {}}])


def kineto_trace(rank: int, *, slow: bool = False, steps: int = 20) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    for step in range(steps):
        start = step * 100_000 + rank * 10_000_000  # each host has a clock of its own
        work = 30_000 * (1.4 if slow and step >= 8 else 1.0) + (step * 3 + rank) % 5
        for name, category, offset, took in (
            (f"ProfilerStep#{step}", "user_annotation", 0, 100_000),
            ("gemm", "kernel", 100, work),
            ("gemm beside it", "kernel", 100, work / 2),
            ("ncclDevKernel_AllReduce", "kernel", 50_000, 45_000),
            ("aten::mm", "cpu_op", 0, 90_000),
        ):
            events.append(
                {"ph": "X", "name": name, "cat": category, "ts": start + offset, "dur": took}
            )
    return {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}


def test_profiler_traces_of_a_folder_name_the_slow_rank(tmp_path: Path) -> None:
    for rank in range(4):
        text = json.dumps(kineto_trace(rank, slow=rank == 3))
        if rank % 2:
            (tmp_path / f"trace_{rank}.json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (tmp_path / f"trace_{rank}.json").write_text(text, encoding="utf-8")

    table = load(tmp_path)

    assert isinstance(table, WorkTable)
    assert table.seconds[0, 0, 0] == pytest.approx(0.03, rel=0.01)  # overlap counted once
    assert [one.rank for one in diagnose_slow(table).culprits] == [3]


def test_profiler_traces_that_can_not_be_told_apart_are_an_error() -> None:
    with pytest.raises(SourceError, match="two traces of rank 1"):
        kineto.read([kineto_trace(1), kineto_trace(1)])
    with pytest.raises(SourceError, match="ProfilerStep"):
        kineto.read([{"traceEvents": []}])


def test_one_trace_alone_is_unknown() -> None:
    assert diagnose_slow(kineto.read([kineto_trace(0)])).verdict is Verdict.UNKNOWN


def test_truncated_gzip_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(b"{}" * 1000)[:-9])

    with pytest.raises(SourceError, match=r"trace\.json\.gz"):
        load(file)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
fields = st.sampled_from(["rank", "step", "seconds", "kind", "stage", "src", "dst", "tokens"])


@given(st.lists(st.dictionaries(fields, json_values, max_size=6), min_size=1, max_size=6))
def test_any_json_lines_end_in_a_verdict_or_a_named_error(rows: list[dict[str, Any]]) -> None:
    text = "\n".join(json.dumps(row) for row in rows)
    try:
        diagnose_slow(neutral.read(neutral.read_lines(text)))
    except SourceError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


@given(st.text(alphabet="rankstepcod,\n0123.-\"'e\0", max_size=200))
def test_any_text_is_a_table_or_a_named_error(text: str) -> None:
    try:
        neutral.read(neutral.read_csv(text))
    except SourceError as error:
        assert str(error)  # noqa: PT017


events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "i", 3]),
        "cat": st.sampled_from(["kernel", "cpu_op", [], None]),
        "name": st.sampled_from(["ProfilerStep#1", "ProfilerStep#2", "gemm", 5]),
        "ts": json_values,
        "dur": json_values,
    },
)


@given(st.lists(st.one_of(events, json_values), max_size=8), json_values)
def test_any_profiler_trace_ends_in_a_table_or_a_named_error(trace: list[Any], info: Any) -> None:
    try:
        diagnose_slow(kineto.read([{"traceEvents": trace, "distributedInfo": info}]))
    except SourceError as error:
        assert str(error)  # noqa: PT017


@given(st.lists(st.dictionaries(st.sampled_from(["header", "coll_perf", "metadata"]), json_values)))
def test_any_records_of_the_inspector_end_in_a_table_or_a_named_error(rows: list[Any]) -> None:
    try:
        diagnose_slow(nccl_inspector.read(rows))
    except SourceError as error:
        assert str(error)  # noqa: PT017


def test_interleaved_stages_pair_forward_and_backward_of_the_same_piece() -> None:
    names = ("dp_rank", "stage", "rank", "step", "optype", "duration", "seq_id", "mb_id", "mc")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    lengths = np.exp(0.4 * np.random.default_rng(2).standard_normal((2, 30, 4)))
    for replica in range(2):
        for step in range(30):
            for kind in ("forward-compute", "backward-compute"):
                pieces = [(batch, chunk) for chunk in range(2) for batch in range(4)]
                for order, (batch, chunk) in enumerate(
                    pieces if kind == "forward-compute" else pieces[::-1]
                ):
                    took = lengths[replica, step, batch] * (1 + chunk)
                    values = (replica, 0, replica, step, kind, took, order, batch, chunk)
                    for name, value in zip(rows, values, strict=True):
                        rows[name].append(value)

    table = straggler_analysis.read(rows)
    found = diagnose_slow(table)
    by_order = diagnose_slow(straggler_analysis.read({k: v for k, v in rows.items() if k != "mc"}))

    assert table.microbatches is not None
    assert np.allclose(table.microbatches[0], table.microbatches[1])
    assert found.reason.value == "sequence_lengths"
    assert by_order.reason.value != "sequence_lengths"
    assert not found.culprits


def test_a_rank_in_two_groups_is_an_error_and_on_two_hosts_a_note() -> None:
    columns = {
        "rank": [0, 0, 1, 1],
        "step": [0, 1, 0, 1],
        "seconds": [1.0, 1.0, 1.0, 1.0],
        "group": ["a", "b", "a", "a"],
    }
    hosts = {**columns, "group": ["a"] * 4, "host": ["h0", "h0", "h1", "h2"]}

    with pytest.raises(SourceError, match="rank 0 has several values of group"):
        neutral.read(columns)
    assert neutral.read(hosts).notes == (
        "rank 1 has several values of host; only the first one is reported",
    )


def test_a_trace_in_two_data_parallel_groups_lowers_the_confidence() -> None:
    traces = []
    for rank in range(4):
        events = [
            event
            for step in range(20)
            for event in (
                {
                    "ph": "X",
                    "name": f"ProfilerStep#{step}",
                    "cat": "user_annotation",
                    "ts": step * 1e6,
                    "dur": 1e6,
                },
                {"ph": "X", "name": "gemm", "cat": "kernel", "ts": step * 1e6, "dur": 5e5},
            )
        ]
        groups = [
            {"pg_desc": "data_parallel_group", "ranks": [0, 1, 2, 3]},
            {"pg_desc": "DATA_PARALLEL_GROUP", "ranks": [rank // 2 * 2, rank // 2 * 2 + 1]},
        ]
        info = {"rank": rank, "pg_config": groups}
        base = 1_700_000_000 * 10**9
        traces.append({"traceEvents": events, "distributedInfo": info, "baseTimeNanoseconds": base})

    table = kineto.read(traces)

    assert [worker.peers for worker in table.workers][:2] == [("replicas", 0, 1)] * 2
    assert "several data parallel groups" in table.notes[0]
    assert table.starts_s is not None
    assert table.starts_s[3] == pytest.approx(1_700_000_003.0)
