"""How many nodes are checked at once: each takes one of a fixed number of files in a folder that all nodes see.

A file is taken by creating it, which one node of several manages (link(2) is atomic on NFS, too). Whether its owner is
overdue is told by the storage's own clock: the age of the file beside one that was written this moment. A node that finds an
overdue file moves it away, which again one of several manages. Runs in a child process: the storage may hang.
"""

import contextlib
import json
import os
import time
from math import inf, isfinite
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, StorageError
from rankmend.files import create_file, read_capped

_BYTES_MAX: Final = 1_000
SPARE_S: Final = 30.0  # beyond a check's bound, before its slot counts as left behind


def take_slot(folder: Path, slots: int, node: str, bound_s: float) -> str | None:
    """Return the name of the slot that this node has taken, or None if all are taken."""
    if not folder.is_dir():
        raise ConfigError(f"slots_folder {folder} is not a folder")
    now_s = _storage_time(folder)
    content = json.dumps({"node": node, "bound_s": bound_s}).encode()
    first = sum(node.encode()) % slots  # nodes begin at different ones
    for number in range(slots):
        path = folder / f"preflight-{(first + number) % slots}.slot"
        if _is_overdue(path, now_s):
            _move_away(path)
        try:
            create_file(path, content, StorageError, mode=0o644)
        except FileExistsError:
            continue
        return path.name
    return None


def give_slot(folder: Path, name: str, node: str) -> None:
    """Give a slot back, if it is still this node's."""
    path = folder / name
    with contextlib.suppress(OSError, StorageError, ValueError, KeyError):
        if json.loads(read_capped(path, _BYTES_MAX, StorageError))["node"] == node:
            path.unlink(missing_ok=True)


def _storage_time(folder: Path) -> float:
    probe = folder / f".preflight-{os.urandom(8).hex()}.now"
    try:
        probe.touch(mode=0o600)
        return probe.stat().st_mtime
    except OSError as error:
        raise StorageError(f"cannot write in slots_folder {folder}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _is_overdue(path: Path, now_s: float) -> bool:
    try:
        taken_s = path.stat().st_mtime
        bound_s = float(json.loads(read_capped(path, _BYTES_MAX, StorageError))["bound_s"])
    except (OSError, StorageError):
        return False
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        bound_s = inf
    if not isfinite(bound_s):
        bound_s = 0.0  # a file of somebody else's: no owner gives it back
    return now_s - taken_s > bound_s + SPARE_S


def _move_away(path: Path) -> None:
    aside = path.with_name(f".preflight-{os.urandom(8).hex()}.over")
    with contextlib.suppress(OSError):
        path.rename(aside)
        aside.unlink(missing_ok=True)


def start_delay_s(node: str, within_s: float) -> float:
    """Return when a node of this name begins, from 0 to ``within_s``."""
    return within_s * (sum(ord(item) * (n + 1) for n, item in enumerate(node)) % 997) / 997


def sleep_until(until_s: float) -> None:
    time.sleep(max(0.0, until_s - time.monotonic()))
