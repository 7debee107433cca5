"""How fast a snapshot leaves the GPU and comes back, and for how long host and stream stand still."""

import statistics
import time
from typing import Any

from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import NotTriedError, Trial
from bench.gpu.snapshot_state import restore, settle
from rankmend.hook.snapshots import accelerator, room

RATIO_MAX = 1.3
TENSORS = 20
ROUNDS = 7
STEP_MS = 30.0
STEPS, EVERY = 30, 5
HOST_MS_MIN = 3.0  # below it nobody minds
STALL_MS_MIN = 2.0
SHARE_OF_ROOM = 0.45  # two files lie side by side
SHARE_OF_DEVICE = 0.8
LARGE_S = 12.0  # what another large snapshot may take
_CPU_SHARE = 1000  # where this code is tried without a GPU


class Watch:
    """Takes the time of the hook's own calls of the device."""

    def __init__(self, device: Any) -> None:
        self.pins: list[tuple[int, float, bool]] = []  # bytes, seconds, pinned
        self._device = device
        self._begin: Any = None
        self.copy_ms: list[float] = []
        self._pending: list[tuple[Any, Any]] = []
        kind = accelerator.Accelerator
        pin, copy, commit = kind.pin, kind.copy, kind.commit

        def timed_pin(own: Any, memory: Any, size: int) -> Any:
            began_s = time.perf_counter()
            end = pin(own, memory, size)
            is_pinned = end is not accelerator._nothing
            self.pins.append((size, time.perf_counter() - began_s, is_pinned))
            return end

        def timed_copy(own: Any, destinations: Any, sources: Any) -> None:
            self._begin = device.mark()
            copy(own, destinations, sources)

        def timed_commit(own: Any, memory: Any, sequence: int, where: Any) -> None:
            commit(own, memory, sequence, where)
            self._pending.append((self._begin, device.mark()))

        kind.pin, kind.copy, kind.commit = timed_pin, timed_copy, timed_commit  # type: ignore[method-assign]

    def take_ms(self) -> float:
        """Return the stream's time of the newest snapshot, from its first copy to its commit."""
        if not self._pending:
            raise RuntimeError("no snapshot of the device was taken")
        begin, end = self._pending[-1]
        self._pending.clear()
        return float(self._device.ms_between(begin, end))


