import json
import os
from pathlib import Path

import pytest

from tests.support.fault_rates import SMALL, TABLE, simulate, write_rates


@pytest.fixture
def rates(tmp_path: Path) -> str:
    return write_rates(tmp_path)


def test_tables_show_ettr_mttr_and_lost_hours_with_percentiles(rates: str) -> None:
    result = simulate(*SMALL, "--rates", rates)

    assert result.exit_code == 0, result.output
    for text in ("ETTR", "phase of MTTR", "lost GPU-hours by cause", "GPU", "hang", "90 %"):
        assert text in result.stdout
    assert result.stderr == ""


def test_json_has_the_assumptions_and_every_run_and_is_the_same_twice(rates: str) -> None:
    first, second = (simulate(*SMALL, "--rates", rates, "--json") for _time in range(2))
    page = json.loads(first.stdout)

    assert first.stdout == second.stdout
    assert page["assumptions"]["step_s"] == 30.0
    assert [one["seed"] for one in page["runs"]] == [1, 2]
    assert page["ettr_ratio"]["p10"] <= page["ettr_ratio"]["p50"] <= page["ettr_ratio"]["p90"] < 1
    assert set(page["lost_gpu_hours"]) >= {"GPU", "hang", "checkpoints"}


@pytest.mark.parametrize("name", ["llama3", "rsc", "byterobust"])
def test_each_shipped_table_is_simulated(name: str) -> None:
    result = simulate(*SMALL, "--rates", name, "--json")

    assert result.exit_code == 0, result.output
    assert "arXiv" in json.loads(result.stdout)["faults"]


def test_spares_for_an_availability_keep_it(rates: str) -> None:
    result = simulate(*SMALL, "--rates", rates, "--spares", "99%", "--json")
    page = json.loads(result.stdout)

    assert page["spares_wanted_for_ratio"] == 0.99
    assert page["setup"]["spares"] >= 1
    assert page["availability_ratio"]["p50"] > 0.95


@pytest.mark.thorough
def test_the_best_interval_of_each_tier_is_near_daly_and_is_used(rates: str) -> None:
    tiers = ("--interval", "auto", "--snapshots", "auto", "--seeds", "1")
    result = simulate(*SMALL, "--rates", rates, *tiers, "--json")
    page = json.loads(result.stdout)
    memory, storage = page["intervals"]

    assert (memory["tier"], storage["tier"]) == ("memory", "storage")
    for best in (memory, storage):
        assert best["best_s"] in [one["interval_s"] for one in best["measured"]]
    assert page["assumptions"]["interval_s"] == storage["best_s"]
    assert page["assumptions"]["snapshot_interval_s"] == memory["best_s"]


def test_what_if_tells_what_a_shorter_recovery_is_worth(rates: str) -> None:
    changes = ("--what-if", "mttr=20s", "--what-if", "detect=1s", "--what-if", "interval=4h")
    page = json.loads(simulate(*SMALL, "--rates", rates, *changes, "--json").stdout)
    shorter, faster, rarer = page["what_if"]

    assert shorter["gpu_hours"]["p50"] > faster["gpu_hours"]["p50"] > 0
    assert rarer["gpu_hours"]["p50"] < 0


def test_a_policy_file_decides(rates: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[hang]\nfloor_s = 1200.0\n[policy]\nobserve = true\n")

    page = json.loads(simulate(*SMALL, "--rates", rates, "--policy", str(policy), "--json").stdout)

    assert page["given_up"]["p50"] == page["incidents"]["p50"]


def test_a_trace_is_replayed_with_its_own_repairs(tmp_path: Path) -> None:
    kind = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU Lost"}
    events = [
        {"node_id": "a", "event_time": at, "event_type": what, "fault_type": kind}
        for at, what in ((1.0, "fault_start"), (3.0, "fault_end"), (9.0, "fault_start"))
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*events, events[1] | {"event_time": 10.0}]))

    result = simulate(
        "--gpus", "64", "--trace", str(path), "--trace-nodes", "9", "--seeds", "1", "--json"
    )  # fmt: skip
    page = json.loads(result.stdout)

    assert page["setup"]["days"] == 10.0
    assert sum(page["runs"][0]["failures"].values()) <= 4
    assert page["faults"].startswith("trace.json: 2 faults of 9 nodes in 10 days")


@pytest.mark.thorough
def test_the_recorded_trace_is_replayed() -> None:
    datasets = os.environ.get("RANKMEND_DATASETS")
    if datasets is None:
        pytest.skip("RANKMEND_DATASETS is not set")
    path = Path(datasets) / "infinitehbd-trace/fault_trace.json"

    result = simulate(
        "--gpus", "2880", "--spares", "40", "--trace", str(path), "--seeds", "1", "--json"
    )  # fmt: skip

    page = json.loads(result.stdout)
    assert "584 faults of 400 nodes in 349 days" in page["faults"]
    assert page["incidents"]["p50"] > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "100"), "100 GPUs are not a whole number of nodes with 8"),
        (("--gpus", "9999999"), "9999999 GPUs"),
        (("--gpus-per-node", "0"), "0 GPUs per node"),
        (("--days", "-1"), "-1 days"),
        (("--days", "0"), "0 days"),
        (("--seeds", "0"), "0 seeds"),
        (("--seeds", "5000"), "1001 seeds"),
        (("--spares", "100%"), "'100%' is neither a number"),
        (("--spares", "-3"), "'-3' is neither a number"),
        (("--interval", "soon"), "'soon' is not a duration"),
        (("--rates", "nobody"), "rates 'nobody' are neither a shipped table"),
        (("--what-if", "luck=3"), "'luck=3' is not NAME=VALUE"),
        (("--what-if", "mttr=soon"), "'soon' is not a number or duration"),
        (("--set", "hang_named_ratio=2"), "hang_named_ratio is 2.0, over 1"),
        (("--interval", "1s"), "interval_s is 1, not above the 1 s"),
        (("--trace", "/nowhere"), "/nowhere"),
        (("--policy", "/nowhere"), "/nowhere"),
    ],
)
def test_bad_input_is_named_with_its_value(arguments: tuple[str, ...], message: str) -> None:
    result = simulate("--gpus", "64", "--days", "1", "--seeds", "1", *arguments)

    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_wrong_what_if_is_refused_before_years_of_the_largest_job_are_simulated() -> None:
    result = simulate("--gpus", "262144", "--days", "3650", "--what-if", "mttr=-5")

    assert result.exit_code == 2
    assert "'-5' is not a number or duration" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count = 20", "count = -1", "count is -1"),
        ("stays = 0.2", "stays = 2", "stays is 2"),
        ('shows = "hang"', 'shows = "odd"', "line 15: [1] shows is 'odd'"),
        ("told = 0.5", "says = 0.5", "unknown key 'says'"),
        ("days = 54.0", "", "days is missing"),
        ("[[cause]]", "[cause", "is not valid TOML"),
    ],
)
def test_a_broken_rate_table_is_named_with_the_line(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(TABLE.replace(old, new))

    result = simulate("--rates", str(path))

    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", '[{"node_id": "a"}]', "\udcff", "[" * 100_000]
)
def test_a_broken_trace_is_a_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    result = simulate("--gpus", "64", "--trace", str(path))

    assert result.exit_code == 2
    assert str(path) in result.stderr
