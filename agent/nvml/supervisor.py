"""Supervises the collector children: starts one, and replaces it if it hangs or ends.

On a bad GPU, driver calls that never return are normal, and a process inside one cannot be killed. So a
child whose call has passed its deadline is abandoned, and nothing waits for it. The next child leaves
out every GPU on which a call has hung, so that the others are still read. A left-out GPU is tried again
in a separate child, which asks about no other GPU, and only once no process hangs on it. At most one
process hangs on a GPU, and at most `ABANDONED_MAX` in total.

No thread and no lock: `agent/nvml/monitor.py` calls `tick` about once a second and guards the rest.
"""

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

from agent.nvml.child_rules import (
    CALL_S_MAX,
    SILENT_S_MAX,
    LeftOut,
    Overdue,
    OverdueLook,
    Starts,
    find_overdue,
    lacks_processor,
    may_try,
    nvml_hangs,
    too_many_hang,
)
from agent.nvml.children import Children, CollectorChild, DriverTraces, ReleaseFile, Spawn
from agent.nvml.fields import MESSAGE_BYTES_MAX, NO_GPU, WANT_SHOWN, NvmlCall
from agent.nvml.known_gpus import (
    GPUS_MAX,
    EventMessage,
    FailedMessage,
    GpuChange,
    GpuMessage,
    KnownGpus,
    MonitorState,
    MonitorView,
    NodeMessage,
    StuckCall,
    SweepMessage,
    decode,
)
from rankmend.errors import SourceError, StorageError

PAUSE_S: Final = (
    6.0  # ticks come each second while a child runs: after such a gap the agent itself was stopped
)
IDLE_S_MAX: Final = 60.0  # without a question: the GPU collectors have been disabled
END_S_MAX: Final = (
    1.5  # for the children to end when the agent ends: one may wait in the driver for 1 s
)
_MISMATCH_CODE: Final = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_NO_LIBRARY_CODE: Final = 12  # NVML_ERROR_LIBRARY_NOT_FOUND
_NO_DRIVER_CODES: Final = frozenset({9, 12})  # NVML_ERROR_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND

log = logging.getLogger(__name__)


