"""The layout of a snapshot file (version 1).

A rank has two files, `rank-<R>.0.snapshot` and `rank-<R>.1.snapshot`, in a folder that its launcher owns, and
writes them in turns: one that dies while it writes leaves the one before. There is a third one from the time on when
one is first copied to another node. All integers are little-endian.

    0               header     what the file holds; a CRC-32 of its own bytes ends it
    COMMIT_AT       commit     the header's sequence number once all bytes are there, else another number
    KEEP_AT         keep       written by the launcher: which snapshot the rank is not to overwrite yet
    COPIED_AT       copied     written by the launcher: the newest one of which all ranks have copies elsewhere
    data_at         data       the buffers of the tensors and arrays, each aligned to `ALIGNMENT`
    structure_at    structure  UTF-8 JSON: where each buffer lies, its type and shape; and all plain values

The writer sets the commit to zero, writes the header with a sequence number of its own, copies, and sets the
commit last, by one aligned 8-byte store (for an accelerator: by a copy in the order of its stream). So a reader
takes a file for whole if the header's checksum fits and the commit is its sequence number, and it reads the
commit once more after the bytes.

To copy one step's snapshots of all ranks to other nodes, the launcher writes the same step and a time into `keep` of
all files. Until that time, the rank leaves its first snapshot of this attempt from that step on, and writes the other
two in turns. So all ranks keep the same step, however late each launcher looks.
Copies of a lost node's ranks are of use only beside the other ranks' own snapshots of that step. So the rank also leaves
the one that `copied` names, of this attempt or an earlier one, until a later step is copied.
This module is part of the hook: standard library and Python 3.8 only.
"""

import collections
import struct
import zlib

MAGIC = b"RMENDSNP"
VERSION = 1

# magic, version, header size, job UUID, attempt, rank, local rank, world size, step, sequence (from 1),
# data at, data size, structure at, structure size, written at (CLOCK_MONOTONIC nanoseconds, when it began)
HEADER = struct.Struct("<8sHHI16sIIIIQQQQQQQ")
HEADER_AT = 0
CRC = struct.Struct("<I")
COMMIT = struct.Struct("<Q")
COMMIT_AT = 256
# step to keep, plus one (0: none); until when (CLOCK_MONOTONIC nanoseconds)
KEEP = struct.Struct("<QQ")
KEEP_AT = COMMIT_AT + COMMIT.size
# attempt; step, plus one (0: none); until when
COPIED = struct.Struct("<QQQ")
COPIED_AT = KEEP_AT + KEEP.size
DATA_AT = 4096  # in the files that this version writes; a reader goes by the header
ALIGNMENT = 64  # of each buffer: a cache line, and what torch and numpy ask for at most

STRUCTURE_BYTES_MAX = 64 << 20
STEP_MAX = 2**63 - 1
BUFFERS = 3
IN_TURNS = 2  # of these, where none is copied


def file_name(rank, buffer):
    """Return the name of one of a rank's files; ``buffer``: 0 to 2."""
    return "rank-%d.%d.snapshot" % (rank, buffer)


_Fields = collections.namedtuple(
    "_Fields",
    "job_id attempt rank local_rank world_size step sequence"
    " data_at data_size structure_at structure_size written_ns",
)


class Header(_Fields):
    """The fields of a header. ``job_id``: 16 bytes; sizes and places are bytes, times nanoseconds."""

    __slots__ = ()

    def pack(self):
        """Return its bytes, with the checksum."""
        body = HEADER.pack(MAGIC, VERSION, HEADER.size, 0, *self)
        return body + CRC.pack(zlib.crc32(body))

    @property
    def end(self):
        """The file's size in use."""
        return max(self.data_at + self.data_size, self.structure_at + self.structure_size)


def parse(data, file_size):
    """Return the header in the first bytes of a file. Raises ValueError, with what is wrong, for any other bytes."""
    size = HEADER.size + CRC.size
    if len(data) < size:
        raise ValueError("it is cut off at %d bytes" % len(data))
    body = bytes(data[: HEADER.size])
    fields = HEADER.unpack(body)
    if fields[0] != MAGIC:
        raise ValueError("it begins with %r" % (fields[0],))
    if fields[1] != VERSION or fields[2] != HEADER.size:
        raise ValueError("it has version %d; this rankmend reads version %d" % (fields[1], VERSION))
    if CRC.unpack_from(data, HEADER.size)[0] != zlib.crc32(body):
        raise ValueError("wrong checksum of the header")
    header = Header(*fields[4:])
    is_in_order = header.data_at >= DATA_AT and header.data_at + header.data_size <= file_size
    is_in_order &= (
        DATA_AT <= header.structure_at <= header.structure_at + header.structure_size <= file_size
    )
    is_in_order &= header.structure_size <= STRUCTURE_BYTES_MAX
    if (
        not is_in_order
        or not header.rank < header.world_size
        or header.step > STEP_MAX
        or not header.sequence
    ):
        raise ValueError("impossible header: %r" % (header,))
    return header


def parse_choice(text):
    """Return attempt and step of `rankmend.hook.layout.ENV_SNAPSHOT`, or None where it names nothing."""
    attempt, separator, step = (text or "").partition(":")
    if not separator:
        return None
    try:
        return int(attempt), int(step)
    except ValueError:
        return None
