"""The pod and container that each GPU is given to, by kubelet's own checkpoint of devices.

Source: /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint (kubernetes/pkg/kubelet/cm/devicemanager/
        checkpoint/checkpoint.go): `DeviceIDs` by NUMA node since 1.20, a list before. Mode 0600, of root.
        /var/log/pods/<namespace>_<name>_<UID>: the names of a pod.

kubelet removes a finished pod from the checkpoint only when it gives out devices again, so an entry counts
only while the pod's control group is there.
"""

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from agent.jobs.gpu_job import GpuJob
from agent.sources.regular_file import read_regular
from rankmend.errors import SourceError

DEFAULT: Final = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
POD_LOGS: Final = Path("/var/log/pods")
_BYTES_MAX: Final = 8_388_608
ENTRIES_MAX: Final = 4096  # 110 pods a node by default
_PODS_MAX: Final = 4096
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_LOGS: Final = re.compile(rf"([a-z0-9-]{{1,63}})_([a-z0-9.-]{{1,253}})_({_UID.pattern})")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_QOS: Final = ("", "burstable", "besteffort")
_TREES: Final = ("", "unified", "systemd", "memory", "cpu,cpuacct")  # v2; then v1


class _Entry(msgspec.Struct):
    PodUID: str
    ContainerName: str
    DeviceIDs: list[str] | dict[str, list[str]] | None = None


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct):
    Data: _Data


def parse(data: bytes) -> Mapping[str, tuple[GpuJob, ...]]:
    """Return pod and container by device, or raise SourceError for what is no checkpoint."""
    try:
        entries = msgspec.json.decode(data, type=_Checkpoint).Data.PodDeviceEntries or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"not a checkpoint of kubelet: {error}") from error
    if len(entries) > ENTRIES_MAX:
        raise SourceError(f"{len(entries)} entries, more than {ENTRIES_MAX}")
    jobs: dict[str, tuple[GpuJob, ...]] = {}
    for entry in entries:
        if not _UID.fullmatch(entry.PodUID) or not _NAME.fullmatch(entry.ContainerName):
            raise SourceError(f"not a pod: {entry.PodUID[:60]!r} {entry.ContainerName[:70]!r}")
        job = GpuJob(pod_uid=entry.PodUID, container=entry.ContainerName)
        for device in _devices(entry):
            jobs[device] = (*jobs.get(device, ()), job)
    return jobs


def _devices(entry: _Entry) -> set[str]:
    by_node = entry.DeviceIDs or []
    listed = by_node if isinstance(by_node, list) else [d for ids in by_node.values() for d in ids]
    # NVIDIA's plugin names the shares of a GPU that several pods have "GPU-...::0".
    names = (device.partition("::")[0] for device in listed)
    return {name for name in names if name.startswith(("GPU-", "MIG-"))}


def read_checkpoint(path: Path) -> Mapping[str, tuple[GpuJob, ...]]:
    """Return pod and container by the UUID of GPU or MIG instance, or raise as `read_regular`."""
    return parse(read_regular(path, _BYTES_MAX))


def is_running(cgroup_root: Path, pod_uid: str) -> bool:
    """Return whether a pod has a control group, with kubelet's systemd or cgroupfs driver."""
    return any(
        (cgroup_root / tree / place).is_dir() for tree in _TREES for place in _places(pod_uid)
    )


def _places(pod_uid: str) -> list[str]:
    places = []
    for qos in _QOS:
        places.append("/".join(part for part in ("kubepods", qos, f"pod{pod_uid}") if part))
        folder = f"kubepods-{qos}" if qos else "kubepods"
        above = f"kubepods.slice/{folder}.slice" if qos else "kubepods.slice"
        places.append(f"{above}/{folder}-pod{pod_uid.replace('-', '_')}.slice")
    return places


def read_pod_names(folder: Path) -> Mapping[str, tuple[str, str]]:
    """Return namespace and name by pod UID; nothing where the folder can't be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _PODS_MAX)]
    except OSError:
        return {}
    found = (_LOGS.fullmatch(name) for name in names)
    return {match[3]: (match[1], match[2]) for match in found if match}
