"""Faults of a rank: signals from outside, and what its own hook does on request (`rankmend.hook.drill`)."""

import json
import os
import resource
import signal
from pathlib import Path
from typing import Final

from rankmend.errors import NoSourceError, SourceError
from rankmend.files import replace_file
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.undo import RemoveFile, RestoreFileLimit, ResumeProcess
from recovery.launcher.processes.process_tree import ProcessRef, send_kill, send_signal

_RATE_BYTES_PER_S: Final = 100e6


def plan(place: FaultPlace) -> FaultPlan:
    process = place.found.process
    assert process is not None, "a rank or a service is a process"
    match place.request.fault:
        case FaultKind.KILL | FaultKind.SERVICE_KILL:
            return FaultPlan(
                (f"send SIGKILL to process {process.pid}",), make=lambda: _strike(process)
            )
        case FaultKind.STOP:
            return FaultPlan(
                (f"send SIGSTOP to process {process.pid}, again whenever it goes on",),
                (ResumeProcess(process.pid, process.start_ticks),),
                make=lambda: _stop(process),
                # rankmend lets a stopped rank go on once: a stop that ends with that would prove nothing.
                keep=lambda: _keep_stopped(process),
                ends_with_pid=process.pid,
            )
        case FaultKind.SERVICE_STOP:
            return FaultPlan(
                (f"send SIGSTOP to process {process.pid}",),
                (ResumeProcess(process.pid, process.start_ticks),),
                make=lambda: _stop(process),
                ends_with_pid=process.pid,
            )
        case FaultKind.FILE_LIMIT | FaultKind.JOURNAL_FULL:
            return _limit_files(process)
        case _:
            return _request_hook(place, process)


def _strike(process: ProcessRef) -> None:
    if not send_kill(process):
        raise NoSourceError(f"process {process.pid} has gone")


def _stop(process: ProcessRef) -> None:
    if not send_signal(process, signal.SIGSTOP):
        raise NoSourceError(f"process {process.pid} has gone")


def _keep_stopped(process: ProcessRef) -> None:
    send_signal(process, signal.SIGSTOP)


def _limit_files(process: ProcessRef) -> FaultPlan:
    try:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read the limits of process {process.pid}: {error}") from error

    def make() -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))

    return FaultPlan(
        (
            f"set RLIMIT_FSIZE of process {process.pid} to 0 bytes: writes to its files fail with EFBIG",
        ),
        (RestoreFileLimit(process.pid, process.start_ticks, soft, hard),),
        make,
        ends_with_pid=process.pid,
    )


def _request_hook(place: FaultPlace, process: ProcessRef) -> FaultPlan:
    fault, options = place.request.fault, place.request.options
    file = place.found.drill_file
    if file is None:
        raise NoSourceError(
            f"{fault.value} is made by the rank itself, and its job does not allow drills (rankmend run --drills, rankmend watch env --drills)"
        )
    if not file.exists():
        raise NoSourceError(
            f"{place.request.target} does not listen for faults: it is no Python program, or did not load rankmend's hook"
        )
    path = file.with_name(f"{file.name}.order")
    order: dict[str, object] = {
        "id": place.injection_id,
        "fault": fault.value,
        "until_boot_s": place.until_boot_s,
    }
    if fault is FaultKind.EXIT_CODE:
        order["code"] = options.code
    if fault is FaultKind.MEMORY_LEAK:
        order["rate_bytes_per_s"] = options.rate_bytes_per_s or _RATE_BYTES_PER_S
        order["bytes_max"] = options.bytes_max
    undo = RemoveFile(path=str(path), must_hold=place.injection_id)
    return FaultPlan(
        (f"order {fault.value} in {path}, which the rank reads within 0.1 s",),
        (undo,),
        lambda: _write_order(path, order),
        ends_with_pid=None if fault is FaultKind.GRANDCHILD else process.pid,
    )


def _write_order(path: Path, order: dict[str, object]) -> None:
    owner = None
    try:
        if os.geteuid() == 0:
            found = path.parent.stat()
            owner = (found.st_uid, found.st_gid)
        replace_file(path, json.dumps(order).encode(), SourceError, durable=False, owner=owner)
    except (SourceError, FileNotFoundError) as error:
        if path.parent.is_dir():
            raise
        raise NoSourceError(f"the attempt of {path.parent} is gone") from error