class Speed:
    """One state on the device, and snapshots of it."""

    def __init__(self, rank: OwnRank) -> None:
        self._rank, self._device = rank, rank.device
        self._watch = Watch(rank.device)
        self._state: dict[str, Any] = {}
        self._expected: Any = None  # the first tensor at the newest snapshot
        self._taken = 1000  # number of the newest step

    def compare(self, trial: Trial, size_bytes: int) -> None:
        """Take snapshots and plain copies of the same bytes in turns."""
        size_bytes = self._fill(size_bytes)
        firsts = [self._take() for _ in range(2)]  # these make the files
        pinned = self._device.pinned(size_bytes)
        plains, copies, hosts = [], [], []
        for _ in range(ROUNDS):
            plains.append(self._copy_plain(pinned))
            host_ms, copy_ms = self._take()
            hosts.append(host_ms)
            copies.append(copy_ms)
        copy_ms, plain_ms = statistics.median(copies), statistics.median(plains)
        self._tell(trial, size_bytes, copy_ms, plain_ms)
        trial.figure("host_ms", statistics.median(hosts))
        trial.figure("first_host_ms", [round(host_ms, 1) for host_ms, _copy_ms in firsts])

    def register(self, trial: Trial) -> None:
        if not self._watch.pins:
            raise NotTriedError("no snapshot of the device was taken")
        for size, seconds, is_pinned in self._watch.pins:
            trial.check(is_pinned, f"{size} bytes were not pinned")
            if size >= 500_000_000:
                trial.figure("gb", size / 1e9)
                trial.figure("pin_ms", seconds * 1000)
        trial.figure("files", len(self._watch.pins))

    def restore(self, trial: Trial) -> None:
        state = self._require()
        began_s = time.perf_counter()
        restored = restore(self._taken)
        mapped_s = time.perf_counter() - began_s
        targets = {name: one.new_empty(one.shape) for name, one in state.items()}
        self._device.synchronize()
        began_s = time.perf_counter()
        for name, target in targets.items():
            target.copy_(restored[name])
        self._device.synchronize()
        copied_s = time.perf_counter() - began_s
        wrong = [
            name for name, one in state.items() if not self._device.torch.equal(one, targets[name])
        ]
        trial.check(not wrong, f"other bits in {', '.join(wrong)}")
        size = _size(state)
        trial.figure("gb", size / 1e9)
        trial.figure("map_ms", mapped_s * 1000)
        trial.figure("gb_per_s", size / (mapped_s + copied_s) / 1e9)

    def stall(self, trial: Trial) -> None:
        """Steps of known length: without snapshots, with them in the way, and beside the next step."""
        self._require()
        self._steps(None)
        plain_ms, _hosts = self._steps(None)
        same_ms, hosts = self._steps("same")
        copy_ms = self._watch.take_ms()
        other_ms, other_hosts = self._steps("other")
        settle(self._rank)
        expected, found = self._expected, restore(self._taken)["tensor 0"]
        is_right = bool(self._device.torch.equal(expected.cpu(), found))
        del found
        trial.check(is_right, "a snapshot taken on another stream holds other bits")
        taken = STEPS // EVERY
        host_ms = statistics.median(hosts) if hosts else float("nan")
        stall_ms = (same_ms - plain_ms) * EVERY
        beside_ms = (other_ms - plain_ms) * EVERY
        trial.figure("step_ms", plain_ms)
        trial.figure("copy_ms", copy_ms)
        trial.figure("host_stall_ms", host_ms)
        trial.figure("stream_stall_ms", stall_ms)
        trial.figure("stream_stall_other_stream_ms", beside_ms)
        trial.figure("taken", len(hosts))
        trial.check(len(hosts) == taken, f"{len(hosts)} of {taken} snapshots were taken")
        trial.check(len(other_hosts) == taken, f"{len(other_hosts)} of {taken} on another stream")
        trial.check(
            host_ms <= max(copy_ms / 10, HOST_MS_MIN), f"the host stood still {host_ms:.1f} ms"
        )
        limit_ms = RATIO_MAX * copy_ms + STALL_MS_MIN
        trial.check(stall_ms <= limit_ms, f"the stream stood still {stall_ms:.1f} ms")
        limit_ms = copy_ms / 5 + STALL_MS_MIN
        trial.check(beside_ms <= limit_ms, f"beside the step it stood still {beside_ms:.1f} ms")

    def compare_large(self, trial: Trial, size_bytes: int, until_s: float) -> None:
        """Take up to three snapshots of many gigabytes, as time allows."""
        found = room.read(str(self._rank.folder))
        free = found.free_bytes - room.reserve(found.total_bytes)
        free += sum(file.stat().st_size for file in self._rank.folder.glob("*.snapshot"))
        fits = int(min(free * SHARE_OF_ROOM, self._device.free_bytes() * SHARE_OF_DEVICE))
        if fits < size_bytes:
            trial.note(f"{fits / 1e9:.1f} GB instead of {size_bytes / 1e9:g}: {found.limited_by}")
        if time.monotonic() + LARGE_S > until_s + 30:
            raise NotTriedError("no time was left")
        size_bytes = self._fill(min(size_bytes, fits))
        pinned = self._device.pinned(size_bytes // TENSORS)
        plain_ms = statistics.median(self._copy_plain(pinned) for _ in range(2))
        pins = len(self._watch.pins)
        hosts = []
        copy_ms = 0.0
        for _ in range(3):
            began_s = time.monotonic()
            host_ms, copy_ms = self._take()
            hosts.append(round(host_ms, 1))
            took_s = time.monotonic() - began_s
            if time.monotonic() + took_s + 1 > until_s:
                break
        self._tell(trial, size_bytes, copy_ms, plain_ms)
        trial.figure("host_ms", hosts)
        trial.figure("pin_ms", [round(seconds * 1000) for _, seconds, _ in self._watch.pins[pins:]])
        if len(hosts) < 3:
            trial.note(f"time for {len(hosts)} snapshots, each of which made a file")
        self._check_some(trial, until_s)
        self.end()

    def end(self) -> None:
        """Give the state's memory back."""
        self._state = {}
        self._expected = None
        if self._device.name == "cuda":
            self._device.torch.cuda.empty_cache()

    # Parts ------------------------------------------------------------------------------------

    def _require(self) -> dict[str, Any]:
        if not self._state:
            raise NotTriedError("no snapshot of 1 GB was taken")
        return self._state

    def _fill(self, size_bytes: int) -> int:
        """Make the state, and return its bytes."""
        if self._device.name != "cuda":
            size_bytes //= _CPU_SHARE
        count = size_bytes // TENSORS // 64 * 16  # of 4 bytes, and whole cache lines
        torch = self._device.torch
        self._state = {}
        self._state = {
            f"tensor {number}": torch.rand(count, device=self._device.name)
            for number in range(TENSORS)
        }
        self._device.synchronize()
        return count * 4 * TENSORS

    def _take(self) -> tuple[float, float]:
        """Take a snapshot, and return the milliseconds of the host and of the stream."""
        import rankmend

        self._device.synchronize()
        self._taken += 1
        began_s = time.perf_counter()
        is_taken = rankmend.snapshot(self._taken, self._state)
        host_ms = (time.perf_counter() - began_s) * 1000
        if not is_taken:
            shortage = getattr(rankmend._keeper, "_shortage", "see stderr")
            raise RuntimeError(f"rankmend.snapshot refused it: {shortage}")
        settle(self._rank)
        return host_ms, self._watch.take_ms()

    def _copy_plain(self, pinned: Any) -> float:
        """Return the stream's milliseconds for plain copies of the state into pinned memory."""
        self._device.synchronize()
        begin = self._device.mark()
        at = 0
        for one in self._state.values():
            size = one.numel() * one.element_size()
            at = at if at + size <= pinned.numel() else 0
            pinned[at : at + size].view(one.dtype).copy_(one, non_blocking=True)
            at += size
        return float(self._device.ms_between(begin, self._device.mark()))

    def _steps(self, where: str | None) -> tuple[float, list[float]]:
        """Run steps; return a step's milliseconds of the stream, and the host's of each snapshot that was taken."""
        import rankmend

        device, tensors = self._device, list(self._state.values())
        side = device.stream()
        hosts = []
        device.synchronize()
        begin = previous = device.mark()
        for number in range(1, STEPS + 1):
            device.spin(STEP_MS if device.name == "cuda" else 1.0)
            if where == "other":
                device.follow(None, side)  # an update waits for the copies of what it changes
            for one in tensors:
                one.add_(1.0)
            if where and number % EVERY == 0:
                self._taken += 1
                self._expected = tensors[0].clone()
                if where == "other":
                    device.follow(side)
                began_s = time.perf_counter()
                with device.on(side if where == "other" else None):
                    is_taken = rankmend.snapshot(self._taken, self._state)
                if is_taken:
                    hosts.append((time.perf_counter() - began_s) * 1000)
            end = device.mark()
            device.ms_between(begin, previous)  # the host is one step ahead at most
            previous = end
        if where == "other":
            device.follow(None, side)
            end = device.mark()
        return device.ms_between(begin, end) / STEPS, hosts

    def _tell(self, trial: Trial, size_bytes: int, copy_ms: float, plain_ms: float) -> None:
        trial.figure("gb", size_bytes / 1e9)
        trial.figure("snapshot_ms", copy_ms)
        trial.figure("plain_copy_ms", plain_ms)
        trial.figure("snapshot_gb_per_s", size_bytes / copy_ms / 1e6)
        trial.figure("plain_copy_gb_per_s", size_bytes / plain_ms / 1e6)
        ratio = copy_ms / plain_ms
        trial.figure("ratio", ratio)
        trial.check(ratio <= RATIO_MAX, f"{ratio:.2f} times as long as a plain copy")

    def _check_some(self, trial: Trial, until_s: float) -> None:
        """Compare the first tensors of the newest snapshot with the state, as many as time allows."""
        restored = restore(self._taken)
        equal = 0
        for name, one in self._state.items():
            if equal and time.monotonic() > until_s:
                break
            is_equal = self._device.torch.equal(restored[name].to(self._device.name), one)
            trial.check(is_equal, f"other bits in {name}")
            equal += 1
        trial.figure("tensors_compared", equal)


def _size(state: dict[str, Any]) -> int:
    return sum(one.numel() * one.element_size() for one in state.values())
