"""NVML: the agent's values against nvidia-smi and the device's own queries, idle and under load, and what they cost."""

import importlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any, Final

from agent.nvml.child import ask_cuda_version
from bench.gpu import nvidia_smi, own_queries
from bench.gpu.agent_beside import RANKMEND, environment
from bench.gpu.load import Workers
from bench.gpu.nvml_agent import AgentWithRanks, try_agent, try_ranks
from bench.gpu.nvml_cost import try_busy_cost, try_idle_cost
from bench.gpu.nvml_load import (
    try_copy,
    try_gemm,
    try_idle,
    try_load,
    try_processes,
)
from bench.gpu.rows import NotTriedError, Telling, Trial
from bench.gpu.watch import GROUPS, Watched, watching

LIMIT_S = 75.0  # takes some 50
TRIES: Final = 2  # a value that moves may slip out between two questions
LISTED_MAX: Final = 8
DOCTOR_S_MAX: Final = 40.0  # several GPUs without persistence mode take seconds each
# NVML_ERROR_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH
LACKING: Final = (3, 4, 13, 25)
CLAIMS: dict[str, str] = {
    "smi_values": "Every value that `nvidia-smi -q -x` also shows lies between two of its answers, within the sensor's "
    "resolution.",
    "own_values": "Every value equals what pynvml's own functions and single fields say, within the sensor's resolution.",
    "identity": "UUID, PCI address, model, serial, VBIOS, inforom, part, device, driver and CUDA are nvidia-smi's.",
    "unsupported_absent": "What nvidia-smi shows as N/A has no series, and no call failed for another reason.",
    "cost_idle": "Reading an idle GPU takes milliseconds a group.",
    "doctor": "`rankmend doctor gpu` says of this host what is so.",
    "gpm_idle": "SM, tensor and DRAM activity of an idle GPU are about 0.",
    "load": "Under a GEMM the agent's clocks, power, temperature, utilisation and memory are nvidia-smi's at that moment.",
    "event_seconds": "The seconds of each reason that holds the clocks sum up to the time in which NVML names the reason.",
    "gpm_gemm": "Tensor activity under a bf16 GEMM is its operations a second over the peak at the clock, within 20 %.",
    "gpm_copy": "DRAM activity under a copy is its bytes a second over the peak of the memory, within 20 %.",
    "cost_busy": "Reading a GPU that works takes milliseconds, too.",
    "processes": "A process on the GPU is listed with its pid and memory, and leaves the list when it ends.",
    "ranks": "The agent names both ranks of a job on the GPU with their pids, and their memory leaves the page with them.",
    "agent_cost": "The agent beside a job on the GPU keeps to its 48 MiB beside what the driver's library allocates for itself, "
    "without libcuda, and its page of metrics is valid.",
}


def run(telling: Telling) -> None:
    """Try the rows of this area."""
    nvml = importlib.import_module("pynvml")
    read_gpu(telling, nvml, Workers(), nvidia_smi.ask)
    run_agent(telling, nvml)


def read_gpu(
    telling: Telling,
    nvml: Any,
    workers: Workers,
    ask: Callable[[], nvidia_smi.SmiAnswer],
    ask_cuda: Callable[[Any], str] = ask_cuda_version,
) -> None:
    """Try the rows that read the GPU in this process; ``ask`` is nvidia-smi."""

    cuda = ask_cuda(nvml)  # before NVML is open in this process

    def watched_row(name: str, attempt: Callable[..., None], *more: Any) -> None:
        with telling.row(name) as trial, watching(nvml, cuda) as watched, lacking_is_told(nvml):
            attempt(trial, watched, *more)

    try:
        # NVML stays open: without persistence mode each opening sets up the GPU anew, which takes seconds
        with suppress(nvml.NVMLError):
            nvml.nvmlInitWithFlags(0)
        watched_row("smi_values", try_smi, ask)
        watched_row("own_values", try_own)
        watched_row("identity", try_identity, ask)
        watched_row("unsupported_absent", try_absent, ask)
        workers.get()  # imports torch meanwhile; has no context before its first command
        watched_row("cost_idle", try_idle_cost)
        watched_row("gpm_idle", try_idle)
        watched_row("load", try_load, workers, ask)
        watched_row("event_seconds", try_event_seconds, workers)
        watched_row("gpm_gemm", try_gemm, workers)
        watched_row("gpm_copy", try_copy, workers)
        watched_row("cost_busy", try_busy_cost, workers)
        watched_row("processes", try_processes, workers)
    finally:
        workers.end()


def run_agent(telling: Telling, nvml: Any) -> None:
    """Try the rows that run rankmend's own programs."""
    session: AgentWithRanks | None = None
    try:
        with suppress(Exception):  # tried again below, where it is the row's result
            session = AgentWithRanks()
        with telling.row("doctor") as trial, lacking_is_told(nvml):  # while the ranks import torch
            try_doctor(trial, nvml)
        with telling.row("ranks") as trial, lacking_is_told(nvml):
            session = session or AgentWithRanks()
            try_ranks(trial, session, nvml)
        with telling.row("agent_cost") as trial:
            session = session or AgentWithRanks()
            try_agent(trial, session)
    finally:
        if session is not None:
            session.end()


