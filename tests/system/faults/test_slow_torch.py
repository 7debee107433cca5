"""An unchanged PyTorch script in which ranks become slow while they train."""

import pytest

from tests.system.faults.slowness import found, make_well, running, slow_down, why

pytestmark = [pytest.mark.process, pytest.mark.torch]


def test_unchanged_ddp_script_has_its_slow_rank_named_by_section(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running(tmp_path_factory.mktemp("slow") / "ddp", "uneven_ddp.py", 2) as job:
        job.pids_at_step(10)

        slow_down(job, 1, "io")
        loader = found(job, 1, "io")
        make_well(job)
        slow_down(job, 0, "compute")
        compute = found(job, 0, "compute")

        told = why(job)
        assert loader.finding.summary in told
        assert compute.finding.summary in told
        assert "own work per step" in told
