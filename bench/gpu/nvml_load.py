"""The agent's values while a process works the GPU, and while none does."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import fmean
from typing import Final

from agent.nvml.fields import CLOCKS_EVENT_REASONS
from bench.gpu import nvidia_smi
from bench.gpu.load import LoadError, Workers, peak_bf16_per_s
from bench.gpu.machine import smi_options
from bench.gpu.rows import NotTriedError, Trial
from bench.gpu.watch import Watched

GEMM_SIZE: Final = 8192
COPY_BYTES: Final = 4 << 30
HELD_BYTES: Final = 2 << 30
CONTEXT_BYTES_MAX: Final = 3 << 30  # context, cuBLAS workspace, and what PyTorch keeps
WINDOW_S: Final = 2.5
# An H200 was 12 % above for the GEMM: a pipe is active in cycles in which it does less than its most. Copy: 0.3 % below.
GEMM_TOLERANCE, COPY_TOLERANCE = 0.20, 0.20
IDLE_MAX: Final = 0.05
SM, TENSOR, DRAM = "sm_active_ratio", "pipe_active_ratio{tensor}", "dram_active_ratio"
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
# what moves by itself under load, and how far beyond two answers of nvidia-smi
MOVING: Final = (
    *("clock_hertz{graphics}", "clock_hertz{sm}", "clock_hertz{memory}", "power_watts"),
    *("temperature_celsius", "memory_temperature_celsius", "temperature_margin_celsius"),
    *("utilization_ratio", "memory_used_bytes", "performance_state_id"),
)
LOAD_SHARE: Final = 0.15
# nvidia-smi's names of reasons that the agent names otherwise
_REASONS: Final = {
    "applications_clocks_setting": "application_clocks",
    "display_clocks_setting": "display_clocks",
}


def try_idle(trial: Trial, watched: Watched) -> None:
    """Read GPM while nothing runs."""
    values, _began_s, _ended_s, _clock = _activity(watched, 2.0)
    _figures(trial, values)
    for name in (SM, TENSOR, DRAM):
        trial.check(values[name] <= IDLE_MAX, f"{name} is {values[name]:.3f} on an idle GPU")


def try_gemm(trial: Trial, watched: Watched, workers: Workers) -> None:
    """Compare tensor activity with the operations of a GEMM."""
    with workers.get().running("gemm", GEMM_SIZE) as load:
        time.sleep(0.5)
        values, began_s, ended_s, sm_hertz = _activity(watched, WINDOW_S)
    achieved = load.rate(began_s, ended_s)
    peak = peak_bf16_per_s(load, sm_hertz)
    _figures(trial, values)
    trial.figure("achieved_tflops", achieved / 1e12)
    trial.figure("peak_tflops_at_clock", peak / 1e12)
    trial.figure("sm_clock_mhz", sm_hertz / 1e6)
    _is_near(trial, TENSOR, values[TENSOR], achieved / peak, GEMM_TOLERANCE)
    trial.check(values[SM] >= 0.8, f"{SM} is {values[SM]:.3f} under a GEMM")


def try_copy(trial: Trial, watched: Watched, workers: Workers) -> None:
    """Compare DRAM activity with the bytes of a copy."""
    nvml, handle = watched.nvml, watched.gpu.handle
    width_bits = int(nvml.nvmlDeviceGetMemoryBusWidth(handle))
    with workers.get().running("copy", COPY_BYTES) as load:
        time.sleep(0.5)
        memory_mhz = int(nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK))
        values, began_s, ended_s, _sm = _activity(watched, WINDOW_S)
    moved = load.rate(began_s, ended_s)
    peak = 2 * memory_mhz * 1e6 * width_bits / 8  # HBM moves two bits a clock and line
    _figures(trial, values)
    trial.figure("moved_gb_per_s", moved / 1e9)
    trial.figure("peak_gb_per_s", peak / 1e9)
    _is_near(trial, DRAM, values[DRAM], moved / peak, COPY_TOLERANCE)
    trial.check(values[TENSOR] <= IDLE_MAX, f"{TENSOR} is {values[TENSOR]:.3f} under a copy")


def try_load(
    trial: Trial,
    watched: Watched,
    workers: Workers,
    ask: Callable[[], nvidia_smi.SmiAnswer],
) -> None:
    """Compare what moves under load with nvidia-smi's answers around it."""
    idle = watched.values("fast")
    with workers.get().running("gemm", GEMM_SIZE):
        time.sleep(1.5)  # the driver's utilisation is a mean over up to a second
        before = ask()
        watched.values("fast")
        watched.gpu.seconds = {}
        time.sleep(0.3)
        values = watched.values("fast")
        after = ask()
    moving = {key: values[key] for key in MOVING if key in values}
    found = nvidia_smi.compare(moving, before, after, LOAD_SHARE)
    trial.figure("compared", len(found.compared))
    for key, name, scale in (
        ("clock_hertz{sm}", "sm_clock_mhz", 1e-6),
        ("power_watts", "power_w", 1.0),
        ("temperature_celsius", "temperature_c", 1.0),
        ("utilization_ratio", "utilisation", 1.0),
        ("slowdown_margin_celsius", "slowdown_margin_c", 1.0),
    ):
        if key in values:
            trial.figure(name, values[key] * scale)
            trial.figure(f"{name}_idle", idle[key] * scale if key in idle else "absent")
    trial.check(found.compared, "nothing could be compared")
    trial.check(not found.differing, "; ".join(found.differing.values()))
    if (used := values.get("utilization_ratio")) is not None:
        trial.check(used >= 0.9, f"utilization_ratio is {used:.2f} under a GEMM")
    if (watts := values.get("power_watts")) is not None:
        trial.check(watts > idle.get("power_watts", 0.0), "no more power than idle")
    if lacking := [name for name in ("utilization_ratio", "power_watts") if name not in values]:
        trial.note(f"this card gives no {' and no '.join(lacking)}")
    _compare_reasons(trial, watched, before, after)


