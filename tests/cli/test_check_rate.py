"""`--checkpoint-check-rate`: how it is written, and that it reaches the watch."""

import os
from pathlib import Path

import click
import pytest

from rankmend.cli.units import RATE
from rankmend.clock import SystemClock
from recovery.checkpoints.priority import check_rate
from recovery.launcher.run.assembly import make_watch
from recovery.launcher.run.options import RunOptions


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("0", 0.0), ("1500", 1500.0), ("64k", 64e3), ("200M", 200e6), ("1.5G", 1.5e9), ("1T", 1e12)],
)
def test_a_rate_is_bytes_per_second_with_a_decimal_unit(text: str, bytes_per_s: float) -> None:
    assert RATE.convert(text, None, None) == bytes_per_s


@pytest.mark.parametrize("text", ["", "M", "-1", "-5M", "fast", "200MB/s", "nan", "inf", "9e99"])
def test_what_is_no_rate_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a rate such as 200M") as refused:
        RATE.convert(text, None, None)

    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("cpus", "bytes_per_s"), [(1, 12.5e6), (2, 25e6), (16, 200e6), (192, 200e6)]
)
def test_a_small_machine_reads_more_slowly_by_default(cpus: int, bytes_per_s: float) -> None:
    assert check_rate(cpus) == bytes_per_s


OWN = check_rate(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("asked", "used"), [(None, OWN), (0.0, 0.0), (5e6, 5e6)])
def test_the_rate_reaches_the_watch(tmp_path: Path, asked: float | None, used: float) -> None:
    options = RunOptions(target="train.py", checkpoint_dir=tmp_path, check_rate_bytes_per_s=asked)

    watch = make_watch(options, SystemClock(), "job-1")

    assert watch is not None
    assert watch._settings.check_rate_bytes_per_s == used
