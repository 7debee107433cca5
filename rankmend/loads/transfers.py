"""Copies between host and device, and between two devices, with what arrives compared with what was sent.

On ``torch:cpu`` both ends are memory of the host: the same code without a GPU.
"""

from typing import Any, Callable, Dict

from rankmend.loads.arrays import open_arrays
from rankmend.loads.windows import timed_rates

_BYTES = 256 << 20
_WORD_BYTES = 4


def run(spec: Dict[str, Any], tell: Callable[[Dict[str, Any]], None]) -> None:
    ways = []
    count = int(spec.get("bytes", _BYTES)) // _WORD_BYTES
    if "peer" in spec:
        near, far = open_arrays(spec["device"]), open_arrays(spec["peer"])
        part = spec["part"]
        ways = [("gpu_pair_bytes_per_s", near.words(count), far.words(count))]
    else:
        far = near = open_arrays(spec["device"])
        part = spec.get("part", spec["device"])
        host = near.torch.empty(count, dtype=near.torch.int32, pin_memory=near.is_cuda)
        device = near.words(count)
        ways = [
            ("gpu_from_host_bytes_per_s", host, device),
            ("gpu_to_host_bytes_per_s", device, host),
        ]
    each_s = spec["seconds"] / len(ways)
    bad = 0
    for seed, (figure, source, target) in enumerate(ways):
        bad += _send(near, far, source, target, seed + 1)
        value = _rate(near, far, source, target, each_s)
        tell({"figure": figure, "value": value, "part": part, "model": near.model})
    text = "words that arrived changed"
    tell({"check": "transfer_bits", "part": part, "bad": bad, "text": text})


def _send(near: Any, far: Any, source: Any, target: Any, seed: int) -> int:
    torch = near.torch
    sent = torch.arange(seed, seed + source.numel(), dtype=torch.int32)
    source.copy_(sent)
    target.zero_()
    target.copy_(source)
    near.wait()
    far.wait()
    return int((target.cpu() != sent).sum().item())


def _rate(near: Any, far: Any, source: Any, target: Any, seconds: float) -> float:
    def copy() -> float:
        target.copy_(source, non_blocking=True)
        near.wait()
        far.wait()
        return float(source.numel() * _WORD_BYTES)

    rates = timed_rates(copy, seconds)
    return sorted(rates)[len(rates) // 2]
