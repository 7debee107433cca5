"""A folder's storage: writes, syncs and reads back one file, and compares what comes back.

The file has no name (O_TMPFILE), or loses it at once where the file system knows no such files: nothing is left behind,
whenever the process ends. ``rate`` bounds the bytes per second of writing and of reading.
"""

import errno
import hashlib
import mmap
import os
import time
from typing import Any, Callable, Dict

_CHUNK_BYTES = 4 << 20
_SYNCS = 16
_SYNC_BYTES = 4096
_SPARE = 2  # as much as the file must be free beside it


def run(spec: Dict[str, Any], tell: Callable[[Dict[str, Any]], None]) -> None:
    folder, part = spec["folder"], spec["part"]
    tell({"model": _describe(folder), "part": part})
    try:
        space = os.statvfs(folder)
        size = int(spec["bytes"]) // _CHUNK_BYTES * _CHUNK_BYTES or _CHUNK_BYTES
        if space.f_bavail * space.f_frsize < _SPARE * size:
            tell({"skip": "disk_io", "part": part, "text": "too little free space in %s" % folder})
            return
        descriptor = _open_nameless(folder)
    except OSError as error:
        _report_failure(error, part, tell, is_broken=error.errno == errno.EROFS)
        return
    try:
        _measure(descriptor, size, spec, part, tell)
    except OSError as error:
        _report_failure(
            error, part, tell, is_broken=error.errno not in (errno.ENOSPC, errno.EDQUOT)
        )
    finally:
        os.close(descriptor)


def _report_failure(
    error: OSError, part: str, tell: Callable[[Dict[str, Any]], None], is_broken: bool
) -> None:
    if is_broken:
        tell({"check": "disk_io", "part": part, "bad": 1, "text": str(error)})
    else:
        tell({"skip": "disk_io", "part": part, "text": str(error)})


def _open_nameless(folder: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        # EISDIR: a kernel or file system without it (open(2)); network file systems and FUSE answer with the others.
        if error.errno not in (
            errno.EISDIR,
            errno.EOPNOTSUPP,
            errno.ENOENT,
            errno.EINVAL,
            errno.ENOSYS,
        ):
            raise
    path = os.path.join(folder, ".rankmend-%s.preflight" % os.urandom(8).hex())
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    return descriptor


def _measure(
    descriptor: int,
    size: int,
    spec: Dict[str, Any],
    part: str,
    tell: Callable[[Dict[str, Any]], None],
) -> None:
    end_s = time.monotonic() + spec["seconds"]
    rate = float(spec.get("rate") or 0)
    block = mmap.mmap(-1, _CHUNK_BYTES)
    began_s = time.monotonic()
    written = 0
    digests = []
    while written < size and (not written or time.monotonic() < began_s + spec["seconds"] * 0.5):
        _fill(block, written)
        digests.append(hashlib.sha256(block).digest())
        os.pwrite(descriptor, block, written)
        written += _CHUNK_BYTES
        _pace(began_s, written, rate)
    os.fsync(descriptor)
    figure = {"part": part, "model": "", "bytes": written}
    tell({**figure, "figure": "disk_write_bytes_per_s", "value": written / _since(began_s)})
    tell({**figure, "figure": "disk_sync_s", "value": _sync_s(descriptor, written, end_s)})
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    began_s, read, bad = time.monotonic(), 0, 0
    for digest in digests:
        data = os.pread(descriptor, _CHUNK_BYTES, read)
        bad += int(hashlib.sha256(data).digest() != digest)
        read += _CHUNK_BYTES
        _pace(began_s, read, rate)
        if time.monotonic() > end_s:
            break
    tell({**figure, "figure": "disk_read_bytes_per_s", "value": read / _since(began_s)})
    text = "blocks of 4 MB that came back changed, of %d" % (read // _CHUNK_BYTES)
    tell({"check": "disk_bits", "part": part, "bad": bad, "text": text})
    tell({"check": "disk_io", "part": part, "bad": 0, "text": "errors"})


def _fill(block: Any, place: int) -> None:
    """Write numbers that no storage compresses or finds elsewhere."""
    seed = hashlib.sha256(b"%d" % place + os.urandom(8)).digest()
    block[:] = hashlib.shake_128(seed).digest(1 << 16) * (_CHUNK_BYTES >> 16)
    for offset in range(0, _CHUNK_BYTES, 4096):
        block[offset : offset + 8] = (place + offset).to_bytes(8, "little")


def _sync_s(descriptor: int, place: int, end_s: float) -> float:
    """Return the median time to have one page on stable storage."""
    times = []
    for number in range(_SYNCS):
        began_s = time.monotonic()
        os.pwrite(descriptor, os.urandom(_SYNC_BYTES), place + number * _SYNC_BYTES)
        os.fdatasync(descriptor)
        times.append(_since(began_s))
        if time.monotonic() > end_s:
            break
    return sorted(times)[len(times) // 2]


def _pace(began_s: float, done: int, rate: float) -> None:
    if rate:
        time.sleep(max(0.0, done / rate - (time.monotonic() - began_s)))


def _since(began_s: float) -> float:
    return max(1e-6, time.monotonic() - began_s)


def _describe(folder: str) -> str:
    """Return the type of the file system and, of a disk, its model: nodes with other storage are no peers."""
    device = os.stat(folder).st_dev
    number = "%d:%d" % (os.major(device), os.minor(device))
    kind = place = "unknown"
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                words = line.split()
                if len(words) > 2 and words[2] == number and "-" in words:
                    kind, place = words[words.index("-") + 1], words[4]
    except OSError:
        pass
    base = os.path.realpath("/sys/dev/block/" + number)
    for block in (base, os.path.dirname(base)):
        try:
            with open(os.path.join(block, "device", "model")) as file:
                return "%s on %s" % (kind, file.read().strip())
        except OSError:
            continue
    return "%s at %s" % (kind, place)
