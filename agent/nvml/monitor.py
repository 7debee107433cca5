"""The agent's side of the collector child: starts it, believes it for a while, replaces it.

A driver call that does not come back is normal life on a bad GPU, and a process inside one can't
be killed. So: a call over its deadline has its child abandoned, not waited for. The next child
leaves out every GPU that a call has hung on, so that the rest are still seen. A GPU that was left
out is tried again in a child of its own, which asks about no other GPU, and only when no process
hangs on it any more: at most one process hangs on a GPU, and at most `ABANDONED_MAX` in all. Starts
are spaced by a back-off. An abandoned child is left to end by itself (its connection is closed)
before it is killed, since killing a process in a driver call has frozen GPUs
(NVIDIA/dcgm-exporter issue 84).

Nobody who asks for values waits for the child: they get the newest ones with their ages.
"""

import logging
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from threading import Condition, Thread
from time import sleep
from typing import Final, NamedTuple

from agent.nvml.child_messages import (
    EventMessage,
    FailedMessage,
    GpuMessage,
    Message,
    NodeMessage,
    SweepMessage,
    decode,
)
from agent.nvml.child_process import ChildProcess
from agent.nvml.child_protocol import MESSAGE_BYTES_MAX, NO_GPU, NvmlCall
from agent.nvml.fields import EVENT_TYPES
from agent.nvml.left_out import LeftOut
from agent.nvml.release import ReleaseFile
from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.errors import SourceError, StorageError

CALL_S_MAX: Final = 10.0  # a sweep takes 1 ms, a bad GPU 45 s a call (NVIDIA/DCGM issue 313)
OPEN_S_MAX: Final = 120.0  # without persistence mode the driver sets up each GPU at the first call
SILENT_S_MAX: Final = 30.0  # of a child that is in no call: stopped, or starved
ABANDONED_S_MAX: Final = 60.0  # until an abandoned child is killed
# of their own 9.2 MB each (nvidia-ml-py over tests/support/nvml_stub) of the service's 128 MB (MemoryHigh)
ABANDONED_MAX: Final = 6
# that hang in no GPU's call, or are about to end: NVML as a whole hangs, and the next would hang, too
AIMLESS_MAX: Final = 1
PAUSE_S: Final = 6.0  # between two ticks, which come each second: the agent itself stood still
RELEASE_S_MAX: Final = 10.0  # for the child to let go of the GPUs before it is killed
IDLE_S_MAX: Final = 60.0  # without anybody asking: the collector has been switched off
BACKOFF: Final = Backoff(first_s=1.0, cap_s=300.0)  # between two starts of a collector
HEALTHY_S: Final = 60.0  # of a child, for the back-off to begin anew
GPUS_MAX: Final = 64
XID_CODES_MAX: Final = 256  # of a GPU; there are about 175
_OPENING: Final = frozenset({"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex", "nvmlShutdown"})
_TICK_S: Final = 1.0  # messages wake it before
_BURY_TICK_S: Final = 0.1  # while somebody may wait for the end of a child
_SWEEP_S: Final = 0.005  # of 8 GPUs on hand; waking for each message took twice the CPU
_NO_DRIVER_CODES: Final = frozenset({9, 12})  # NVML_ERROR_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND

log = logging.getLogger(__name__)


Values = tuple[tuple[str, tuple[str, ...], float], ...]  # metric, labels behind the GPU's, value


class MonitorState(Enum):
    STARTING = "starting"  # nothing has been heard yet
    RUNNING = "running"
    ABSENT = "absent"  # no driver on this node
    BROKEN = "broken"  # the child failed, or is stuck; another will be started
    RELEASED = "released"  # by an operator


@dataclass(frozen=True, slots=True)
class GroupView:
    """Values of one group: metric without rankmend_gpu_, labels behind the GPU's, value."""

    age_s: float
    values: Values
    revision: int  # grows with each message: equal numbers mean equal values


