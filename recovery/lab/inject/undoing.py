"""Carries out what puts a fault back. Each does nothing where there is nothing left to do, and raises where it can't tell."""

import contextlib
import hashlib
import os
import resource
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError, SourceError, StorageError
from rankmend.files import read_if_there, sync_folder
from recovery.lab.inject import system_calls
from recovery.lab.inject.system_calls import run_program
from recovery.lab.inject.undo import (
    DeleteQueueing,
    DeleteTable,
    EndHelper,
    LeaveGroup,
    PutBackFile,
    RaiseLink,
    RemoveFile,
    ResetClocks,
    RestoreFileLimit,
    RestorePower,
    ResumeProcess,
    StartUnit,
    Undo,
    Unmount,
)
from recovery.launcher.processes.process_tree import ProcessRef, is_alive, send_kill, send_signal

_GONE_S_MAX: Final = 5.0
_POLL_S: Final = 0.02
_HELD_BYTES_MAX: Final = 1 << 16


def carry_out(undo: Undo) -> None:
    """Undo one thing; raise RankmendError where it failed, and it may be tried again."""
    try:
        _carry_out(undo)
    except OSError as error:
        raise SourceError(f"{undo}: {error}") from error


def _carry_out(undo: Undo) -> None:  # noqa: PLR0912 - one line a kind
    match undo:
        case ResumeProcess():
            send_signal(ProcessRef(undo.pid, undo.start_ticks), signal.SIGCONT)
        case RestoreFileLimit():
            _restore_limit(undo)
        case EndHelper():
            end_process(ProcessRef(undo.pid, undo.start_ticks))
        case Unmount():
            system_calls.unmount_to(undo.path, undo.mounts_before)
        case RemoveFile():
            _remove(undo)
        case PutBackFile():
            put_back(undo)
        case DeleteTable():
            _delete_table(undo)
        case DeleteQueueing():
            _delete_queueing(undo)
        case RaiseLink():
            _raise_link(undo)
        case LeaveGroup():
            _leave_group(undo)
        case StartUnit():
            run_program(["systemctl", "start", "--", undo.unit])
        case ResetClocks():
            system_calls.reset_clocks(undo.gpu)
        case RestorePower():
            system_calls.set_power_limit(undo.gpu, undo.milliwatts)


def end_process(process: ProcessRef) -> None:
    """Kill a process and wait until it has gone; its zombie counts as gone."""
    until_s = time.monotonic() + _GONE_S_MAX
    while is_alive(process):
        send_kill(process)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        if time.monotonic() > until_s:
            raise SourceError(f"process {process.pid} does not end")
        time.sleep(_POLL_S)


def _restore_limit(undo: RestoreFileLimit) -> None:
    if not is_alive(ProcessRef(undo.pid, undo.start_ticks)):
        return
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(undo.pid, resource.RLIMIT_FSIZE, (undo.soft_bytes, undo.hard_bytes))


def _remove(undo: RemoveFile) -> None:
    path = Path(undo.path)
    if undo.must_hold:
        found = read_if_there(path, _HELD_BYTES_MAX, SourceError, follow_link=False)
        if found is None or undo.must_hold.encode() not in found:
            return
    path.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, read once and never as a whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def put_back(undo: PutBackFile) -> None:
    """Put the copy back in one step; a file that has been written anew since stays as it is. The copy stays, too."""
    path, copy = Path(undo.path), Path(undo.copy)
    is_gone = not path.exists() and path.parent.is_dir()
    if not is_gone and not (path.exists() and digest_of(path) == undo.damaged_sha256):
        return
    if not copy.exists() or digest_of(copy) != undo.copy_sha256:
        raise StorageError(f"{copy}, the copy of {path}, is gone or has changed")
    beside = path.with_name(f".rankmend-{os.urandom(8).hex()}.new")
    try:
        keep_copy(copy, beside)
        beside.replace(path)
        sync_folder(path.parent)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def keep_copy(path: Path, copy: Path) -> None:
    """Copy a file with its mode, owner and times, and have it on disk."""
    shutil.copy2(path, copy, follow_symlinks=False)
    found = path.stat()
    with contextlib.suppress(PermissionError):
        os.chown(copy, found.st_uid, found.st_gid)
    descriptor = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(copy.parent)


def _delete_table(undo: DeleteTable) -> None:
    known = run_program(["nft", "list", "tables", undo.family]).decode("utf-8", "replace")
    if f"table {undo.family} {undo.name}" in known.splitlines():
        run_program(["nft", "delete", "table", undo.family, undo.name])


def _has_interface(name: str) -> bool:
    return name in {found for _index, found in socket.if_nameindex()}


def _delete_queueing(undo: DeleteQueueing) -> None:
    if not _has_interface(undo.interface):
        return
    shown = run_program(["tc", "qdisc", "show", "dev", undo.interface, "root"]).decode()
    if shown.startswith(f"qdisc {undo.kind} "):
        run_program(["tc", "qdisc", "del", "dev", undo.interface, "root"])


def _raise_link(undo: RaiseLink) -> None:
    if not _has_interface(undo.interface):
        return
    run_program(["ip", "link", "set", "dev", undo.interface, "up"])
    failed: list[str] = []
    for argv, saved in (
        (["ip", "addr", "restore"], undo.addresses),
        (["ip", "route", "restore"], undo.routes),
        (["ip", "-6", "route", "restore"], undo.routes6),
    ):
        if saved:
            try:
                run_program(argv, saved)
            except RankmendError as error:
                if "File exists" not in str(error):
                    failed.append(str(error))
    if failed:
        raise SourceError("; ".join(failed))


def _leave_group(undo: LeaveGroup) -> None:
    group, home = Path(undo.group), Path(undo.home)
    until_s = time.monotonic() + _GONE_S_MAX
    while group.is_dir():
        for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(pid, encoding="ascii")
        try:
            group.rmdir()
        except OSError as error:  # a dead process leaves its group a little later
            if time.monotonic() > until_s:
                raise SourceError(f"cannot remove {group}: {error.strerror}") from error
            time.sleep(_POLL_S)
