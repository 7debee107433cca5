"""Is a GPU's work repeatable: throughput and bits, run by run. The ground for a check before a job."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.rows import NotTriedError, Telling, Trial
from recovery.accounting.goodput.peaks import peak_of

LIMIT_S = 75.0
CLAIMS = {
    "gemm": "GEMM throughput by data type against the data sheet's peak, and its spread over 10 runs.",
    "bandwidth": "Memory bandwidth of a copy on the device, and its spread over 10 runs.",
    "host": "Bandwidth from and to pinned host memory, and its spread over 10 runs.",
    "bits": "The same GEMM, sum and attention give the same bits in 10 runs.",
    "mfu": "The MFU of `rankmend report` is that of the job's own clock, with the peak of the driver's device name.",
    "settings": "Power limit and clocks are asked for only where they may be set.",
}
RUNS = 10
SIDE = 8192
COPY_BYTES = 4 << 30
HOST_BYTES = 1 << 30
SPREAD_MAX = 0.1  # (max - min) / median
MFU_OFF_MAX = 0.05
JOB_S_MAX = 45.0


def run(telling: Telling) -> None:
    """Try the rows of this area."""
    with telling.row("gemm") as row:
        gemm(row)
    with telling.row("bandwidth") as row:
        bandwidth(row)
    with telling.row("host") as row:
        host(row)
    with telling.row("bits") as row:
        bits(row)
    with telling.row("mfu") as row:
        mfu(row)
    with telling.row("settings"):
        raise NotTriedError("a lent card is left as it was found: rankmend sets neither")


def gemm(row: Trial) -> None:
    import torch

    name = torch.cuda.get_device_name(0)
    peak = peak_of(name)
    row.figure("device", name)
    row.check(peak, f"no peak is known for {name}")
    flops = 2 * SIDE**3
    for kind, data_type, allows_tf32 in (
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, False),
        ("tf32", torch.float32, True),
        ("fp32", torch.float32, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = allows_tf32
        one = torch.randn(SIDE, SIDE, device="cuda", dtype=data_type)
        two = torch.randn(SIDE, SIDE, device="cuda", dtype=data_type)
        times_s = clock(lambda a=one, b=two: a @ b)
        rates = [flops / each / 1e12 for each in times_s]
        row.figure(f"{kind} TFLOPS, median", statistics.median(rates))
        row.figure(f"{kind} spread", spread(times_s))
        row.check(
            spread(times_s) <= SPREAD_MAX, f"{kind}: the runs differ by {spread(times_s):.1%}"
        )
        if peak is not None and (limit := peak.flops_per_s.get(kind)):
            share = statistics.median(rates) * 1e12 / limit
            row.figure(f"{kind} share of the peak", share)
            row.check(share <= 1, f"{kind}: more than the data sheet's peak")
    torch.backends.cuda.matmul.allow_tf32 = False


def bandwidth(row: Trial) -> None:
    import torch

    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times_s = clock(lambda: target.copy_(source))
    row.figure("TB/s read and written", 2 * COPY_BYTES / statistics.median(times_s) / 1e12)
    row.figure("spread", spread(times_s))
    row.check(spread(times_s) <= SPREAD_MAX, f"the runs differ by {spread(times_s):.1%}")


def host(row: Trial) -> None:
    import torch

    there = torch.empty(HOST_BYTES, dtype=torch.uint8, device="cuda")
    here = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
    for name, copy in (
        ("to host", lambda: here.copy_(there, non_blocking=True)),
        ("to device", lambda: there.copy_(here, non_blocking=True)),
    ):
        times_s = clock(copy)
        row.figure(f"{name} GB/s", HOST_BYTES / statistics.median(times_s) / 1e9)
        row.figure(f"{name} spread", spread(times_s))


def bits(row: Trial) -> None:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(1)
    one = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16, generator=generator)
    heads = one.view(1, 64, 2048, 128)
    tried = {
        "GEMM": lambda: one @ one,
        "sum": lambda: one.float().sum(),
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(heads, heads, heads),
    }
    for name, compute in tried.items():
        first = compute()
        same = all(bool(torch.equal(compute(), first)) for _ in range(RUNS - 1))
        row.figure(f"{name}: equal", same)
        row.check(same, f"{name}: the runs have different bits")


def clock(work: Callable[[], Any]) -> list[float]:
    """Return the seconds of RUNS runs, by events on the stream."""
    import torch

    for _ in range(3):
        work()
    times_s = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times_s.append(begin.elapsed_time(end) / 1e3)
    return times_s


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


_JOB = """
import sys, time, torch, rankmend
steps, side = 120, 8192
a = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
rankmend.step(0)
for _ in range(5):
    a @ a
torch.cuda.synchronize()
began = time.monotonic()
for step in range(1, steps + 1):
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    rankmend.work(flops=20 * 2 * side**3, dtype="bf16")
    rankmend.step(step)
    if step == steps // 2:
        began, half = time.monotonic(), step
took = time.monotonic() - began
print("OWN", 20 * 2 * side**3 * (steps - half) / took, torch.cuda.get_device_name(0), flush=True)
"""


def mfu(row: Trial) -> None:
    """Run a job of GEMMs that tells its FLOPs, and compare the report's MFU with the job's own clock."""
    with tempfile.TemporaryDirectory(prefix="rankmend-gpu-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(_JOB, encoding="ascii")
        state = f"--state-dir={folder}/state"
        done = _rankmend("run", "--standalone", "--job=mfu", "--no-prefix", state, str(script))
        own = next((line for line in done.splitlines() if "OWN" in line), None)
        if own is None:
            raise RuntimeError(f"the job did not end: {done[-400:]}")
        _word, flops_per_s, *device = own[own.index("OWN") :].split()
        peak = peak_of(" ".join(device))
        row.figure("job's own TFLOPS", float(flops_per_s) / 1e12)
        if peak is None:
            raise NotTriedError(f"no peak is known for {' '.join(device)}")
        own_mfu = float(flops_per_s) / peak.flops_per_s["bf16"]
        told = json.loads(_rankmend("report", "--json", "--all", state))
        ratio = _find(told, "mfu_ratio")
        row.figure("job's own MFU", own_mfu)
        row.figure("reported MFU", ratio)
        row.check(ratio, "the report has no MFU")
        if ratio:
            off = abs(ratio - own_mfu) / own_mfu
            row.check(off <= MFU_OFF_MAX, f"{off:.1%} off the job's own clock")


def _find(told: Any, name: str) -> float | None:
    """Return the first value of this name that is not null, wherever it stands."""
    if isinstance(told, dict):
        if told.get(name) is not None:
            return float(told[name])
        told = list(told.values())
    if isinstance(told, list):
        return next((found for one in told if (found := _find(one, name)) is not None), None)
    return None


def _rankmend(*arguments: str) -> str:
    start = "from rankmend.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_S_MAX,
    )
    if done.returncode:
        raise RuntimeError(
            f"rankmend {arguments[0]} ended with {done.returncode}: {done.stderr[-400:]}"
        )
    return done.stdout
