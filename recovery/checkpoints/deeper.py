"""Checkpoints below the folders that are looked into: Hydra, and scripts with a folder for each run, put them there."""

import os
from pathlib import Path
from typing import Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.names import (
    has_checkpoint_suffix,
    is_ignored,
    is_save_name,
    shown,
    step_of,
)
from recovery.messages.candidates import natural_key

DEPTH_MAX: Final = 5  # outputs/2026-11-27/10-14-20/checkpoints/step-20/model.pt
ENTRIES_MAX: Final = 500  # of all folders: a thousand launchers may ask one metadata server
_PATH_MAX: Final = 200


def find_deeper(folder: Path, deadline: Deadline) -> str | None:
    """Return the path in the folder of what looks like a checkpoint by its name, or None.

    Folders with the highest name come first: of a folder for each day, the newest. `optimizers/` beside `models/` comes last.
    """
    pending = [(folder, 0)]
    entries = 0
    while pending:
        current, depth = pending.pop()
        folders = []
        try:
            with os.scandir(current) as scan:
                for entry in scan:
                    deadline.check()
                    entries += 1
                    if entries > ENTRIES_MAX:
                        return None
                    if is_ignored(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif depth and has_checkpoint_suffix(entry.name):
                        if _is_save(entry.name):
                            return shown(os.path.relpath(entry.path, folder), _PATH_MAX)
                        if _is_save(current.name):
                            return shown(os.path.relpath(current, folder), _PATH_MAX)
        except OSError:
            continue  # removed meanwhile, or of another user
        if depth < DEPTH_MAX:
            folders.sort(key=lambda name: ("optim" not in name.lower(), natural_key(name)))
            pending += [(current / name, depth + 1) for name in folders]
    return None


def describe_deeper(folder: str, path: str) -> str:
    """Return what a person who expects a restart from this checkpoint has to know."""
    return (
        f"{folder}: no checkpoint is found here, but {path} looks like one and lies too deep, so no restart begins from there. Give "
        "its folder as --checkpoint-dir. If each start of the script makes a new folder, as Hydra does, let it use the same one "
        "(hydra.run.dir=FOLDER)"
    )


def _is_save(name: str) -> bool:
    return step_of(name) is not None or is_save_name(name)
