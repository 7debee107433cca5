"""Writes one rank's progress file. Layout: `rankmend.hook.layout`.

The two functions on the training path, `step` and a section's enter and exit, are closures
over local variables, because attribute look-ups were half of their cost (bench/hook_cost.py).
Not for several threads: calls from two threads may lose a record, and harm nothing else.
"""

import fcntl
import mmap
import os
import struct
import zlib
from time import monotonic_ns

from rankmend.hook import layout
from rankmend.hook.device_name import device_name
from rankmend.hook.lease import MappedLease
from rankmend.hook.nested_launchers import NoRankYetError, is_below
from rankmend.hook.notice import warn
from rankmend.hook.plain_number import describe, plain_number

_RECORD_AND_CRC = struct.Struct("<%dsI" % layout.RECORD.size)
# layout.RECORD in two parts, of which the second changes with sections only. A step above STEP_MAX is an error.
_TOTALS = struct.Struct("<QQQQQ")
_STEP = struct.Struct("<QqQ%ds" % _TOTALS.size)
_LIVE_AND_CRC = struct.Struct("<%dsI" % layout.LIVE.size)
_NUMBERS_AND_CRC = struct.Struct("<%dsI" % layout.NUMBERS.size)
_WORK_AND_CRC = struct.Struct("<%dsI" % layout.WORK.size)
_WORK_PLACE = slice(layout.WORK_AT, layout.WORK_AT + _WORK_AND_CRC.size)
_DATA_TYPES = {name: code for code, name in enumerate(layout.DATA_TYPES) if name}
_INFINITY = float("inf")
_PLAIN = (int, float)
_NAME_TRIES = 16  # calls of work() in which the device may still come up
_TRIES = 3  # reads of the own time from another thread
_DEPTH_MAX = 20  # nested sections; beyond it, the outermost counts as idle
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
    """The progress file can't be used; never leaves the hook."""


class OtherWriterError(AttachError, NoRankYetError):
    """A living process writes this file already: this one is a child of the rank."""


