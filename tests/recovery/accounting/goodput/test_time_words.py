"""Figures as people read them."""

import pytest

from rankmend.printable import duration, figure
from recovery.accounting.goodput.throughput import SizeRate, Throughput
from recovery.accounting.goodput.time_words import gpu_hours, throughput_lines


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (1_757_899.3, "1,760,000"),
        (999.6, "1,000"),
        (12.3456, "12.3"),
        (12.0, "12"),
        (0.000123456, "0.000123"),
        (-2500.0, "-2,500"),
        (float("inf"), "inf"),
    ],
)
def test_figure_has_thousands_and_no_exponent(value: float | None, shown: str) -> None:
    assert figure(value) == shown


def test_long_times_and_many_gpu_hours_have_no_exponent() -> None:
    assert duration(86400.0 * 1234) == "1,230 d"
    assert duration(0.0826) == "0.0826 s"
    assert gpu_hours(3600.0 * 1_234_567) == "1,234,567"
    assert gpu_hours(45.25) == "0.0126"


def test_linearity_is_that_of_ranks_also_on_hosts_without_a_gpu() -> None:
    sizes = (SizeRate(1, 10.0, 1.0), SizeRate(2, 9.0, 0.9))

    (line,) = throughput_lines(Throughput(unit="tokens", sizes=sizes))

    assert line == "linearity by tokens per rank: 1 rank 100.00 %, 2 ranks 90.00 %"
