"""Writes one rank's progress file. Layout: `rankmend.hook.layout`.

The two functions on the training path, `step` and a section's enter and exit, are closures
over local variables, because attribute look-ups were half of their cost (bench/hook_cost.py).
Not for several threads: calls from two threads may lose a record, and harm nothing else.
"""

import mmap
import os
import struct
import zlib
from time import monotonic_ns

from rankmend.hook import layout

_RECORD_AND_CRC = struct.Struct("<%dsI" % layout.RECORD.size)
_LIVE_AND_CRC = struct.Struct("<%dsI" % layout.LIVE.size)
_CODES = {name: code for code, name in enumerate(layout.SECTIONS)}


class _NoSection:
    """A section that measures nothing."""

    __slots__ = ()

    def __enter__(self):
        return None

    def __exit__(self, *_error):
        return None


NO_SECTION = _NoSection()


class AttachError(Exception):
    """The progress file can't be used; stays inside the hook."""


def read_start_ticks(pid):
    """Return the process start time in clock ticks since boot, or None where there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            stat = file.read()
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class Writer:
    """One mapped progress file, with `step(n)` and `section(name)` for it."""

    def __init__(self, path, flags=0):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size != layout.FILE_SIZE:
                raise AttachError("%s is not %d bytes long" % (path, layout.FILE_SIZE))
            self._map = mmap.mmap(descriptor, layout.FILE_SIZE)
        finally:
            os.close(descriptor)
        magic, version = layout.IDENTITY.unpack_from(self._map, layout.IDENTITY_AT)[:2]
        if magic != layout.MAGIC or version != layout.VERSION:
            raise AttachError("%s is no progress file of version %d" % (path, layout.VERSION))
        self._refuse_second_writer(path)
        self.pid = os.getpid()
        self._flags = flags
        self._attached_ns = monotonic_ns()
        self._resumed_ns = 0
        self._first_section_ns = 0
        self._start_ticks = read_start_ticks(self.pid) or 0
        self._collectives_entered = self._collectives_completed = 0
        self._write_attachment()
        self.step, self.section, self._use_private_memory = self._make_calls()

    def _refuse_second_writer(self, path):
        """Raise when a living process other than this one is attached already."""
        pid, _flags, ticks = layout.ATTACHMENT.unpack_from(self._map, layout.ATTACHMENT_AT)[:3]
        if pid and pid != os.getpid() and ticks and read_start_ticks(pid) == ticks:
            raise AttachError("%s belongs to process %d" % (path, pid))

    def set_flags(self, flags):
        self._flags = flags
        self._write_attachment()

    def mark_resumed(self):
        self._resumed_ns = monotonic_ns()
        self._write_attachment()

    def mark_collective(self, entered, completed):
        """Set how many collectives were entered and completed since the start."""
        body = layout.COLLECTIVES.pack(entered, completed, monotonic_ns())
        self._put(layout.COLLECTIVES_AT, body)

    def abandon(self):
        """Write to private memory from now on: called in a forked child."""
        self._map = bytearray(layout.FILE_SIZE)
        self._use_private_memory(self._map)

    def _put(self, offset, body):
        self._map[offset : offset + len(body) + 4] = body + layout.CRC.pack(zlib.crc32(body))

    def _write_attachment(self):
        body = layout.ATTACHMENT.pack(
            self.pid,
            self._flags,
            self._start_ticks,
            self._attached_ns,
            self._resumed_ns,
            self._first_section_ns,
        )
        self._put(layout.ATTACHMENT_AT, body)

    def _mark_first_section(self, now_ns):
        self._first_section_ns = now_ns
        self._write_attachment()

    def _make_calls(self):
        memory = self._map
        words = memoryview(memory).cast("Q")
        pack_record, put_record = layout.RECORD.pack, _RECORD_AND_CRC.pack_into
        pack_live, put_live = layout.LIVE.pack, _LIVE_AND_CRC.pack_into
        crc32, now = zlib.crc32, monotonic_ns
        ring_at, live_at, head_word = layout.RING_AT, layout.LIVE_AT, layout.HEAD_AT // 8
        slot_mask, slot_shift = layout.RING_SLOTS - 1, layout.RECORD_SIZE.bit_length() - 1
        one_section = 1 << layout.SECTION_BITS
        count = 0
        entered = 0  # sections entered << SECTION_BITS
        current = 0  # code of the section that the rank is in
        changed_ns = self._attached_ns
        totals = [0] * len(layout.SECTIONS)
        stack = []
        put_live(memory, live_at, *_with_crc(pack_live(0, changed_ns)))

        def step(number):
            nonlocal count, changed_ns
            try:
                count += 1
                at = now()
                if current:  # a step told from inside a section: settle what it has used
                    totals[current] += at - changed_ns
                    changed_ns = at
                body = pack_record(count, number, at, totals[1], totals[2], totals[3], totals[4])
                put_record(memory, ring_at + ((count & slot_mask) << slot_shift), body, crc32(body))
                words[head_word] = count
            except Exception:
                count -= 1  # a number that is none: nothing was written

        class Section:
            __slots__ = ("code",)

            def __init__(self, code):
                self.code = code

            def __enter__(self):
                nonlocal entered, current, changed_ns
                at = now()
                totals[current] += at - changed_ns
                stack.append(current)
                if not entered:
                    mark_first_section(at)
                changed_ns = at
                current = self.code
                entered += one_section
                body = pack_live(entered | current, at)
                put_live(memory, live_at, body, crc32(body))

            def __exit__(self, *_error):
                nonlocal current, changed_ns
                at = now()
                totals[current] += at - changed_ns
                changed_ns = at
                current = stack.pop() if stack else 0
                body = pack_live(entered | current, at)
                put_live(memory, live_at, body, crc32(body))

        def use_private_memory(private):
            nonlocal memory, words
            memory = private
            words = memoryview(private).cast("Q")

        def section(name):
            try:
                return sections[name]
            except Exception:  # unknown or unhashable
                return NO_SECTION

        mark_first_section = self._mark_first_section
        sections = {name: Section(code) for name, code in _CODES.items()}
        return step, section, use_private_memory


def _with_crc(body):
    return body, zlib.crc32(body)