def read_start_ticks(pid):
    """Return the process start time in clock ticks since boot, or None where there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            stat = file.read()
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def file_at(where):
    """Return what tells a file from all others; ``where``: a path or a descriptor."""
    found = os.stat(where)
    return found.st_dev, found.st_ino


def _amount(value):
    """Return a number as it is, or a tensor's or numpy's as a float if that costs no wait for a device."""
    if type(value) in _PLAIN:
        return value
    read = plain_number(value)
    if read is None:
        raise TypeError("%s is not a number" % describe(value))
    return read


class Writer:
    """One mapped progress file, with `step(n)` and `section(name)` for it."""

    def __init__(self, path, flags=0, takes_place=False):
        """``takes_place``: also of an ancestor that has reported nothing (`rankmend.hook.nested_launchers`)."""
        self.pid = os.getpid()
        self._flags = flags
        self._start_ticks = read_start_ticks(self.pid) or 0
        self._resumed_ns = 0
        self._first_section_ns = 0
        self._pairs = 0
        self._end = 0
        self._timeout_ns = 0
        self._has_met = False
        self.path = path
        self._work = (0, 0.0, 0.0, 0.0, 0)  # as in layout.WORK, without the device
        self._place = None  # as in layout.PLACE, without who told
        self._is_place_told = self._is_place_refused = False  # by the script
        self._device = b""
        self._is_work_refused = False
        self._background = {}  # by nothing: what `background` has made, once it was called
        self._facts = 0  # of layout.HIDDEN
        self._hidden = (0,) * 6  # its other numbers
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            if size != layout.FILE_SIZE:
                raise AttachError("%s is %d bytes long, not %d" % (path, size, layout.FILE_SIZE))
            self.file = file_at(descriptor)
            # Has no effect on what the launcher made; a file with a hole could be a SIGBUS later.
            os.posix_fallocate(descriptor, 0, layout.FILE_SIZE)
            self._map = mmap.mmap(descriptor, layout.FILE_SIZE)
            magic, version = layout.IDENTITY.unpack_from(self._map, layout.IDENTITY_AT)[:2]
            if magic != layout.MAGIC or version != layout.VERSION:
                raise AttachError(
                    "%s is not a progress file of version %d" % (path, layout.VERSION)
                )
            self._take(descriptor, path, takes_place)
        finally:
            os.close(descriptor)
        calls = self._make_calls()
        self.step, self.section, self._use_memory = calls[:3]
        self.enter, self.leave, self.begin_collective, self.end_collective = calls[3:7]
        self.add_wait, self.step_at, self.own_ns, self.own_ns_beside, self.is_lease_over = calls[7:]

    def _take(self, descriptor, path, takes_place):
        """Become the only writer, or raise if another living process is."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OtherWriterError("%s is being attached by another process" % path) from error
        try:
            pid, _flags, ticks = layout.ATTACHMENT.unpack_from(self._map, layout.ATTACHMENT_AT)[:3]
            if (
                pid
                and pid != self.pid
                and ticks
                and read_start_ticks(pid) == ticks
                and not (takes_place and self._has_told_nothing() and is_below(pid))
            ):
                raise OtherWriterError("%s belongs to process %d" % (path, pid))
            self._attached_ns = monotonic_ns()
            self._map[layout.HEAD_AT : layout.HEAD_AT + 8] = bytes(8)  # a dead writer's steps
            self._put(layout.RENDEZVOUS_AT, layout.RENDEZVOUS.pack(0, 0))
            self._put(layout.LIVE_AT, layout.LIVE.pack(0, self._attached_ns))
            self._put(layout.COLLECTIVES_AT, layout.COLLECTIVES.pack(0, 0, 0))
            self._put(layout.TIMEOUT_AT, layout.TIMEOUT.pack(0))
            self._put(layout.SNAPSHOTS_AT, layout.SNAPSHOTS.pack(*[0] * 7))
            self._map[layout.NUMBERS_HEAD_AT : layout.NUMBERS_HEAD_AT + 8] = bytes(8)
            self._put(layout.FIRST_BAD_AT, layout.FIRST_BAD.pack(0, 0.0, 0, 0.0))
            self._put(layout.WORK_AT, layout.WORK.pack(0, 0.0, 0.0, 0.0, 0, b""))
            self._put(layout.HIDDEN_AT, layout.HIDDEN.pack(*[0] * 7))
            self._put(layout.BACKGROUND_AT, layout.BACKGROUND.pack(*[0] * 4))
            self._put(layout.PLACE_AT, layout.PLACE.pack(*[0] * 6))
            self._put(layout.NCCL_AT, layout.NCCL.pack(*[0] * layout.NCCL_MAX))
            self._put_attachment()
        finally:
            # Closing would not do: the map keeps a duplicate of the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _has_told_nothing(self):
        """Return whether the one that has this file has reported neither a step nor a section."""
        steps = int.from_bytes(self._map[layout.HEAD_AT : layout.HEAD_AT + 8], "little")
        entered, _since_ns = layout.LIVE.unpack_from(self._map, layout.LIVE_AT)
        return steps == 0 and entered >> layout.SECTION_BITS == 0

    def set_flags(self, flags):
        self._flags = flags
        self._write_attachment()

    def mark_resumed(self):
        self._resumed_ns = monotonic_ns()
        self._write_attachment()

    def mark_rendezvous(self, began_ns, ended_ns):
        """Report when the ranks met; only the first time counts."""
        if not self._has_met:
            self._has_met = True
            self._put(layout.RENDEZVOUS_AT, layout.RENDEZVOUS.pack(began_ns, ended_ns))

    def mark_pairs(self):
        """Report that this rank sends to or receives from single ranks."""
        if not self._pairs:
            self._pairs = layout.FLAG_PAIRS
            self._write_attachment()

    def mark_end(self, code):
        """Report how the script has ended, by a code of `layout`; 0: it has not."""
        if code << layout.END_SHIFT != self._end:
            self._end = code << layout.END_SHIFT
            self._write_attachment()

    def tell_snapshots(self, *numbers):
        """Report the numbers of `layout.SNAPSHOTS`."""
        self._put(layout.SNAPSHOTS_AT, layout.SNAPSHOTS.pack(*numbers))

    def mark_fact(self, fact):
        """Report a fact of `layout.HIDDEN`."""
        if not self._facts & fact:
            self._facts |= fact
            self.tell_hidden(*self._hidden)

    def tell_hidden(self, *numbers):
        """Report the numbers of `layout.HIDDEN` behind the facts."""
        self._hidden = numbers
        self._put(layout.HIDDEN_AT, layout.HIDDEN.pack(self._facts, *numbers))

    def tell_background(self, *numbers):
        """Report the numbers of `layout.BACKGROUND`."""
        self._put(layout.BACKGROUND_AT, layout.BACKGROUND.pack(*numbers))

    def tell_nccl(self, versions):
        """Report the versions of NCCL that this rank has loaded."""
        reported = list(versions) + [0] * (layout.NCCL_MAX - len(versions))
        self._put(layout.NCCL_AT, layout.NCCL.pack(*reported))

    def mark_place(self, place):
        """Report the place in the model's layout that process groups show; what the script has told stands."""
        if place != self._place and not self._is_place_told:
            self._place = place
            self._put(layout.PLACE_AT, layout.PLACE.pack(layout.TOLD_BY_GROUPS, *place))

    def groups(self, dp=None, tp=None, pp=None, cp=None, ep=None):
        """Report the rank's index along each dimension of parallelism."""
        try:
            reported = (dp, tp, pp, cp, ep)
            given = [
                item.__index__() for item in reported if item is not None
            ]  # numpy's integers, too
            if not all(0 <= item < layout.PLACE_MAX for item in given):
                raise ValueError("not an index from 0 to %d" % (layout.PLACE_MAX - 1))
            place = tuple(-1 if item is None else given.pop(0) for item in reported)
            self._is_place_told = True
            if place != self._place:
                self._place = place
                self._put(layout.PLACE_AT, layout.PLACE.pack(layout.TOLD_BY_SCRIPT, *place))
        except (AttributeError, TypeError, ValueError) as error:
            if not self._is_place_refused:
                self._is_place_refused = True
                text = "groups() takes this rank's index in dp, tp, pp, cp and ep: not reported: %s: %s"
                warn(text, type(error).__name__, error)

    def background(self, name):
        """Return a context manager for work of that name in another thread than the one that trains."""
        try:
            found = self._background.get("")
            if found is None:
                from rankmend.hook.background import Background

                found = self._background.setdefault("", Background(self))  # of several threads one
            return found.sections.get(name, NO_SECTION)
        except TypeError:  # unhashable
            return NO_SECTION

    def work(self, flops=None, tokens=None, samples=None, dtype="bf16"):
        """Add to the work that this rank has told."""
        try:
            count, all_flops, all_tokens, all_samples, code = self._work
            following = (
                count + 1,
                all_flops if flops is None else all_flops + _amount(flops),
                all_tokens if tokens is None else all_tokens + _amount(tokens),
                all_samples if samples is None else all_samples + _amount(samples),
                code if flops is None else _DATA_TYPES[dtype],
            )
            # What was less than 0, NaN or infinite fails one of these.
            if not (
                all_flops <= following[1] < _INFINITY
                and all_tokens <= following[2] < _INFINITY
                and all_samples <= following[3] < _INFINITY
            ):
                raise ValueError("not a number of 0 or more")
            if count < _NAME_TRIES and not self._device:
                name = device_name().encode("ascii", "replace")
                self._device = name[: layout.DEVICE_NAME_BYTES_MAX]
            body = layout.WORK.pack(*following, self._device)
            self._map[_WORK_PLACE] = _WORK_AND_CRC.pack(body, zlib.crc32(body))
            self._work = following
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            self._refuse_work(error)  # all else is from the script's signal handler

    def _refuse_work(self, error):
        if not self._is_work_refused:
            self._is_work_refused = True
            text = "work() takes numbers from 0 on, and dtype as one of %s: not reported: %s: %s"
            types = ", ".join(layout.DATA_TYPES[1:])
            warn(text, types, type(error).__name__, error)

    def mark_timeout(self, nanoseconds):
        """Report the timeout of the collective that this rank enters now."""
        if nanoseconds != self._timeout_ns:
            self._timeout_ns = nanoseconds
            self._put(layout.TIMEOUT_AT, layout.TIMEOUT.pack(nanoseconds))

    def abandon(self):
        """Write to private memory from now on: called in a forked child."""
        self._map = bytearray(layout.FILE_SIZE)
        self._use_memory(self._map)
        for background in self._background.values():
            background.forget()

    def move_to(self, path):
        """Go on in another new file, with all that was told in the one before. Raises OSError or ValueError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            memory = mmap.mmap(descriptor, layout.FILE_SIZE)
            file = file_at(descriptor)
        finally:
            os.close(descriptor)
        memory[layout.ATTACHMENT_AT :] = self._map[layout.ATTACHMENT_AT :]
        self._map, self.path, self.file = memory, path, file
        self._use_memory(memory)

    def _put(self, offset, body):
        self._map[offset : offset + len(body) + 4] = body + layout.CRC.pack(zlib.crc32(body))

    def _write_attachment(self):
        pid, _flags, ticks = layout.ATTACHMENT.unpack_from(self._map, layout.ATTACHMENT_AT)[:3]
        if pid != self.pid and ticks and read_start_ticks(pid) == ticks:
            self.abandon()  # a rank that this process has started has taken its place
        self._put_attachment()

    def _put_attachment(self):
        body = layout.ATTACHMENT.pack(
            self.pid,
            self._flags | self._pairs | self._end,
            self._start_ticks,
            self._attached_ns,
            self._resumed_ns,
            self._first_section_ns,
        )
        self._put(layout.ATTACHMENT_AT, body)

    def _mark_first_section(self, now_ns):
        self._first_section_ns = now_ns
        self._write_attachment()

    def _make_calls(self):  # noqa: PLR0915 (one scope by intent: see the top)
        memory = self._map
        words = memoryview(memory).cast("Q")
        lease = MappedLease(words)
        look_ns = 0  # when to look at the lease again
        # Packed first and copied in one piece: pack_into would show readers zeros in between.
        pack_record, seal_record = layout.RECORD.pack, _RECORD_AND_CRC.pack
        pack_live, seal_live = layout.LIVE.pack, _LIVE_AND_CRC.pack
        crc32, now = zlib.crc32, monotonic_ns
        head_word, step_max = layout.HEAD_AT // 8, layout.STEP_MAX
        live_place = slice(layout.LIVE_AT, layout.LIVE_AT + _LIVE_AND_CRC.size)
        places = tuple(slice(at, at + _RECORD_AND_CRC.size) for at in layout.SLOTS_AT)
        pack_step, pack_totals = _STEP.pack, _TOTALS.pack
        packed = (
            None  # the totals without idle, as a record has them; None: they have changed since
        )
        slot_mask = layout.RING_SLOTS - 1
        code_bits, code_mask = layout.SECTION_BITS, (1 << layout.SECTION_BITS) - 1
        outer_mask = (1 << _DEPTH_MAX * code_bits) - 1
        one_section = 1 << code_bits
        count = 0
        entered = 0  # sections entered << code_bits
        current = 0  # code of the section that the rank is in
        outer = 0  # codes of the sections around it, the innermost in the lowest bits
        changed_ns = self._attached_ns
        totals = [0] * len(layout.SECTIONS)
        collectives_entered = collectives_completed = 0
        pack_collectives = layout.COLLECTIVES.pack
        seal_collectives = struct.Struct("<%dsI" % layout.COLLECTIVES.size).pack
        at_collectives = layout.COLLECTIVES_AT
        collectives_place = slice(at_collectives, at_collectives + layout.COLLECTIVES.size + 4)
        is_warned = False
        pack_numbers, seal_numbers = layout.NUMBERS.pack, _NUMBERS_AND_CRC.pack
        numbers_word = layout.NUMBERS_HEAD_AT // 8
        numbers_places = tuple(
            slice(at, at + _NUMBERS_AND_CRC.size) for at in layout.NUMBERS_SLOTS_AT
        )
        numbers_mask, numbers_bits = layout.NUMBERS_SLOTS - 1, layout.NUMBERS_BITS
        has_loss, has_grad_norm = layout.HAS_LOSS, layout.HAS_GRAD_NORM
        numbers_count = 0
        first_bad = (0, 0.0, 0, 0.0)
        is_number_refused = False
        is_training = False  # has entered compute or communication

        # Each call writes first and remembers last, so that an exception out of a signal
        # handler in between (KeyboardInterrupt) leaves a state that the next call puts right.

        def step(number, loss=None, grad_norm=None):
            nonlocal count, changed_ns, packed, look_ns
            try:
                if number < 0:
                    warn_once(number)
                    return
                if loss is not None or grad_norm is not None:
                    if number > step_max:
                        warn_once(number)
                        return
                    tell_numbers(number, loss, grad_norm)
                at = now()
                if current:  # a step reported inside a section: settle its time so far
                    packed = None
                    totals[current] += at - changed_ns
                    changed_ns = at
                following = count + 1
                times = packed  # once: another thread may take it back at any moment
                if times is None:
                    _idle, compute, sending, io, saving, waiting = totals
                    times = packed = pack_totals(compute, sending, io, saving, waiting)
                body = pack_step(following, number, at, times)
                memory[places[following & slot_mask]] = seal_record(body, crc32(body))
                count = following
                words[head_word] = following
                if at >= look_ns:
                    look_ns = at + lease.look()
            except Exception as error:
                if type(number) is int and not isinstance(error, struct.error):
                    raise  # from the script's signal handler: not ours to swallow
                if type(number) is not int or not 0 <= number <= step_max:
                    warn_once(number)
                    return
                # Of two threads in sections one can subtract what the other has added.
                packed = None
                settled = [max(total, 0) for total in totals]
                totals[:] = settled
                following = count + 1
                body = pack_record(following, number, now(), *settled[1:])
                memory[places[following & slot_mask]] = seal_record(body, crc32(body))
                count = following
                words[head_word] = following

        def tell_numbers(number, loss, grad_norm):
            nonlocal numbers_count
            if loss is not None and type(loss) is not float:
                loss = read_number("loss", loss)
            if grad_norm is not None and type(grad_norm) is not float:
                grad_norm = read_number("grad_norm", grad_norm)
            reported = 0
            if loss is None:
                loss = 0.0
            else:
                reported = has_loss
            if grad_norm is None:
                grad_norm = 0.0
            else:
                reported |= has_grad_norm
            if not reported:
                return
            if loss - loss or grad_norm - grad_norm:  # NaN, as of NaN and infinity only
                note_bad(number, loss, grad_norm)
            following = numbers_count + 1
            body = pack_numbers(following << numbers_bits | reported, number, loss, grad_norm)
            memory[numbers_places[following & numbers_mask]] = seal_numbers(body, crc32(body))
            numbers_count = following
            words[numbers_word] = following

        def note_bad(number, loss, grad_norm):
            nonlocal first_bad
            loss_step, loss_value, norm_step, norm_value = first_bad
            if not loss_step and loss - loss:
                loss_step, loss_value = number + 1, loss
            if not norm_step and grad_norm - grad_norm:
                norm_step, norm_value = number + 1, grad_norm
            if (loss_step, norm_step) != first_bad[::2]:
                body = layout.FIRST_BAD.pack(loss_step, loss_value, norm_step, norm_value)
                at = layout.FIRST_BAD_AT
                memory[at : at + len(body) + 4] = body + layout.CRC.pack(crc32(body))
                first_bad = (loss_step, loss_value, norm_step, norm_value)

        def read_number(name, value):
            nonlocal is_number_refused
            read = plain_number(value)
            if read is None and not is_number_refused:
                is_number_refused = True
                what = describe(value)
                warn("step() takes %s as a float, not as %s: it is not reported", name, what)
            return read

        class Section:
            __slots__ = ("code",)

            def __init__(self, code):
                self.code = code

            def __enter__(self):
                nonlocal entered, current, outer, changed_ns, is_training, packed
                at = now()
                code = self.code
                if not is_training and code in training_codes:
                    is_training = True
                    mark_first_section(at)
                following = entered + one_section
                body = pack_live(following | code, at)
                memory[live_place] = seal_live(body, crc32(body))
                if current or outer:
                    packed = None
                    totals[current] += at - changed_ns
                    outer = (outer << code_bits | current) & outer_mask
                changed_ns = at
                entered = following
                current = code

            def __exit__(self, *_error):
                nonlocal current, outer, changed_ns, packed
                at = now()
                code = outer & code_mask if outer else 0
                body = pack_live(entered | code, at)
                memory[live_place] = seal_live(body, crc32(body))
                packed = None
                totals[current] += at - changed_ns
                changed_ns = at
                current = code
                if outer:
                    outer >>= code_bits

        class SavingSection(Section):
            __slots__ = ()

            def __enter__(self):
                lease.look()
                Section.__enter__(self)

        # For the hook's own use: sections that the script did not tell, and collectives. Nothing
        # is told before the first step, so that a program without steps stays one that tells
        # nothing, and the marks of the start-up stay the script's.

        def enter(code):
            nonlocal entered, current, outer, changed_ns, packed
            if not count:
                return False
            at = now()
            following = entered + one_section
            body = pack_live(following | code, at)
            memory[live_place] = seal_live(body, crc32(body))
            packed = None
            totals[current] += at - changed_ns
            if current or outer:
                outer = (outer << code_bits | current) & outer_mask
            changed_ns = at
            entered = following
            current = code
            return True

        def leave():
            nonlocal current, outer, changed_ns, packed
            at = now()
            code = outer & code_mask
            body = pack_live(entered | code, at)
            memory[live_place] = seal_live(body, crc32(body))
            packed = None
            totals[current] += at - changed_ns
            changed_ns = at
            current = code
            outer >>= code_bits

        def begin_collective():
            nonlocal collectives_entered
            if count:
                collectives_entered += 1
                body = pack_collectives(collectives_entered, collectives_completed, now())
                memory[collectives_place] = seal_collectives(body, crc32(body))

        def end_collective():
            nonlocal collectives_completed
            if collectives_completed < collectives_entered:  # waited for twice: completed once
                collectives_completed += 1
                body = pack_collectives(collectives_entered, collectives_completed, now())
                memory[collectives_place] = seal_collectives(body, crc32(body))

        def add_wait(nanoseconds):
            nonlocal packed
            packed = None
            totals[wait_code] += nanoseconds

        def step_at(number, at):
            """Report an earlier step before anything else is reported."""
            nonlocal count
            if not 0 <= number <= step_max:
                warn_once(number)
                return
            following = count + 1
            body = pack_record(following, number, at, *totals[1:])
            memory[places[following & slot_mask]] = seal_record(body, crc32(body))
            count = following
            words[head_word] = following

        def own_ns():
            """Return a time that stands still while the rank waits, communicates, reads or saves."""
            at = now()
            if current in apart_codes:
                at = changed_ns
            _idle, _compute, sending, io, saving, waiting = totals
            return at - sending - io - saving - waiting

        def own_ns_beside():
            """Return the same in another thread than the one that trains."""
            for _try in range(_TRIES):  # again where that one has moved on meanwhile
                since, own = changed_ns, own_ns()
                if since == changed_ns:
                    break
            return own

        def use_memory(other):
            nonlocal memory, words, lease, look_ns
            memory = other
            words = memoryview(other).cast("Q")
            lease, look_ns = MappedLease(words), 0

        def is_lease_over():
            return lease.is_over()

        def section(name):
            try:
                return sections[name]
            except KeyError:
                return NO_SECTION
            except Exception:  # unhashable
                if type(name) is str:
                    raise  # as in step
                return NO_SECTION

        def warn_once(number):
            nonlocal is_warned
            if not is_warned:
                is_warned = True
                kind = type(number).__name__
                warn("step() takes a whole number from 0 to 2**63 - 1, not %s %s", kind, number)

        training_codes = (_CODES["compute"], _CODES["communication"])
        wait_code = _CODES["wait"]
        apart_codes = (_CODES["communication"], _CODES["io"], _CODES["checkpoint"], wait_code)
        mark_first_section = self._mark_first_section
        sections = {name: Section(code) for name, code in _CODES.items()}
        sections["checkpoint"] = SavingSection(_CODES["checkpoint"])
        auto = (enter, leave, begin_collective, end_collective, add_wait, step_at)
        return (step, section, use_memory, *auto, own_ns, own_ns_beside, is_lease_over)
