"""Makes one fault and waits for its end. What puts it back is on disk, and its supervisor runs, before it is made."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import read_boot_id
from rankmend.errors import ConfigError, NoSourceError, SourceError, StorageError
from rankmend.parts_path import program
from rankmend.signals import take_signals
from recovery.lab.inject.acts import gpu, kernel_log, network, process, processor, service, storage
from recovery.lab.inject.fault import FACTS, FaultGroup, FaultKind
from recovery.lab.inject.faulty.lifeline import GO
from recovery.lab.inject.faulty.lifeline import READY as HELPER_READY
from recovery.lab.inject.mending import mend, own_namespaces
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.supervisor import MADE, READY, UndoVerdict
from recovery.lab.inject.undo import EndHelper, Injection, Undo, is_in_the_way
from recovery.lab.inject.undo_journal import UndoFolder
from recovery.lab.inject.undoing import carry_out
from recovery.launcher.processes.process_tree import read_state

START_S_MAX: Final = 60.0  # of a Python program, on a busy machine
UNDO_S_MAX: Final = 120.0
KEEP_S: Final = 0.02  # between two looks at a fault that others may take back
_LINE_BYTES_MAX: Final = 65_536
_PLANNERS: Final[Mapping[FaultGroup, Callable[[FaultPlace], FaultPlan]]] = {
    FaultGroup.PROCESS: process.plan,
    FaultGroup.CPU: processor.plan,
    FaultGroup.NETWORK: network.plan,
    FaultGroup.STORAGE: storage.plan,
    FaultGroup.GPU: gpu.plan,
    FaultGroup.KERNEL_LOG: kernel_log.plan,
    FaultGroup.RANKMEND: service.plan,
}


@dataclass(frozen=True, slots=True)
class Injected:
    """What came of one injection."""

    injection_id: str
    fault: str
    target: str
    steps: tuple[str, ...]
    ended_by: str  # at once, time, signal, target gone, supervisor gone
    is_undone: bool
    problems: tuple[str, ...]


def plan_fault(place: FaultPlace) -> FaultPlan:
    """Return what making this fault comes to; changes nothing."""
    match place.request.fault:
        case FaultKind.FILE_LIMIT:
            return process.plan(place)
        case FaultKind.GPU_STUB:
            return storage.plan(place)
        case fault:
            return _PLANNERS[FACTS[fault].group](place)


def inject(
    place: FaultPlace, plan: FaultPlan, folder: UndoFolder, tell: Callable[[str], None]
) -> Injected:
    """Make the fault, wait for its end and undo it. ``tell`` is called once it is in force; not for one that happens at once.

    Raises RankmendError where it could not be made; what was begun is undone by then.
    """
    if not (plan.undo or plan.prepare or plan.helper):
        _make(plan)
        return _injected(place, plan, "at once", ())
    with take_signals() as stopping:
        return _Session(place, plan, folder, stopping.wake).run(tell)


class _Session:
    """One fault, from its journal to its end."""

    def __init__(self, place: FaultPlace, plan: FaultPlan, folder: UndoFolder, stop: int) -> None:
        self._place = place
        self._plan = plan
        self._folder = folder
        self._stop = stop  # readable once a signal has come

    def run(self, tell: Callable[[str], None]) -> Injected:
        helper = _start_helper(self._plan)
        try:
            with self._folder.making():
                injection = self._injection(helper)
                lock = self._folder.write(injection)
            try:
                self._refuse_second(injection)
                return self._supervised(injection, lock, helper, tell)
            finally:
                os.close(lock)
        finally:
            if helper is not None:
                helper.kill()
                helper.communicate()

    def _injection(self, helper: "subprocess.Popen[bytes] | None") -> Injection:
        undo: list[Undo] = []
        if helper is not None:
            state = read_state(helper.pid)
            assert state is not None, "a child that is not reaped has a state"
            undo.append(EndHelper(helper.pid, state.start_ticks))
        undo += self._plan.undo
        if self._plan.prepare is not None:
            undo += _prepare(self._plan)
        net, mount = own_namespaces()
        return Injection(
            injection_id=self._place.injection_id,
            fault=self._place.request.fault.value,
            target=str(self._place.request.target),
            made_unix_s=time.time(),
            for_s=self._place.request.for_s,
            until_boot_s=self._place.until_boot_s,
            boot_id=read_boot_id(),
            net_namespace=net,
            mount_namespace=mount,
            undo=tuple(undo),
            pid=None if self._place.found.process is None else self._place.found.process.pid,
        )

    def _refuse_second(self, injection: Injection) -> None:
        """Raise where an earlier fault that stands is of the same thing. This one is on disk by now, so one of two sees the other."""
        for name in self._folder.standing():
            if name == injection.injection_id:
                continue
            try:
                other = self._folder.read(name)
            except StorageError:  # it has just ended
                continue
            is_earlier = (other.made_unix_s, name) < (injection.made_unix_s, injection.injection_id)
            if is_earlier and is_in_the_way(other, injection):
                self._folder.remove(injection.injection_id)  # nothing was changed
                raise ConfigError(
                    f"{other.fault} on {other.target} stands ({name}), of the same thing: wait until it has ended"
                )

    def _supervised(
        self,
        injection: Injection,
        lock: int,
        helper: "subprocess.Popen[bytes] | None",
        tell: Callable[[str], None],
    ) -> Injected:
        try:
            supervisor = _start_supervisor(self._folder.path, injection.injection_id, lock)
        except (SourceError, OSError):
            mend(injection, self._folder)
            raise
        try:
            try:
                if helper is not None:
                    _let_go(helper)
                _make(self._plan)
                _report_made(supervisor)
            except BaseException:
                self._end(supervisor, injection)
                raise
            tell(injection.injection_id)
            why = self._wait(supervisor)
            ended_by, problems = self._end(supervisor, injection)
            if (
                self._plan.keep is not None
            ):  # it may have been done once more behind the supervisor's undo
                for undo in self._plan.undo:
                    carry_out(undo)
            return _injected(self._place, self._plan, why or ended_by, problems)
        finally:
            if supervisor.poll() is None and supervisor.stdin is not None:
                supervisor.stdin.close()  # it undoes what is left, whatever becomes of us
                supervisor.stdin = None

    def _wait(self, supervisor: "subprocess.Popen[bytes]") -> str | None:
        """Return what ends the fault before its supervisor says so, or None."""
        assert supervisor.stdout is not None, "it is a pipe"
        watched = [self._stop, supervisor.stdout.fileno()]
        pidfd = None
        if self._plan.ends_with_pid is not None:
            try:
                pidfd = os.pidfd_open(self._plan.ends_with_pid)
            except OSError:
                return "target gone"
            watched.append(pidfd)
        try:
            keep = self._plan.keep
            ready = select.select(watched, [], [], None if keep is None else KEEP_S)[0]
            while keep is not None and not ready:
                keep()
                ready = select.select(watched, [], [], KEEP_S)[0]
        finally:
            if pidfd is not None:
                os.close(pidfd)
        if supervisor.stdout.fileno() in ready:
            return None
        return "signal" if self._stop in ready else "target gone"

    def _end(
        self, supervisor: "subprocess.Popen[bytes]", injection: Injection
    ) -> tuple[str, tuple[str, ...]]:
        """Have the supervisor undo all, or do it here where that is gone."""
        assert supervisor.stdout is not None, "it is a pipe"
        if supervisor.stdin is not None:
            with contextlib.suppress(OSError):
                supervisor.stdin.close()
            supervisor.stdin = None
        line = _read_line(supervisor.stdout.fileno(), UNDO_S_MAX)
        try:
            verdict = msgspec.json.decode(line, type=UndoVerdict)
        except msgspec.MsgspecError:
            if supervisor.poll() is None:
                supervisor.kill()
            supervisor.wait()
            return "supervisor gone", mend(injection, self._folder).problems
        supervisor.wait()
        return verdict.ended_by, verdict.problems


def _report_made(supervisor: "subprocess.Popen[bytes]") -> None:
    assert supervisor.stdin is not None, "it is a pipe"
    with contextlib.suppress(OSError):  # it is gone, which its output tells
        supervisor.stdin.write(MADE)


def _prepare(plan: FaultPlan) -> tuple[Undo, ...]:
    assert plan.prepare is not None, "it has something to prepare"
    try:
        return plan.prepare()
    except FileNotFoundError as error:  # a checkpoint is removed when there are newer ones
        raise NoSourceError(f"cannot {plan.steps[0]}: it is gone") from error
    except OSError as error:
        raise SourceError(f"cannot {plan.steps[0]}: {error}") from error


def _make(plan: FaultPlan) -> None:
    try:
        plan.make()
    except ProcessLookupError as error:
        raise NoSourceError(f"cannot {plan.steps[-1]}: it is gone") from error
    except OSError as error:
        raise SourceError(f"cannot {plan.steps[-1]}: {error}") from error


def _injected(
    place: FaultPlace, plan: FaultPlan, ended_by: str, problems: tuple[str, ...]
) -> Injected:
    request = place.request
    return Injected(
        place.injection_id, request.fault.value, str(request.target), plan.steps, ended_by,
        not problems, problems,
    )  # fmt: skip


def _start_helper(plan: FaultPlan) -> "subprocess.Popen[bytes] | None":
    """Start the process that will be the fault; it waits for a word."""
    if not plan.helper:
        return None
    module, *arguments = plan.helper
    return subprocess.Popen(
        [sys.executable, *program(module), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _let_go(helper: "subprocess.Popen[bytes]") -> None:
    assert helper.stdin is not None, "it is a pipe"
    assert helper.stdout is not None, "it is a pipe"
    try:
        helper.stdin.write(GO)
    except OSError as error:
        raise SourceError(f"the program that makes the fault has ended: {error}") from error
    if _read_line(helper.stdout.fileno(), START_S_MAX) != HELPER_READY:
        raise SourceError("the program that makes the fault did not start")


def _start_supervisor(folder: Path, injection_id: str, lock: int) -> "subprocess.Popen[bytes]":
    command = program("recovery.lab.inject.supervisor")
    supervisor = subprocess.Popen(
        [sys.executable, *command, str(folder), injection_id, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        pass_fds=(lock,),
        start_new_session=True,
    )
    assert supervisor.stdout is not None, "it is a pipe"
    if _read_line(supervisor.stdout.fileno(), START_S_MAX) != READY:
        supervisor.kill()
        supervisor.communicate()
        raise SourceError("the process that undoes the fault did not start: no fault was made")
    return supervisor


def _read_line(descriptor: int, timeout_s: float) -> bytes:
    """Return a line, or what came of it before the end or within the time."""
    until_s = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            break
        data = os.read(descriptor, 1 if len(line) < len(READY) else 4096)
        if not data:
            break
        line += data
    return line
