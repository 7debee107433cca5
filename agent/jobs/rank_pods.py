"""The pod of a rank, by its control group; its names by the kubelet's folders of logs.

Source: /proc/<pid>/cgroup (`agent.jobs.processes`), /var/log/pods/<namespace>_<name>_<UID> (`agent.jobs.kubelet`).
Cost:   one small read a rank, and one look at the folder where a rank is in a pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.jobs.kubelet import read_pod_names
from agent.jobs.processes import pod_uid_of_process


@dataclass(frozen=True, slots=True)
class RankPod:
    uid: str
    namespace: str = ""  # empty: its folder of logs is not there, or can't be read
    name: str = ""


class RankPods:
    def __init__(self, procfs_root: Path, pod_logs: Path | None) -> None:
        self._procfs = procfs_root
        self._pod_logs = pod_logs
        self._names: Mapping[str, tuple[str, str]] = {}

    def of(self, pid: int) -> RankPod | None:
        """Return the pod of a process of this node, or None where it is in none."""
        uid = pod_uid_of_process(self._procfs, pid)
        if not uid:
            return None
        if uid not in self._names and self._pod_logs is not None:
            self._names = read_pod_names(self._pod_logs)
        return RankPod(uid, *self._names.get(uid, ("", "")))
