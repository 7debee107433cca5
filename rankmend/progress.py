"""Reads a rank's progress file (contract 1). Layout: `rankmend.hook.layout`.

A file comes from the job's user, so nothing in it is believed: sizes, identities, codes and
times are checked, and what does not fit raises `SourceError` with the value. A read that
meets the writer at work is tried again, for 7 ms at most.

The reader takes the time before it reads, so a report that the rank writes meanwhile is later than
``now_s``: a caller that turns times into ages counts a negative age as zero.
"""

import math
import os
import stat
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rankmend.errors import SourceError, TornReadError
from rankmend.hook import layout
from rankmend.rank_values import ScriptEnd, ToldHidden, ToldPlace

# A writer copies a block in some 10 ns; one that loses its core meanwhile (1 in 10,000 blocks at
# full writing speed, two busy cores) needs a time slice, a few milliseconds, to end it.
_TRIES = 8
_TRY_AGAIN_S = 0.001
# Reader and writer share one clock, so a time further ahead than a read can last is corrupt. A
# reader that was itself stopped for longer gets one such error, and none from its next read.
_FUTURE_S_MAX = 1.0

_SCRIPT_ENDS = tuple(ScriptEnd)


class Section(Enum):
    IDLE = 0
    COMPUTE = 1
    COMMUNICATION = 2
    IO = 3
    CHECKPOINT = 4


# By code. Waiting for others belongs to communication, whoever looks from outside.
_SECTIONS = (*Section, Section.COMMUNICATION)


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """The owner of a progress file, as the launcher wrote it."""

    job_id: uuid.UUID
    attempt: int
    rank: int
    local_rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished step. Section times are totals since attachment, in seconds."""

    count: int  # 1 for the first record of this process
    step: int  # the number that the script (or the optimizer hook) gave
    ended_at_s: float  # monotonic
    compute_s: float
    communication_s: float
    io_s: float
    checkpoint_s: float
    waited_s: float = 0.0  # part of the communication: for other ranks


@dataclass(frozen=True, slots=True)
class RankSnapshots:
    """The snapshots that a rank has kept of its state since it attached."""

    count: int
    refused: int  # requested and not kept
    newest_step: int | None
    state_bytes: int
    stalled_s: float  # for which training stood still, in all
    last_stall_s: float
    level: int  # files that there is room for: 0, 1, 2


@dataclass(frozen=True, slots=True)
class NumbersRecord:
    """The numbers that a rank reported of one step; None: not reported."""

    count: int  # 1 for the first record of this process
    step: int
    loss: float | None
    grad_norm: float | None


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The first values of a rank that were no finite numbers; None: there was none."""

    loss_step: int | None
    loss: float
    grad_norm_step: int | None
    grad_norm: float


@dataclass(frozen=True, slots=True)
class RankNumbers:
    """The losses and gradient norms that a rank has reported since it attached."""

    count: int
    records: tuple[NumbersRecord, ...]  # newest last
    first_bad: FirstBad | None  # None: all were finite


@dataclass(frozen=True, slots=True)
class ToldWork:
    """The work that a rank has reported since it attached, in all."""

    count: int  # times reported
    flops: float
    tokens: float
    samples: float
    data_type: str  # of the FLOPs; empty: none were reported
    device: str  # name of its accelerator; empty: not known


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The content of one rank's progress file. Times are CLOCK_MONOTONIC seconds of its node."""

    identity: RankIdentity
    pid: int  # 0: no process has attached yet
    start_ticks: int
    is_auto: bool  # steps counted by the optimizer hook
    is_relative: bool  # step numbers count from the start of the process
    has_pairs: bool  # it sends to or receives from single ranks
    script_end: ScriptEnd
    attached_at_s: float | None
    resumed_at_s: float | None
    first_section_at_s: float | None
    rendezvous_began_at_s: float | None  # None: no process group was seen to form
    rendezvous_ended_at_s: float | None
    section: Section
    section_since_s: float | None
    sections_entered: int
    collectives_entered: int
    collectives_completed: int
    # set for the newest collective's process group; None: unknown
    collective_timeout_s: float | None
    step_count: int
    records: tuple[StepRecord, ...]  # newest last, at most what was requested
    snapshots: RankSnapshots | None = None  # None: the script asks for none
    numbers: RankNumbers | None = None  # None: the script reports none, or nobody asked
    work: ToldWork | None = None  # None: the script reports none
    hidden: ToldHidden | None = None  # None: nothing measures it
    place: ToldPlace | None = None  # None: not known
    nccl: tuple[
        str, ...
    ] = ()  # versions that it has loaded, such as 2.27.3; empty: none, or not reported

    @property
    def last(self) -> StepRecord | None:
        return self.records[-1] if self.records else None

    @property
    def advanced_at_s(self) -> float | None:
        """The time of this rank's last reported action: a step, a section, attaching."""
        times = [self.attached_at_s, self.resumed_at_s, self.section_since_s]
        if self.records:
            times.append(self.records[-1].ended_at_s)
        return max((at for at in times if at is not None), default=None)


