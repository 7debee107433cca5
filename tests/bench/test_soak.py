"""The soak: what its verdict finds, what its seed draws, and a few seconds of it."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.soak.faults import KINDS, PAUSE_S, Drawn, draw
from bench.soak.samples import Sample, Stored
from bench.soak.training import replay
from bench.soak.verdict import (
    judge_missed,
    judge_stored,
    judge_usage,
    limits_of,
    slope_per_h,
    usage_of,
)

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def sample(at_s: float, pss_bytes: float, life: int = 1, **changed: int) -> Sample:
    size = int(pss_bytes)
    plain = Sample(at_s, "guardian of launcher n1", life, 1, size, size, size, 10, 1)
    return replace(plain, **changed)  # type: ignore[arg-type]


def life(grows_bytes_per_h: float, minutes: int = 20) -> list[Sample]:
    """Return samples of a process that grows by itself, and by a burst when it starts."""
    return [
        sample(s, 8 * MIB + min(s, 200) * 1000 + grows_bytes_per_h * s / 3600)
        for s in range(0, 60 * minutes, 5)
    ]


def failed(samples: list[Sample]) -> str:
    check = judge_usage(usage_of(samples[0].part, samples))
    return "" if check.held else check.said


def test_process_that_grows_only_when_it_starts_is_bounded() -> None:
    assert failed(life(0.0)) == ""


def test_leak_is_found_by_its_slope() -> None:
    most = limits_of("guardian of launcher n1").slope_bytes_per_h_max

    assert "its own memory grows" in failed(life(1.5 * most))
    assert failed(life(0.5 * most)) == ""


def test_life_that_is_too_short_says_nothing_about_a_slope() -> None:
    short = usage_of("guardian", life(1e9, minutes=6))

    assert short.slope_bytes_per_h is None


def test_few_samples_beside_the_line_do_not_move_the_slope() -> None:
    points = [(float(s), 5.0 * s) for s in range(0, 1000, 10)]
    points[::10] = [(at_s, 1e9) for at_s, _value in points[::10]]

    assert slope_per_h(points) == pytest.approx(5.0 * 3600)


def test_descriptors_that_are_not_closed_are_found() -> None:
    samples = [replace(one, descriptors=10 + int(one.at_s) // 100) for one in life(0.0)]

    assert "descriptors more in the last quarter" in failed(samples)


def test_longest_life_of_a_process_counts() -> None:
    first = [replace(one, life=2, at_s=one.at_s - 400) for one in life(1e9, minutes=5)]

    assert usage_of("guardian", [*first, *life(0.0)]).slope_bytes_per_h == pytest.approx(0.0, abs=1)


@pytest.mark.safety
def test_journal_that_grows_too_much_with_each_incident_is_found() -> None:
    stored = [Stored(float(s), s, 10_000 * s, 0, 0) for s in range(100)]

    assert all(check.held for check in judge_stored(stored))
    large = [replace(one, controller=10 * one.controller) for one in stored]
    assert [check.held for check in judge_stored(large)] == [False, True]


@pytest.mark.parametrize(
    ("drawn", "missed", "held"), [(94, 4, True), (10, 5, False), (0, 0, False)]
)
def test_run_whose_faults_mostly_find_no_target_shows_nothing(
    drawn: int, missed: int, held: bool
) -> None:
    assert judge_missed(drawn, missed).held is held


def draws(seed: int, *, is_all: bool = True) -> list[Drawn]:
    drawn = random.Random(seed)
    return [draw(drawn, may_kill_services=is_all, is_root=is_all) for _ in range(1000)]


def test_seed_draws_the_same_faults_again_and_each_kind_some_time() -> None:
    assert draws(7) == draws(7)
    assert {one.kind.name for one in draws(7)} == {kind.name for kind in KINDS}
    assert all(PAUSE_S[0] <= one.pause_s <= PAUSE_S[1] for one in draws(7))


def test_no_fault_is_drawn_that_may_not_be_made() -> None:
    kinds = [one.kind for one in draws(7, is_all=False)]

    assert not any(kind.kills_service or kind.needs_root for kind in kinds)


def test_result_tells_a_step_that_was_lost() -> None:
    assert replay(4, 20) == replay(4, 20)
    assert replay(4, 20) != replay(4, 19)


@pytest.mark.timeout(900)
def test_job_of_a_short_soak_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    output = tmp_path / "soak.json"

    done = subprocess.run(
        [sys.executable, "-m", "bench.soak", "--minutes=0.4", "--seed=5", "--pause-s=4", f"--output={output}"],
        cwd=ROOT, capture_output=True, text=True, timeout=880, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(output.read_text())
    assert told["faults_made"] > 0
    assert {one["part"] for one in told["usage"]} >= {"controller", "agent n1", "launcher n2"}
