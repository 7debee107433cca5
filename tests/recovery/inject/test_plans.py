"""Plans of faults that can't be carried out as they were asked for."""

from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from recovery.inject.fault import FaultKind
from recovery.inject.injector import plan_fault
from recovery.inject.permission import NodeMarks
from recovery.inject.plan import FaultPlace
from recovery.inject.request import FaultOptions, FaultRequest, parse_target
from recovery.inject.targets import FoundTarget


@pytest.mark.parametrize(
    "fault", [FaultKind.READ_ONLY, FaultKind.DISK_FULL, FaultKind.IO_ERROR, FaultKind.IO_HANG]
)
def test_folder_with_what_undoes_the_fault_is_not_covered(fault: FaultKind, tmp_path: Path) -> None:
    undo = tmp_path / "state" / "inject"
    request = FaultRequest(fault, parse_target(f"path:{tmp_path}"), 1.0, FaultOptions())
    found = FoundTarget(path=str(tmp_path))

    with pytest.raises(ConfigError, match="holds what undoes this fault"):
        plan_fault(FaultPlace(request, found, NodeMarks(), "0" * 16, 0.0, undo))
