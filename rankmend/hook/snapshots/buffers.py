"""One of a rank's snapshot files: made, mapped, written by the protocol of `layout`.

A new file is written under another name and renamed once its first snapshot is whole, so the one that
it replaces stays until then. Its blocks are allocated first: a full file system is an error here and
never a SIGBUS in training.
"""

import mmap
import os
import stat

from rankmend.hook.snapshots import layout, lending
from rankmend.hook.snapshots.room import SUFFIX_NEW

_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)  # Python 3.10 has the name
_CHUNK_BYTES = 64 << 20  # a signal makes the kernel begin an allocation again
_COMMIT_WORD = layout.COMMIT_AT // 8
_KEEP_WORD = layout.KEEP_AT // 8
_COPIED_WORD = layout.COPIED_AT // 8
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Buffer:
    """A mapped file, with the views of one plan in it."""

    def __init__(self, path, descriptor, size, is_new):
        """Map the file and close its descriptor."""
        self.path = path
        self.size = size
        self._is_new = is_new
        self._inode = _inode(os.fstat(descriptor))
        self.memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | _MAP_POPULATE)
        self._words = memoryview(self.memory)[: layout.DATA_AT].cast("Q")
        self._plan = None
        self._views = {}
        self.expected = None  # commit that the device will write, None: nothing is under way
        self.unpin = None  # function, once a device may copy into it by itself

    @property
    def commit(self):
        return self._words[_COMMIT_WORD]

    def set_commit(self, sequence):
        self._words[_COMMIT_WORD] = sequence

    def kept_from(self, now_ns):
        """Return the step whose snapshot the launcher wants to be left for now, or None."""
        step, until_ns = self._words[_KEEP_WORD], self._words[_KEEP_WORD + 1]
        return step - 1 if step and now_ns < until_ns else None

    def copied(self, now_ns):
        """Return attempt and step of which all ranks have copies, if the launcher wants it to be left for now, or None."""
        attempt, step, until_ns = self._words[_COPIED_WORD : _COPIED_WORD + 3]
        return (attempt, step - 1) if step and now_ns < until_ns else None

    def is_settled(self):
        """Return whether the device has ended its copies into this file."""
        if self.expected is None:
            return True
        if self.commit != self.expected:
            return False
        self.expected = None
        return True

    def begin(self, header):
        self.set_commit(0)
        data = header.pack()
        self.memory[layout.HEADER_AT : layout.HEADER_AT + len(data)] = data

    def put(self, at, data):
        self.memory[at : at + len(data)] = data

    def views(self, plan, adapters):
        """Return for each adapter the places of its tensors, made once for a plan."""
        if self._plan is not plan:
            self._views = {}
            for name, numbers in plan.groups.items():
                view = adapters[name].view
                self._views[name] = [
                    view(self.memory, plan.places[number], plan.descriptions[number])
                    for number in numbers
                ]
            self._plan = plan
        return self._views

    def is_in_place(self):
        """Return whether the file still lies where readers look for it."""
        try:
            path = self.path + SUFFIX_NEW if self._is_new else self.path
            return _inode(os.stat(path, follow_symlinks=False)) == self._inode
        except OSError:
            return False

    def publish(self):
        """Give a new file its name."""
        if self._is_new:
            os.rename(self.path + SUFFIX_NEW, self.path)
            self._is_new = False


def _inode(status):
    return status.st_dev, status.st_ino


def create(path, size):
    """Return a new buffer that is not yet published. Raises OSError, and leaves no file then."""
    new = path + SUFFIX_NEW
    _unlink(new)
    descriptor = os.open(new, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            # Its size first: the other ranks of the node count it as taken.
            os.ftruncate(descriptor, size)
            for at in range(0, size, _CHUNK_BYTES):
                os.posix_fallocate(descriptor, at, min(_CHUNK_BYTES, size - at))
            return Buffer(path, descriptor, size, is_new=True)
        finally:
            os.close(descriptor)
    except BaseException:
        _unlink(new)
        raise


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass


class SnapshotSlot:
    """One of the places of a rank: what lies there, and how this process writes to it."""

    def __init__(self, folder, rank, number):
        self.path = os.path.join(folder, layout.file_name(rank, number))
        self._is_extra = number >= layout.IN_TURNS
        self.buffer = None
        self.header = None  # of what lies there, whole or not
        self.whole = 0  # sequence of the whole snapshot that lies there
        self._copied_before = (0, 0, 0)  # what the launcher had asked of an earlier attempt
        _unlink(self.path + SUFFIX_NEW)
        self._look()

    def _look(self):
        """Read what an earlier attempt has left."""
        try:
            descriptor = os.open(self.path, _FLAGS)
        except OSError:
            return
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            data = os.pread(descriptor, layout.DATA_AT, 0)
            self.header = layout.parse(data, status.st_size)
            (commit,) = layout.COMMIT.unpack_from(data, layout.COMMIT_AT)
            if commit == self.header.sequence:
                self.whole = commit
            self._copied_before = layout.COPIED.unpack_from(data, layout.COPIED_AT)
        except Exception:
            pass  # none of ours: overwritten
        finally:
            os.close(descriptor)

    @property
    def is_in_turns(self):
        """Return whether it is written also where none is copied: the third is, once it is there."""
        return not self._is_extra or bool(self.whole)

    def copied(self, now_ns):
        """Return as `Buffer.copied`, also while the file is not mapped yet."""
        if self.buffer is not None:
            return self.buffer.copied(now_ns)
        attempt, step, until_ns = self._copied_before
        return (attempt, step - 1) if step and now_ns < until_ns else None

    @property
    def sequence(self):
        return self.header.sequence if self.header else 0

    def holds(self, choice):
        """Return whether the whole snapshot here is this attempt and step."""
        return bool(self.whole) and choice == (self.header.attempt, self.header.step)

    def is_settled(self):
        return self.buffer is None or self.buffer.is_settled()

    def open(self, size):
        """Return the mapped buffer if this many bytes fit into what is there and nobody reads it."""
        if self.buffer is not None and not self.buffer.is_in_place():
            self._drop()  # somebody has removed the folder
        if self.buffer is None:
            self._adopt(size)
        return self.buffer if self.buffer is not None and self.buffer.size >= size else None

    def _adopt(self, size):
        """Map a file that an earlier attempt has left, or that this one has lent and got back."""
        try:
            descriptor = os.open(self.path, _FLAGS)
        except OSError:
            return
        try:
            status = os.fstat(descriptor)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_size < size
                or status.st_blocks * 512 < status.st_size  # a hole could be a SIGBUS
                or lending.is_lent(status)
            ):
                return
            self.buffer = Buffer(self.path, descriptor, status.st_size, is_new=False)
        except (OSError, ValueError):
            pass
        finally:
            os.close(descriptor)

    def freed_by_removal(self):
        """Return the bytes that a removal of the file frees now."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return 0
        return 0 if lending.is_lent(status) else status.st_blocks * 512

    def remove(self):
        self._drop()
        self.whole = 0
        _unlink(self.path)
        _unlink(self.path + SUFFIX_NEW)

    def _drop(self):
        buffer, self.buffer = self.buffer, None
        if buffer is not None and buffer.unpin is not None:
            buffer.unpin()

    def replace(self, size):
        """Make a larger file, which takes the place of this one with its first snapshot. Raises OSError."""
        self._drop()
        self.buffer = create(self.path, size)
        return self.buffer
