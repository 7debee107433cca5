"""The short form of bench/preflight.py: faults that no load of the machine hides or makes."""

import os
import tempfile
from pathlib import Path

import pytest

from bench.preflight import Bed, failed_of

pytestmark = pytest.mark.process


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a control group: needs root")
def test_a_quota_and_a_wrong_bit_are_named_by_their_own_checks() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder), seconds=0.5)
        bed.disk.mkdir()
        try:
            bed.learn(nodes=4, times=1)
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")

        throttled = failed_of(bed.check_with("cpu_quota", 0))
        wrong = failed_of(bed.check_with("wrong_result", 0))

    assert "cpu_unthrottled_ratio" in throttled
    assert [name for name in wrong if name.startswith("gemm_bits")] == ["gemm_bits float32"]
