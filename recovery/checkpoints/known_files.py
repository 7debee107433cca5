"""Which files of a checkpoint were read already: by this process, or by a launcher whose manifest says so.

A file that this process has read is known by its status alone. What only a manifest vouches for must
have the size and the time of its record, and a sample of all such blocks is read and compared.

When the time is over, of each file the structure is still read, and how far its content was read is kept:
the next look goes on there, whoever asks for it, as long as path, inode, size and time are the same. What can be
checked of a file's content depends on its format: zip archives (torch.save, npz, DCP) have a CRC-32 of each member;
safetensors and the data files of OCDBT and Zarr have none, so their structure is all that a restart waits for.
"""

import bisect
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from random import Random, SystemRandom
from typing import Final

from detectors.wording import counted
from rankmend.clock import Clock
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.digests import BLOCK_BYTES, DIGEST_BYTES, blocks_of, new_digest
from recovery.checkpoints.files.reader import (
    ChangedError,
    DefectError,
    FileReader,
    ReadProgress,
    ReadsBeside,
    Signature,
    SumError,
)
from recovery.checkpoints.manifests import FileRecord, Manifests, Stamp
from recovery.checkpoints.names import shown
from recovery.messages.candidates import Share

SAMPLE_BLOCKS: Final = 8  # 32 MiB of a checkpoint: 0.3 s at 100 MB/s
SAMPLE_S: Final = 5.0  # on slow storage one block is enough

_LITTLE_BYTES: Final = 1 << 20  # read for the digests even while somebody waits
# Checks one open file and returns whether it is of a kind that can be; None where its format did.
CheckOne = Callable[[FileReader], bool | None]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that was found whole."""

    signature: Signature
    is_checked: bool | None  # False: nothing is known of its kind; None: its format has read it
    digests: bytes | None  # None: read only as far as it takes to see that it is whole
    checked_unix_s: float
    is_taken: bool = False  # from a manifest


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a checkpoint's content is known to be whole."""

    checked: int = 0
    unchecked: int = 0
    taken: int = 0  # by a manifest
    is_whole: bool = True  # every file; else only those of the share
    unread_bytes: int = 0  # of files whose structure is whole; the time was over

    def __str__(self) -> str:
        found = []
        if self.checked or not (self.taken or self.unchecked):
            found.append(f"{counted(self.checked, 'file')} checked")
        if self.taken:
            found.append(f"{self.taken} unchanged since they were checked")
        if self.unchecked:
            found.append(f"{self.unchecked} only known to be there")
        return ", ".join(found)


@dataclass
class _Candidate:
    files: dict[str, CheckedFile] = field(default_factory=dict)  # by path
    begun: dict[str, ReadProgress] = field(default_factory=dict)  # reads that were cut short
    kept: tuple[tuple[Signature, ...], Share] | None = None  # what its manifest has


