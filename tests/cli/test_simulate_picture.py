"""The picture of a simulation: matplotlib starts a program where it has no list of fonts yet."""

from pathlib import Path

import pytest

from tests.support.fault_rates import SMALL, simulate, write_rates

pytestmark = pytest.mark.process


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, rates = tmp_path / "p.svg", write_rates(tmp_path)

    result = simulate(*SMALL, "--rates", rates, "--what-if", "mttr=20s", "--plot", str(path))

    assert result.exit_code == 0, result.output
    drawn = path.read_text()
    assert "GPU-hours won" in drawn
    assert "of the time is lost," in drawn
    assert "mttr=20s wins the most" in drawn