def create(path: Path, identity: RankIdentity) -> int:
    """Make and size the progress file of one rank and return a read-only descriptor of it.

    Allocates its blocks, so that a full /dev/shm is an error here and no SIGBUS in training.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise SourceError(f"cannot make the progress file {path}: {error.strerror}") from error
    try:
        os.posix_fallocate(descriptor, 0, layout.FILE_SIZE)
        body = layout.IDENTITY.pack(
            layout.MAGIC,
            layout.VERSION,
            0,
            layout.FILE_SIZE,
            identity.job_id.bytes,
            identity.attempt,
            identity.rank,
            identity.local_rank,
            identity.world_size,
            layout.RING_SLOTS,
            layout.RECORD_SIZE,
        )
        os.pwrite(descriptor, body + layout.CRC.pack(zlib.crc32(body)), layout.IDENTITY_AT)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise SourceError(
            f"no room for the progress file {path} ({layout.FILE_SIZE} bytes): {error.strerror}"
        ) from error
    finally:
        os.close(descriptor)


def open_owned(path: Path, uid: int) -> int:
    """Open another process's progress file, refusing links and files of other users."""
    # Not blocking: opening a named pipe would wait for its other end for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise SourceError(f"cannot open the progress file {path}: {error.strerror}") from error
    owner = os.fstat(descriptor).st_uid
    if owner != uid:
        os.close(descriptor)
        raise SourceError(f"the progress file {path} belongs to uid {owner}, not to {uid}")
    return descriptor


def nccl_version(code: int) -> str:
    """Return a version of NCCL as people write it. Source: NCCL_VERSION in nccl.h, which changed with 2.9."""
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


