"""The group "activity": how busy the units of a GPU and its MIG instances have been."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from agent.nvml.mig import INSTANCES_MAX, MigInstance, profile_of
from agent.nvml.nvml_calls import NvmlCalls
from agent.nvml.profiling import Profile
from agent.nvml.sampled_gpu import TEXT_CHARS_MAX, SampledGpu, Value

_ENGINES: Final = {"Encoder": "encoder", "Decoder": "decoder", "Jpg": "jpeg", "Ofa": "optical_flow"}


def read_activity(calls: NvmlCalls, gpu: SampledGpu, *, has_profiling: bool) -> Iterator[Value]:
    """Return the values of the group. GPM is read only with ``has_profiling``."""
    for unit in ("Encoder", "Decoder", "Jpg", "Ofa"):
        used = calls.read(gpu, f"nvmlDeviceGet{unit}Utilization")
        if used is not None:
            yield "engine_utilization_ratio", (_ENGINES[unit],), used[0] / 100
    instances = _mig_instances(calls, gpu)
    for instance in instances:
        yield from _mig(calls, gpu, instance)
    if not has_profiling:
        return
    if not instances:
        yield from _profile(calls, gpu, None)
    numbers = {instance.gpu_instance for instance in instances}
    for number in [one for one in gpu.profiles if one is not None and one not in numbers]:
        close_profile(calls, gpu, number)
    for number in sorted(numbers):
        for name, labels, value in _profile(calls, gpu, number):
            yield f"mig_{name}", (str(number), *labels), value


def close_profile(calls: NvmlCalls, gpu: SampledGpu, instance: int | None) -> None:
    """Free the samples of a GPU or of one of its instances."""
    with contextlib.suppress(calls.nvml.NVMLError):
        gpu.profiles.pop(instance).close()


def _profile(calls: NvmlCalls, gpu: SampledGpu, instance: int | None) -> Iterator[Value]:
    """Return how busy the units of a GPU, or of one of its instances, have been."""
    support = calls.read(gpu, "nvmlGpmQueryDeviceSupport")
    if support is None or not support.isSupportedDevice:
        return
    profile = gpu.profiles.get(instance)
    if profile is None:
        call = partial(calls.about, gpu)
        profile = gpu.profiles[instance] = Profile(calls.nvml, call)

    def take(sample: Any) -> None:
        if instance is None:
            calls.in_call("nvmlGpmSampleGet", gpu.index, gpu.handle, sample)
        else:
            name = "nvmlGpmMigSampleGet"
            calls.in_call(name, gpu.index, gpu.handle, instance, sample)

    read = calls.attempt(gpu, ("gpm", instance), lambda: list(profile.read(take)))
    yield from read or ()


def _mig_instances(calls: NvmlCalls, gpu: SampledGpu) -> list[MigInstance]:
    mode = calls.read(gpu, "nvmlDeviceGetMigMode")
    if mode is None or not mode[0]:
        return []
    count = calls.read(gpu, "nvmlDeviceGetMaxMigDeviceCount") or 0
    found = []
    for number in range(min(count, INSTANCES_MAX)):
        handle = calls.read(gpu, "nvmlDeviceGetMigDeviceHandleByIndex", number)
        if handle is None:
            continue
        of_instance = partial(calls.read_instance, gpu, handle)
        ids = [of_instance(f"nvmlDeviceGet{kind}InstanceId", number) for kind in ("Gpu", "Compute")]
        if None in ids:
            continue
        uuid = str(of_instance("nvmlDeviceGetUUID", number) or "")[:TEXT_CHARS_MAX]
        name = str(of_instance("nvmlDeviceGetName", number) or "")[:TEXT_CHARS_MAX]
        found.append(MigInstance(handle, int(ids[0]), int(ids[1]), uuid, profile_of(name)))
    return found


def _mig(calls: NvmlCalls, gpu: SampledGpu, instance: MigInstance) -> Iterator[Value]:
    yield "mig_info", (*instance.labels, instance.uuid, instance.profile), 1
    memory = calls.read_instance(gpu, instance.handle, "nvmlDeviceGetMemoryInfo", instance.uuid)
    if memory is not None:
        yield "mig_memory_size_bytes", instance.labels, memory.total
        yield "mig_memory_used_bytes", instance.labels, memory.used