class KnownFiles:
    """The files of all candidates of one folder."""

    def __init__(
        self,
        manifests: Manifests | None,
        clock: Clock,
        random: Random | None = None,
        beside: ReadsBeside | None = None,
    ) -> None:
        """``beside``: another process that reads what is large and in the page cache."""
        self._beside = beside
        self._manifests = manifests
        self._clock = clock
        self._random = random or SystemRandom()
        self._candidates: dict[str, _Candidate] = {}

    def stamp(self, checkpoint: str, deadline: Deadline) -> Stamp:
        """Return what changes when a manifest of this checkpoint does."""
        try:
            return self._manifests.load(checkpoint, deadline)[0] if self._manifests else ()
        except UnfinishedError:
            return ()

    def check(
        self,
        checkpoint: str,
        folder: str,
        signatures: Collection[Signature],
        picked: Collection[str],
        check_one: CheckOne,
        deadline: Deadline,
        content: Deadline | None = None,
    ) -> Coverage:
        """Read those of the picked paths that nobody has read; raise DefectError where one is not whole.

        ``folder``: what the names in a manifest are relative to. ``content``: until when more than structure is read.
        """
        candidate = self._candidates.setdefault(checkpoint, _Candidate())
        files = candidate.files
        content = content or deadline
        records = self._records(checkpoint, deadline)
        is_trusted = self._manifests is not None and self._manifests.trusts
        taken: list[tuple[Signature, FileRecord]] = []
        is_whole = True
        unread_bytes = 0
        if content is not deadline:
            content.expect(self._left_bytes(candidate, signatures, picked))
        for signature in signatures:
            path = signature[0]
            if (known := files.get(path)) is not None and known.signature == signature:
                continue
            record = records.get(_name(path, folder))
            if is_trusted and record is not None and _fits(record, signature):
                taken.append((signature, record))
            elif path in picked:
                files.pop(path, None)
                read = partial(self._read, folder, record, check_one, deadline, content)
                unread_bytes += _go_on(candidate, signature, read)
            else:
                files.pop(path, None)
                is_whole = False
        try:
            self._compare_sample(taken, folder, deadline)
        except UnfinishedError:
            unread_bytes += sum(signature[2] for signature, _record in taken)
            taken = []
        for signature, record in taken:
            files[signature[0]] = CheckedFile(
                signature, True, record.digests, record.checked_unix_s, is_taken=True
            )
        known_files = [files[item[0]] for item in signatures if item[0] in files]
        return replace(_count(known_files, is_whole), unread_bytes=unread_bytes)

    @staticmethod
    def _left_bytes(
        candidate: _Candidate, signatures: Collection[Signature], picked: Collection[str]
    ) -> int:
        """Return how much of the picked files was not read yet."""
        left_bytes = 0
        for signature in signatures:
            known, begun = candidate.files.get(signature[0]), candidate.begun.get(signature[0])
            if signature[0] in picked and (known is None or known.signature != signature):
                is_same = begun is not None and begun.signature == signature
                left_bytes += begun.unread_bytes if begun and is_same else signature[2]
        return left_bytes

    def lacks_manifest(
        self, checkpoint: str, signatures: tuple[Signature, ...], share: Share
    ) -> bool:
        """Return whether `keep` may have something to do."""
        candidate = self._candidates.get(checkpoint)
        is_writer = self._manifests is not None and self._manifests.is_writer
        return is_writer and candidate is not None and candidate.kept != (signatures, share)

    def keep(
        self,
        checkpoint: str,
        folder: str,
        signatures: tuple[Signature, ...],
        picked: Collection[str],
        share: Share,
        deadline: Deadline,
    ) -> None:
        """Write the manifest of this share, the picked paths, unless others cover it.

        Reads first what has no checksum of its own and was not read to its end yet.
        """
        candidate = self._candidates.get(checkpoint)
        manifests = self._manifests
        if manifests is None or candidate is None:
            return
        records = self._records(checkpoint, deadline)
        retained: dict[str, FileRecord] = {}
        is_new = False
        for signature in signatures:
            path = signature[0]
            known = candidate.files.get(path)
            if path not in picked or known is None or known.signature != signature:
                continue
            record = records.get(_name(path, folder))
            if record is None or not _fits(record, signature):
                is_new = True
                digests = known.digests
                if digests is None:
                    digests = _read_digests(_begun(candidate, signature), deadline)
                    candidate.begun.pop(path, None)
                    candidate.files[path] = CheckedFile(
                        signature, known.is_checked, digests, known.checked_unix_s
                    )
                record = FileRecord(signature[2], signature[3], known.checked_unix_s, digests)
            retained[_name(path, folder)] = record
        if is_new:
            manifests.save(checkpoint, share, retained)
        candidate.kept = (signatures, share)

    def forget_gone(self, checkpoints: Collection[str]) -> None:
        """Forget the candidates that are not among these any more."""
        self._candidates = {
            path: candidate
            for path, candidate in list(self._candidates.items())
            if path in checkpoints
        }  # a copy: a read that was left behind may add to it
        if self._manifests is not None:
            self._manifests.forget_gone(checkpoints)

    def remove_gone(self, checkpoints: Collection[str], deadline: Deadline) -> None:
        """Remove the manifests of candidates that are not among these any more."""
        if self._manifests is not None and self._manifests.is_writer:
            self._manifests.remove_gone(checkpoints, deadline)

    def _records(self, checkpoint: str, deadline: Deadline) -> Mapping[str, FileRecord]:
        return self._manifests.load(checkpoint, deadline)[1] if self._manifests else {}

    def _read(
        self,
        folder: str,
        record: FileRecord | None,
        check_one: CheckOne,
        deadline: Deadline,
        content: Deadline,
        progress: ReadProgress,
    ) -> CheckedFile:
        signature = progress.signature
        name = shown(_name(signature[0], folder))
        reads_all = not deadline.is_awaited or not (self._manifests and self._manifests.trusts)
        is_in_time = content.left_s() > 0  # else a few small reads have to do
        try:
            with FileReader(
                *(signature[0], deadline),
                is_whole=is_in_time,
                progress=progress,
                content=content,
                beside=self._beside,
            ) as reader:
                reader.check_unchanged(signature)
                if reads_all:
                    reader.expect_all()
                try:
                    is_checked = check_one(reader)
                except SumError:
                    reader.check_unchanged(signature)  # else somebody writes it
                    raise
                if reads_all:
                    reader.begin_content()
                takes_digests = reads_all or reader.unread_bytes <= _LITTLE_BYTES
                digests = reader.digests() if takes_digests and is_in_time else None
                reader.check_unchanged(signature)
        except ChangedError:
            raise
        except DefectError as error:
            kind = SumError if isinstance(error, SumError) else DefectError
            raise kind(f"{name}: {error}{_change(record, signature)}") from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, signature[0]) from error
        is_comparable = record is not None and _fits(record, signature) and digests is not None
        if record is not None and is_comparable and digests != record.digests:
            raise SumError(_other_bytes(name, record))
        return CheckedFile(signature, is_checked, digests, self._clock.unix_s())

    def _compare_sample(
        self, taken: list[tuple[Signature, FileRecord]], folder: str, deadline: Deadline
    ) -> None:
        """Read some blocks of these files again, and raise DefectError where one is not as recorded."""
        ends = list(accumulate(blocks_of(signature[2]) for signature, _record in taken))
        total = ends[-1] if ends else 0
        until_s = self._clock.now_s() + SAMPLE_S
        for count, number in enumerate(
            self._random.sample(range(total), min(SAMPLE_BLOCKS, total))
        ):
            if count > 0 and self._clock.now_s() > until_s:
                return
            index = bisect.bisect_right(ends, number)
            signature, record = taken[index]
            block = number - (ends[index - 1] if index else 0)
            expected = record.digests[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES]
            if _read_block(signature, block, deadline) != expected:
                raise SumError(_other_bytes(shown(_name(signature[0], folder)), record))


