"""Faults of files: a full, read-only, failing or hanging folder, and damage to a file of a checkpoint, of which a copy is kept."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, NoSourceError, SourceError
from rankmend.packages import Extra, require
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.permission import is_below
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.system_calls import count_mounts, cover_read_only
from recovery.lab.inject.undo import PutBackFile, RemoveFile, Undo, Unmount
from recovery.lab.inject.undoing import digest_of, keep_copy

FILL_NAME: Final = ".rankmend-inject-full-"
_BLOCK_SIZES: Final = (1 << 20, 1 << 12, 1)
_MODES: Final = {
    FaultKind.DISK_FULL: "full",
    FaultKind.IO_ERROR: "error",
    FaultKind.IO_HANG: "hang",
}
_FILES_MAX: Final = 100_000


def plan(place: FaultPlace) -> FaultPlan:
    fault = place.request.fault
    path = place.found.path
    assert path is not None, "a path was found"
    if fault in (FaultKind.TORN_CHECKPOINT, FaultKind.BIT_FLIP, FaultKind.GPU_STUB):
        return _damage(place, Path(path))
    if not Path(path).is_dir():
        raise NoSourceError(f"{path} is not a folder")
    if is_below(os.path.realpath(place.folder), (path,)):
        raise ConfigError(
            f"{path} holds what undoes this fault, in {place.folder}: name another --undo-dir"
        )
    if fault is FaultKind.READ_ONLY:
        return FaultPlan(
            (f"mount {path} on itself, read-only",),
            (Unmount(path, count_mounts(path)),),
            lambda: cover_read_only(path),
        )
    if fault is FaultKind.DISK_FULL and _may_be_filled(path, place.marks.fill_bytes_max):
        return _fill(place, Path(path))
    return _cover(path, _MODES[fault])


def _cover(path: str, mode: str) -> FaultPlan:
    require(Extra.INJECT, f"a disk that answers with {mode}")
    if shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NoSourceError("FUSE is not usable here (fuse3, /dev/fuse)")
    return FaultPlan(
        (f"cover {path} with a FUSE file system: {mode}",),
        (Unmount(path, count_mounts(path)),),
        helper=("recovery.lab.inject.faulty.faulty_disk", mode, path),
    )


def _may_be_filled(path: str, bytes_max: int) -> bool:
    size = os.statvfs(path)
    is_own = Path(path).stat().st_dev != Path("/").stat().st_dev
    return is_own and size.f_bfree * size.f_frsize <= bytes_max


def _fill(place: FaultPlace, folder: Path) -> FaultPlan:
    file = folder / f"{FILL_NAME}{place.injection_id}"
    return FaultPlan(
        (f"write {file} until no byte is free",),
        (RemoveFile(path=str(file), outlives_boot=True),),
        lambda: write_until_full(file),
    )


def write_until_full(file: Path) -> None:
    """Make a new file that takes the last byte of its file system."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(file, flags, 0o600)
    try:
        for size in _BLOCK_SIZES:
            block = bytes(size)
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, block)
    finally:
        os.close(descriptor)


def _damage(place: FaultPlace, path: Path) -> FaultPlan:
    file = path if path.is_file() else _largest_file(path)
    fault = place.request.fault
    damaged = place.folder / f"{place.injection_id}.damaged"
    copy = place.folder / f"{place.injection_id}.copy"
    what = {
        FaultKind.TORN_CHECKPOINT: "cut off the second half of",
        FaultKind.BIT_FLIP: "flip one bit in the middle of",
        FaultKind.GPU_STUB: f"set {place.request.options.answer} in",
    }[fault]

    def prepare() -> tuple[Undo, ...]:
        try:
            keep_copy(file, copy)
            keep_copy(file, damaged)
            _change(fault, damaged, place.request.options.answer)
            retained = PutBackFile(str(file), str(copy), digest_of(copy), digest_of(damaged))
            return (RemoveFile(path=str(damaged), outlives_boot=True), retained)
        except BaseException:
            copy.unlink(missing_ok=True)
            damaged.unlink(missing_ok=True)
            raise

    def make() -> None:
        beside = file.with_name(f".rankmend-{place.injection_id}.new")
        try:
            keep_copy(damaged, beside)
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
            damaged.unlink(missing_ok=True)

    return FaultPlan(
        (f"keep a copy of {file} as {copy}", f"{what} {file}"), prepare=prepare, make=make
    )


def _largest_file(folder: Path) -> Path:
    """Return the largest file below a folder, where most of a checkpoint's data is."""
    found: list[tuple[int, str]] = []
    for base, _folders, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                found.append((path.stat().st_size, str(path)))
        if len(found) > _FILES_MAX:
            raise SourceError(f"{folder} has more than {_FILES_MAX} files: name one of them")
    if not found:
        raise NoSourceError(f"there is no file in {folder}")
    return Path(max(found)[1])


def _change(fault: FaultKind, file: Path, answer: str | None) -> None:
    size = file.stat().st_size
    if fault is FaultKind.GPU_STUB:
        assert answer is not None, "checked with the request"
        key, _, values = answer.partition("=")
        lines = file.read_text(encoding="ascii").splitlines()
        retained = [line for line in lines if line.partition(" ")[0] != key]
        file.write_text("\n".join([*retained, f"{key} {values}"]) + "\n", encoding="ascii")
        return
    if size == 0:
        raise NoSourceError(f"{file.name} is empty: there is nothing to damage")
    if fault is FaultKind.TORN_CHECKPOINT:
        os.truncate(file, size // 2)
        return
    with file.open("r+b") as data:
        data.seek(size // 2)
        byte = data.read(1)[0]
        data.seek(size // 2)
        data.write(bytes([byte ^ 1]))