@contextmanager
def lacking_is_told(nvml: Any) -> Iterator[None]:
    """Leave a row untried where this card, driver or user may not make a call that the row needs."""
    try:
        yield
    except nvml.NVMLError as error:
        if error.value in LACKING:
            text = f"this card, driver or user has no such call: {error}"
            raise NotTriedError(text) from error
        raise


def try_smi(
    trial: Trial, watched: Watched, ask: Callable[[], nvidia_smi.SmiAnswer]
) -> nvidia_smi.Comparison:
    """Compare all values with nvidia-smi's."""
    before, comparisons = ask(), []
    for _ in range(TRIES):
        values = watched.values(*GROUPS)
        after = ask()
        comparisons.append(nvidia_smi.compare(values, before, after))
        before = after
        if not comparisons[-1].differing:
            break
    last = comparisons[-1]
    differing = [
        text
        for key, text in last.differing.items()
        if all(key in one.differing for one in comparisons)
    ]
    trial.figure("series", len(values))
    trial.figure("compared", len(last.compared))
    trial.figure("missing", len(last.missing))
    trial.check(last.compared, "nothing could be compared")
    trial.check(not differing, f"differ: {_listed(differing)}")
    trial.check(not last.missing, f"nvidia-smi shows, the agent does not: {_listed(last.missing)}")
    return last


def try_own(trial: Trial, watched: Watched) -> None:
    """Compare all values with pynvml's own functions."""
    nvml, handle = watched.nvml, watched.gpu.handle
    watched.values("activity")  # its second sample has the means
    compared: set[str] = set()
    differing: dict[str, str] | None = None
    for _ in range(TRIES):
        values = watched.values(*GROUPS)
        questions = own_queries.queries(values)
        before = own_queries.answer(nvml, handle, questions)
        values = {**values, **watched.values(*GROUPS)}
        compared, now = own_queries.compare(
            values, before, own_queries.answer(nvml, handle, questions)
        )
        differing = now if differing is None else {k: now[k] for k in now if k in differing}
        if not differing:
            break
    others = sorted(
        key
        for key in values
        if key not in compared
        and not key.startswith(("info{", "fabric_", "sm_", "dram_", "pipe_", "graphics_"))
        and key not in own_queries.SAMPLED | own_queries.COMPUTED
    )
    trial.figure("series", len(values))
    trial.figure("compared", len(compared))
    trial.figure("questions", len(questions))
    trial.check(compared, "nothing could be compared")
    trial.check(not differing, f"differ: {_listed((differing or {}).values())}")
    if others:
        trial.note(f"no second way to ask: {_listed(others)}")


def try_identity(trial: Trial, watched: Watched, ask: Callable[[], nvidia_smi.SmiAnswer]) -> None:
    """Compare the labels of the GPU."""
    smi, labels = ask(), watched.info()
    pairs = []
    for (name, place), ours in zip(nvidia_smi.IDENTITY, labels, strict=False):
        text = smi.texts.get(place, "")
        pairs.append((name, ours, "" if nvidia_smi.is_absent(text) else text))
    _model, _serial, _vbios, _inforom, _part, device, driver, cuda = labels
    identity = watched.gpu.identity
    pairs += [
        ("uuid", identity.uuid, smi.texts.get("uuid", "")),
        ("pci_bus_id", identity.pci_bus_id, smi.bus_id.lower()[-len("0000:00:00.0") :]),
        ("device", device, "nvidia" + smi.texts.get("minor_number", "")),
        ("driver", driver, smi.driver),
        ("cuda", cuda, smi.cuda),
    ]
    trial.figure("compared", len(pairs))
    trial.figure("model", labels[0])
    for name, ours, theirs in pairs:
        trial.check(ours == theirs, f"{name} is {ours!r}, nvidia-smi's {theirs!r}")


def try_absent(trial: Trial, watched: Watched, ask: Callable[[], nvidia_smi.SmiAnswer]) -> None:
    """Look for series that nvidia-smi says this card doesn't have."""
    watched.values("activity")
    smi, values = ask(), watched.values(*GROUPS)
    found = nvidia_smi.compare(values, smi, smi)
    lacking = [row.key for row in nvidia_smi.ROWS if smi.lacks(row)]
    trial.figure("shown_as_absent", len(lacking))
    trial.figure("calls_unsupported", len(watched.gpu.unsupported_since_s))
    trial.figure("read_errors", watched.gpu.error_count)
    listed = [f"{key} {value:g}" for key, value in found.invented.items()]
    trial.check(not listed, f"N/A for nvidia-smi, a series of the agent: {_listed(listed)}")
    trial.check(watched.gpu.error_count == 0, f"a call failed: {watched.gpu.last_error}")
    nan = [key for key, value in values.items() if not isfinite(value)]
    trial.check(not nan, f"not a number: {_listed(nan)}")
    if not lacking:
        trial.note("nvidia-smi shows none of the compared values as N/A")


