"""What rankmend itself keeps beside the checkpoints, in `<folder>/.rankmend/`.

Small files, replaced as a whole: a reader sees the old content or the new one, also after a
power cut. One writer: the launcher that holds the job; of the fence, every launcher of it.
"""

import errno
import os
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, JobHeldError, SourceError, StorageError
from rankmend.foreign_links import open_new, refuse_foreign_link

BESIDE: Final = ".rankmend"  # folder of ours in the checkpoint folder
_FENCE_BYTES_MAX: Final = 64  # what rankmend.may_publish reads
BUDGETS_BYTES_MAX: Final = 1 << 20


class FenceFile:
    """The attempt that may publish checkpoints. `rankmend.may_publish` compares it with its own."""

    def __init__(self, path: Path, writer: str = "") -> None:
        """``writer``: name of the node, where several advance one fence."""
        self.path = path
        self._writer = writer
        self._attempt: int | None = None  # the newest that was let publish from here

    def advance(self, attempt: int) -> None:
        """Let this attempt publish and no older one; return when that is on stable storage.

        A damaged fence is replaced: the attempt comes from the journal, which is the authority.
        """
        if attempt < 0:
            raise ValueError(f"an attempt is not negative: {attempt}")
        content = _read(self.path, _FENCE_BYTES_MAX)
        current = _parse_attempt(content) if content is not None else None
        if current is not None and current > attempt:
            raise JobHeldError(
                f"{self.path} is at attempt {current}: another launcher went beyond {attempt}"
            )
        if current != attempt:
            _replace(self.path, b"%d\n" % attempt, self._writer)
        self._attempt = attempt

    def restore(self) -> bool:
        """Make the fence again where somebody has removed it; return whether it was gone.

        Without it no rank may publish, and after `rm -rf` of the folder a job would train on without
        a checkpoint. One that is there is never written: it may be another launcher's.
        """
        if self._attempt is None or _read(self.path, _FENCE_BYTES_MAX) is not None:
            return False
        name = ".".join(filter(None, (self.path.name, self._writer, "again")))
        temporary = self.path.with_name(name)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            refuse_foreign_link(self.path.parent, StorageError)
            _write(temporary, b"%d\n" % self._attempt)
            try:
                os.link(temporary, self.path)
            finally:
                temporary.unlink(missing_ok=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise StorageError(
                f"{self.path} can't be written: {error.strerror or error}"
            ) from error
        return True

    def read(self) -> int | None:
        """Return the attempt that may publish, or None before the first."""
        content = _read(self.path, _FENCE_BYTES_MAX)
        if content is None:
            return None
        attempt = _parse_attempt(content)
        if attempt is None:
            raise SourceError(f"fence {self.path} holds no attempt number: {content[:32]!r}")
        return attempt


class BudgetCopy:
    """A copy of the job's budgets, for a job whose state folder was lost."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, content: bytes) -> None:
        """Replace the copy; return when it is on stable storage."""
        if len(content) > BUDGETS_BYTES_MAX:
            raise StorageError(
                f"{self.path} would have {len(content)} bytes, more than {BUDGETS_BYTES_MAX}"
            )
        _replace(self.path, content)

    def load(self) -> bytes | None:
        """Return the copy, or None when there is none."""
        return _read(self.path, BUDGETS_BYTES_MAX)


def check_writable(folder: Path) -> None:
    """Create the folder if only it is missing, and prove that a file in it reaches the storage."""
    probe = folder / f".rankmend-probe-{os.getpid()}.tmp"
    try:
        folder.mkdir(exist_ok=True)
        try:
            _write(probe, b"rankmend\n")
        finally:
            probe.unlink(missing_ok=True)
        refuse_foreign_link(folder / BESIDE, ConfigError)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "unknown error")
        raise ConfigError(
            f"checkpoint folder {folder} can't be written: {name} ({error.strerror or error})"
        ) from error


def _parse_attempt(content: bytes) -> int | None:
    text = content.strip()
    return int(text) if text.isdigit() else None


def _read(path: Path, bytes_max: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror or error}") from error
    if len(content) > bytes_max:
        raise SourceError(f"{path} has more than {bytes_max} bytes: not ours")
    return content


def _replace(path: Path, content: bytes, writer: str = "") -> None:
    temporary = path.with_name(".".join(filter(None, (path.name, writer, "tmp"))))
    try:
        path.parent.mkdir(exist_ok=True)
        refuse_foreign_link(path.parent, StorageError)
        _write(temporary, content)
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageError(f"{path} can't be written: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(open_new(path, 0o644), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
