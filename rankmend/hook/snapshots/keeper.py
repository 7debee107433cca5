"""Keeps snapshots of this rank's state: which of its files is written, and when there is room.

The newest whole snapshot is never touched as long as there is room for two. With room for one file it is
overwritten in place, so a death in mid-write leaves none; without any room no snapshot is kept. Each of
these is said once, and tried again from time to time. While a launcher copies one to another node, a
third file takes its place in the turns; without room for that, the only other one is overwritten in place. Nothing here raises into training.
"""

import collections
import os
import sys
import uuid
from time import monotonic, monotonic_ns

from rankmend.hook import layout as progress_layout
from rankmend.hook.notice import warn
from rankmend.hook.snapshots import layout, room, structure
from rankmend.hook.snapshots.buffers import SnapshotSlot
from rankmend.hook.snapshots.plan import BufferPlan, align, place_blobs

RETRY_S = 60.0
MISSING_S = 0.5
_SLACK_BYTES_MIN = 64 << 10
_SLACK_RATIO = 0.125  # of what changes its size: blobs and structure
_MIB = 1 << 20

Identity = collections.namedtuple("Identity", "job_id attempt rank local_rank world_size")

NONE, ONE, TWO = 0, 1, 2  # levels: files that there is room for


def read_identity(environment):
    """Return who this rank is. Raises KeyError or ValueError."""
    numbers = (environment[progress_layout.ENV_ATTEMPT], environment["RANK"])
    numbers += (environment["LOCAL_RANK"], environment["WORLD_SIZE"])
    job_id = uuid.UUID(environment[progress_layout.ENV_JOB_ID]).bytes
    return Identity(job_id, *map(int, numbers))