def _compare_reasons(
    trial: Trial, watched: Watched, before: nvidia_smi.SmiAnswer, after: nvidia_smi.SmiAnswer
) -> None:
    held = {_REASONS.get(one, one) for one in before.reasons & after.reasons}
    held &= set(CLOCKS_EVENT_REASONS)
    ours = {reason for reason, held_s in watched.gpu.seconds.items() if held_s > 0}
    ever = {_REASONS.get(one, one) for one in before.reasons | after.reasons}
    trial.figure("reasons", ", ".join(sorted(ours)) or "none")
    missing = ", ".join(sorted(held - ours))
    trial.check(not missing, f"nvidia-smi names {missing}, the agent does not")
    if others := sorted(ours - ever):  # may have come and gone between the two answers
        trial.note(f"only the agent saw {', '.join(others)}")


def try_processes(trial: Trial, watched: Watched, workers: Workers) -> None:
    """Look for the pid and the memory of a process that holds a tensor."""
    nvml, handle = watched.nvml, watched.gpu.handle
    worker = workers.get()
    with worker.running("hold", HELD_BYTES):
        listed = dict(watched.sampler.processes(watched.gpu) or [])
        own = {
            one.pid: one.usedGpuMemory for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }
        shown = _compute_apps()
    trial.figure("listed", len(listed))
    trial.figure("nvidia_smi_lists", len(shown))
    trial.check(set(listed) == set(own), f"the agent lists {listed}, pynvml {own}")
    if worker.pid not in own:
        raise NotTriedError(f"the driver lists pids {sorted(own)}, not {worker.pid}")
    trial.check(worker.pid in listed, f"process {worker.pid} is missing: {sorted(listed)}")
    used = listed.get(worker.pid)
    if used is None:
        trial.note("the driver gives no memory of a process")
    else:
        trial.figure("memory_mib", used / (1 << 20))
        in_range = HELD_BYTES <= used <= HELD_BYTES + CONTEXT_BYTES_MAX
        trial.check(in_range, f"{used} bytes, the process holds {HELD_BYTES} and a context")
        theirs = shown.get(worker.pid)
        if theirs is not None:
            same = abs(theirs - used) <= 2 << 20
            trial.check(same, f"{used} bytes, nvidia-smi {theirs}")
    workers.end()
    end_s = time.monotonic() + 5
    while worker.pid in dict(watched.sampler.processes(watched.gpu) or []):
        if time.monotonic() > end_s:
            trial.check(False, f"process {worker.pid} has ended and is still listed after 5 s")
            break
        time.sleep(0.1)


def _compute_apps() -> dict[int, int]:
    """Return pid and bytes as nvidia-smi lists them; nothing where it can't."""
    found = {}
    with suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(
            [
                *("nvidia-smi", *smi_options(), "--query-compute-apps=pid,used_memory"),
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=nvidia_smi.ASK_S_MAX,
        )
        for line in answer.stdout.splitlines():
            pid, _comma, mib = line.partition(",")
            if pid.strip().isdigit() and mib.strip().isdigit():
                found[int(pid)] = int(mib) << 20
    return found


def _activity(watched: Watched, window_s: float) -> tuple[dict[str, float], float, float, float]:
    """Return GPM's values of a window, its start and end, and the mean SM clock in hertz."""
    nvml, handle = watched.nvml, watched.gpu.handle
    watched.values("activity")
    began_s, clocks = time.monotonic(), []
    while time.monotonic() < began_s + window_s:
        clocks.append(1e6 * nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK))
        time.sleep(0.05)
    values = watched.values("activity")
    ended_s = time.monotonic()
    if lacking := [name for name in (SM, TENSOR, DRAM) if name not in values]:
        raise NotTriedError(f"no GPM on this GPU: {', '.join(lacking)}")
    return values, began_s, ended_s, fmean(clocks)


def _figures(trial: Trial, values: dict[str, float]) -> None:
    for name in (SM, TENSOR, DRAM, "sm_occupancy_ratio"):
        if name in values:
            trial.figure(
                name.replace("pipe_active_ratio{tensor}", "tensor_active_ratio"), values[name]
            )


def _is_near(trial: Trial, name: str, value: float, expected: float, tolerance: float) -> None:
    if expected <= 0:
        raise LoadError(f"nothing was done: expected {name} is {expected}")
    trial.figure("expected", expected)
    trial.figure("off_percent", 100 * (value / expected - 1))
    trial.check(
        abs(value / expected - 1) <= tolerance,
        f"{name} is {value:.3f}, expected {expected:.3f} within {100 * tolerance:.0f} %",
    )
