"""The collector child: reads the GPUs in a loop and sends what it reads to the agent.

A separate process, because a driver call can block forever and then can't be killed. It has
no state that matters: SIGKILL at any moment loses the values of one interval. It ends when the
agent does (the connection closes), on SIGTERM, and when NVML as a whole fails.

Started by `rankmend.parts_path` with ``CHANNEL PAGE INTERVAL_S PROFILING [SKIPPED_GPU...]``, the first two being
descriptors; its imports are kept few, for its memory.
"""

import json
import os
import select
import signal
import socket
import time
from struct import Struct
from types import FrameType
from typing import Any, Final, NamedTuple

from agent.nvml.fields import CHECKED, CHECKED_REASONS, MESSAGE_BYTES_MAX, PERIOD_S_BY_GROUP, SHOWN
from agent.nvml.nvml_calls import CallPage, GpuLostError, NvmlGoneError
from agent.nvml.sampled_gpu import GpuIdentity, SampledGpu, Value
from agent.nvml.sampler import GpuProcess, GpuSampler

# The version of CUDA, asked of NVML in a process that ends at once.
#
# NVML loads libcuda for the answer and keeps it. The collector child lives for months; the memory of
# a process that only asks is free again after some milliseconds.

# Without an attached GPU NVML opens in milliseconds; libcuda is 100 MB on a disk that may be cold or far away.
ANSWER_S_MAX: Final = 10
_REAP_S_MAX: Final = 1.0
_REAP_EACH_S: Final = 0.01
_DESCRIPTORS_MAX: Final = 65536
_BYTES_MAX: Final = 16


def ask_cuda_version(nvml: Any) -> str:
    """Return the newest version of CUDA that the driver supports, such as "13.0", or "" if unknown.

    ``nvml`` is the module pynvml, and not open in this process, since its state can't be used in a
    fork. Waits `ANSWER_S_MAX` seconds at most: a driver that hangs is the collector's to report.
    """
    answer, theirs = os.pipe()
    try:
        pid = os.fork()
    except OSError:  # the node is out of processes or memory: the GPUs are read all the same
        os.close(answer)
        os.close(theirs)
        return ""
    if pid == 0:
        try:
            _answer(nvml, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        is_ready, _, _ = select.select([answer], [], [], ANSWER_S_MAX)
        text = os.read(answer, _BYTES_MAX) if is_ready else b""
    finally:
        os.close(answer)
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    version = int(text) if text.isdigit() else 0
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def reap(pid: int) -> None:
    """Wait a moment for the end of a killed process. One that hangs in the driver, also on its way out, is left."""
    end_s = time.monotonic() + _REAP_S_MAX
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end_s:
        time.sleep(_REAP_EACH_S)


def _answer(nvml: Any, out: int) -> None:
    """Write the version as a number, such as 13000. Anything that fails ends the process without an answer."""
    # The agent sees its child's end by a connection that closes: this process must not keep it open.
    os.closerange(3, out)
    os.closerange(out + 1, _DESCRIPTORS_MAX)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGTERM})
    signal.alarm(ANSWER_S_MAX)  # also where nobody is left to kill it
    nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS | nvml.NVML_INIT_FLAG_NO_ATTACH)
    os.write(out, str(nvml.nvmlSystemGetCudaDriverVersion()).encode())


WHOLE_S: Final = 30.0  # values that stay the same are sent anew this often
SEND_S_MAX: Final = 1.0  # if the agent is stopped, values are dropped, not queued
QUIET_S_MAX: Final = (
    3.0  # sweeps that found nothing new are reported this often: their ages are all that they tell
)
WAIT_S_MAX: Final = 1.0  # for events in the driver, so that a signal is handled in time
LOST_RETRY_S: Final = 60.0  # a lost GPU is tried again: a reset may have brought it back
_ERROR_CHARS_MAX: Final = 2000
_TIMEVAL: Final = Struct("@ll")


class AgentGoneError(Exception):
    """The agent no longer reads our messages."""