@dataclass(frozen=True, slots=True)
class GpuView:
    index: int
    uuid: str
    pci_bus_id: str
    age_s: float  # of the newest answer about this GPU, "lost" among them
    is_lost: bool
    is_skipped: bool  # left out, because a call about it hangs
    needs_reset: bool
    error: str  # the newest one
    errors: int
    groups: dict[str, GroupView]
    seconds: dict[str, float]  # by clocks-event reason, since the agent began
    events: dict[str, int]  # by type, since the agent began
    xids: dict[int, int]
    processes: tuple[tuple[int, int | None], ...] | None  # pid, memory in bytes


@dataclass(frozen=True, slots=True)
class StuckCall:
    name: str
    gpu: int
    age_s: float


@dataclass(frozen=True, slots=True)
class MonitorView:
    state: MonitorState
    problem: str
    gpus: tuple[GpuView, ...]
    count: int | None  # GPUs that the driver lists; None while not known
    stuck: tuple[StuckCall, ...]
    restarts: int
    released_s: float | None
    sweep_s: float | None
    pid: int | None


class _Group(NamedTuple):
    at_s: float
    values: Values
    revision: int


@dataclass(slots=True)
class _Gpu:
    uuid: str = ""
    pci_bus_id: str = ""
    heard_at_s: float = 0.0
    is_lost: bool = False
    needs_reset: bool = False
    error: str = ""
    errors: int = 0
    groups: dict[str, _Group] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    xids: dict[int, int] = field(default_factory=dict)
    processes: tuple[tuple[int, int | None], ...] | None = None


Spawn = Callable[[float, Sequence[int], float], ChildProcess]


