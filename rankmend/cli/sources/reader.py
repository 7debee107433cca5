"""Chooses the source of `status`, `incidents` and `why`: a controller, or this machine's state folder.

Both answer in the types of the API (`rankmend.cli.sources.picture`), so that the commands show everything in one way.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmend.cli.options import fail, find_state
from rankmend.cli.sources.controller_options import Access, asking, is_local, is_own_state
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from rankmend.cli.sources.picture import Reader

NOTHING_RUNS: Final = "no running job (--all shows ended ones)"


def find_empty(access: Access, state_dir: Path | None) -> Path | None:
    """Return this machine's state folder if it is the one to read, and no job has ever run here; else None.

    Journals are read with all their types of records, which take 0.3 s of a processor to make: a prompt or a prolog that
    asks each minute pays that only where there is a job.
    """
    if not is_local(access):
        return None
    try:
        state = find_state(state_dir)
    except RankmendError as error:
        fail(str(error))
    if (state / "watched").exists() or next(state.glob("jobs/*"), None) is not None:
        return None
    return None if next(state.glob("hosts/*/*/jobs/*"), None) is not None else state


def has_watched(root: Path | None = None, procfs: str = "/proc") -> bool:
    """Return whether a rank of this user, for root of anybody, is watched here now.

    Files of ranks that have ended stay for a day. To load what reads and judges them takes 0.1 s of a processor: so first the
    process that a file names is looked for, here and, by its number in its container, in PID namespaces below ours.
    """
    from rankmend.hook.watched_layout import FOLDER_PREFIX, PROGRESS_SUFFIX, ROOT

    uid = os.geteuid()
    users = "*" if uid == 0 else f"{uid}*"
    root = Path(ROOT) if root is None else root
    found = root.glob(f"{FOLDER_PREFIX}{users}/*/rank-*{PROGRESS_SUFFIX}")
    try:
        if not may_live([os.fspath(path) for path in found], procfs):
            return False
    except OSError:
        return False  # another user's folder, which closes while it is read
    from agent.ranks.watched import WatchedRanks

    ranks = WatchedRanks(root, only_uid=None if uid == 0 else uid)
    try:
        return bool(ranks.look().ranks)
    finally:
        ranks.close()


def may_live(files: "list[str]", procfs: str) -> bool:
    """Return whether the writer of one of these progress files may live; what can't be read may."""
    from rankmend.hook.layout import ATTACHMENT, ATTACHMENT_AT

    absent: set[int] = set()
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        except OSError:
            return True
        try:
            written = os.pread(descriptor, ATTACHMENT.size, ATTACHMENT_AT)
        finally:
            os.close(descriptor)
        if len(written) < ATTACHMENT.size:
            return True
        pid, _flags, ticks, *_marks = ATTACHMENT.unpack(written)
        if pid and _start_ticks(pid, procfs) == ticks:
            return True
        absent.add(pid)
    return bool(absent - {0}) and not absent.isdisjoint(_inner_pids(procfs))


def _start_ticks(pid: int, procfs: str) -> int | None:
    """Return when a process started, in clock ticks since boot. Source: proc_pid_stat(5)."""
    try:
        with open(f"{procfs}/{pid}/stat", "rb") as file:  # noqa: PTH123 - Path is dear
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _inner_pids(procfs: str) -> "Iterator[int]":
    """Yield the numbers that processes in PID namespaces below ours have there. Source: proc_pid_status(5)."""
    for name in os.listdir(procfs):  # noqa: PTH208 - Path is dear
        if not name.isdecimal():
            continue
        try:
            with open(f"{procfs}/{name}/status", "rb") as file:  # noqa: PTH123 - likewise
                after = file.read().partition(b"\nNSpid:")[2].partition(b"\n")[0]
        except OSError:
            continue
        numbers = after.split()
        if len(numbers) > 1:
            yield int(numbers[-1])


@contextmanager
def reading(
    access: Access, state_dir: Path | None, *, with_watched: bool = False
) -> "Iterator[Reader]":
    """Give the reader that the command line selects; a failure ends the command with a message.

    ``with_watched``: this machine's own state folder comes with its ranks under `rankmend watch env`.
    """
    if is_local(access):
        from rankmend.cli.sources.folder_reader import FolderReader

        try:
            if with_watched and is_own_state():
                from rankmend.cli.sources.watched_here import WatchedHere

                yield FolderReader(find_state(state_dir), WatchedHere().views)
            else:
                yield FolderReader(find_state(state_dir))
        except RankmendError as error:
            fail(str(error))
        return
    from rankmend.cli.sources.controller_reader import ControllerReader

    with asking(access) as client:
        yield ControllerReader(client, access)