class _Sent(NamedTuple):
    """What the agent has of one group of values."""

    at_s: float
    identity: GpuIdentity
    values: list[Value]
    processes: list[GpuProcess] | None


class Child:
    def __init__(
        self,
        sampler: GpuSampler,
        channel: socket.socket,
        interval_s: float,
        skipped: frozenset[int],
    ) -> None:
        self._sampler = sampler
        self._channel = channel
        self._interval_s = interval_s
        self._skipped = skipped
        self._due_at_s = dict.fromkeys((CHECKED, *PERIOD_S_BY_GROUP), 0.0)
        self._ask_lost_at_s: dict[int, float] = {}
        self._sent: dict[tuple[int, str], _Sent] = {}  # by GPU and group
        self._troubles: dict[int, tuple[str, bool]] = {}  # by GPU: the newest error, needs_reset
        self._same: dict[str, list[int]] = {}  # of this sweep: GPUs by group that are as they were
        self._swept_at_s = float("-inf")  # the newest sweep that was reported
        self.is_stopping = False
        # not settimeout(): that would also make each check of the connection wait
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(SEND_S_MAX), 0))

    def run(self) -> None:
        """Sample until SIGTERM, or until the agent is gone."""
        sampler = self._sampler
        sampler.open(self._skipped)
        self.send(
            {
                "kind": "node",
                "driver": sampler.driver,
                "cuda": sampler.cuda,
                "nvml": sampler.nvml_version,
                "count": sampler.count,
                "skipped": sorted(self._skipped),
                "event_mask": sampler.event_mask,
            }
        )
        while not self.is_stopping:
            began_at_s = time.monotonic()
            self._sweep(began_at_s)
            self._wait_until(began_at_s + self._interval_s)
        sampler.close()

    def _sweep(self, now_s: float) -> None:
        due = [group for group, due_at_s in self._due_at_s.items() if now_s >= due_at_s]
        for gpu in self._sampler.gpus:
            if self.is_stopping:
                return
            self._sample(gpu, due)
        for group in due:
            self._due_at_s[group] = now_s + PERIOD_S_BY_GROUP.get(group, 0.0)
        same, self._same = self._same, {}
        is_as_before = due == [CHECKED] and len(same.get(CHECKED, ())) == len(self._sampler.gpus)
        if is_as_before and now_s - self._swept_at_s < QUIET_S_MAX:
            return
        if self.send({"kind": "sweep", "duration_s": time.monotonic() - now_s, "same": same}):
            self._swept_at_s = now_s

    def _sample(self, gpu: SampledGpu, due: list[str]) -> None:
        now_s = time.monotonic()
        if gpu.is_lost and now_s >= self._ask_lost_at_s.setdefault(gpu.index, now_s + LOST_RETRY_S):
            del self._ask_lost_at_s[gpu.index]
            self._sampler.reopen(gpu)
        if gpu.is_lost:
            self._report(gpu, CHECKED, [], None)
            return
        gpu.needs_reset = False
        try:
            for group in due:
                values = self._sampler.sample(gpu, group)
                processes = self._sampler.processes(gpu) if group == "processes" else None
                gpu.is_lost = False
                self._report(gpu, group, values, processes)
        except GpuLostError as error:
            gpu.is_lost, gpu.last_error = True, str(error)
            self._report(gpu, CHECKED, [], None)

    def _report(
        self, gpu: SampledGpu, group: str, values: list[Value], processes: list[GpuProcess] | None
    ) -> None:
        if gpu.is_lost:
            for key in [key for key in self._sent if key[0] == gpu.index]:
                del self._sent[key]
        now_s, key = time.monotonic(), (gpu.index, group)
        sent = self._sent.get(key)
        is_same = (
            sent is not None
            and sent.values == values
            and sent.identity == gpu.identity
            and now_s - sent.at_s < WHOLE_S
        )
        if is_same and sent is not None and self._is_nothing_new(gpu, group, sent, processes):
            self._same.setdefault(group, []).append(gpu.index)  # the end of the sweep says so
            return
        message: dict[str, Any] = {
            "kind": "gpu",
            "gpu": gpu.index,
            "uuid": gpu.identity.uuid,
            "pci_bus_id": gpu.identity.pci_bus_id,
            "group": group,
            "values": None if is_same else values,
            "seconds": gpu.seconds,
            "errors": gpu.error_count,
            "error": gpu.last_error,
            "is_lost": gpu.is_lost,
            "needs_reset": gpu.needs_reset,
        }
        if processes is not None:
            message["processes"] = processes
        trouble = (gpu.last_error, gpu.needs_reset)
        if self.send(message):
            gpu.seconds, gpu.error_count = {}, 0
            if not is_same and not gpu.is_lost:
                self._sent[key] = _Sent(now_s, gpu.identity, values, processes)
            self._troubles[gpu.index] = trouble

    def _is_nothing_new(
        self, gpu: SampledGpu, group: str, sent: _Sent, processes: list[GpuProcess] | None
    ) -> bool:
        """Return whether a message would say only what stands already.

        Time under a reason that no check reads, such as an idle GPU's, waits for what is shown.
        """
        has_time = any(
            seconds and (group == SHOWN or reason in CHECKED_REASONS)
            for reason, seconds in gpu.seconds.items()
        )
        return (
            not has_time
            and not gpu.error_count
            and sent.processes == processes
            and self._troubles.get(gpu.index) == (gpu.last_error, gpu.needs_reset)
        )

    def _wait_until(self, deadline_s: float) -> None:
        """Wait for events until the next sweep, and notice if the agent is gone."""
        while not self.is_stopping:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            if event := self._sampler.wait_event(min(left_s, WAIT_S_MAX)):
                index, kind, code = event
                self.send({"kind": "event", "gpu": index, "event": kind, "code": code})
                # the driver's verdict may have changed: read it with the next sweep
                self._due_at_s["medium"] = 0.0
            self._check_agent()
        self._check_agent()

    def _check_agent(self) -> None:
        try:
            if self._channel.recv(1, socket.MSG_DONTWAIT) == b"":
                raise AgentGoneError
            self._due_at_s[SHOWN] = 0.0  # somebody is expected to look: read it with the next sweep
        except BlockingIOError:
            return
        except OSError as error:
            raise AgentGoneError from error

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; return whether the agent has it."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {len(data)} bytes about {message.get('gpu')}")
        try:
            self._channel.send(data)
        except BlockingIOError:  # timed out
            return False
        except OSError as error:
            raise AgentGoneError from error
        return True


