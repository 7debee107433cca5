"""What the hook must leave as it is, results, graphs and compiled code, and what it costs a step."""

import gc
import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import NotTriedError, Trial

COST_US_MAX = 100.0
_STEPS = 30
_REPLAYS = 20
_ROUNDS = 300  # with and without, in turns
_WIDTH = 128


class Harm:
    """Trains the same again with the hook as without it."""

    def __init__(self, rank: OwnRank) -> None:
        self._rank, self._device = rank, rank.device
        self._plain: dict[str, str | Exception] = {}
        torch = rank.device.torch
        torch.use_deterministic_algorithms(True, warn_only=True)
        self._kinds: dict[str, Callable[[], str]] = {
            "training": self._train,
            "graph": lambda: self._replay(with_collective=False),
            "graph_collective": lambda: self._replay(with_collective=True),
            "compile": lambda: self._train_compiled("default"),
            "reduce_overhead": lambda: self._train_compiled("reduce-overhead"),
        }

    def train_without(self, kind: str) -> None:
        """Train before the hook comes in; an error is kept for the row."""
        try:
            self._rank.start_group()
            self._plain[kind] = self._kinds[kind]()
        except Exception as error:  # noqa: BLE001 - it is the row's reason
            self._plain[kind] = error

    def equal(self, trial: Trial, kind: str) -> None:
        """Train the same with the hook, twice, and compare the digests of all results."""
        plain = self._plain[kind]
        if isinstance(plain, Exception):
            text = f"it does not run here without rankmend: {type(plain).__name__}: {plain}"
            raise NotTriedError(text[:300])
        self._rank.hook()
        before = self._rank.read().collectives_entered
        found = [self._kinds[kind]() for _ in range(2)]
        entered = self._rank.read().collectives_entered - before
        trial.figure("digest", plain[:12])
        trial.figure("collectives_told", entered)
        if kind != "graph":
            trial.check(entered, "the hook saw no collective: it was not at work")
        if found != [plain, plain]:
            again = self._rank.without_hook(self._kinds[kind])
            if again != plain:
                raise NotTriedError("it does not come out equal without rankmend either")
            trial.check(False, f"without the hook {plain[:12]}, with it {[d[:12] for d in found]}")

    def cost(self, trial: Trial) -> None:
        """Time steps with and without the hook's writer, in turns."""
        self._rank.hook()
        torch = self._device.torch
        model, optimizer = self._make(torch.optim.SGD)
        replica = torch.nn.parallel.DistributedDataParallel(model)
        batch = torch.ones(32, _WIDTH, device=self._device.name)
        total = torch.ones(1, device=self._device.name)

        def step() -> float:
            self._device.synchronize()
            began_s = time.perf_counter()
            optimizer.zero_grad()
            replica(batch).square().mean().backward()
            torch.distributed.all_reduce(total)
            optimizer.step()
            self._device.synchronize()
            return time.perf_counter() - began_s

        for _ in range(10):
            step()
        on, off = [], []
        gc.disable()
        try:
            for _ in range(_ROUNDS if self._device.name == "cuda" else 10):
                on.append(step())
                off.append(self._rank.without_hook(step))
        finally:
            gc.enable()
        cost_us = 1e6 * statistics.median(a - b for a, b in zip(on, off, strict=True))
        trial.figure("step_with_us", 1e6 * statistics.median(on))
        trial.figure("step_without_us", 1e6 * statistics.median(off))
        trial.figure("cost_us", cost_us)
        trial.figure("steps_each", len(on))
        trial.check(cost_us <= COST_US_MAX, f"{cost_us:.1f} µs a step")

    # What is trained --------------------------------------------------------------------------

    def _make(self, kind: Any, **more: Any) -> tuple[Any, Any]:
        torch = self._device.torch
        torch.manual_seed(7)
        layers = torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.GELU(), torch.nn.Linear(_WIDTH, _WIDTH)
        model = torch.nn.Sequential(*layers).to(self._device.name)
        return model, kind(model.parameters(), lr=0.01, **more)

    def _batches(self, count: int) -> list[Any]:
        torch = self._device.torch
        generator = torch.Generator().manual_seed(11)
        made = [torch.randn(32, _WIDTH, generator=generator) for _ in range(count)]
        return [one.to(self._device.name) for one in made]

    def _train(self) -> str:
        torch = self._device.torch
        model, optimizer = self._make(torch.optim.AdamW)
        replica = torch.nn.parallel.DistributedDataParallel(model)
        losses = []
        for batch in self._batches(_STEPS):
            optimizer.zero_grad()
            loss = replica(batch).square().mean()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean, async_op=True).wait()
            losses.append(mean)
        self._device.synchronize()
        return _digest([*model.parameters(), *losses])

    def _replay(self, *, with_collective: bool) -> str:
        if self._device.name != "cuda":
            raise NotTriedError("no CUDA graphs here")
        torch = self._device.torch
        model, optimizer = self._make(torch.optim.SGD, momentum=0.9)
        batches = self._batches(_REPLAYS)
        batch = batches[0].clone()

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = model(batch).square().mean()
            loss.backward()
            mean = loss.detach()
            if with_collective:
                torch.distributed.all_reduce(mean)
            optimizer.step()
            return mean

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mean = step()
        losses = []
        for one in batches:
            batch.copy_(one)
            graph.replay()
            losses.append(mean.clone())
        torch.cuda.synchronize()
        return _digest([*model.parameters(), *losses])

    def _train_compiled(self, mode: str) -> str:
        torch = self._device.torch
        if self._device.name != "cuda":
            raise NotTriedError("it takes too long on the CPU")
        torch._dynamo.reset()
        model, optimizer = self._make(torch.optim.SGD)
        compiled = torch.compile(model, mode=mode)
        losses = []
        for batch in self._batches(_STEPS):
            optimizer.zero_grad()
            loss = compiled(batch).square().mean()
            loss.backward()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean, async_op=True).wait()
            optimizer.step()
            losses.append(mean)
        self._device.synchronize()
        return _digest([*model.parameters(), *losses])


def _digest(tensors: list[Any]) -> str:
    """Return the digest of the bytes of small tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(bytes(plain.view(plain.new_empty(0).byte().dtype).tolist()))
    return digest.hexdigest()
