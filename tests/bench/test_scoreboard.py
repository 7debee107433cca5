"""The scoreboard: truth files in, honest figures out."""

from pathlib import Path
from typing import Any

import pytest

from bench.scoreboard.__main__ import RULES, add_delay, run_case
from bench.scoreboard.cases import (
    Case,
    Truth,
    injected_cases,
    is_same,
    parse_truth,
    recorded_cases,
    slow_down,
    synthetic_job,
)
from bench.scoreboard.hang_jobs import hang_cases
from bench.scoreboard.host_cases import host_job
from bench.scoreboard.scores import Result, score, wilson
from detectors.hang.wait_verdict import HangClass
from rankmend.errors import ConfigError

FAULTY = Truth("faulty", "slow", ((("rank", 1),),))
HEALTHY = Truth("healthy", "slow", ())


def result(truth: Truth, *ranks: int, error: str | None = None) -> Result:
    named: tuple[dict[str, Any], ...] = tuple({"rank": rank, "stage": None} for rank in ranks)
    return Result(truth, named, None, took_s=0.1, error=error)


def test_figures_count_hits_false_names_and_abstentions() -> None:
    figures = score(
        [
            result(FAULTY, 1),
            result(FAULTY, 2, 1),
            result(FAULTY),
            result(HEALTHY),
            result(HEALTHY, 4),
        ]
    )

    assert (figures["cases"], figures["exact"]) == (5, 2)
    assert figures["precision"] == pytest.approx(2 / 4)
    assert figures["recall"] == pytest.approx(2 / 3)
    assert figures["f1"] == pytest.approx(4 / 7)
    assert figures["top1"] == pytest.approx(1 / 3)
    assert (figures["abstentions_right"], figures["abstentions_wrong"]) == (1, 1)
    assert figures["accused_wrongly"] == 1


def test_a_case_that_could_not_be_read_is_no_right_abstention() -> None:
    figures = score([result(HEALTHY, error="torn")])

    assert (figures["exact"], figures["abstentions_right"], figures["errors"]) == (0, 0, 1)


def test_a_wrong_class_is_not_exact() -> None:
    truth = Truth("hang", "hang", ((("rank", 1),),), class_name="host-stuck")

    assert Result(truth, ({"rank": 1},), "Host stuck", 0.1).is_exact
    assert not Result(truth, ({"rank": 1},), "device-stuck", 0.1).is_exact


def test_wilson_interval_has_its_textbook_values() -> None:
    assert wilson(3, 3) == pytest.approx((0.4385, 1.0), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_culprit_is_the_same_by_what_the_truth_tells_of_it() -> None:
    identity = (("dp_rank", 0), ("stage", 2))

    assert is_same(identity, {"rank": 4, "stage": 2, "dp_rank": 0})
    assert not is_same(identity, {"rank": 4, "stage": 2, "dp_rank": 1})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"kind": "fast", "verdict": "nobody"}, "kind is 'fast', not slow, hang, hosts"),
        ({"kind": "slow", "verdict": "nobody", "onsett": 3}, "unknown key onsett"),
        ({"kind": "slow", "verdict": "culprits"}, "with 0 culprits"),
        ({"kind": "slow", "verdict": "nobody", "culprits": [1]}, "with 1 culprits"),
        ({"kind": "slow", "verdict": "culprits", "culprits": [{"gpu": 1}]}, "culprit has"),
    ],
)
def test_a_truth_that_contradicts_itself_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_truth(table, "case")


def test_a_new_case_is_picked_up_by_its_truth_file(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    rows = [
        f"{rank},{step},{1.5 if rank == 2 and step > 9 else 1}"
        for rank in range(4)
        for step in range(30)
    ]
    (folder / "records.csv").write_text("\n".join(["rank,step,seconds", *rows]), encoding="utf-8")
    (folder / "truth.toml").write_text(
        'kind = "slow"\ndata = "records.csv"\nverdict = "culprits"\nculprits = [2]\nonset = 10\n',
        encoding="utf-8",
    )

    (case,) = recorded_cases(None, tmp_path)
    got = add_delay(case, run_case(case, RULES["slow"]["rankmend"]))

    assert got.is_exact
    assert got.delay_steps == 5


def test_a_folder_without_truth_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no truth\.toml"):
        recorded_cases(None, tmp_path)


def test_simple_rules_accuse_where_rankmend_abstains() -> None:
    table = synthetic_job(4, replicas=3, stages=4, steps=60, noise=0.03)
    case = Case(HEALTHY, is_recorded=False, table=table)

    accused = {name: bool(run_case(case, rule).named) for name, rule in RULES["slow"].items()}

    assert accused["rankmend"] is False
    assert accused["single-step 1.1x"] is True


@pytest.mark.thorough
def test_injected_cases_name_their_culprit_by_what_was_made_slower() -> None:
    table = synthetic_job(4, replicas=2, stages=2, steps=40, noise=0.01)

    cases = list(injected_cases(table))
    slower = slow_down(table, [3], 1.5, 20)

    faulty = [case.truth.kind for case in cases if case.truth.culprits]
    assert faulty.count("slow") == 3 * 4 * 4 + 24 + 23  # one worker of a trace, of a job; several
    assert faulty.count("hosts") == 12 * 6
    assert (slower.seconds[0, 3, 20:] == 1.5 * table.seconds[0, 3, 20:]).all()
    assert (slower.seconds[0, :3] == table.seconds[0, :3]).all()


@pytest.mark.thorough
def test_injected_hangs_have_all_classes_several_culprits_and_8_to_512_ranks() -> None:
    cases = list(hang_cases())

    classes = {case.class_name for case in cases}
    sizes = {len({rank for group in case.job.groups for rank in group.ranks}) for case in cases}
    assert classes == {one.value for one in HangClass} - {"mixed"}
    assert {len(case.culprits) for case in cases} == {0, 1, 2}
    assert sizes == {8, 16, 32, 128, 512}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["hang", "hosts"])
def test_rankmend_is_exact_on_injected_cases_where_the_simple_rule_is_not(kind: str) -> None:
    cases = [case for case in injected_cases(None) if case.truth.kind == kind][::3]

    figures = {
        name: score([run_case(case, rule) for case in cases]) for name, rule in RULES[kind].items()
    }

    ours = figures.pop("rankmend")
    assert (ours["exact"], ours["accused_wrongly"], ours["errors"]) == (len(cases), 0, 0)
    assert all(other["exact"] < 0.7 * len(cases) for other in figures.values())


def test_a_case_of_host_metrics_is_picked_up_and_its_delay_counted(tmp_path: Path) -> None:
    table = host_job(6, 5, fault="gpu slowdown", rows=(3,))
    rows = [
        f"{node},{at:.0f},gpu_clock,{table.values['gpu_clock'][row, place]}"
        for row, node in enumerate(table.nodes)
        for place, at in enumerate(table.times_s)
    ]
    (tmp_path / "hosts.csv").write_text("\n".join(["node,time,metric,value", *rows]))
    onset = int(table.times_s[0]) + 900
    (tmp_path / "truth.toml").write_text(
        f'kind = "hosts"\ndata = "hosts.csv"\nverdict = "culprits"\n'
        f'culprits = [{{ host = "n3" }}]\nonset = {onset}\nclass = "odd_gpu_clock"\n'
    )

    (case,) = recorded_cases(None, tmp_path)
    got = add_delay(case, run_case(case, RULES["hosts"]["rankmend"]))

    assert got.is_exact, got
    assert got.delay_s is not None
    assert 240 <= got.delay_s <= 330
