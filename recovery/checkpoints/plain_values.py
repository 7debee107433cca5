"""Plain values in files of torch.save: the step that a framework saves beside its tensors."""

from typing import Any, Final

from recovery.checkpoints.archive import read_archives, read_small
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.pickle_stream import PICKLE_BYTES_MAX, Opaque, read_plain
from recovery.checkpoints.reader import DefectError, FileReader

STEPS_END: Final = 2**63  # what the journal can hold


def torch_content(reader: FileReader, deadline: Deadline, bytes_max: int = PICKLE_BYTES_MAX) -> Any:
    """Return the plain values in the first archive of a torch.save file, or None without any."""
    archives = read_archives(reader)
    if not archives:
        raise DefectError("empty file")
    archive = archives[0]
    for member in archive.members:
        folder, _, file = member.name.partition("/")
        if folder and file == "data.pkl":
            data = read_small(reader, archive, member.name, bytes_max)
            return None if data is None else read_plain(data, deadline)
    return None


def step_in(content: Any, *keys: str) -> int | None:
    """Return the first of these keys that holds a step number, in a dict or an OrderedDict."""
    items = content.items if isinstance(content, Opaque) else content
    if not isinstance(items, dict):
        return None
    for key in keys:
        value = items.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < STEPS_END:
            return value
    return None
