"""The agent's own sampler on this machine's GPU, as the agent's child runs it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent.nvml.children import make_page
from agent.nvml.nvml_calls import CallPage
from agent.nvml.sampled_gpu import SampledGpu
from agent.nvml.sampler import GpuSampler
from bench.gpu.machine import tried_uuid
from bench.gpu.rows import NotTriedError

GROUPS = ("fast", "activity", "medium", "slow")


class TimedPage(CallPage):
    """Also keeps how long each call of NVML took, by its name."""

    def __init__(self, descriptor: int, now_s: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(descriptor)
        self._now_s = now_s
        self.seconds: dict[str, list[float]] = {}
        self._name, self._began_s = "", 0.0

    def begin(self, name: str, gpu: int, now_s: float) -> None:
        super().begin(name, gpu, now_s)
        self._name, self._began_s = name, self._now_s()

    def end(self) -> None:
        took_s = self._now_s() - self._began_s
        super().end()
        self.seconds.setdefault(self._name, []).append(took_s)

    def slowest(self) -> tuple[str, float]:
        """Return the call that once took longest, and how long in seconds."""
        return max(
            ((name, max(taken)) for name, taken in self.seconds.items()),
            key=lambda one: one[1],
            default=("", 0.0),
        )


class Watched:
    """An opened sampler with the GPU that is tried: the driver's first one, unless another was named."""

    def __init__(self, nvml: Any, cuda: str = "") -> None:
        descriptor = make_page()
        self.nvml = nvml
        self.page = TimedPage(descriptor)
        os.close(descriptor)  # the page stays mapped
        self.sampler = GpuSampler(nvml, self.page, cuda=cuda)
        try:
            self.sampler.open(frozenset())
        except nvml.NVMLError as error:
            raise NotTriedError(f"NVML can't be opened: {error}") from error
        if not self.sampler.gpus:
            raise NotTriedError("NVML lists no GPU")
        tried = [one for one in self.sampler.gpus if one.identity.uuid == tried_uuid()]
        self.gpu: SampledGpu = (tried or self.sampler.gpus)[0]  # with MIG no card has that UUID

    def values(self, *groups: str) -> dict[str, float]:
        """Return the values of groups by ``name{label,label}``, each as the agent exports it."""
        found = {}
        for group in groups:
            for name, labels, value in self.sampler.sample(self.gpu, group):
                found[name + ("{" + ",".join(labels) + "}" if labels else "")] = value
        return found

    def info(self) -> tuple[str, ...]:
        """Return the labels of rankmend_gpu_info behind those of the GPU."""
        for name, labels, _value in self.sampler.sample(self.gpu, "slow"):
            if name == "info":
                return labels
        raise NotTriedError("the agent has no rankmend_gpu_info for this GPU")


@contextmanager
def watching(nvml: Any, cuda: str) -> Iterator[Watched]:
    """Open the sampler; ``cuda`` is what `ask_cuda_version` said."""
    watched = Watched(nvml, cuda)
    try:
        yield watched
    finally:
        watched.sampler.close()
