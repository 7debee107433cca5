"""Waits and computations of known length on a GPU, against what the hook tells of them."""

import time
import warnings
from typing import Any

from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import Trial

OFF_RATIO_MAX = 0.05
PENDING_MAX = 64  # instead of the hook's own bound, which no stream of this row's length fills
OWN_MS, OTHER_MS, LOAD_MS = 20.0, 60.0, 20.0
PIECES = 10
BYTES = 4 << 30
HELD_MS = 400.0
CALLS = 50
MANY = 140  # more would fill the queue of the stream


class Truth:
    """One rank whose waits are made by kernels that spin."""

    def __init__(self, rank: OwnRank) -> None:
        self._rank, self._device = rank, rank.device

    def wait(self, trial: Trial, *, on_side: bool) -> None:
        """A kernel on another stream keeps a collective from ending, while this stream computes and then waits."""
        self._rank.hook()
        device = self._device
        own, other = (device.stream() if on_side else None), device.stream()
        tensor = device.torch.ones(1024, device=device.name)
        dist = device.torch.distributed

        def one() -> None:
            device.synchronize()
            device.follow(other)
            if own is not None:
                device.follow(own)
            with device.on(other):
                device.spin(OTHER_MS)
                work = dist.all_reduce(tensor, async_op=True)
            with device.on(own):
                device.spin(OWN_MS)
                work.wait()
            device.synchronize()

        told_ms, wall_ms = self._measure(one)
        truth_ms = OTHER_MS - OWN_MS
        self._compare(trial, told_ms, truth_ms, "wait")
        if not on_side:
            self._compare(trial, wall_ms - told_ms, OWN_MS, "compute", slack_ms=1.0)
        trial.figure("spin", device.spinner)

    def collective(self, trial: Trial) -> None:
        """NCCL copies a large tensor: a collective that takes the device a time."""
        self._rank.hook()
        device = self._device
        torch = device.torch
        count = BYTES if device.name == "cuda" else BYTES >> 8
        source = torch.ones(count, dtype=torch.uint8, device=device.name)
        target = torch.empty_like(source)
        truths: list[float] = []

        def one() -> None:
            device.synchronize()
            device.spin(5.0)  # so that the device and not the host sets the pace
            begin = device.mark()
            torch.distributed.all_gather_into_tensor(target, source)
            truths.append(device.ms_between(begin, device.mark()))

        told_ms, _wall_ms = self._measure(one)
        # The first call is not measured: it makes what NCCL needs.
        self._compare(trial, told_ms, sum(truths[1:]) / PIECES, "collective", slack_ms=0.1)

    def backward_end(self, trial: Trial) -> None:
        """DDP's reduction ends late, since a kernel on another stream keeps it from starting."""
        self._rank.hook()
        device = self._device
        torch = device.torch
        other = device.stream()

        def reduce_late(_state: object, bucket: Any) -> Any:
            device.follow(other)
            with device.on(other):
                device.spin(OTHER_MS)
                work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        reduce_late.__annotations__.clear()  # DDP takes its own types alone
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(64, 64, device=device.name)
        )
        model.register_comm_hook(None, reduce_late)
        batch = torch.ones(8, 64, device=device.name)

        def one() -> None:
            loss = model(batch).sum()
            device.synchronize()
            loss.backward()
            device.synchronize()

        told_ms, _wall_ms = self._measure(one)
        self._compare(trial, told_ms, OTHER_MS, "wait", slack_ms=0.5)

    def barrier(self, trial: Trial) -> None:
        """The host waits for a barrier, and so does the stream, which has nothing else to do."""
        self._rank.hook()
        device = self._device
        dist = device.torch.distributed
        other = device.stream()

        def one() -> None:
            device.synchronize()
            with device.on(other):
                device.spin(OTHER_MS)
                work = dist.all_reduce(
                    device.torch.ones(8, device=device.name), async_op=True
                )  # the barrier comes behind it in NCCL's stream
            dist.barrier(device_ids=[0]) if device.name == "cuda" else dist.barrier()
            work.wait()
            device.synchronize()

        told_ms, _wall_ms = self._measure(one)
        self._compare(trial, told_ms, OTHER_MS, "wait", slack_ms=0.5)

    def loader(self, trial: Trial) -> None:
        """A data set whose samples take a known time."""
        self._rank.hook()
        device = self._device
        torch = device.torch
        truths: list[float] = []

        class Slow(torch.utils.data.Dataset):  # type: ignore[name-defined, misc]
            def __len__(self) -> int:
                return PIECES + 1

            def __getitem__(self, place: int) -> Any:
                began_s = time.perf_counter()
                time.sleep(LOAD_MS / 1000)
                truths.append((time.perf_counter() - began_s) * 1000)
                return torch.full((16,), float(place))

        batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=1))

        def one() -> None:
            next(batches).to(device.name)
            device.spin(1.0)

        told = self._measure_sections(one)
        self._compare(trial, told["io"], sum(truths[1:]) / PIECES, "io", slack_ms=0.5)

    def own_sections(self, trial: Trial) -> None:
        """The script's own sections, in which the host waits for kernels of known length."""
        self._rank.hook()
        import rankmend

        device = self._device

        def one() -> None:
            with rankmend.section("compute"):
                device.spin(OWN_MS)
                device.synchronize()
            with rankmend.section("communication"), rankmend.section("wait"):
                device.spin(OTHER_MS)
                device.synchronize()

        told = self._measure_sections(one)
        self._compare(trial, told["compute"], OWN_MS, "compute", slack_ms=0.2)
        self._compare(trial, told["wait"], OTHER_MS, "wait", slack_ms=0.2)

    def no_sync(self, trial: Trial) -> None:
        """Collectives with a hook around them, while a kernel holds the stream."""
        self._rank.hook()
        import rankmend

        device = self._device
        torch = device.torch
        tensor = torch.ones(1024, device=device.name)
        torch.distributed.all_reduce(tensor)
        device.synchronize()
        is_gpu = device.name == "cuda"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if is_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                device.spin(HELD_MS)
                held = device.mark()
                began_s = time.perf_counter()
                for _ in range(CALLS):
                    with rankmend.section("compute"):
                        work = torch.distributed.all_reduce(tensor, async_op=True)
                    work.wait()
                self._rank.step()
                host_ms = (time.perf_counter() - began_s) * 1000
                is_held = not device.is_passed(held)
            finally:
                if is_gpu:
                    torch.cuda.set_sync_debug_mode("default")
        device.synchronize()
        waits = [str(one.message) for one in caught if "called a synchronizing" in str(one.message)]
        trial.figure("host_ms", host_ms)
        trial.figure("kernel_ms", HELD_MS)
        trial.figure("synchronisations", len(waits))
        trial.check(is_held or not is_gpu, "the host came back after the kernel: something waited")
        trial.check(not waits, f"PyTorch saw the host wait: {waits[:1]}")

    def bounded(self, trial: Trial) -> None:
        """More collectives than events are kept, while a kernel holds the stream."""
        self._rank.hook()
        device = self._device
        torch = device.torch
        tensor = torch.ones(16, device=device.name)
        self._rank.flush()
        from rankmend.hook import stream_waits

        before, stream_waits.PAIRS_MAX = stream_waits.PAIRS_MAX, PENDING_MAX
        try:
            device.spin(2 * HELD_MS)
            held = device.mark()
            most = 0
            for _ in range(MANY):
                torch.distributed.all_reduce(tensor, async_op=True).wait()
                most = max(most, self._rank.pending())
            is_held = not device.is_passed(held)
            self._rank.flush()
        finally:
            stream_waits.PAIRS_MAX = before
        left = self._rank.pending()
        trial.figure("pending_max", most)
        trial.figure("pending_after", left)
        if device.name == "cuda":
            if not is_held:
                trial.note("the kernel ended before the last collective")
            trial.check(most <= PENDING_MAX, f"{most} pairs of events were kept")
            trial.check(most == PENDING_MAX or not is_held, f"only {most} pairs were kept")
            trial.check(left <= 2, f"{left} pairs were still kept when the stream had passed all")

    def _measure(self, one: Any) -> tuple[float, float]:
        """Return milliseconds of waiting told, and of wall time, for each of PIECES calls."""
        told = self._measure_sections(one)
        return told["wait"], told["wall"]

    def _measure_sections(self, one: Any) -> dict[str, float]:
        one()
        self._rank.flush()
        before = self._rank.step()
        walls = 0.0
        for _ in range(PIECES):
            began_s = time.perf_counter()
            one()
            walls += time.perf_counter() - began_s
            self._rank.step()
        self._rank.flush()
        after = self._rank.step()
        spent = {
            "wait": after.waited_s - before.waited_s,
            "io": after.io_s - before.io_s,
            "compute": after.compute_s - before.compute_s,
            "wall": walls,
        }
        return {name: seconds * 1000 / PIECES for name, seconds in spent.items()}

    def _compare(
        self, trial: Trial, told_ms: float, truth_ms: float, what: str, slack_ms: float = 0.0
    ) -> None:
        """``slack_ms``: what the host's own calls may take beside the truth."""
        trial.figure(f"{what}_told_ms", told_ms)
        trial.figure(f"{what}_true_ms", truth_ms)
        off_ms = abs(told_ms - truth_ms)
        trial.check(
            off_ms <= max(OFF_RATIO_MAX * truth_ms, slack_ms),
            f"{what}: told {told_ms:.3f} ms, true are {truth_ms:.3f} ms",
        )
