"""Small files that are written as a whole, and read up to a bound.

A reader sees the old content or the new one, never a part: not after a crash, and not on a disk that takes only the
first bytes (a short write) or reports the failure in close(), as network file systems do. The content goes into a new
file beside the target, which gets the target's name only once all of it is written. A writer that is killed in between
leaves `.rankmend-<random>.new` behind; no name is used twice, so two writers of one file do not disturb each other.

Every function takes the exception to raise, whose text then names the file and the reason.
Not for the hook and not for the guardian, which run without site-packages under any Python.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

ErrorType = Callable[[str], Exception]

_NO_LINKS: Final = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
)


def replace_file(
    path: Path,
    data: bytes,
    error: ErrorType,
    *,
    mode: int = 0o600,
    durable: bool = True,
    owner: tuple[int, int] | None = None,
) -> None:
    """Give ``path`` this content, or leave it as it was and raise.

    ``durable``: return only once the content and its name are on stable storage. ``owner``: uid and gid of the file.
    A link at ``path`` is replaced, not followed.
    """
    with replacing(path, error, mode=mode, durable=durable, owner=owner) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(
    path: Path,
    error: ErrorType,
    *,
    mode: int = 0o600,
    durable: bool = True,
    owner: tuple[int, int] | None = None,
) -> Iterator[BinaryIO]:
    """Give a new file to write, which replaces ``path`` if the block ends without an exception."""
    try:
        with _beside(path) as beside:
            with os.fdopen(_open_new(beside, mode), "wb") as file:
                if owner is not None:
                    os.fchown(file.fileno(), *owner)
                yield file
                _finish(file, durable=durable)
            beside.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as failure:
        raise error(f"cannot write {path}: {_why(failure)}") from failure


def create_file(path: Path, data: bytes, error: ErrorType, *, mode: int = 0o600) -> None:
    """Make a file with this content; raise FileExistsError where there is anything by this name.

    Of several that create one name, on one node or on many, one succeeds (link(2) is atomic on NFS, too).
    Returns once the content and its name are on stable storage.
    """
    try:
        with _beside(path) as beside:
            _write_new(beside, data, mode)
            try:
                os.link(beside, path, follow_symlinks=False)
            except FileExistsError:
                raise
            except OSError as failure:
                if failure.errno not in _NO_LINKS:
                    raise
                _create_without_link(path, data, mode)
            beside.unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as failure:
        raise error(f"cannot write {path}: {_why(failure)}") from failure


def _why(failure: OSError) -> str:
    """Return what the system says, and what to do about a full disk."""
    remedy = "; make room there" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{failure.strerror or failure}{remedy}"


def write_output(path: Path, data: bytes, error: ErrorType) -> None:
    """Write what a person requested to the file that he named; a pipe or a terminal is written to as it is."""
    try:
        is_file = not path.exists() or path.is_file()
        if not is_file:
            path.write_bytes(data)
            return
    except OSError as failure:
        raise error(f"cannot write {path}: {_why(failure)}") from failure
    replace_file(path.resolve(), data, error, mode=0o666, durable=False)  # less the umask


def read_capped(
    path: Path,
    bytes_max: int,
    error: ErrorType,
    *,
    name: str | None = None,
    follow_link: bool = True,
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes:
    """Return a file's content; raise where it can't be read or has more than ``bytes_max`` bytes.

    ``name``: what to call the file in the error. ``follow_link``: without it a symbolic link is an error, and a pipe
    is never waited for. ``check``: looks at the open file's owner and mode, and raises.
    """
    name = str(path) if name is None else name
    data = read_if_there(path, bytes_max, error, name=name, follow_link=follow_link, check=check)
    if data is None:
        raise error(f"cannot read {name}: {os.strerror(errno.ENOENT)}")
    return data


def read_if_there(
    path: Path,
    bytes_max: int,
    error: ErrorType,
    *,
    name: str | None = None,
    follow_link: bool = True,
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes | None:
    """Return what `read_capped` does, or None where there is no file by this name."""
    name = str(path) if name is None else name
    flags = os.O_RDONLY | os.O_CLOEXEC
    if not follow_link:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            if check is not None:
                check(os.fstat(file.fileno()))
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise error(f"cannot read {name}: {failure.strerror or failure}") from failure
    if len(data) > bytes_max:
        raise error(f"{name} has more than {bytes_max} bytes")
    return data


def list_numbers(folder: Path, name: re.Pattern[str], error: ErrorType) -> list[int]:
    """Return the number that ``name`` captures in each file name it matches; none without a folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - one call, and names are all it takes
    except FileNotFoundError:
        return []
    except OSError as failure:
        raise error(f"cannot list {folder}: {failure.strerror}") from failure
    matches = [name.fullmatch(item) for item in names]
    return [int(match[1]) for match in matches if match is not None]


def sync_folder(folder: Path) -> None:
    """Return once the names in a folder are on stable storage; raise OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Give a free name in the same folder; a failure leaves no file by it."""
    beside = path.with_name(f".rankmend-{os.urandom(8).hex()}.new")
    try:
        yield beside
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _open_new(path: Path, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, mode)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(_open_new(path, mode), "wb") as file:
        file.write(data)
        _finish(file, durable=True)


def _finish(file: BinaryIO, *, durable: bool) -> None:
    file.flush()  # writes all of it or raises, where os.write() may take a part
    if durable:
        os.fsync(file.fileno())


def _create_without_link(path: Path, data: bytes, mode: int) -> None:
    """Make the file in its place: O_EXCL is as good, but only an orderly failure leaves nothing."""
    descriptor = _open_new(path, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            _finish(file, durable=True)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
