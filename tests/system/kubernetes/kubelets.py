"""A scheduler and kubelets, scripted: pods are bound to free nodes, run as processes of this machine, and end as Kubernetes says."""

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes.client.exceptions import ApiException

from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S
from tests.support.kubernetes import Cluster

LOOK_S = 0.2


@dataclass
class Kubelets:
    """One thread plays them all."""

    cluster: Cluster
    namespace: str
    nodes: tuple[str, ...]
    folder: Path
    processes: dict[str, forked_cli.ForkedProcess] = field(default_factory=dict)  # by UID
    seen: dict[str, str] = field(default_factory=dict)  # UID of a pod -> its node
    lost: set[str] = field(default_factory=set)  # nodes whose kubelet is gone
    _ended: set[str] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)  # UIDs that have got SIGTERM
    _should_stop: threading.Event = field(default_factory=threading.Event)
    problem: str = ""
    look_s: float = LOOK_S

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()
        self._thread.join()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE_S)

    def lose(self, node: str) -> None:
        """Have a node's power fail: its launcher and kubelet are gone, and Kubernetes notices."""
        self.lost.add(node)
        for uid, where in self.seen.items():
            if where == node and uid in self.processes:
                self.processes[uid].kill()
        self.cluster.set_ready(node, "Unknown")

    def _run(self) -> None:
        while not self._should_stop.wait(self.look_s):
            try:
                self._turn()
            except ApiException as error:
                if error.status not in (404, 409):  # it changed meanwhile: look again
                    self.problem = str(error)
            except OSError as error:
                self.problem = str(error)

    def _turn(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=job-name"
        pods = self.cluster.call("GET", path)["items"]
        taken = {one["spec"].get("nodeName") for one in pods}
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node is None:
                self._bind(pod, taken)
            elif node not in self.lost:
                self._play(pod, node)

    def _bind(self, pod: dict[str, Any], taken: set[str | None]) -> None:
        for node in self.nodes:
            spec = self.cluster.call("GET", f"/api/v1/nodes/{node}")["spec"]
            if node in taken or node in self.lost or spec.get("unschedulable"):
                continue
            name = pod["metadata"]["name"]
            body = {
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
            taken.add(node)
            self.cluster.call("POST", path, body)
            return

    def _play(self, pod: dict[str, Any], node: str) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        process = self.processes.get(uid)
        if process is None:
            self.seen[uid] = node
            self.processes[uid] = self._start(pod, node)
            self.cluster.set_phase(self.namespace, name, "Running")
            return
        code = process.poll()
        if "deletionTimestamp" in pod["metadata"]:
            if code is not None:
                self.cluster.end_pod(self.namespace, name)
            elif uid not in self._told:
                self._told.add(uid)
                process.send_signal(signal.SIGTERM)
        elif code is not None and uid not in self._ended:
            self._ended.add(uid)
            self.cluster.set_phase(self.namespace, name, "Failed" if code else "Succeeded")

    def _start(self, pod: dict[str, Any], node: str) -> forked_cli.ForkedProcess:
        (container,) = pod["spec"]["containers"]
        values = {"$(NODE_NAME)": node, "$(POD_NAME)": pod["metadata"]["name"]}
        arguments = list(container["args"])
        for mark, value in values.items():
            arguments = [one.replace(mark, value) for one in arguments]
        with (self.folder / f"{pod['metadata']['name']}.log").open("ab") as log:
            return forked_cli.start(
                ["run", *arguments],
                cwd=self.folder,
                environment={**os.environ, "NODE_NAME": node},
                stdout=log,
            )

    @property
    def logs(self) -> str:
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(
            f"== {one.name}\n{one.read_text(errors='replace')[-2500:]}" for one in paths
        )
