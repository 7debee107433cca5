"""Plans of faults that can't be carried out as they were asked for."""

import resource
import shutil
from pathlib import Path

import pytest

from rankmend.errors import ConfigError, NoSourceError, RankmendError
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.injector import inject, plan_fault
from recovery.lab.inject.permission import NodeMarks
from recovery.lab.inject.plan import FaultPlace
from recovery.lab.inject.request import FaultOptions, FaultRequest, parse_target
from recovery.lab.inject.targets import FoundTarget
from recovery.lab.inject.undo_journal import UndoFolder
from recovery.launcher.processes.process_tree import ProcessRef


@pytest.mark.parametrize(
    "fault", [FaultKind.READ_ONLY, FaultKind.DISK_FULL, FaultKind.IO_ERROR, FaultKind.IO_HANG]
)
def test_folder_with_what_undoes_the_fault_is_not_covered(fault: FaultKind, tmp_path: Path) -> None:
    undo = tmp_path / "state" / "inject"
    request = FaultRequest(fault, parse_target(f"path:{tmp_path}"), 1.0, FaultOptions())
    found = FoundTarget(path=str(tmp_path))

    with pytest.raises(ConfigError, match="holds what undoes this fault"):
        plan_fault(FaultPlace(request, found, NodeMarks(), "0" * 16, 0.0, undo))


def test_checkpoint_that_is_removed_meanwhile_is_said_to_have_gone(tmp_path: Path) -> None:
    file = tmp_path / "step-1.npz"
    file.write_bytes(b"parameters")
    folder = UndoFolder(tmp_path / "undo")
    folder.make()
    request = FaultRequest(
        FaultKind.TORN_CHECKPOINT, parse_target(f"path:{file}"), 1.0, FaultOptions()
    )
    found = FoundTarget(path=str(file))
    place = FaultPlace(request, found, NodeMarks(), "0" * 16, 0.0, folder.path)
    plan = plan_fault(place)
    file.unlink()

    with pytest.raises(NoSourceError, match="it is gone"):
        inject(place, plan, folder, lambda _name: None)

    assert folder.standing() == []


def test_rank_whose_attempt_ends_meanwhile_is_said_to_have_gone(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt-1"
    attempt.mkdir()
    (attempt / "rank-0.drill").touch()
    request = FaultRequest(
        FaultKind.EXIT_CODE, parse_target("rank:llama/0"), 1.0, FaultOptions(code=7)
    )
    found = FoundTarget(ProcessRef(2, 3), drill_file=attempt / "rank-0.drill")
    plan = plan_fault(FaultPlace(request, found, NodeMarks(), "0" * 16, 0.0, tmp_path))
    shutil.rmtree(attempt)

    with pytest.raises(NoSourceError, match="is gone"):
        plan.make()


def test_checkpoint_that_does_not_fit_into_the_undo_folder_leaves_no_part_of_a_copy(
    tmp_path: Path,
) -> None:
    file = tmp_path / "step-1.npz"
    file.write_bytes(bytes(1 << 16))
    folder = UndoFolder(tmp_path / "undo")
    folder.make()
    request = FaultRequest(FaultKind.BIT_FLIP, parse_target(f"path:{file}"), 1.0, FaultOptions())
    place = FaultPlace(
        request, FoundTarget(path=str(file)), NodeMarks(), "0" * 16, 0.0, folder.path
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))  # as a disk that gets full
    try:
        with pytest.raises(RankmendError, match="cannot keep a copy"):
            inject(place, plan_fault(place), folder, lambda _name: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [path.name for path in folder.path.iterdir()] == ["lock"]
