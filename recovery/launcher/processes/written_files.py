"""Which checkpoints the ranks of a job write: paths that they have open for writing, looked at once a second.

The kernel shows an open file only while it is open, and says nothing of one that was written between two looks. So what
is seen is evidence that this job writes such files; what is not seen is evidence of nothing. It tells two jobs apart that
save into one folder: neither names nor contents do.

No look touches the checkpoints' storage, which may hang: the paths are those that /proc has in memory.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from recovery.launcher.processes.process_tree import PROC, find_marked

LOOK_S: Final = 1.0
RANKS_S: Final = (
    30.0  # between two searches for the processes of the ranks: each reads all of /proc
)
# Seen in a file that is still open: the whole of it takes more of a restart than the looks that its end brings.
LARGE_BYTES: Final = 64 << 20
_PATHS_MAX: Final = 1_000  # remembered; a series counts once, whatever its numbers
_DESCRIPTORS_MAX: Final = 4_096  # of one process


def written_by(pid: int, folder: str, root: str = PROC) -> Iterator[tuple[str, int]]:
    """Yield the paths below a folder that a process has open for writing, and how many bytes it has come in each.

    Nothing where it is gone or another user's.
    """
    below = folder.rstrip("/") + "/"
    with contextlib.suppress(OSError), os.scandir(f"{root}/{pid}/fd") as descriptors:
        for count, descriptor in enumerate(descriptors):
            if count >= _DESCRIPTORS_MAX:
                return
            with contextlib.suppress(OSError, ValueError):
                path = os.readlink(descriptor.path)  # noqa: PTH115 - hundreds a second
                if path.startswith(below):
                    written_bytes = _written_bytes(root, pid, descriptor.name)
                    if written_bytes is not None:
                        yield path, written_bytes


def _written_bytes(root: str, pid: int, descriptor: str) -> int | None:
    """Return the place in the file; None: it is not open for writing."""
    place = 0
    with Path(f"{root}/{pid}/fdinfo/{descriptor}").open("rb") as file:
        for line in file.read(4096).splitlines():
            if line.startswith(b"pos:"):
                place = int(line[4:])
            elif line.startswith(b"flags:"):
                is_written = int(line[6:], 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
                return place if is_written else None
    return None


def _ranks_of(job_id: str, node: str | None) -> Callable[[], Collection[int]]:
    return lambda: [process.pid for process in find_marked(job_id, node=node)]


class WrittenFiles:
    """Looks in a daemon thread from `start` on; `paths` is for any thread."""

    def __init__(
        self,
        folder: str,
        job_id: str,
        node: str | None = None,
        *,
        ranks: Callable[[], Collection[int]] | None = None,
        look_s: float = LOOK_S,
        root: str = PROC,
    ) -> None:
        """``node``: of which the ranks are, where several nodes of a job are on one machine."""
        self._folder = os.path.realpath(folder)
        self._given = folder.rstrip("/")
        self._ranks = ranks or _ranks_of(job_id, node)
        self._look_s = look_s
        self._root = root
        self._should_stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._found: dict[
            str, None
        ] = {}  # by what the path has in common with others of its series
        self._large: frozenset[str] = frozenset()  # of what was open at the last look
        self._has_ended = False  # at the last look, one of these was not open any more
        self._save_ended: Callable[[], None] | None = None
        self.paths: frozenset[str] = frozenset()

    def start(self, save_ended: Callable[[], None] | None = None) -> None:
        """``save_ended``: called at the look that no longer finds a large file open for writing, and at the one after it.

        A script renames what it wrote once it has closed it.
        """
        self._save_ended = save_ended or self._save_ended
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="written-files", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()

    def _run(self) -> None:
        pids: Collection[int] = ()
        looks = 0
        while not self._should_stop.wait(self._look_s):
            has_lost = not all(Path(f"{self._root}/{pid}").exists() for pid in pids)
            if not pids or has_lost or looks * self._look_s >= RANKS_S:
                pids, looks = self._ranks(), 0
            looks += 1
            self.look(pids)

    def look(self, pids: Collection[int]) -> None:
        """Remember what these processes write now."""
        found = {
            self._given + path[len(self._folder) :]: written_bytes
            for pid in pids
            for path, written_bytes in written_by(pid, self._folder, self._root)
        }
        has_ended = not self._large <= found.keys()
        if (has_ended or self._has_ended) and self._save_ended is not None:
            self._save_ended()
        self._has_ended = has_ended
        self._large = frozenset(path for path in found if found[path] >= LARGE_BYTES)
        if new := found.keys() - self._found.keys():
            self._found.update(dict.fromkeys(sorted(new)))
            for path in list(self._found)[:-_PATHS_MAX]:
                del self._found[path]
            self.paths = frozenset(self._found)