def try_event_seconds(trial: Trial, watched: Watched, workers: Workers) -> None:
    """Sum the reasons ourselves beside the agent's sampler, while a GEMM runs."""
    from agent.nvml.fields import CLOCKS_EVENT_REASONS

    nvml, gpu = watched.nvml, watched.gpu

    def reasons() -> int:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle))

    least: dict[str, float] = dict.fromkeys(CLOCKS_EVENT_REASONS, 0.0)
    most = dict(least)
    seen: set[str] = set()
    with workers.get().running("gemm", 8192):
        before_counters = watched.values("fast")
        gpu.seconds = {}
        last_s = began_s = gpu.reasons_at_s or time.monotonic()
        while time.monotonic() < began_s + 2.5:
            time.sleep(0.1)
            first = reasons()
            watched.values("fast")
            second = reasons()
            if gpu.reasons_at_s is None:
                raise NotTriedError("this card or driver gives the agent no reasons")
            since_s, last_s = gpu.reasons_at_s - last_s, gpu.reasons_at_s
            for bit, reason in enumerate(CLOCKS_EVENT_REASONS):
                least[reason] += since_s * (first >> bit & second >> bit & 1)
                most[reason] += since_s * ((first | second) >> bit & 1)
                if (first | second) >> bit & 1:
                    seen.add(reason)
        counters = watched.values("fast")
        lasted_s = last_s - began_s
    trial.figure("seconds", lasted_s)
    trial.figure("reasons", ", ".join(sorted(seen)) or "none")
    for reason in sorted(seen):
        trial.figure(f"{reason}_s", gpu.seconds[reason])
    for reason in CLOCKS_EVENT_REASONS:
        held_s = gpu.seconds.get(reason, 0.0)
        trial.check(
            least[reason] - 0.01 <= held_s <= most[reason] + 0.2,  # the last sample adds its own
            f"{reason} {held_s:.2f} s, own sum {least[reason]:.2f} to {most[reason]:.2f} s",
        )
    key = "clocks_limited_seconds_total{sw_power_cap}"
    if key in counters and key in before_counters:
        trial.figure("driver_counted_sw_power_cap_s", counters[key] - before_counters[key])
        trial.check(
            -1e-6 <= counters[key] - before_counters[key] <= 1.1 * lasted_s + 1,
            f"the driver's counter grew by {counters[key] - before_counters[key]:g} s in {lasted_s:.1f} s",
        )


def try_doctor(trial: Trial, nvml: Any) -> None:
    """Compare the doctor's findings with the machine."""
    answer = subprocess.run(
        [*RANKMEND, "doctor", "gpu", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DOCTOR_S_MAX,
        env=environment(),
    )
    try:
        said = json.loads(answer.stdout)
    except ValueError as error:
        text = answer.stderr[-200:]
        raise NotTriedError(f"doctor ended with {answer.returncode}: {text}") from error
    checks = {check["check"]: check for check in said["checks"]}
    outcomes = {name: check["outcome"] for name, check in checks.items()}
    trial.figure("outcomes", ", ".join(f"{k} {v}" for k, v in outcomes.items()))
    nvml.nvmlInitWithFlags(0)
    try:
        count = int(nvml.nvmlDeviceGetCount())
        driver = str(nvml.nvmlSystemGetDriverVersion())
        is_persistent = all(_is_persistent(nvml, index) for index in range(count))
    finally:
        nvml.nvmlShutdown()
    for name in ("gpu_driver", "gpu_library", "gpu_match", "gpu_devices", "gpu_count"):
        found = checks.get(name, {}).get("found", "")
        trial.check(outcomes.get(name) == "ok", f"{name} is {outcomes.get(name)}: {found}")
    found = checks.get("gpu_driver", {}).get("found", "")
    trial.check(driver in found, f"driver is {driver}, doctor: {found}")
    found = checks.get("gpu_count", {}).get("found", "")
    trial.check(str(count) in found, f"{count} GPUs, doctor: {found}")
    expected = "ok" if is_persistent else "lacking"
    trial.check(
        outcomes.get("gpu_persistence") == expected,
        f"persistence is {'on' if is_persistent else 'off'}, doctor: {outcomes.get('gpu_persistence')}",
    )


def _is_persistent(nvml: Any, index: int) -> bool:
    """Return whether a GPU keeps its state; one that has no such mode has nothing to switch on."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        return int(nvml.nvmlDeviceGetPersistenceMode(handle)) == 1
    except nvml.NVMLError as error:
        if error.value in LACKING:
            return True
        raise


def _listed(texts: Any) -> str:
    listed = sorted(texts)
    more = f" and {len(listed) - LISTED_MAX} more" if len(listed) > LISTED_MAX else ""
    return ", ".join(listed[:LISTED_MAX]) + more