def _count(files: Iterable[CheckedFile], is_whole: bool) -> Coverage:
    checked = unchecked = taken = 0
    for file in files:
        if file.is_taken:
            taken += 1
        elif file.is_checked is not None:
            checked += file.is_checked
            unchecked += not file.is_checked
    return Coverage(checked, unchecked, taken, is_whole)


def _begun(candidate: _Candidate, signature: Signature) -> ReadProgress:
    """Return how far this very file was read; one that has changed begins anew."""
    begun = candidate.begun.get(signature[0])
    if begun is None or begun.signature != signature:
        begun = candidate.begun[signature[0]] = ReadProgress(signature)
    return begun


def _go_on(
    candidate: _Candidate, signature: Signature, read: Callable[[ReadProgress], CheckedFile]
) -> int:
    """Read a file from where it was left, and return how much of it is still unread when the time is over."""
    path = signature[0]
    progress = _begun(candidate, signature)
    try:
        candidate.files[path] = read(progress)
    except UnfinishedError:
        if not progress.is_structure_whole:
            raise
        if not progress.end:
            candidate.begun.pop(path, None)
        return progress.unread_bytes
    except (DefectError, OSError):
        candidate.begun.pop(path, None)
        raise
    candidate.begun.pop(path, None)
    return 0


def _read_digests(progress: ReadProgress, deadline: Deadline) -> bytes:
    signature = progress.signature
    with FileReader(signature[0], deadline, is_whole=True, progress=progress) as reader:
        reader.check_unchanged(signature)
        reader.expect_all()
        digests = reader.digests()
        reader.check_unchanged(signature)
    return digests


def _read_block(signature: Signature, block: int, deadline: Deadline) -> bytes:
    digest = new_digest()
    begin = block * BLOCK_BYTES
    try:
        with FileReader(signature[0], deadline) as reader:
            reader.check_unchanged(signature)
            for chunk in reader.chunks(begin, min(BLOCK_BYTES, signature[2] - begin)):
                digest.update(chunk)
    except OSError as error:
        raise OSError(error.errno, error.strerror, signature[0]) from error
    return digest.digest()


def _fits(record: FileRecord, signature: Signature) -> bool:
    return (record.size_bytes, record.modified_ns) == signature[2:]


def _name(path: str, folder: str) -> str:
    return path[len(folder.rstrip("/")) + 1 :]


def _other_bytes(name: str, record: FileRecord) -> str:
    return f"{name}: its bytes changed since it was checked at {_when(record)}"


def _change(record: FileRecord | None, signature: Signature) -> str:
    """Return what is known to have changed since a damaged file was whole."""
    if record is None or _fits(record, signature):
        return ""
    since = f"since it was checked at {_when(record)}"
    if record.size_bytes != signature[2]:
        return f"; {since} its size changed from {record.size_bytes} to {signature[2]} bytes"
    return f"; {since} its time changed"


def _when(record: FileRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.checked_unix_s))