class GpuMonitor:
    """Keeps a collector child running and its newest values. All methods may be called from any
    thread; the child is handled by a thread of its own, which the first question starts."""

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        call_s_max: float = CALL_S_MAX,
        spawn: Spawn = ChildProcess,
        kept: ReleaseFile | None = None,
        on_events: Callable[[], None] | None = None,
    ) -> None:
        """``kept``: where a release is remembered over a restart of the agent.

        ``on_events`` is called in the monitor's thread after new events of GPUs (XIDs and others).
        """
        self._clock = clock
        self._interval_s = interval_s
        self._call_s_max = call_s_max
        self._spawn = spawn
        self._changed = Condition()  # guards everything below
        self._thread: Thread | None = None
        self._waker, self._wakened = socket.socketpair()
        self._child: ChildProcess | None = None
        self._trial: ChildProcess | None = None
        self._trial_gpu = NO_GPU
        self._abandoned: list[ChildProcess] = []
        self._gpus: dict[int, _Gpu] = {}
        self._revision = 0  # of the newest group of values
        self._left_out = LeftOut()
        self._ticked_at_s = self._resumed_at_s = clock.now_s()
        self._state = MonitorState.STARTING
        self._problem = "no answer yet"
        self._count: int | None = None
        self._event_types: tuple[str, ...] = ()
        self._has_swept = False
        self._sweep_s: float | None = None
        self._spawns = 0
        self._starts_in_a_row = 0
        self._spawn_at_s = 0.0
        self._asked_at_s = 0.0
        self._released_at_s: float | None = None
        self._released_until_s = 0.0
        self._is_stopping = False
        self._on_events = on_events
        self._has_new_events = False
        self._kept = kept
        if kept is not None and (release := kept.load(clock.now_s())) is not None:
            self._released_at_s, self._released_until_s = release.since_s, release.until_s
            log.warning(
                "the GPUs stay released", extra={"for_s": round(release.until_s - clock.now_s())}
            )

    # ---- for the collectors

    def view(self, wait_s: float = 0.0) -> MonitorView:
        """Return what is known; wait at most ``wait_s`` for a first answer."""
        with self._changed:
            self._asked_at_s = self._clock.now_s()
            if self._state is MonitorState.RELEASED and self._released_at_s is None:
                self._begin_anew()  # let go while nobody asked
                self._wake()
            if self._thread is None and not self._is_stopping:
                self._thread = Thread(target=self._run, name="gpu-monitor", daemon=True)
                self._thread.start()
            if wait_s > 0:
                self._changed.wait_for(self._has_answered, timeout=wait_s)
            return self._view(self._clock.now_s())

    def _has_answered(self) -> bool:
        return self._has_swept or self._state is not MonitorState.STARTING

    # ---- for the operator

    def release(self, for_s: float) -> str:
        """Let go of the GPUs for a time; return what came of it."""
        with self._changed:
            now_s = self._clock.now_s()
            if self._kept is not None:
                try:
                    self._kept.save(now_s, now_s + for_s)
                except StorageError as error:
                    raise SourceError(f"the GPUs are not released: {error}") from error
            self._released_at_s, self._released_until_s = now_s, now_s + for_s
            self._wake()
            self._changed.wait_for(self._holds_nothing, timeout=RELEASE_S_MAX + 2)
            if self._holds_nothing():
                return f"the GPUs are free for {for_s:g} s, or until 'rankmend agent resume'"
            pids = ", ".join(str(child.pid) for child in self._children())
            raise SourceError(f"process {pids} is stuck in a driver call and still holds a GPU")

    def resume(self) -> str:
        """Take the GPUs up again."""
        with self._changed:
            was_released = self._released_at_s is not None
            self._end_release()
            self._spawn_at_s, self._starts_in_a_row = 0.0, 0
            if not self._abandoned:
                self._left_out.clear()
            self._wake()
        return "the GPUs are watched again" if was_released else "the GPUs were not released"

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the child, as far as it can be ended in this time; it ends by itself later."""
        with self._changed:
            self._is_stopping = True
            thread = self._thread
            self._wake()
        if thread is not None:
            thread.join(timeout_s + 1.0)

    def _holds_nothing(self) -> bool:
        return not self._children()

    def _children(self) -> list[ChildProcess]:
        return [*self._talking(), *self._abandoned]

    def _talking(self) -> list[ChildProcess]:
        return [child for child in (self._child, self._trial) if child is not None]

    def _wake(self) -> None:
        self._waker.send(b"1")

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_stopping:
                    self._end_all()
                    return
                self._tick(self._clock.now_s())
                self._changed.notify_all()
                has_new_events, self._has_new_events = self._has_new_events, False
                descriptors = [self._wakened]
                descriptors += [child.channel for child in self._talking() if child.is_connected]
            if has_new_events and self._on_events is not None:
                self._on_events()  # without the lock: it may end in a question to us
            poll = select.poll()  # select() can't do descriptors above 1,023
            for connection in descriptors:
                poll.register(connection, select.POLLIN)
            tick_s = _BURY_TICK_S if self._abandoned else _TICK_S
            found = [descriptor for descriptor, _events in poll.poll(tick_s * 1000)]
            if self._wakened.fileno() in found:
                self._wakened.recv(64)
            elif found:  # the first message of a sweep: its others are taken with it
                sleep(_SWEEP_S)

    def _tick(self, now_s: float) -> None:
        if (
            now_s - self._ticked_at_s > PAUSE_S
        ):  # SIGSTOP, a frozen cgroup: the child stood still, too
            self._resumed_at_s = self._asked_at_s = now_s  # nor could anybody ask
        self._ticked_at_s = now_s
        self._bury(now_s)
        if self._released_at_s is not None and now_s >= self._released_until_s:
            self._end_release()
            log.warning("the time of the release is over, the GPUs are taken up again")
        is_idle = now_s - self._asked_at_s > max(IDLE_S_MAX, 10 * self._interval_s)
        if self._released_at_s is not None or is_idle:
            self._let_go(now_s)
            return
        if self._state is MonitorState.RELEASED:
            self._begin_anew()
        for child in self._talking():
            self._receive(child, now_s)
        for child in self._talking():
            self._check(child, now_s)
        if self._child is None and now_s >= self._spawn_at_s:
            self._start(now_s)
        if self._trial is None and self._child is not None:
            self._try(now_s)

    def _end_release(self) -> None:
        self._released_at_s = None
        if self._kept is not None:
            self._kept.clear()

    def _begin_anew(self) -> None:
        self._state, self._problem = MonitorState.STARTING, "no answer yet"
        self._has_swept = False

    def _start(self, now_s: float) -> None:
        hanging = self._hanging()
        aimless = sum(gpu == NO_GPU for gpu in hanging)
        if aimless > AIMLESS_MAX:
            return
        if len(hanging) - aimless >= ABANDONED_MAX:
            self._fail(f"{len(hanging)} collectors of the GPUs hang: no other is started")
            return
        self._spawns += 1
        self._starts_in_a_row += 1
        self._spawn_at_s = now_s + BACKOFF.wait_s(self._starts_in_a_row)
        try:
            self._child = self._spawn(self._interval_s, self._left_out.indexes(), now_s)
        except OSError as error:
            self._fail(f"cannot start the collector of the GPUs: {error}")

    def _hanging(self) -> list[int]:
        """Return the GPU that each abandoned child hangs on, or NO_GPU."""
        calls = (child.stuck_call for child in self._abandoned)
        return [NO_GPU if call is None else call.gpu for call in calls]

    def _try(self, now_s: float) -> None:
        """Ask about a GPU that was left out, in a child that asks about no other."""
        hanging = self._hanging()
        if len(hanging) >= ABANDONED_MAX - 1:  # one is left for the collector of all others
            return
        gpu = self._left_out.due(now_s, hanging)
        if gpu is None:
            return
        others = [index for index in range(GPUS_MAX) if index != gpu]
        try:
            self._trial, self._trial_gpu = self._spawn(self._interval_s, others, now_s), gpu
        except OSError as error:
            self._left_out.add(gpu, now_s)
            log.warning("cannot try a GPU again", extra={"gpu": gpu, "error": str(error)})
            return
        log.info("trying a GPU again that was left out", extra={"gpu": gpu})

    def _end_trial(self, now_s: float, call: NvmlCall | None, *, has_answered: bool) -> None:
        trial, gpu = self._trial, self._trial_gpu
        assert trial is not None
        if has_answered:
            self._left_out.take_back(gpu)
            if self._child is not None:  # its next one asks about this GPU, too
                self._abandon(self._child, None)
            self._spawn_at_s = now_s
        else:
            self._left_out.add(gpu, now_s)
        log.info("GPU tried again", extra={"gpu": gpu, "answers": has_answered})
        self._abandon(trial, call)

    def _receive(self, child: ChildProcess, now_s: float) -> None:
        for _ in range(8 * GPUS_MAX):  # then the clock is looked at again
            try:
                data, _ancillary, flags, _address = child.channel.recvmsg(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                data, flags = b"", 0
            if not data:
                self._lose(child, now_s)
                return
            child.heard_at_s = now_s
            try:
                if flags & socket.MSG_TRUNC:
                    raise SourceError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
                self._take(child, data, now_s)
            except SourceError as error:
                if child is self._trial:
                    self._end_trial(now_s, None, has_answered=False)
                    return
                self._fail(str(error))
                self._abandon(child, None)
                return
            if not child.is_connected:  # a trial that is over
                return

    def _take(self, child: ChildProcess, data: bytes, now_s: float) -> None:
        if child is self._trial:
            self._take_trial(decode(data), now_s)
            return
        match decode(data):
            case NodeMessage() as node:
                if not 0 <= node.count <= GPUS_MAX:
                    raise SourceError(f"the driver lists {node.count} GPUs")
                self._count = node.count
                self._event_types = _event_types(node.event_mask)
            case GpuMessage() as message:
                self._take_gpu(message, now_s)
            case EventMessage() as event:
                self._take_event(event)
            case SweepMessage() as sweep:
                self._sweep_s, self._has_swept = sweep.duration_s, True
                self._set_state(MonitorState.RUNNING, self._skipped_text())
                if now_s - child.started_at_s >= HEALTHY_S:
                    self._starts_in_a_row = 0
            case FailedMessage() as failed:
                is_absent = failed.code in _NO_DRIVER_CODES
                state = MonitorState.ABSENT if is_absent else MonitorState.BROKEN
                self._count = None
                self._set_state(state, f"NVML: {failed.error}")

    def _take_trial(self, message: Message, now_s: float) -> None:
        match message:
            case GpuMessage() as values if values.gpu == self._trial_gpu:
                self._take_gpu(values, now_s)
            case SweepMessage():
                self._end_trial(now_s, None, has_answered=True)
            case FailedMessage():
                self._end_trial(now_s, None, has_answered=False)

    def _take_gpu(self, message: GpuMessage, now_s: float) -> None:
        gpu = self._gpu(message.gpu)
        if message.uuid and gpu.uuid and message.uuid != gpu.uuid:  # another card in its place
            self._gpus[message.gpu] = gpu = _Gpu()
        gpu.uuid = message.uuid or gpu.uuid
        gpu.pci_bus_id = message.pci_bus_id or gpu.pci_bus_id
        gpu.heard_at_s = now_s
        if message.is_lost != gpu.is_lost:
            fields = {"gpu": message.gpu, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id}
            log.error("GPU lost" if message.is_lost else "GPU is back", extra=fields)
        gpu.is_lost, gpu.needs_reset = message.is_lost, message.needs_reset
        gpu.error = message.error
        gpu.errors += message.errors
        for reason, seconds in message.seconds.items():
            gpu.seconds[reason] = gpu.seconds.get(reason, 0.0) + seconds
        if message.is_lost:
            gpu.groups.clear()
            gpu.processes = None
            return
        self._revision += 1
        gpu.groups[message.group] = _Group(now_s, message.values, self._revision)
        if message.group == "processes":
            gpu.processes = None if message.processes is None else tuple(message.processes)

    def _take_event(self, message: EventMessage) -> None:
        gpu = self._gpu(message.gpu)
        gpu.events[message.event] = gpu.events.get(message.event, 0) + 1
        self._has_new_events = True
        fields: dict[str, object] = {"gpu": message.gpu, "uuid": gpu.uuid, "event": message.event}
        if message.event == "xid" and (message.code in gpu.xids or len(gpu.xids) < XID_CODES_MAX):
            gpu.xids[message.code] = gpu.xids.get(message.code, 0) + 1
            fields["xid"] = message.code
        log.warning("GPU event", extra=fields)

    def _gpu(self, index: int) -> _Gpu:
        if not 0 <= index < GPUS_MAX:
            raise SourceError(f"there is no GPU {index}")
        return self._gpus.setdefault(index, _Gpu(heard_at_s=self._clock.now_s()))

    # ---- what goes wrong

    def _check(self, child: ChildProcess, now_s: float) -> None:
        """Abandon a child that is over its deadline. While the agent stood still, no time counts."""
        call = child.call()
        if call is not None:
            limit_s = OPEN_S_MAX if call.name in _OPENING else self._call_s_max
            if now_s - max(call.began_at_s, self._resumed_at_s) <= limit_s:
                return
            where = f" of GPU {call.gpu}" if call.gpu != NO_GPU else ""
            problem = f"{call.name}{where} has not come back for {limit_s:g} s"
        else:
            if now_s - max(child.heard_at_s, self._resumed_at_s) <= SILENT_S_MAX + self._interval_s:
                return
            call = NvmlCall(0, child.heard_at_s, NO_GPU, "none")
            problem = f"the collector of the GPUs has been silent for {SILENT_S_MAX:g} s"
        if child is self._trial:
            self._end_trial(now_s, call, has_answered=False)
            return
        self._fail(problem)
        if call.gpu == NO_GPU:
            self._space_starts(child, now_s)
        else:  # the next leaves it out, so that there is an end; the other GPUs wait
            self._left_out.add(call.gpu, now_s)
            self._starts_in_a_row, self._spawn_at_s = 0, now_s
        self._abandon(child, call)

    def _lose(self, child: ChildProcess, now_s: float) -> None:
        """Take note of a child that has closed its connection, or is about to end."""
        if child is self._trial:
            self._end_trial(now_s, None, has_answered=False)
            return
        if self._state not in (MonitorState.ABSENT, MonitorState.BROKEN):
            self._fail(f"the collector of the GPUs has died{child.status_text()}")
        self._space_starts(child, now_s)
        self._abandon(child, None)

    def _space_starts(self, child: ChildProcess, now_s: float) -> None:
        """Begin the back-off anew after a child that has lived long enough."""
        if now_s - child.started_at_s >= HEALTHY_S:
            self._starts_in_a_row, self._spawn_at_s = 0, now_s + BACKOFF.first_s

    def _abandon(self, child: ChildProcess, call: NvmlCall | None) -> None:
        """Leave a child to itself: it ends when it finds the connection closed."""
        child.stuck_call = call
        child.disconnect()
        if child.call() is None:  # so that this can't harm a driver
            child.process.send_signal(signal.SIGTERM)
        self._abandoned.append(child)
        if child is self._trial:
            self._trial, self._trial_gpu = None, NO_GPU
        else:
            self._child = None

    def _bury(self, now_s: float) -> None:
        """Reap what has ended, and kill what was abandoned long ago."""
        for child in list(self._abandoned):
            if child.is_gone():
                child.close()
                self._abandoned.remove(child)
                if child.stuck_call is not None:
                    log.info("stuck collector of the GPUs is gone", extra={"pid": child.pid})
            elif child.killed_at_s is None and now_s - child.heard_at_s > ABANDONED_S_MAX:
                log.warning("killing a collector of the GPUs", extra={"pid": child.pid})
                child.process.kill()
                child.killed_at_s = now_s

    def _let_go(self, now_s: float) -> None:
        """End the child because the GPUs are released, or because nobody asks for them."""
        for child in self._talking():
            self._abandon(child, None)
        if self._state is not MonitorState.RELEASED:
            for child in self._abandoned:  # killed sooner: somebody waits for the GPUs
                kill_at_s = now_s + RELEASE_S_MAX
                child.heard_at_s = min(child.heard_at_s, kill_at_s - ABANDONED_S_MAX)
        self._state, self._problem = MonitorState.RELEASED, "released"
        self._count = None
        self._spawn_at_s, self._starts_in_a_row = 0.0, 0
        for gpu in self._gpus.values():
            gpu.groups.clear()
            gpu.processes = None

    def _end_all(self) -> None:
        """End every child at the end of the agent. One in a driver call ends by itself later."""
        for child in self._talking():
            self._abandon(child, None)
        deadline_s = self._clock.now_s() + 1.0
        for child in self._abandoned:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline_s - self._clock.now_s()))
            child.close()
        self._abandoned.clear()

    def _fail(self, problem: str) -> None:
        self._set_state(MonitorState.BROKEN, problem)

    def _set_state(self, state: MonitorState, problem: str) -> None:
        if state is not self._state or (problem and problem != self._problem):
            level = logging.ERROR if state is MonitorState.BROKEN else logging.INFO
            log.log(level, "GPUs", extra={"state": state.value, "problem": problem or "none"})
        self._state, self._problem = state, problem

    def _skipped_text(self) -> str:
        skipped = ", ".join(map(str, self._left_out.indexes()))
        return f"left out, because a call hangs: GPU {skipped}" if skipped else ""

    # ---- the view

    def _view(self, now_s: float) -> MonitorView:
        stuck = tuple(
            StuckCall(call.name, call.gpu, max(0.0, now_s - call.began_at_s))
            for call in (child.stuck_call for child in self._abandoned)
            if call is not None
        )
        released_at_s = self._released_at_s
        return MonitorView(
            state=self._state,
            problem=self._problem,
            gpus=tuple(self._view_gpu(index, now_s) for index in sorted(self._gpus)),
            count=self._count,
            stuck=stuck,
            restarts=max(0, self._spawns - 1),
            released_s=None if released_at_s is None else now_s - released_at_s,
            sweep_s=self._sweep_s,
            pid=self._child.pid if self._child else None,
        )

    def _view_gpu(self, index: int, now_s: float) -> GpuView:
        gpu = self._gpus[index]
        return GpuView(
            index=index,
            uuid=gpu.uuid,
            pci_bus_id=gpu.pci_bus_id,
            age_s=max(0.0, now_s - gpu.heard_at_s),
            is_lost=gpu.is_lost,
            is_skipped=index in self._left_out,
            needs_reset=gpu.needs_reset,
            error=gpu.error,
            errors=gpu.errors,
            groups={
                name: GroupView(max(0.0, now_s - read.at_s), read.values, read.revision)
                for name, read in gpu.groups.items()
            },
            seconds=dict(gpu.seconds),
            events=dict.fromkeys(self._event_types, 0) | gpu.events,
            xids=dict(gpu.xids),
            processes=gpu.processes,
        )


def _event_types(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in EVENT_TYPES.items() if mask & bit)
