"""Knows which snapshots of this node's ranks are whole, and what each one's digest is.

While ranks run, a thread digests what they write, so that a bit that flips in memory later is noticed: once they are
gone, `settle` reads everything once more, on all processors, and what differs from its first digest is damaged. A script
that keeps no snapshots costs one look at an empty folder each second.
"""

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import SourceError
from rankmend.hook.snapshots import layout
from rankmend.milestones import ProcessMilestone, name_milestone
from recovery.checkpoints.priority import yield_to_training
from recovery.checkpoints.snapshots.files import Digest, OpenSnapshot, SnapshotHead, snapshot_paths

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
IDLE_PER_BUSY: Final = 100  # digests take at most 1 % of one processor beside training
CLOSE_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A whole snapshot, with the digest of its first reading."""

    path: Path
    head: SnapshotHead
    digest: Digest
    is_damaged: bool = False  # a later reading differed from the first


class SnapshotWatch:
    """`settle` and the properties are for the launcher's thread."""

    def __init__(
        self, folder: Path, job_id: uuid.UUID, clock: Clock, wake: Callable[[], None]
    ) -> None:
        """``wake``: called by the thread when there is something new to report."""
        self._folder = folder
        self._job_id = job_id
        self._clock = clock
        self._wake = wake
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._hurried: frozenset[Path] = frozenset()  # to be read now
        self._asked_through = 0
        self._settled_through = 0
        self._known: tuple[KnownSnapshot, ...] = ()
        self._complaints: dict[Path, str] = {}  # what was said of each file last
        self._expected: tuple[int, frozenset[int]] = (0, frozenset())

    @property
    def known(self) -> tuple[KnownSnapshot, ...]:
        """Return what is whole, by path."""
        return self._known

    @property
    def settled_through(self) -> int:
        """Return the attempt whose snapshots, and those of all before it, were read after its last process had gone."""
        return self._settled_through

    def tick(self) -> None:
        """Begin to watch once a rank has made a file."""
        if self._thread is None and snapshot_paths(self._folder):
            self._start()

    def settle(self, through: int) -> None:
        """Have everything read once more: no process of the attempts up to this one is left."""
        if through <= self._asked_through:
            return
        if self._thread is None and not snapshot_paths(self._folder):
            self._asked_through = self._settled_through = through
            return
        with self._changed:
            self._asked_through = through
            self._changed.notify()
        if self._thread is None:
            self._start()

    def look_now(self, paths: Iterable[Path]) -> None:
        """Have these files read soon."""
        with self._changed:
            self._hurried |= frozenset(paths)
            self._changed.notify()
        if self._thread is None:
            self._start()

    def files_from(self, rank: int, attempt: int, from_step: int) -> list[Path]:
        """Return which files hold whole snapshots of a rank from a step on, the oldest first. Reads their heads alone."""
        found = []
        for path in (
            self._folder / layout.file_name(rank, number) for number in range(layout.BUFFERS)
        ):
            with (
                contextlib.suppress(OSError, SourceError),
                OpenSnapshot(path, self._job_id) as file,
            ):
                head = file.read_head()
                if head is not None and head.attempt == attempt and head.step >= from_step:
                    found.append((head.step, path))
        return [path for _step, path in sorted(found)]

    def expect(self, attempt: int, ranks: Iterable[int]) -> None:
        """Note which ranks this node has now, so that those that have left it give their memory back.

        Not before each of the others has a snapshot of this attempt: until then, the next attempt may need them here.
        """
        self._expected = (attempt, frozenset(ranks))

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="snapshot-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        yield_to_training()
        due_s = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(self._is_asked, max(0.0, due_s - time.monotonic()))
                if self._is_closing:
                    return
                through, only = self._asked_through, self._hurried
                self._hurried = frozenset()
            if time.monotonic() >= due_s:
                only = frozenset()
            began_s = time.thread_time()
            is_settling = through > self._settled_through
            try:
                known = self._look(is_settling=is_settling, only=only)
            except Exception:  # a recovery waits for this thread
                log.exception("snapshots can't be read")
                known = ()
            is_news = is_settling or known != self._known
            self._known = known
            self._settled_through = through
            if is_news:
                name_milestone("launcher", ProcessMilestone.DIGESTED, len(known))
            if is_news and not self._is_closing:
                self._wake()
            if not only or is_settling:
                busy_s = time.thread_time() - began_s
                due_s = time.monotonic() + max(LOOK_S, IDLE_PER_BUSY * busy_s)

    def _is_asked(self) -> bool:
        is_hurried = bool(self._hurried)
        return self._is_closing or is_hurried or self._asked_through > self._settled_through

    def _look(self, *, is_settling: bool, only: frozenset[Path]) -> tuple[KnownSnapshot, ...]:
        """Return what is whole. ``only``: if any, what the others hold is left for the next look."""
        before = {item.path: item for item in self._known}
        paths = snapshot_paths(self._folder)

        def read(path: Path) -> KnownSnapshot | None:
            if only and path not in only and not is_settling:
                return before.get(path)
            return self._try_read(path, before.get(path), is_settling=is_settling)

        if is_settling:
            # A recovery waits for it, and no rank runs here. Digests and reads release the interpreter's lock.
            with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "snapshot-settle") as pool:
                found = list(pool.map(read, paths))
        else:
            found = [read(path) for path in paths]
        return self._without_departed([item for item in found if item is not None])

    def _without_departed(self, known: list[KnownSnapshot]) -> tuple[KnownSnapshot, ...]:
        attempt, ranks = self._expected
        begun = {snapshot.head.rank for snapshot in known if snapshot.head.attempt == attempt}
        if ranks and ranks <= begun:
            departed = [snapshot for snapshot in known if snapshot.head.rank not in ranks]
            for snapshot in departed:
                log.info(
                    "removing the snapshot of a rank that has left this node",
                    extra={"file": str(snapshot.path), "bytes": snapshot.head.size_bytes},
                )
                with contextlib.suppress(OSError):
                    snapshot.path.unlink()
            known = [snapshot for snapshot in known if snapshot not in departed]
        return tuple(known)

    def _try_read(
        self, path: Path, before: KnownSnapshot | None, *, is_settling: bool
    ) -> KnownSnapshot | None:
        try:
            item = self._read(path, before, is_settling=is_settling)
        except FileNotFoundError:
            return None
        except (OSError, SourceError) as error:
            self._complain(path, str(error))
            return None
        if item is not None:
            self._complaints.pop(path, None)
        return item

    def _read(
        self, path: Path, before: KnownSnapshot | None, *, is_settling: bool
    ) -> KnownSnapshot | None:
        with OpenSnapshot(path, self._job_id) as file:
            head = file.read_head()
            if head is None:
                return None
            if before is None or before.head != head:
                digest = self._digest(file, head)
                return None if digest is None else KnownSnapshot(path, head, digest)
            if not is_settling or before.is_damaged:
                return before
            whole = file.whole_digest()
            if file.read_head() != head:
                return None  # written anew meanwhile
        if whole == before.digest.whole:
            return before
        log.warning(
            "a snapshot has changed in memory since it was written: it is not restored",
            extra={
                "file": str(path),
                "step": head.step,
                "was": before.digest.whole,
                "now": whole,
            },
        )
        return replace(before, is_damaged=True)

    def _digest(self, file: OpenSnapshot, head: SnapshotHead) -> Digest | None:
        """Return the digest of a snapshot; None where it was written anew meanwhile, torn as it may look then."""
        try:
            digest = file.digest()
        except SourceError:
            if file.read_head() == head:
                raise
            return None
        return digest if file.read_head() == head else None

    def _complain(self, path: Path, text: str) -> None:
        if self._complaints.get(path) != text:
            self._complaints[path] = text
            log.warning("a snapshot can't be read: %s", text)