class ProgressReader:
    """One open progress file. Owns the descriptor."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name
        try:
            self.identity = self._read_identity()
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def writer(self) -> tuple[int, int]:
        """Return the process that has attached, or 0, and its start time in clock ticks. Raises SourceError."""
        attachment = self._block(layout.ATTACHMENT, layout.ATTACHMENT_AT, "attachment")
        return attachment[0], attachment[2]

    def read(
        self,
        now_s: float,
        records_max: int = 1,
        after: int = 0,
        numbers_after: int | None = None,
    ) -> RankProgress:
        """Return what the rank has reported by ``now_s``, with its newest ``records_max`` steps.

        ``after``: a record number that is known; of those up to it only the newest is read.
        ``numbers_after``: the same of the numbers, of which none are read up to it; None: nobody asks for them.
        """
        # The attachment last: a rank attaches before it reports, so nothing is seen without a process.
        count, records = self._read_steps(min(records_max, layout.RING_SLOTS - 1), after, now_s)
        began, ended = self._block(layout.RENDEZVOUS, layout.RENDEZVOUS_AT, "rendezvous")
        word, since = self._block(layout.LIVE, layout.LIVE_AT, "live")
        entered, completed, _at = self._block(
            layout.COLLECTIVES, layout.COLLECTIVES_AT, "collectives"
        )
        (timeout_ns,) = self._block(layout.TIMEOUT, layout.TIMEOUT_AT, "timeout")
        pid, flags, ticks, attached, resumed, first = self._block(
            layout.ATTACHMENT, layout.ATTACHMENT_AT, "attachment"
        )
        code = word & ((1 << layout.SECTION_BITS) - 1)
        if code >= len(layout.SECTIONS):
            raise SourceError(f"{self.name}: section code {code} is unknown")
        if pid == 0 and count:
            raise SourceError(f"{self.name}: {count} steps and no process attached")
        return RankProgress(
            identity=self.identity,
            pid=pid,
            start_ticks=ticks,
            is_auto=bool(flags & layout.FLAG_AUTO),
            is_relative=bool(flags & layout.FLAG_RELATIVE),
            has_pairs=bool(flags & layout.FLAG_PAIRS),
            script_end=_SCRIPT_ENDS[flags >> layout.END_SHIFT & layout.END_MASK],
            attached_at_s=self._time(attached, now_s, "attached"),
            resumed_at_s=self._time(resumed, now_s, "resumed"),
            first_section_at_s=self._time(first, now_s, "first section"),
            rendezvous_began_at_s=self._time(began, now_s, "rendezvous began"),
            rendezvous_ended_at_s=self._time(ended, now_s, "rendezvous ended"),
            section=_SECTIONS[code],
            section_since_s=self._time(since, now_s, "section entered"),
            sections_entered=word >> layout.SECTION_BITS,
            collectives_entered=entered,
            collectives_completed=completed,
            collective_timeout_s=timeout_ns / 1e9 if timeout_ns else None,
            step_count=count,
            records=records,
            snapshots=self._read_snapshots(),
            numbers=None if numbers_after is None else self._read_numbers(numbers_after),
            work=self._read_work(),
            hidden=self._read_hidden(),
            place=self._read_place(),
            nccl=self._read_nccl(),
        )

    def _read_nccl(self) -> tuple[str, ...]:
        codes = self._block(layout.NCCL, layout.NCCL_AT, "nccl")
        if any(code > layout.NCCL_VERSION_MAX for code in codes):
            raise SourceError(f"{self.name}: impossible versions of NCCL {codes}")
        return tuple(nccl_version(code) for code in codes if code)

    def _read_place(self) -> ToldPlace | None:
        told_by, *places = self._block(layout.PLACE, layout.PLACE_AT, "place")
        if not told_by or not any(place >= 0 for place in places):
            return None
        if any(not -1 <= place < layout.PLACE_MAX for place in places):
            raise SourceError(f"{self.name}: impossible place in the model's layout {places}")
        return ToldPlace(*(None if place < 0 else place for place in places))

    def _read_hidden(self) -> ToldHidden | None:
        facts, *numbers = self._block(layout.HIDDEN, layout.HIDDEN_AT, "hidden")
        background = self._block(layout.BACKGROUND, layout.BACKGROUND_AT, "background")
        if not facts and not any(numbers) and not any(background):
            return None
        works, least_ns, most_ns, samples, window_ns, overlap_ns = numbers
        reads, reads_ns, sendings, sendings_ns = background
        if least_ns > most_ns or overlap_ns > window_ns:
            raise SourceError(f"{self.name}: impossible hidden times {numbers}")
        return ToldHidden(
            has_replica=bool(facts & layout.HAS_REPLICA),
            has_untimed=bool(facts & layout.HAS_UNTIMED),
            loads_itself=bool(facts & layout.LOADS_ITSELF),
            loads_in_workers=bool(facts & layout.LOADS_IN_WORKERS),
            works=works,
            works_least_s=least_ns / 1e9,
            works_most_s=most_ns / 1e9,
            samples=samples,
            window_s=window_ns / 1e9,
            overlap_s=overlap_ns / 1e9,
            reads=reads,
            reads_s=reads_ns / 1e9,
            sendings=sendings,
            sendings_s=sendings_ns / 1e9,
        )

    def _read_work(self) -> ToldWork | None:
        count, flops, tokens, samples, code, device = self._block(
            layout.WORK, layout.WORK_AT, "work"
        )
        if not count:
            return None
        if not all(0 <= item < math.inf for item in (flops, tokens, samples)) or code >= len(
            layout.DATA_TYPES
        ):
            raise SourceError(f"{self.name}: impossible work {(flops, tokens, samples, code)}")
        name = device.rstrip(b"\0").decode("ascii", "replace")
        return ToldWork(count, flops, tokens, samples, layout.DATA_TYPES[code], name)

    def _read_numbers(self, after: int) -> RankNumbers | None:
        """Return the numbers that were told since the record ``after``, as far as the ring has them."""
        count = int(struct.unpack("<Q", self._pread(8, layout.NUMBERS_HEAD_AT))[0])
        if count == 0:
            return None
        records = []
        for number in range(max(count - layout.NUMBERS_SLOTS + 1, after) + 1, count + 1):
            offset = layout.NUMBERS_SLOTS_AT[number % layout.NUMBERS_SLOTS]
            word, step, loss, grad_norm = self._block(
                layout.NUMBERS, offset, f"numbers record {number}"
            )
            if word >> layout.NUMBERS_BITS != number:
                continue  # overtaken, or told by several threads at once
            if step > layout.STEP_MAX:
                raise SourceError(f"{self.name}: numbers of step {step}")
            has_norm = word & layout.HAS_GRAD_NORM
            has_loss = word & layout.HAS_LOSS
            records.append(
                NumbersRecord(
                    number, step, loss if has_loss else None, grad_norm if has_norm else None
                )
            )
        return RankNumbers(count, tuple(records), self._read_first_bad())

    def _read_first_bad(self) -> FirstBad | None:
        loss_step, loss, norm_step, grad_norm = self._block(
            layout.FIRST_BAD, layout.FIRST_BAD_AT, "first bad numbers"
        )
        if not loss_step and not norm_step:
            return None
        if max(loss_step, norm_step) > layout.STEP_MAX + 1:
            raise SourceError(f"{self.name}: numbers of step {max(loss_step, norm_step) - 1}")
        return FirstBad(
            loss_step - 1 if loss_step else None,
            loss,
            norm_step - 1 if norm_step else None,
            grad_norm,
        )

    def _read_snapshots(self) -> RankSnapshots | None:
        count, refused, newest, size, total_ns, last_ns, level = self._block(
            layout.SNAPSHOTS, layout.SNAPSHOTS_AT, "snapshots"
        )
        if not count and not refused:
            return None
        if level > 2 or newest > layout.STEP_MAX + 1:
            raise SourceError(f"{self.name}: snapshots up to step {newest - 1} at level {level}")
        return RankSnapshots(
            count=count,
            refused=refused,
            newest_step=newest - 1 if newest else None,
            state_bytes=size,
            stalled_s=total_ns / 1e9,
            last_stall_s=last_ns / 1e9,
            level=level,
        )

    def _read_identity(self) -> RankIdentity:
        size = self._regular_size()
        if size != layout.FILE_SIZE:
            raise SourceError(f"{self.name}: {size} bytes long instead of {layout.FILE_SIZE}")
        fields = self._block(layout.IDENTITY, layout.IDENTITY_AT, "identity")
        magic, version, _reserved, size, job, attempt, rank, local_rank, world = fields[:9]
        if magic != layout.MAGIC:
            raise SourceError(f"{self.name}: not a progress file (it begins with {magic!r})")
        if version != layout.VERSION:
            raise SourceError(
                f"{self.name}: version {version}; this rankmend reads version {layout.VERSION}"
            )
        if fields[9:] != (layout.RING_SLOTS, layout.RECORD_SIZE) or not (
            local_rank <= rank < world
        ):
            raise SourceError(
                f"{self.name}: impossible identity: rank {rank} of {world}, "
                f"local rank {local_rank}, ring {fields[9:]}"
            )
        return RankIdentity(uuid.UUID(bytes=job), attempt, rank, local_rank, world)

    def _regular_size(self) -> int:
        try:
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise SourceError(f"cannot stat {self.name}: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{self.name}: not a regular file (mode {status.st_mode:o})")
        return status.st_size

    def _read_steps(
        self, records_max: int, after: int, now_s: float
    ) -> tuple[int, tuple[StepRecord, ...]]:
        """Return the number of steps told, and the newest of them.

        The head has no checksum: it is believed once the record that it names is there.
        """
        counts = set()
        for _try in range(_TRIES):
            count = int(struct.unpack("<Q", self._pread(8, layout.HEAD_AT))[0])
            if count == 0:
                return 0, ()
            fields = self._slot(count)
            if fields[0] == count:
                newest = self._record(fields, now_s)
                first = max(count - records_max, after) + 1
                records = [newest, *self._read_older(count, first, now_s)][:records_max]
                return count, tuple(reversed(records))
            if count in counts:
                time.sleep(_TRY_AGAIN_S)
            counts.add(count)
        if len(counts) == 1:  # nobody is writing
            raise SourceError(f"{self.name}: slot of step {count} holds {fields[0]}")
        raise TornReadError(f"{self.name}: the ring of steps was overwritten during {_TRIES} reads")

    def _read_older(self, count: int, first: int, now_s: float) -> Iterator[StepRecord]:
        """Yield the records from before ``count`` down to ``first``, as far as the ring has them."""
        for number in range(count - 1, first - 1, -1):
            fields = self._slot(number)
            if fields[0] > number:
                return  # overtaken: the ring went round during this read
            if fields[0] and fields[0] != number and (number - fields[0]) % layout.RING_SLOTS == 0:
                return  # steps told by several threads at once: one has leapt over this one
            if fields[0] != number:
                raise SourceError(f"{self.name}: slot of step {number} holds {fields[0]}")
            yield self._record(fields, now_s)

    def _slot(self, number: int) -> tuple[Any, ...]:
        offset = layout.RING_AT + number % layout.RING_SLOTS * layout.RECORD_SIZE
        return self._block(layout.RECORD, offset, f"step record {number}")

    def _record(self, fields: tuple[Any, ...], now_s: float) -> StepRecord:
        ended_at_s = self._time(fields[2], now_s, "step ended")
        if fields[1] > layout.STEP_MAX or ended_at_s is None:
            raise SourceError(f"{self.name}: impossible step record {fields}")
        compute_s, sending_s, io_s, checkpoint_s, waited_s = (
            total_ns / 1e9 for total_ns in fields[3:]
        )
        return StepRecord(
            count=fields[0],
            step=fields[1],
            ended_at_s=ended_at_s,
            compute_s=compute_s,
            communication_s=sending_s + waited_s,
            io_s=io_s,
            checkpoint_s=checkpoint_s,
            waited_s=waited_s,
        )

    def _block(self, form: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        """Return a block's fields once its checksum fits; a block never written reads as zeros."""
        contents = set()
        for _try in range(_TRIES):
            data = self._pread(form.size + layout.CRC.size, offset)
            body = data[: form.size]
            if layout.CRC.unpack_from(data, form.size)[0] == zlib.crc32(body) or not any(data):
                return form.unpack(body)
            if data in contents:
                time.sleep(_TRY_AGAIN_S)
            contents.add(data)
        if len(contents) == 1:  # nobody is writing: what lies there is wrong
            raise SourceError(f"{self.name}: wrong checksum of the {what} block")
        raise TornReadError(f"{self.name}: the {what} block changed during {_TRIES} reads")

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise SourceError(f"cannot read {self.name}: {error.strerror}") from error
        if len(data) != size:
            raise SourceError(f"{self.name}: cut off at {offset + len(data)} bytes")
        return data

    def _time(self, at_ns: int, now_s: float, what: str) -> float | None:
        if at_ns == 0:
            return None
        at_s = at_ns / 1e9
        if at_s > now_s + _FUTURE_S_MAX:
            raise SourceError(f"{self.name}: {what} {at_s - now_s:.0f} s in the future")
        return at_s
