"""What a look at a file of a checkpoint says of it."""

from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.content import check_file, identify
from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.messages.candidates import CheckpointFormat


def judge(path: Path, content: bytes, timeout_s: float = 30.0) -> tuple[CheckpointFormat, str]:
    """Return kind and what is whole; raises DefectError with the reason."""
    path.write_bytes(content)
    with FileReader(str(path), Deadline(SystemClock(), timeout_s)) as reader:
        kind = identify(reader).format
        return kind, check_file(reader, kind)


def defect(path: Path, content: bytes) -> str:
    with pytest.raises(DefectError) as caught:
        judge(path, content)
    return str(caught.value)