class GpuSupervisor:
    def __init__(
        self,
        interval_s: float,
        spawn: Spawn,
        now_s: float,
        call_s_max: float = CALL_S_MAX,
        silent_s_max: float = SILENT_S_MAX,
        kept: ReleaseFile | None = None,
        read_traces: Callable[[], DriverTraces | None] = lambda: None,
    ) -> None:
        """``kept`` remembers a release over a restart of the agent; ``read_traces`` looks for a driver, None: not known."""
        self._interval_s = interval_s
        self._call_s_max = call_s_max
        self._silent_s_max = silent_s_max
        self._spawn = spawn
        self._kept = kept
        self._read_traces = read_traces
        self._untraced: DriverTraces | None = None  # as they were when there was no driver
        # for all messages: a new one of this size would be mapped and unmapped for each
        self._packet = bytearray(MESSAGE_BYTES_MAX)
        self.children = Children()
        self._gpus = KnownGpus()
        self._left_out = LeftOut()
        self._starts = Starts()
        self._ticked_at_s = self._resumed_at_s = now_s
        self._asked_at_s = 0.0
        self._state = MonitorState.STARTING
        self._problem = "no answer yet"
        self._has_swept = self._is_mismatched = self._is_in_sweep = False
        self._wanted_at_s = float("-inf")  # when the child was last asked for what no check reads
        self._changes = 0
        self._sweep_s: float | None = None
        self._count: int | None = None
        self._has_new_events = False
        self._released_at_s: float | None = None
        self._released_until_s = 0.0
        if kept is not None and (release := kept.load(now_s)) is not None:
            self._released_at_s, self._released_until_s = release.since_s, release.until_s
            log.warning("the GPUs stay released", extra={"for_s": round(release.until_s - now_s)})

    # ---- questions

    def note_question(self, now_s: float) -> bool:
        """Note that a collector asks for values; return whether the next tick cannot wait."""
        self._asked_at_s = now_s
        if self._state is not MonitorState.RELEASED or self._released_at_s is not None:
            return False
        self._begin_anew()  # the GPUs were released while no collector asked
        return True

    @property
    def has_answered(self) -> bool:
        return self._has_swept or self._state is not MonitorState.STARTING

    def steady_number(self, now_s: float) -> int | None:
        """Return a number that stays while only ages change; None while anything else may, and where a tick can't wait."""
        children = self.children
        is_steady = (
            self._state is MonitorState.RUNNING
            and self._released_at_s is None
            and not children.abandoned
            and all(self._overdue(child, now_s) is None for child in children.talking())
        )
        return self._changes if is_steady else None

    def pop_new_events(self) -> bool:
        """Return whether GPUs have reported events, or were lost or came back, since the last call."""
        has_new_events, self._has_new_events = self._has_new_events, False
        return has_new_events

    def view(self, now_s: float) -> MonitorView:
        children, released_at_s = self.children, self._released_at_s
        return MonitorView(
            state=self._state,
            problem=self._problem,
            gpus=self._gpus.views(now_s, self._left_out),
            count=self._count,
            stuck=tuple(
                StuckCall(call.name, call.gpu, max(0.0, now_s - call.began_at_s))
                for call in children.stuck_calls()
            ),
            restarts=max(0, self._starts.count - 1),
            released_s=None if released_at_s is None else now_s - released_at_s,
            sweep_s=self._sweep_s,
            pid=children.collector.pid if children.collector else None,
            is_mismatched=self._is_mismatched,
        )

    # ---- orders

    def release(self, for_s: float, now_s: float) -> None:
        """Release the GPUs for a time, from the next tick on."""
        if self._kept is not None:
            try:
                self._kept.save(now_s, now_s + for_s)
            except StorageError as error:
                raise SourceError(f"the GPUs are not released: {error}") from error
        self._released_at_s, self._released_until_s = now_s, now_s + for_s

    def resume(self) -> bool:
        """Resume reading the GPUs at the next tick; return whether they were released."""
        was_released = self._released_at_s is not None
        self._end_release()
        self._starts.next_at(0.0)
        if not self.children.abandoned:
            self._left_out.clear()
        return was_released

    # ---- what happens with time

    def tick(self, now_s: float) -> None:
        """Read the children's messages, replace stuck children, reap dead ones."""
        if now_s - self._ticked_at_s > PAUSE_S:  # SIGSTOP or a frozen cgroup, for the child as well
            self._resumed_at_s = self._asked_at_s = now_s  # no collector could ask either
        self._ticked_at_s = now_s
        children = self.children
        children.bury(now_s)
        if self._released_at_s is not None and now_s >= self._released_until_s:
            self._end_release()
            log.warning("the release has expired; watching the GPUs again")
        is_idle = now_s - self._asked_at_s > max(IDLE_S_MAX, 10 * self._interval_s)
        if self._released_at_s is not None or is_idle:
            self._let_go(now_s)
            return
        if self._state is MonitorState.RELEASED:
            self._begin_anew()
        for child in children.talking():
            self._receive(child, now_s)
        for child in children.talking():
            self._check(child, now_s)
        if self._untraced is not None and self._read_traces() != self._untraced:
            self._untraced = None
            self._starts.next_at(now_s)
        if children.collector is None and now_s >= self._starts.due_at_s:
            self._start(now_s)
        if children.trial is None and children.collector is not None:
            self._try(now_s)

    @property
    def waits_for_driver(self) -> bool:
        """Return whether nothing of a driver is there, and so no child."""
        return self._untraced is not None and not self.children.talking()

    @property
    def is_in_sweep(self) -> bool:
        """Return whether the child is sending what a sweep has read: more is about to come."""
        return self._is_in_sweep

    def want_shown(self, now_s: float) -> None:
        """Ask the child for the values that no check reads, at most once for each of its sweeps."""
        child = self.children.collector
        if child is None or now_s - self._wanted_at_s < self._interval_s:
            return
        self._wanted_at_s = now_s
        with contextlib.suppress(OSError):  # it has ended, or does not read: `_check` sees to that
            child.channel.send(WANT_SHOWN)

    def end(self, now_s: Callable[[], float]) -> None:
        """End the children with the agent. A child in a driver call ends by itself later."""
        self.children.abandon_all()
        self.children.close(now_s, END_S_MAX)

    def _end_release(self) -> None:
        self._released_at_s = None
        if self._kept is not None:
            self._kept.clear()

    def _begin_anew(self) -> None:
        self._state, self._problem = MonitorState.STARTING, "no answer yet"
        self._has_swept = False

    def _let_go(self, now_s: float) -> None:
        """End the children, because the GPUs are released or no collector asks for them."""
        self.children.abandon_all()
        if self._state is not MonitorState.RELEASED:
            self.children.hurry_burial(now_s)
        self._state, self._problem = MonitorState.RELEASED, "released"
        self._count = None
        self._starts.next_at(0.0)
        self._gpus.forget_values()

    def _start(self, now_s: float) -> None:
        hanging = self.children.hanging_gpus()
        if nvml_hangs(hanging):
            return
        if too_many_hang(hanging):
            self._fail(f"{len(hanging)} GPU collectors hang: not starting another")
            return
        self._starts.begin(now_s)
        self._is_in_sweep = False
        try:
            child = self._spawn(self._interval_s, self._left_out.indexes(), now_s)
        except OSError as error:
            self._fail(f"cannot start the GPU collector: {error}")
            return
        self.children.collector = child
        self._changes += 1

    # ---- messages

    def _receive(self, child: CollectorChild, now_s: float) -> None:
        for _ in range(8 * GPUS_MAX):  # then look at the clock again
            try:
                size, _ancillary, flags, _address = child.channel.recvmsg_into([self._packet])
            except BlockingIOError:
                return
            except OSError:
                size, flags = 0, 0
            if not size:
                self._lose(child, now_s)
                return
            child.reported_at_s = now_s
            try:
                if flags & socket.MSG_TRUNC:
                    raise SourceError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
                self._handle(child, memoryview(self._packet)[:size], now_s)
            except SourceError as error:
                if child is self.children.trial:
                    self._end_trial(now_s, None, has_answered=False)
                    return
                self._fail(str(error))
                self.children.abandon(child, None)
                return
            if not child.is_connected:  # a finished trial
                return

    def _handle(self, child: CollectorChild, data: bytes | memoryview, now_s: float) -> None:
        if child is self.children.trial:
            self._handle_trial(data, now_s)
            return
        match decode(data):
            case NodeMessage() as node:
                if not 0 <= node.count <= GPUS_MAX:
                    raise SourceError(f"the driver lists {node.count} GPUs")
                self._changes += 1
                self._count, self._is_mismatched = node.count, False
                self._gpus.open(node.count)
                self._gpus.set_event_types(node.event_mask)
            case GpuMessage() as values:
                self._is_in_sweep = True
                self._add_values(values, now_s)
            case EventMessage() as event:
                self._add_event(event, now_s)
            case SweepMessage() as sweep:
                self._gpus.note_same(sweep.same, now_s)
                self._sweep_s, self._has_swept, self._is_in_sweep = sweep.duration_s, True, False
                self._set_state(MonitorState.RUNNING, self._skipped_text())
                self._starts.add_sweep(child.started_at_s, now_s)
            case FailedMessage() as failed:
                is_absent = failed.code in _NO_DRIVER_CODES
                state = MonitorState.ABSENT if is_absent else MonitorState.BROKEN
                self._count = None
                self._is_mismatched = failed.code == _MISMATCH_CODE
                self._set_state(state, f"NVML: {failed.error}")
                if failed.code == _NO_LIBRARY_CODE:
                    self._wait_for_driver(now_s)

    def _wait_for_driver(self, now_s: float) -> None:
        """Start no further child for long where nothing of a driver is there: each takes 0.1 s of CPU."""
        traces = self._read_traces()
        if traces is not None and not traces.has_module:
            self._untraced = traces
            self._starts.wait_for_driver(now_s)

    def _add_values(self, message: GpuMessage, now_s: float) -> None:
        self._changes += 1
        change = self._gpus.add_values(message, now_s)
        if change is not GpuChange.NONE:
            self._has_new_events = True
            text = "GPU lost" if change is GpuChange.LOST else "GPU is back"
            log.error(text, extra=self._gpus.names_of(message.gpu))

    def _add_event(self, event: EventMessage, now_s: float) -> None:
        has_code = self._gpus.add_event(event, now_s)
        self._has_new_events = True
        self._changes += 1
        names = self._gpus.names_of(event.gpu)
        fields = {"gpu": names["gpu"], "uuid": names["uuid"], "event": event.event}
        log.warning("GPU event", extra=fields | ({"xid": event.code} if has_code else {}))

    # ---- GPUs that are left out

    def _try(self, now_s: float) -> None:
        """Try a left-out GPU in a child that asks about no other."""
        hanging = self.children.hanging_gpus()
        gpu = self._left_out.due(now_s, hanging) if may_try(hanging) else None
        if gpu is None:
            return
        others = [index for index in range(GPUS_MAX) if index != gpu]
        try:
            child = self._spawn(self._interval_s, others, now_s)
        except OSError as error:
            self._left_out.add(gpu, now_s)
            log.warning("cannot retry a GPU", extra={"gpu": gpu, "error": str(error)})
            return
        self.children.trial, self.children.trial_gpu = child, gpu
        log.info("retrying a GPU that was left out", extra={"gpu": gpu})

    def _handle_trial(self, data: bytes | memoryview, now_s: float) -> None:
        match decode(data):
            case GpuMessage() as values if values.gpu == self.children.trial_gpu:
                self._add_values(values, now_s)
            case SweepMessage():
                self._end_trial(now_s, None, has_answered=True)
            case FailedMessage():
                self._end_trial(now_s, None, has_answered=False)

    def _end_trial(self, now_s: float, call: NvmlCall | None, *, has_answered: bool) -> None:
        children, gpu = self.children, self.children.trial_gpu
        assert children.trial is not None
        if has_answered:
            self._left_out.take_back(gpu)
            if children.collector is not None:  # the next one reads this GPU as well
                children.abandon(children.collector, None)
            self._starts.due_at_s = now_s
        else:
            self._left_out.add(gpu, now_s)
        log.info("GPU retried", extra={"gpu": gpu, "answers": has_answered})
        children.abandon(children.trial, call)

    # ---- what goes wrong

    def _overdue(self, child: CollectorChild, now_s: float) -> Overdue | None:
        return find_overdue(
            child.call(),
            child.reported_at_s,
            self._resumed_at_s,
            now_s,
            call_s_max=self._call_s_max,
            silent_s_max=self._silent_s_max,
            interval_s=self._interval_s,
        )

    def _check(self, child: CollectorChild, now_s: float) -> None:
        """Abandon a child that has passed its deadline, unless it only gets no processor."""
        overdue = self._overdue(child, now_s)
        if overdue is None or self._lacks_processor(child, overdue, now_s):
            return
        call = overdue.call
        if child is self.children.trial:
            self._end_trial(now_s, call, has_answered=False)
            return
        self._fail(overdue.problem)
        if call.gpu == NO_GPU:
            self._starts.add_end(child.started_at_s, now_s)
        else:  # the next child leaves the GPU out; start it at once, because the other GPUs wait
            self._left_out.add(call.gpu, now_s)
            self._starts.next_at(now_s)
        self.children.abandon(child, call)

    def _lacks_processor(self, child: CollectorChild, overdue: Overdue, now_s: float) -> bool:
        first, work = child.first_overdue, child.work()
        if first is None or first.call != overdue.call:
            ran_s = 0.0 if work is None else work.ran_s
            first = child.first_overdue = OverdueLook(overdue.call, now_s, ran_s)
            if is_late := lacks_processor(first, work, now_s):
                fields = {"pid": child.pid, "problem": overdue.problem}
                log.warning("a GPU collector gets no processor", extra=fields)
            return is_late
        return lacks_processor(first, work, now_s)

    def _lose(self, child: CollectorChild, now_s: float) -> None:
        """Abandon a child that has closed its connection: it has ended or is about to."""
        if child is self.children.trial:
            self._end_trial(now_s, None, has_answered=False)
            return
        if self._state not in (MonitorState.ABSENT, MonitorState.BROKEN):
            self._fail(f"the GPU collector died{child.status_text()}")
        self._starts.add_end(child.started_at_s, now_s)
        self.children.abandon(child, None)

    def _fail(self, problem: str) -> None:
        self._set_state(MonitorState.BROKEN, problem)

    def _set_state(self, state: MonitorState, problem: str) -> None:
        if state is not self._state or (problem and problem != self._problem):
            level = logging.ERROR if state is MonitorState.BROKEN else logging.INFO
            log.log(level, "GPUs", extra={"state": state.value, "problem": problem or "none"})
            self._changes += 1
        self._state, self._problem = state, problem

    def _skipped_text(self) -> str:
        skipped = ", ".join(map(str, self._left_out.indexes()))
        return f"left out, because a call hangs: GPU {skipped}" if skipped else ""