def main(arguments: list[str]) -> int:
    """Run the child on the descriptors from the agent."""
    channel_text, page_text, interval_text, profiling_text, *skipped = arguments
    channel = socket.socket(fileno=int(channel_text))
    page = CallPage(int(page_text))
    os.close(int(page_text))
    import pynvml  # noqa: PLC0415 - after the page: a preloaded library can hang while it loads

    cuda = ask_cuda_version(pynvml)  # before NVML is open in this process
    sampler = GpuSampler(pynvml, page, cuda=cuda, has_profiling=profiling_text == "1")
    child = Child(sampler, channel, float(interval_text), frozenset(map(int, skipped)))

    def stop(_number: int, _frame: FrameType | None) -> None:
        child.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    # the agent blocks its signals in all threads, and a child inherits that
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    try:
        child.run()
        return 0
    except AgentGoneError:
        sampler.close()
        return 0
    except pynvml.NVMLError as error:
        code, text = int(error.value), str(error)
    except NvmlGoneError as error:
        code, text = 0, str(error)
    except Exception:  # noqa: BLE001 - the agent logs it and starts another child
        import traceback  # noqa: PLC0415 - 0.6 MB that are needed only now

        code, text = 0, traceback.format_exc()[-_ERROR_CHARS_MAX:]
    try:
        child.send({"kind": "failed", "code": code, "error": text[:_ERROR_CHARS_MAX]})
    except AgentGoneError:
        return 0
    return 1
