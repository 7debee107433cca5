"""A node's log of what rankmend did to it: one JSON object a line, of drains, refusals and clean-ups.

Root's is /var/log/rankmend/node-actions.jsonl. It has at most two files of 1 MB.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rankmend.errors import StorageError
from rankmend.own_folder import open_to_append

ACTION_LOG: Final = Path("/var/log/rankmend/node-actions.jsonl")
FILE_BYTES_MAX: Final = 1_000_000


def append_action(path: Path, action: str, fields: Mapping[str, Any]) -> None:
    """Add a line and have it on disk; raise StorageError where that fails."""
    line = json.dumps({"at": round(time.time(), 3), "action": action, **fields}) + "\n"
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_size > FILE_BYTES_MAX:
                path.replace(path.with_name(path.name + ".1"))
        descriptor = open_to_append(path, 0o640)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
