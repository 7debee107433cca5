"""Slow ranks: who is named, and who is not, on recorded traces, injected faults and bad input."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.scoreboard.cases import slow_down, synthetic_job
from detectors.diagnosis import Verdict
from detectors.formats.site.slurm_topology import parse_topology
from detectors.parts.fleet_parts import FleetPart, FleetParts, HungPart, SharedKind
from detectors.slow.from_records import diagnose_slow
from detectors.slow.placement import locate, locate_delay
from detectors.slow.rises import find_episode
from detectors.slow.suspects import find_suspects
from detectors.slow.work_table import Reason, SlowLimits, TracedWorker, WorkTable
from rankmend.cli.diagnosis.diagnose_slow import slow
from rankmend.cli.diagnosis.diagnose_traces import load
from rankmend.errors import SourceError

DATASETS = os.environ.get("RANKMEND_DATASETS")
needs_data = pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")


def recorded(path: str) -> WorkTable:
    table = load(Path(str(DATASETS)) / path)
    assert isinstance(table, WorkTable)
    return table


def job(replicas: int = 4, stages: int = 2, seed: int = 3, steps: int = 40) -> WorkTable:
    return synthetic_job(seed, replicas, stages, steps, noise=0.01)


@needs_data
def test_a_heavier_last_stage_accuses_nobody_and_is_told() -> None:
    found = diagnose_slow(recorded("straggler-analysis/trace-ST.parquet"))

    assert (found.verdict, found.reason) == (Verdict.NOBODY, Reason.STAGE_BALANCE)
    assert "stage 3" in found.explanation


@needs_data
def test_the_worker_that_straggles_in_mid_run_is_named_with_its_onset() -> None:
    found = diagnose_slow(recorded("pai-minibatch/job_1_norm.csv"))

    assert [worker.worker for worker in found.culprits] == [6]
    assert (found.onset, found.end) == (1811, 1941)


@needs_data
def test_workers_that_always_differ_accuse_nobody() -> None:
    found = diagnose_slow(recorded("pai-minibatch/job_2_norm.csv"))

    assert (found.verdict, found.reason) == (Verdict.NOBODY, Reason.STABLE_DIFFERENCES)


@needs_data
@pytest.mark.parametrize("factor", [1.15, 1.5, 2.5])
@pytest.mark.parametrize("first", [0, 5, 16, 26])
def test_each_worker_of_a_real_trace_made_slower_is_named_alone(factor: float, first: int) -> None:
    table = recorded("straggler-analysis/trace-ST.parquet")

    for row, worker in enumerate(table.workers):
        found = diagnose_slow(slow_down(table, [row], factor, first))

        assert found.culprits == (worker,)
        assert found.onset == table.steps[first]


@needs_data
@pytest.mark.parametrize("factor", [1.15, 1.5, 2.5])
@pytest.mark.parametrize("first", [0, 5, 16, 26])
def test_a_whole_stage_or_everyone_made_slower_accuses_nobody(factor: float, first: int) -> None:
    table = recorded("straggler-analysis/trace-ST.parquet")
    groups = [[row for row, w in enumerate(table.workers) if w.stage == s] for s in range(4)]

    for rows in [*groups, list(range(8))]:
        found = diagnose_slow(slow_down(table, rows, factor, first))

        assert found.verdict is Verdict.NOBODY
        assert first == 0 or found.reason is Reason.SHIFTED_TOGETHER


@needs_data
def test_only_one_kind_of_work_made_slower_is_told_by_its_kind() -> None:
    table = recorded("straggler-analysis/trace-ST.parquet")
    seconds = table.seconds.copy()
    seconds[table.kinds.index("forward-compute"), 3, 16:] *= 1.2

    found = diagnose_slow(replace(table, seconds=seconds))

    assert found.culprits == (table.workers[3],)
    assert found.suspects[0].kind == "forward-compute"


def test_one_long_step_accuses_nobody() -> None:
    table = job()
    seconds = table.seconds.copy()
    seconds[:, 1, 20] *= 5

    assert diagnose_slow(replace(table, seconds=seconds)).verdict is Verdict.NOBODY


@pytest.mark.parametrize(("steps", "named"), [(5, 1), (4, 0)])
def test_an_episode_is_named_from_five_steps_on(steps: int, named: int) -> None:
    table = job()
    seconds = table.seconds.copy()
    seconds[:, 1, 20 : 20 + steps] *= 1.5

    assert len(diagnose_slow(replace(table, seconds=seconds)).culprits) == named


def test_peers_that_become_faster_accuse_nobody() -> None:
    table = job(replicas=2, stages=3)
    seconds = table.seconds.copy()
    seconds[:, 0, 20:] /= 1.3

    assert diagnose_slow(replace(table, seconds=seconds)).culprits == ()


@pytest.mark.parametrize("noise", [0.03, 0.05])
def test_noise_accuses_nobody_in_many_healthy_jobs(noise: float) -> None:
    accused = [
        seed for seed in range(40) if diagnose_slow(synthetic_job(seed, 12, 3, 60, noise)).culprits
    ]

    assert accused == []


def test_a_rise_that_the_rest_of_the_series_reaches_too_accuses_nobody() -> None:
    table = synthetic_job(90_091, replicas=13, stages=4, steps=60, noise=0.1)

    assert diagnose_slow(table).culprits == ()


def test_times_that_wander_for_everybody_accuse_nobody() -> None:
    random = np.random.default_rng(1)
    wander = random.standard_normal((10, 300)).cumsum(axis=1) * 0.02
    seconds = np.exp(wander + 0.01 * random.standard_normal((10, 300)))

    assert find_suspects(seconds, [np.arange(10)], does_same_work=False) == ()


def test_a_worker_that_jitters_is_no_straggler_where_its_slow_steps_lie_together() -> None:
    table = job(replicas=4, stages=1)
    seconds = table.seconds.copy()
    clump = [3, 4, 5, 6, 7, 12, 15, 16, 20, 24, 25, 29, 33, 34, 38]
    seconds[:, 2, clump] *= 2.0
    alone = table.seconds.copy()
    alone[:, 2, clump[:5]] *= 2.0

    assert diagnose_slow(replace(table, seconds=seconds)).culprits == ()
    assert diagnose_slow(replace(table, seconds=alone)).culprits == (table.workers[2],)


@needs_data
def test_no_other_worker_is_named_where_the_straggler_of_a_recorded_job_is_left_out() -> None:
    table = recorded("pai-minibatch/job_1_norm.csv")

    for left_out in range(len(table.workers)):
        kept = [row for row in range(len(table.workers)) if row not in (6, left_out)]
        some = replace(
            table,
            workers=tuple(table.workers[row] for row in kept),
            seconds=table.seconds[:, kept],
        )

        assert diagnose_slow(some).culprits == ()


@needs_data
@pytest.mark.parametrize("job_number", [1, 2])
def test_where_most_workers_become_slower_nobody_of_all_is_named(job_number: int) -> None:
    table = recorded(f"pai-minibatch/job_{job_number}_norm.csv")

    for first in range(30, 180, 15):
        found = diagnose_slow(slow_down(table, range(6), 1.5, first))

        assert {worker.worker for worker in found.culprits} <= {6}
        assert found.onset is None or found.onset >= 1811 or found.verdict is Verdict.NOBODY


def test_work_that_is_dealt_anew_accuses_nobody() -> None:
    table = job(replicas=9, stages=1)
    seconds = table.seconds.copy()
    shares = np.array([0.7, 0.8, 0.85, 0.9, 1.0, 1.1, 1.2, 1.25, 1.35])
    seconds[:, :, 20:] *= shares[:, None]

    assert diagnose_slow(replace(table, seconds=seconds)).culprits == ()


def test_two_slow_ranks_of_different_stages_are_both_named() -> None:
    table = slow_down(slow_down(job(), [1], 1.4, 15), [6], 1.3, 20)

    found = diagnose_slow(table)

    assert {worker.rank for worker in found.culprits} == {1, 6}


def unequal_workers(seed: int = 5, wander: float = 0.0) -> WorkTable:
    """Ten workers whose work was never equal, 300 steps, 5 % noise."""
    random = np.random.default_rng(seed)
    levels = np.exp(0.1 * random.standard_normal((10, 1)))
    walk = wander * random.standard_normal((10, 300)).cumsum(axis=1)
    seconds = levels * np.exp(0.05 * random.standard_normal((10, 300)) + walk)
    workers = tuple(TracedWorker(worker=number, peers=("all",)) for number in range(10))
    return WorkTable(workers, tuple(range(300)), ("mini-batch",), seconds[None], False)


@pytest.mark.parametrize("rows", [[2, 7], [1, 3, 4, 8], [0, 2, 4, 6, 8]])
@pytest.mark.parametrize("factor", [1.2, 2.0])
def test_workers_that_become_slower_at_one_step_are_one_verdict(
    rows: list[int], factor: float
) -> None:
    found = diagnose_slow(slow_down(unequal_workers(), rows, factor, 200))

    assert (found.verdict, found.reason) == (Verdict.CULPRITS, Reason.SLOWER_TOGETHER)
    assert {worker.worker for worker in found.culprits} == set(rows)
    assert [(span.peers, span.end) for span in found.spans] == [(10, 300)]
    assert abs(found.spans[0].first - 200) <= 1
    assert f"{len(rows)} of 10 became slower at step" in found.explanation
    assert "Look at what they share" in found.explanation


def test_workers_that_share_a_host_and_become_slower_together_name_the_host() -> None:
    table = slow_down(unequal_workers(), [1, 3, 4], 1.5, 200)
    hosts = {1: "n1", 3: "n1", 4: "n1"}
    workers = tuple(
        replace(worker, host=hosts.get(row, "n0")) for row, worker in enumerate(table.workers)
    )

    found = diagnose_slow(replace(table, workers=workers))

    assert found.parts == ("host n1",)
    assert "Look at host n1." in found.explanation


@needs_data
@pytest.mark.parametrize("job_number", [1, 2])
@pytest.mark.parametrize("rows", [[1, 3, 4, 8], [0, 9], [2, 5, 7]])
def test_workers_of_a_recorded_job_made_slower_together_are_named_beside_its_own_straggler(
    job_number: int, rows: list[int]
) -> None:
    table = recorded(f"pai-minibatch/job_{job_number}_norm.csv")
    first = 2 * len(table.steps) // 3

    found = diagnose_slow(slow_down(table, rows, 1.6, first))

    joint = next(span for span in found.spans if span.reason is Reason.SLOWER_TOGETHER)
    assert {one.row for one in joint.suspects} == set(rows)
    assert abs(joint.first - first) <= 2
    assert {worker.worker for worker in found.culprits} - set(rows) <= {6}


def test_workers_that_are_slow_at_different_times_are_told_apart() -> None:
    table = slow_down(slow_down(unequal_workers(), [2], 1.5, 100), [7], 1.4, 220)

    found = diagnose_slow(table)

    assert [(span.first, len(span.suspects)) for span in found.spans] == [(100, 1), (220, 1)]
    assert "since step 100" in found.explanation
    assert "since step 220" in found.explanation


def test_times_that_wander_make_no_group() -> None:
    for seed in range(20):
        found = diagnose_slow(unequal_workers(seed, wander=0.01))

        assert found.reason is not Reason.SLOWER_TOGETHER


def test_unequal_sequence_lengths_accuse_nobody_and_hide_no_slow_rank() -> None:
    table = job(replicas=6, stages=4, steps=60)
    lengths = np.exp(0.2 * np.random.default_rng(5).standard_normal((6, 60)))
    factors = np.array([lengths[worker.dp_rank or 0] for worker in table.workers])
    unequal = replace(table, seconds=table.seconds * factors)

    assert diagnose_slow(unequal).verdict is Verdict.NOBODY
    assert diagnose_slow(slow_down(unequal, [9], 1.3, 30)).culprits == (table.workers[9],)


def test_unequal_tokens_are_taken_out_where_they_are_known() -> None:
    table = job(replicas=4, stages=1)
    tokens = np.full(table.seconds.shape[1:], 1000.0)
    tokens[2, 20:] = 1500.0
    seconds = table.seconds * (tokens / 1000.0)

    assert diagnose_slow(replace(table, seconds=seconds)).culprits == (table.workers[2],)
    assert diagnose_slow(replace(table, seconds=seconds, tokens=tokens)).culprits == ()


def test_micro_batches_that_vary_together_are_told_as_sequence_lengths() -> None:
    random = np.random.default_rng(7)
    workers = tuple(
        TracedWorker(rank=rank, stage=0, dp_rank=rank, peers=("all",)) for rank in range(4)
    )
    forward = np.exp(0.4 * random.standard_normal((4, 40, 2)))
    microbatches = np.stack([forward, 2 * forward])
    table = WorkTable(
        workers, tuple(range(40)), ("f", "b"), microbatches.sum(axis=3), microbatches=microbatches
    )

    assert diagnose_slow(table).reason is Reason.SEQUENCE_LENGTHS


def test_long_pauses_of_the_collector_are_told() -> None:
    table = job(stages=1)
    pauses = np.zeros(table.seconds.shape[1:])
    pauses[np.arange(40) % 4, np.arange(40)] = 0.2

    assert diagnose_slow(replace(table, pauses=pauses)).reason is Reason.GARBAGE_COLLECTION


def test_a_replica_slow_in_all_stages_is_its_input_unless_one_host_holds_it() -> None:
    table = slow_down(job(replicas=4, stages=3), [0, 1, 2], 1.3, 20)
    on_hosts = tuple(replace(worker, host=f"node{worker.dp_rank}") for worker in table.workers)

    assert diagnose_slow(table).culprits == ()
    found = diagnose_slow(replace(table, workers=on_hosts))
    assert {worker.rank for worker in found.culprits} == {0, 1, 2}
    assert found.parts == ("host node0",)


def test_a_rank_that_joins_late_or_vanishes_accuses_nobody() -> None:
    table = job(replicas=5, stages=1)
    seconds = table.seconds.copy()
    seconds[:, 0, :25] = np.nan
    seconds[:, 1, 30:] = np.nan

    assert diagnose_slow(replace(table, seconds=seconds)).verdict is Verdict.NOBODY


@pytest.mark.parametrize(("replicas", "steps"), [(1, 40), (4, 4)])
def test_too_little_data_is_unknown(replicas: int, steps: int) -> None:
    found = diagnose_slow(job(replicas=replicas, stages=1, steps=steps))

    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.TOO_LITTLE_DATA)


def test_stages_are_no_peers_of_each_other() -> None:
    found = diagnose_slow(job(replicas=1, stages=4))

    assert found.verdict is Verdict.UNKNOWN


def test_a_large_job_is_screened_without_losing_its_slow_rank() -> None:
    random = np.random.default_rng(2)
    seconds = np.exp(0.03 * random.standard_normal((5_000, 60)))
    seconds[4_321, 31:47] *= 1.2

    found = find_suspects(seconds, [np.arange(5_000)], does_same_work=True)

    assert [suspect.row for suspect in found] == [4_321]


@given(
    scale=st.floats(1e-6, 1e6), row=st.integers(0, 7), first=st.integers(6, 30), order=st.randoms()
)
def test_neither_the_unit_nor_the_order_of_workers_matters(
    scale: float, row: int, first: int, order: object
) -> None:
    table = slow_down(job(), [row], 1.5, first)
    places = list(range(8))
    order.shuffle(places)  # type: ignore[attr-defined]
    shuffled = replace(
        table,
        workers=tuple(table.workers[place] for place in places),
        seconds=table.seconds[:, places] * scale,
    )

    assert diagnose_slow(shuffled).culprits == (table.workers[row],)


@given(st.lists(st.one_of(st.just(float("nan")), st.floats(-5, 5)), max_size=60))
def test_an_episode_lies_within_its_series(values: list[float]) -> None:
    episode = find_episode(np.array(values, dtype=np.float64), 5)

    assert episode is None or 0 <= episode.first < episode.end <= len(values)


def test_shapes_lead_to_parts() -> None:
    workers = [
        TracedWorker(rank=host * 4 + nic, host=f"n{host}", nic=f"mlx{nic}")
        for host in range(4)
        for nic in range(4)
    ]
    leaf = {"n0": "leaf0", "n1": "leaf0", "n2": "leaf1", "n3": "leaf1"}

    def kinds(*slow: int) -> list[tuple[str, str]]:
        parts = {n: (HungPart(FleetPart(SharedKind.LEAF, name)),) for n, name in leaf.items()}
        found = locate(workers, slow, FleetParts(parts))
        return [(part.kind, part.name) for part in found]

    assert kinds(5) == [("rank", "rank 5")]
    assert kinds(4, 5, 6, 7) == [("host", "n1")]
    assert kinds(2, 6, 10, 14) == [("rail", "mlx2")]
    assert kinds(*range(8)) == [("switch", "leaf0")]
    assert kinds(4, 5, 6, 7, 12) == [("host", "n1"), ("rank", "rank 12")]


def test_delay_matrix_tells_sender_receiver_and_link_apart() -> None:
    names = [str(number) for number in range(6)]
    quiet = np.full((6, 6), 1.0)
    np.fill_diagonal(quiet, np.nan)
    row, column, cell = quiet.copy(), quiet.copy(), quiet.copy()
    row[2] *= 3
    column[:, 4] *= 3
    cell[1, 3] *= 3

    assert locate_delay(names, quiet) == ()
    assert [(p.kind, p.name) for p in locate_delay(names, row)] == [("sender", "2")]
    assert [(p.kind, p.name) for p in locate_delay(names, column)] == [("receiver", "4")]
    assert [(p.kind, p.name) for p in locate_delay(names, cell)] == [("link", "1 -> 3")]


def test_slurm_topology_is_read() -> None:
    text = "# tree\nSwitchName=leaf1 Nodes=gpu[01-03,7]\nSwitchName=top Switches=leaf[1-2]\n"

    assert parse_topology(text) == dict.fromkeys(("gpu01", "gpu02", "gpu03", "gpu7"), "leaf1")
    with pytest.raises(SourceError, match="line 1"):
        parse_topology("what is this file\n")


def write_records(path: Path, *, slow_rank: int | None = 2) -> Path:
    lines = ["rank,step,kind,seconds,host"]
    for rank in range(4):
        for step in range(30):
            factor = 1.4 if rank == slow_rank and step >= 12 else 1.0
            seconds = 0.1 * factor * (1 + 0.003 * ((rank * 7 + step * 3) % 5))
            lines.append(f"{rank},{step},compute,{seconds},n{rank // 2}")
            lines.append(f"{rank},{step},communication,{0.3 - seconds},n{rank // 2}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_command_prints_one_object_for_scripts(tmp_path: Path) -> None:
    result = CliRunner().invoke(slow, [str(write_records(tmp_path / "a.csv")), "--json"])

    page = json.loads(result.output)
    assert result.exit_code == 0
    assert page["verdict"] == "culprits"
    assert [(one["rank"], one["host"]) for one in page["culprits"]] == [(2, "n1")]
    assert page["onset"]["step"] == 12
    assert page["class"] == "slow_compute"
    assert set(page) >= {"reason", "confidence", "evidence"}
    (span,) = page["spans"]
    assert span["workers"] == [{"rank": 2, "worker": None, "host": "n1"}]
    assert (span["reason"], span["onset"]) == ("slower_than_before", {"step": 12})


def test_command_draws_a_heat_map_and_writes_pictures(tmp_path: Path) -> None:
    records = str(write_records(tmp_path / "a.csv"))
    for name, start in (("map.svg", b"<svg"), ("map.png", b"\x89PNG\r\n\x1a\n")):
        result = CliRunner().invoke(slow, [records, "--plot", str(tmp_path / name)])

        assert result.exit_code == 0
        assert "rank 2 " in result.output
        assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "{", "rank,step,seconds\n0,0,x\n", "\0\xff"])
def test_command_ends_with_2_on_unreadable_input(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(text.encode("latin-1"))

    result = CliRunner().invoke(slow, [str(file)])

    assert result.exit_code == 2
    assert "bad.csv" in result.output


def test_a_json_object_of_another_kind_is_named_by_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text('{\n  "rank": 1,\n  "Ms": 2\n}')

    result = CliRunner().invoke(slow, [str(file)])

    assert result.exit_code == 2
    assert "one JSON object of rank, Ms: neither a trace nor records" in result.output


def test_limits_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/thresholds.md").read_text(encoding="utf-8")

    for name in SlowLimits.__dataclass_fields__:
        value = getattr(SlowLimits(), name)
        assert f"| `{name}` | {value:g} " in page, name
