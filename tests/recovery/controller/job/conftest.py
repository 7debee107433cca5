"""Fixtures of the tests of a job's controller."""

import pytest

from tests.support.controller_bench import Bench


@pytest.fixture
def training() -> Bench:
    """A job whose first attempt has made ten steps."""
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(1, 1)
    bench.step(10, 10)
    return bench
