"""A real kube-apiserver with etcd and, where it is there, kube-controller-manager, shared by all workers of one run.

The programs come from the folder that KUBEBUILDER_ASSETS names, as envtest has it. A keeper process (`kubernetes_keeper`)
starts them, and ends with them once no test process that uses them is alive: a killed run leaves nothing behind.
No kubelet and no scheduler run: tests play them (`Cluster.add_node`, `Cluster.add_pod`).
"""

import base64
import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.support.eventually import eventually

NEEDED = ("etcd", "kube-apiserver")
ADMIN_TOKEN = "admin-of-the-tests"
KEEPER = "tests.support.kubernetes_keeper"
ROOT = Path(__file__).resolve().parents[2]


def missing() -> str:
    """Return why no API server can be started here, or nothing."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return "KUBEBUILDER_ASSETS is not set: no kube-apiserver to test with"
    absent = [name for name in NEEDED if not (Path(folder) / name).exists()]
    return f"{', '.join(absent)} not in KUBEBUILDER_ASSETS={folder}" if absent else ""


def start(shared: Path) -> "Cluster":
    """Return the cluster of this run; ``shared``: a folder that all workers of the run have in common."""
    if why := missing():
        pytest.skip(why)
    folder = shared / "kubernetes"
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (users / str(os.getpid())).touch()
        ready = folder / "ready.json"
        if not _lives(ready):
            ready.unlink(missing_ok=True)
            with (folder / "keeper.log").open("ab") as log:
                subprocess.Popen(
                    [sys.executable, "-m", KEEPER, str(folder), os.environ["KUBEBUILDER_ASSETS"]],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            log_file = folder / "keeper.log"
            eventually(
                ready.exists,
                lambda: f"the API server is ready\n{log_file.read_text(errors='replace')[-3000:]}",
                pause_s=0.05,
            )
        told = json.loads(ready.read_text())
    return Cluster(told["url"], folder)


def stop(shared: Path) -> None:
    """Say that this process needs the cluster no more."""
    (shared / "kubernetes" / "users" / str(os.getpid())).unlink(missing_ok=True)


def _lives(ready: Path) -> bool:
    try:
        return Path(f"/proc/{json.loads(ready.read_text())['keeper']}").exists()
    except (FileNotFoundError, ValueError):
        return False


class Cluster:
    """The API as an administrator has it, and as service accounts have it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.ca_file = folder / "certs" / "apiserver.crt"
        self.api = self.api_of(ADMIN_TOKEN)
        self.core = client.CoreV1Api(self.api)

    def api_of(self, token: str) -> client.ApiClient:
        settings = client.Configuration()
        settings.host = self.url
        settings.ssl_ca_cert = str(self.ca_file)
        settings.api_key = {"authorization": f"Bearer {token}"}
        settings.retries = False
        return client.ApiClient(settings)

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Any:
        """Send a request as it is, for what today's client has no class for."""
        heads = {"Accept": "application/json", "Content-Type": kind}
        words = self.api.param_serialize(
            method, path, header_params=heads, body=body, auth_settings=["BearerToken"]
        )
        answer = self.api.call_api(*words, _request_timeout=30)
        data = answer.read()
        if not 200 <= answer.status < 300:
            raise ApiException(status=answer.status, reason=data.decode()[:2000])
        return json.loads(data)

    def apply(self, body: Mapping[str, Any], path: str, *, is_dry: bool = False) -> Any:
        """Apply an object on the server (server-side apply), or only have it checked."""
        dry = "&dryRun=All" if is_dry else ""
        name = body["metadata"]["name"]
        where = f"{path}/{name}?fieldManager=tests&force=true{dry}"
        return self.call("PATCH", where, body, "application/apply-patch+yaml")

    def remove(self, path: str) -> None:
        """Delete the object of this path, if it is there."""
        try:
            self.call("DELETE", path)
        except ApiException as error:
            if error.status != 404:
                raise

    def add_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        body = {"metadata": {"name": name, "labels": dict(labels or {})}}
        try:
            self.core.create_namespace(body, _request_timeout=30)
        except ApiException as error:
            if error.status != 409:
                raise
        return name

    def add_node(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Have a node that is ready, as its kubelet would report it."""
        body = {"metadata": {"name": name, "labels": dict(labels or {})}}
        self.core.create_node(body, _request_timeout=30)
        self.set_ready(name, "True")
        return name

    def set_ready(self, node: str, status: str) -> None:
        """Say whether the kubelet is well: True, False, or Unknown where it is not heard."""
        condition = {"type": "Ready", "status": status, "reason": "Scripted", "message": ""}
        self.core.patch_node_status(
            node, {"status": {"conditions": [condition]}}, _request_timeout=30
        )

    def add_pod(
        self, namespace: str, name: str, node: str, labels: Mapping[str, str] | None = None
    ) -> str:
        """Have a pod that runs on the node, and return its UID."""
        body = {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "default",
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "ranks", "image": "example.invalid/training"}],
            },
        }
        made = self.core.create_namespaced_pod(namespace, body, _request_timeout=30)
        self.set_phase(namespace, name, "Running")
        return str(made.metadata.uid)

    def set_phase(self, namespace: str, name: str, phase: str) -> None:
        ready = "True" if phase == "Running" else "False"
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        self.core.patch_namespaced_pod_status(
            name, namespace, {"status": status}, _request_timeout=30
        )

    def end_pod(self, namespace: str, name: str) -> None:
        """Confirm the end of a pod, as a kubelet does whose containers have stopped."""
        options = {"gracePeriodSeconds": 0}
        self.core.delete_namespaced_pod(name, namespace, body=options, _request_timeout=30)

    def is_there(self, namespace: str, name: str) -> bool:
        try:
            self.core.read_namespaced_pod(name, namespace, _request_timeout=30)
        except ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    def add_account(
        self,
        namespace: str,
        name: str,
        rules: Sequence[Mapping[str, Any]],
        own: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Have a service account with a cluster role of these rules, and return a token of it.

        ``own``: further rules, which hold in its namespace alone.
        """
        self.add_namespace(namespace)
        self.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})  # fmt: skip
        full = f"{namespace}-{name}"
        group = "rbac.authorization.k8s.io"
        role = {"metadata": {"name": full}, "rules": list(rules)}
        self.call("POST", f"/apis/{group}/v1/clusterroles", role)
        binding = {
            "metadata": {"name": full},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": full},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        self.call("POST", f"/apis/{group}/v1/clusterrolebindings", binding)
        if own:
            inside = {"metadata": {"name": f"{full}-own"}, "rules": list(own)}
            self.call("POST", f"/apis/{group}/v1/clusterroles", inside)
            self.bind_in(namespace, f"{full}-own", namespace, name)
        return self.token(namespace, name)

    def bind_in(self, namespace: str, role: str, of_namespace: str, name: str) -> None:
        """Let an account have a cluster role in one namespace."""
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": of_namespace}],
        }
        self.call("POST", f"/apis/{group}/v1/namespaces/{namespace}/rolebindings", binding)

    def token(self, namespace: str, name: str, audiences: Sequence[str] = ()) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        made = self.call(
            "POST", path, {"spec": {"audiences": list(audiences), "expirationSeconds": 3600}}
        )
        token = str(made["status"]["token"])
        assert len(base64.urlsafe_b64decode(token.split(".")[1] + "==")) > 10, "a JWT"
        return token

    def pod_token(self, namespace: str, pod: str, uid: str, audience: str = "rankmend") -> str:
        """Return the token that a kubelet projects into this pod: of the namespace's account `default`, bound to the pod."""
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        with contextlib.suppress(ApiException):  # it is there
            self.call("POST", account, {"metadata": {"name": "default"}})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        spec = {"audiences": [audience], "boundObjectRef": bound, "expirationSeconds": 3600}
        made = self.call("POST", f"{account}/default/token", {"spec": spec})
        return str(made["status"]["token"])
