"""The device that the areas train on: the GPU, or, to try an area's own code where there is none, the CPU.

On the CPU streams are nothing, a spin sleeps, and events take the host's time: figures of such a run prove nothing.
"""

import contextlib
import time
from typing import Any

from bench.gpu.ptx_kernel import PtxKernel

_SOURCE = """
extern "C" __global__ void spin(int microseconds) {
    unsigned long long begin, now, length = 1000ull * (unsigned long long)microseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < length);
}
"""
_PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
"""
_TRIAL_MS = 10.0
_OFF_RATIO_MAX = 0.02


class Gpu:
    """The first CUDA device of this process. ``off_ratio_max``: how far a spin's length may be off; others use the GPU, too."""

    name, backend = "cuda", "nccl"

    def __init__(self, off_ratio_max: float = _OFF_RATIO_MAX) -> None:
        import torch

        self.torch = torch
        self._off_ratio_max = off_ratio_max
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        self.spinner = ""  # what makes the spin kernel
        self._launch: Any = None

    def spin(self, milliseconds: float) -> None:
        """Have the current stream do nothing else for so long."""
        if self._launch is None:
            self._launch = self._find_spin()
        self._launch(milliseconds)

    def stream(self) -> Any:
        return self.torch.cuda.Stream()

    def on(self, stream: Any) -> Any:
        """Return a context in which the stream is the current one; None leaves the one that is."""
        return self.torch.cuda.stream(stream)

    def follow(self, stream: Any, other: Any = None) -> None:
        """Have ``stream`` begin after what the other one (or the current one) holds now; None is the current one."""
        current = self.torch.cuda.current_stream()
        (stream or current).wait_stream(other or current)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def mark(self) -> Any:
        """Return an event recorded now on the current stream."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms_between(self, begin: Any, end: Any) -> float:
        """Return the stream's time between two marks; waits for the second."""
        end.synchronize()
        return float(begin.elapsed_time(end))

    def is_passed(self, event: Any) -> bool:
        return bool(event.query())

    def pinned(self, count: int) -> Any:
        """Return so many bytes of pinned memory."""
        return self.torch.empty(count, dtype=self.torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info()[0])

    def _find_spin(self) -> Any:
        """Return the first of the ways to spin whose length the events confirm."""
        problems = []
        for make in (self._by_driver, self._by_torch, self._by_cupy, self._by_clock):
            try:
                launch = make()
                launch(_TRIAL_MS)
                self.synchronize()
                begin = self.mark()
                launch(_TRIAL_MS)
                took_ms = self.ms_between(begin, self.mark())
            except Exception as error:  # noqa: BLE001 - the next way is tried
                problems.append(f"{make.__name__}: {type(error).__name__}: {error}"[:200])
                continue
            if abs(took_ms / _TRIAL_MS - 1) <= self._off_ratio_max:
                self.spinner = make.__name__.removeprefix("_by_")
                return launch
            problems.append(f"{make.__name__}: {took_ms:.3f} ms for {_TRIAL_MS} ms")
        raise RuntimeError("no spin kernel of a set length: " + "; ".join(problems))

    def _by_driver(self) -> Any:
        """Load the kernel as PTX: takes neither a CUDA toolkit, as `_by_torch`, nor CuPy."""
        kernel = PtxKernel(_PTX, b"spin")
        current = self.torch.cuda.current_stream
        return lambda ms: kernel.launch(int(ms * 1e6), stream=current().cuda_stream)

    def _by_torch(self) -> Any:
        compile_kernel = getattr(self.torch.cuda, "_compile_kernel", None)
        if compile_kernel is None:
            raise RuntimeError("this PyTorch compiles no kernels")
        kernel = compile_kernel(_SOURCE, "spin")
        return lambda ms: kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[int(ms * 1000)])

    def _by_cupy(self) -> Any:
        import cupy  # type: ignore[import-not-found, unused-ignore]

        kernel = cupy.RawKernel(_SOURCE, "spin")

        def launch(ms: float) -> None:
            with cupy.cuda.ExternalStream(self.torch.cuda.current_stream().cuda_stream):
                kernel((1,), (1,), (cupy.int32(ms * 1000),))

        return launch

    def _by_clock(self) -> Any:
        """Calibrate PyTorch's own kernel, which counts cycles: right while the clock does not change."""
        cycles = 20_000_000
        rates = []
        for _ in range(5):
            begin = self.mark()
            self.torch.cuda._sleep(cycles)
            rates.append(cycles / self.ms_between(begin, self.mark()))
        rate = sorted(rates)[-1]
        return lambda ms: self.torch.cuda._sleep(int(ms * rate))


class Cpu:
    """Stands in for a GPU where an area's own code is tried."""

    name, backend = "cpu", "gloo"
    spinner = "sleep"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def spin(self, milliseconds: float) -> None:
        time.sleep(milliseconds / 1000)

    def stream(self) -> Any:
        return None

    def on(self, stream: Any) -> Any:  # noqa: ARG002
        return contextlib.nullcontext()

    def follow(self, stream: Any, other: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def mark(self) -> Any:
        return time.perf_counter()

    def ms_between(self, begin: Any, end: Any) -> float:
        return float(end - begin) * 1000

    def is_passed(self, event: Any) -> bool:  # noqa: ARG002
        return True

    def pinned(self, count: int) -> Any:
        return self.torch.empty(count, dtype=self.torch.uint8)

    def free_bytes(self) -> int:
        return 1 << 30
