"""What a check learns before its load, of files that a job goes on changing."""

from pathlib import Path

import pytest

from agent.preflight.children import LoadChildren
from agent.preflight.policy import PreflightPolicy
from agent.preflight.preparing import FlightPreparation, WantedFacts, prepare

pytestmark = pytest.mark.process


def prepared(folder: Path) -> FlightPreparation:
    wanted = WantedFacts(
        node="n1",
        bound_s=60.0,
        procfs=Path("/proc"),
        sysfs=Path("/sys"),
        environment={},
        baselines=(),
        own_baselines=folder / "baselines",
        checkpoint_dir=folder / "saves",
        policy=PreflightPolicy(),
    )
    return prepare(LoadChildren(), wanted)


def test_checkpoints_with_links_to_what_was_rotated_away_are_measured_all_the_same(
    tmp_path: Path,
) -> None:
    newest = tmp_path / "saves" / "step-20"
    newest.mkdir(parents=True)
    (newest / "part-0").write_bytes(b"x" * 3000)
    (newest / "part-1").symlink_to(tmp_path / "saves" / "step-10" / "part-1")
    (newest.parent / "latest").symlink_to("step-10")

    found = prepared(tmp_path)

    assert (found.usual_file_bytes, found.verdicts) == (3000, ())
