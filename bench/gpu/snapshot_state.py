"""What a snapshot keeps of a state on the GPU."""

import os
import sys
import time
from typing import Any

from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import NotTriedError, Trial

SETTLED_S_MAX = 30.0
TYPES = (
    *("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "uint8", "bool", "complex64"),
)


def take(rank: OwnRank, step: int, state: Any) -> None:
    """Take a snapshot and wait until the device has ended it. Raises RuntimeError."""
    import rankmend

    if not rankmend.snapshot(step, state):
        raise RuntimeError(f"rankmend.snapshot refused step {step}: {rankmend._keeper_error!r}")
    settle(rank)


def settle(rank: OwnRank) -> float:
    """Wait for the commit that the device writes, and return the seconds. Raises RuntimeError."""
    import rankmend

    began_s = time.monotonic()
    rank.device.synchronize()
    keeper = rankmend._keeper
    while keeper and not all(slot.is_settled() for slot in keeper._slots or ()):
        if time.monotonic() - began_s > SETTLED_S_MAX:
            raise RuntimeError("the device never wrote the commit word")
        time.sleep(0.0005)
    return time.monotonic() - began_s


def restore(step: int) -> Any:
    """Return the state of this step as a new attempt gets it. Raises RestoreError."""
    import rankmend

    os.environ["RANKMEND_SNAPSHOT"] = f"1:{step}"
    try:
        restored = rankmend.restore()
    finally:
        del os.environ["RANKMEND_SNAPSHOT"]
    if restored is None or restored.step != step:
        raise RuntimeError(f"nothing was restored for step {step}")
    return restored.state


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same type, shape and bits, wherever they lie."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = [tensor.detach().cpu().contiguous().reshape(-1) for tensor in (one, other)]
    byte = flat[0].new_empty(0).byte().dtype
    first, second = (tensor.view(byte) for tensor in flat)
    return bool((first == second).all())


def try_bits(trial: Trial, rank: OwnRank) -> None:
    device = rank.device
    torch = device.torch
    where = {"device": device.name}
    torch.manual_seed(3)
    tensors: dict[str, Any] = {}
    for name in TYPES:
        kind = getattr(torch, name, None)
        if kind is None:
            trial.note(f"this PyTorch has no {name}")
            continue
        tensors[name] = torch.randn(257, 31, **where).mul(8).to(kind)
    wide = torch.randn(64, 96, **where)
    tensors |= {
        "empty": torch.empty(0, 5, **where),
        "single": torch.tensor(2.5, **where),
        "not a number": torch.tensor([float("nan"), float("-inf"), -0.0], **where),
        "transposed": wide.t(),
        "every second": wide[:, ::2],
        "expanded": torch.randn(1, 8, **where).expand(4, 8),
        "channels last": torch.randn(2, 3, 5, 7, **where).to(memory_format=torch.channels_last),
        "part": torch.randn(100, **where)[7:39],
        "on the host": torch.randn(33),
    }
    for name in ("bfloat16", "float8_e4m3fn"):
        if name in tensors:
            tensors[f"{name} transposed"] = tensors[name].t()
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 32, bias=False))
    model = model.to(device.name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 32, **where)).square().mean().backward()
        optimizer.step()
    tensors |= {f"model {name}": one for name, one in model.state_dict().items()}
    kept = optimizer.state_dict()
    state = {"tensors": tensors, "tied": tensors["float32"], "optimizer": kept}
    truths = {name: one.clone() for name, one in tensors.items()}
    take(rank, 1, state)
    restored = restore(1)
    wrong = [name for name in truths if not are_equal(truths[name], restored["tensors"][name])]
    trial.check(not wrong, f"other bits in {', '.join(wrong)}")
    is_tied = restored["tied"].data_ptr() == restored["tensors"]["float32"].data_ptr()
    trial.check(is_tied, "tied tensors came back apart")
    count = 0
    for number, values in kept["state"].items():
        for name, value in values.items():
            other = restored["optimizer"]["state"][number][name]
            is_same = are_equal(value, other) if torch.is_tensor(value) else value == other
            trial.check(is_same, f"other bits in the optimizer's {name} of {number}")
            count += 1
    back = {name: one.to(device.name) for name, one in restored["tensors"].items()}
    wrong = [name for name in truths if not are_equal(truths[name], back[name])]
    trial.check(not wrong, f"other bits on the device in {', '.join(wrong)}")
    twin = torch.optim.AdamW(model.parameters(), lr=0.01)
    twin.load_state_dict(restored["optimizer"])
    trial.figure("tensors", len(truths))
    trial.figure("optimizer_values", count)


def try_update(trial: Trial, rank: OwnRank) -> None:
    """Change a tensor behind the snapshot, on the same stream and without a wait between."""
    import rankmend

    device = rank.device
    torch = device.torch
    count = (256 << 20) // 4 if device.name == "cuda" else 1 << 16
    weights = torch.zeros(count, device=device.name)
    rounds = 0
    for step in range(10, 18):
        device.spin(5.0)
        weights.fill_(step)
        if not rankmend.snapshot(step, {"weights": weights}):
            raise RuntimeError(f"rankmend.snapshot refused step {step}")
        weights.add_(1000)
        settle(rank)
        found = restore(step)["weights"]
        is_right = bool((found == step).all())
        trial.check(is_right, f"step {step}: values from {found.min():g} to {found.max():g}")
        del found
        rounds += 1
    trial.figure("rounds", rounds)


def try_capture(trial: Trial, rank: OwnRank) -> None:
    import rankmend
    from rankmend.hook import notice  # noqa: F401 - what warns

    device = rank.device
    if device.name != "cuda":
        raise NotTriedError("no CUDA graphs here")
    torch = device.torch
    weights = torch.zeros(1024, device=device.name)
    take(rank, 30, {"weights": weights})
    graph = torch.cuda.CUDAGraph()
    sys.stderr.flush()
    with _StandardError() as said, torch.cuda.graph(graph):
        weights.add_(1)
        is_taken = rankmend.snapshot(31, {"weights": weights})
    graph.replay()
    graph.replay()
    device.synchronize()
    trial.check(not is_taken, "it was taken, and would be again with every replay")
    trial.check("captured" in said.text, f"no warning: {said.text[-200:]!r}")
    value = float(weights[0])
    trial.check(value == 2.0, f"two replays of the graph added {value:g}")
    take(rank, 32, {"weights": weights})
    trial.check(bool((restore(32)["weights"] == 2).all()), "the next snapshot is another")


class _StandardError:
    """Keeps what this process writes to descriptor 2, and passes it on."""

    text = ""

    def __enter__(self) -> "_StandardError":
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._kept = os.dup(2)
        os.dup2(writer, 2)
        os.close(writer)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.stderr.flush()
        os.dup2(self._kept, 2)
        os.close(self._kept)
        with os.fdopen(self._reader, "rb") as file:
            self.text = file.read().decode("utf-8", "replace")
        sys.stderr.write(self.text)