class SnapshotKeeper:
    """The snapshots of one rank. ``tell``: called with the numbers of `progress_layout.SNAPSHOTS`."""

    def __init__(
        self,
        folder,
        identity,
        tell,
        choice=None,
        local_world_size=1,
        read_room=room.read,
        now=monotonic,
        is_over=lambda: False,
    ):
        """``is_over``: returns whether this rank's lease is over, so that nothing more is published."""
        self._folder = folder
        self._identity = identity
        self._tell = tell
        self._choice = choice  # attempt and step that this attempt has restored
        self._local_world_size = local_world_size
        self._read_room = read_room
        self._now = now
        self._is_over = is_over
        self._pid = os.getpid()
        self._slots = None
        self._plan = None
        self._adapters = {}
        self._sequence = 0
        self._is_busy = False
        self._said = set()
        self._retry_at_s = 0.0
        self._abandoned = []  # files into which a device may still copy
        self._count = self._refused = 0
        self._total_ns = self._last_ns = 0
        self._bytes = self._newest = 0
        self.level = NONE

    def take(self, step, state):
        """Keep the state after this step, and return whether that was done."""
        if self._is_busy or os.getpid() != self._pid:
            return False
        self._is_busy = True
        try:
            began_ns = monotonic_ns()
            done = self._take(step, state, began_ns)
            if done:
                self._count += 1
                self._newest = step + 1
                self._last_ns = monotonic_ns() - began_ns
                self._total_ns += self._last_ns
            else:
                self._refused += 1
            numbers = (self._count, self._refused, self._newest, self._bytes)
            self._tell(*numbers, self._total_ns, self._last_ns, self.level)
            return done
        except Exception as error:
            if is_from_script(error):
                raise
            self._refused += 1
            self._say("error", "no snapshot of step %s: %s: %s", step, type(error).__name__, error)
            return False
        finally:
            self._is_busy = False

    def _take(self, step, state, began_ns):  # noqa: PLR0911 (each with its reason)
        if type(step) is not int or not 0 <= step <= layout.STEP_MAX:
            kind = type(step).__name__
            self._say("step", "snapshot() takes a step from 0 to 2**63 - 1, not %s %s", kind, step)
            return False
        if self._slots is None:
            self._start()
        newest = max((slot.header.step for slot in self._slots if self._is_own(slot)), default=-1)
        if step <= newest:
            # Ranks could begin from two states of one number: some from the first, some from the second.
            text = "no snapshot of step %s is kept: there is one of step %s. Steps have to grow; count them on over epochs and stages"
            self._say("again", text, step, newest)
            return False
        if self._is_over():
            return False
        if not all(slot.is_settled() for slot in self._slots):
            return False  # the device is behind: the next snapshot will do
        leaves = structure.Leaves(self._plan.keys if self._plan is not None else ())
        try:
            tree, plan = self._walk(state, leaves)
        except structure.UnsupportedError as error:
            path = structure.find_path(state, error.value)
            text = "no snapshot is kept: %s: %s can't be kept. See docs/use/snapshots.md"
            self._say(path, text, path, error.what)
            return False
        numbers = plan.groups.get("cuda")
        device = None
        if numbers:
            accelerator = self._adapters["cuda"]
            device = accelerator.find_device(leaves, numbers)
            if accelerator.is_recording():
                text = "no snapshot is kept while a CUDA graph is captured: take it outside of the capture, between two replays"
                self._say("capture", text)
                return False
        blob_places, structure_at = place_blobs(plan.end, leaves.blobs)
        document = structure.write_document(tree, plan.table_json, blob_places)
        if len(document) > layout.STRUCTURE_BYTES_MAX:
            text = "no snapshot is kept: all but tensors, arrays and bytes take %s MiB, more than %s MiB"
            self._say("size", text, len(document) // _MIB, layout.STRUCTURE_BYTES_MAX // _MIB)
            return False
        end = structure_at + len(document)
        slot = self._choose(
            end, align(end + max(_SLACK_BYTES_MIN, int((end - plan.end) * _SLACK_RATIO)))
        )
        if slot is None:
            return False
        header = layout.Header(
            *self._identity,
            step=step,
            sequence=self._sequence + 1,
            data_at=layout.DATA_AT,
            data_size=structure_at - layout.DATA_AT,
            structure_at=structure_at,
            structure_size=len(document),
            written_ns=began_ns,
        )
        self._write(slot, header, plan, leaves, blob_places, document, device)
        self._bytes = end
        return True

    def _start(self):
        slots = [SnapshotSlot(self._folder, self._identity.rank, n) for n in range(layout.BUFFERS)]
        self._sequence = max(slot.sequence for slot in slots)
        self._slots = slots

    # What there is to copy -----------------------------------------------------------------

    def _walk(self, state, leaves):
        kinds = {}
        for adapter in self._find_adapters():
            kinds.update(adapter.kinds(leaves))
        tree = structure.encode(state, leaves, kinds)
        plan = self._plan
        if plan is None or not plan.fits(leaves):
            plan = self._plan = BufferPlan(leaves, self._adapters)
        return tree, plan

    def _find_adapters(self):
        """Return the adapters of what the script has imported by now."""
        if "torch" not in self._adapters and _is_imported("torch", "Tensor", "nn"):
            from rankmend.hook.snapshots.accelerator import Accelerator
            from rankmend.hook.snapshots.tensors import TorchTensors

            self._adapters["torch"] = TorchTensors(sys.modules["torch"])
            self._adapters["cuda"] = Accelerator(sys.modules["torch"])
            self._plan = None
        if "numpy" not in self._adapters and _is_imported("numpy", "ndarray", "sctypeDict"):
            from rankmend.hook.snapshots.arrays import NumpyArrays

            self._adapters["numpy"] = NumpyArrays(sys.modules["numpy"])
            self._plan = None
        return [adapter for name, adapter in self._adapters.items() if name != "cuda"]

    # Where it goes -------------------------------------------------------------------------

    def _choose(self, size, roomy_size):
        """Return the slot to write, mapped and large enough, or None."""
        retained, copied = self._kept(), self._copied()
        for left in ({retained, copied}, {retained}):
            if left == {None}:
                continue
            others = sorted((slot for slot in self._slots if slot not in left), key=self._age)
            older = others[0]
            if older.open(size) or self._replace(older, size, roomy_size):
                return older
            if len(others) > 1 and others[-1].open(size):
                return others[-1]
        in_turns = [slot for slot in self._slots if slot.is_in_turns]
        older, *_between, newer = sorted(in_turns, key=self._age)
        if older.open(size) or self._replace(older, size, roomy_size):
            self._set_level(TWO)
            return older
        if newer.open(size):
            self._set_level(ONE)
            return newer
        self._set_level(NONE)
        return None

    def _kept(self):
        """Return the slot that is being copied to another node, or None."""
        own = [slot for slot in self._slots if self._is_own(slot) and slot.buffer is not None]
        now_ns = monotonic_ns()
        requested = [slot.buffer.kept_from(now_ns) for slot in own]
        first = max((step for step in requested if step is not None), default=None)
        if first is None:
            return None
        candidates = [slot for slot in own if slot.header.step >= first]
        return min(candidates, key=lambda slot: slot.header.step, default=None)

    def _copied(self):
        """Return the slot of which other nodes have copies, and which is of use where another node is lost; or None."""
        now_ns = monotonic_ns()
        mapped = [slot for slot in self._slots if slot.buffer is not None]
        requested = [slot.copied(now_ns) for slot in mapped or self._slots]
        newest = max(filter(None, requested), default=None)
        return next((slot for slot in self._slots if slot.holds(newest)), None)

    def _age(self, slot):
        # An earlier attempt's is of no use any more, but for the one that was restored: perhaps no
        # other is whole on all ranks.
        is_of_use = self._is_own(slot) or slot.holds(self._choice)
        return (bool(slot.whole), is_of_use, slot.whole)

    def _is_own(self, slot):
        return bool(slot.whole) and slot.header.attempt == self._identity.attempt

    def _replace(self, slot, size, roomy_size):
        """Make a new file for a slot and return whether there was room."""
        if self._now() < self._retry_at_s:
            return False
        free, found = self._measure(roomy_size)
        # The older snapshot is worth less than a newer one: where both do not fit, it makes room.
        if free < roomy_size and free + slot.freed_by_removal() >= roomy_size:
            slot.remove()
            free, found = self._measure(roomy_size)
        problem = None
        if free >= roomy_size:
            try:
                slot.replace(roomy_size)
                return True
            except (OSError, ValueError, MemoryError) as error:
                problem = str(error)
        is_there = os.path.isdir(
            self._folder
        )  # else somebody has removed it, and the launcher makes it again
        self._retry_at_s = self._now() + (RETRY_S if is_there else MISSING_S)
        self._shortage = (size, free, problem or "%s limits it" % found.limited_by)
        return False

    def _measure(self, size):
        found = self._read_room(self._folder)
        taken = room.promised(
            *(self._folder, self._identity.rank, size),
            *(1 + sum(bool(slot.whole) for slot in self._slots), self._local_world_size),
        )
        return found.free_bytes - room.reserve(found.total_bytes) - taken, found

    def _set_level(self, level):
        if level == self.level and level != NONE:
            return
        self.level = level
        if level == TWO:
            return
        size, free, reason = self._shortage
        numbers = (_in_mib(size), _in_mib(max(free, 0)), reason, int(RETRY_S))
        if level == ONE:
            self._say(
                "one",
                "there is room for one snapshot of this rank, not two: it is overwritten in place, and a "
                "death in mid-write leaves none. A snapshot takes %s MiB, %s MiB are free (%s). "
                "Give the job more memory or a larger /dev/shm; tried again every %s s",
                *numbers,
            )
        else:
            self._say(
                "none",
                "no snapshot is kept: it takes %s MiB, %s MiB are free (%s). "
                "Give the job more memory or a larger /dev/shm; tried again every %s s",
                *numbers,
            )

    # Copying -------------------------------------------------------------------------------

    def _write(self, slot, header, plan, leaves, blob_places, document, device):
        buffer = slot.buffer
        slot.whole = 0
        slot.header = header
        self._sequence = header.sequence
        is_device = device is not None
        if is_device and buffer.unpin is None:
            buffer.unpin = self._adapters["cuda"].pin(buffer.memory, buffer.size)
        views = buffer.views(plan, self._adapters)
        try:
            buffer.begin(header)
            for (at, _size), blob in zip(blob_places, leaves.blobs):  # noqa: B905 (Python 3.8)
                buffer.put(at, blob)
            buffer.put(header.structure_at, document)
            sources = leaves.sources
            for name, numbers in plan.groups.items():
                if numbers:
                    own = [sources[number] for number in numbers]
                    self._adapters[name].copy(views[name], own)
            if is_device:
                buffer.expected = header.sequence
                self._adapters["cuda"].commit(buffer.memory, header.sequence, device)
            else:
                buffer.set_commit(header.sequence)
        except BaseException:
            if is_device:
                # Copies may be under way without a commit behind them: never written again.
                self._abandoned.append(buffer)
                slot.buffer = None
                slot.remove()
            raise
        slot.whole = header.sequence
        buffer.publish()

    def _say(self, what, text, *values):
        """Warn, once for each thing."""
        if what not in self._said and len(self._said) < 20:
            self._said.add(what)
            warn(text, *values)


def _in_mib(size):
    return "%.1f" % (size / _MIB)


def _is_imported(module, *names):
    """Return whether the script has imported a module, to its end."""
    found = sys.modules.get(module)
    return found is not None and all(hasattr(found, name) for name in names)


_OURS = frozenset(
    (
        *("rankmend", "torch", "numpy", "json", "codecs", "encodings", "importlib", "uuid"),
        *("os", "posixpath", "stat", "collections", "contextlib", "functools", "weakref", "enum"),
    )
)


def is_from_script(error):
    """Return whether a handler of a signal raised this, which the script has set: not ours to swallow."""
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in _OURS:
            return True
        trace = trace.tb_next
    return False
