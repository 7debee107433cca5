"""Runs etcd, kube-apiserver and kube-controller-manager until no process in FOLDER/users is alive.

Usage: python -m tests.support.kubernetes_keeper FOLDER ASSETS. Writes FOLDER/ready.json once the API answers.
"""

import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.support.eventually import DEADLINE_S, eventually

ADMIN_TOKEN = "admin-of-the-tests"
LOOK_S = 0.5
PORT_TRIES = 5
CONTROLLERS = "job,disruption,endpoint"


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def spawn(*words: str) -> "subprocess.Popen[bytes]":
    """Start a program that the kernel kills when this process ends."""
    bound = ["setpriv", "--pdeathsig", "KILL", *words]
    return subprocess.Popen(bound, stdin=subprocess.DEVNULL)


def answers(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(f"https://127.0.0.1:{port}/readyz")
    request.add_header("Authorization", f"Bearer {ADMIN_TOKEN}")
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def becomes_ready(port: int, *programs: "subprocess.Popen[bytes]") -> bool:
    """Wait until the API answers; not once a program has ended."""

    def have_ended() -> bool:
        return any(one.poll() is not None for one in programs)

    eventually(lambda: have_ended() or answers(port), "an answer of the API", pause_s=0.1)
    return not have_ended()


def start(folder: Path, assets: Path) -> "tuple[int, list[subprocess.Popen[bytes]]]":
    """Return the port of the API and the processes; another process may take a port first: then again."""
    for _try in range(PORT_TRIES):
        shutil.rmtree(folder / "etcd", ignore_errors=True)
        client_port, peer_port, port = free_ports(3)
        store, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        etcd = spawn(
            str(assets / "etcd"), "--data-dir", str(folder / "etcd"), "--log-level", "error",
            "--listen-client-urls", store, "--advertise-client-urls", store,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        key = str(folder / "sa.key")
        server = spawn(
            str(assets / "kube-apiserver"), "--etcd-servers", store, "--secure-port", str(port),
            "--bind-address", "127.0.0.1", "--cert-dir", str(folder / "certs"),
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-signing-key-file", key, "--service-account-key-file", key,
            "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
            "--token-auth-file", str(folder / "tokens.csv"), "--allow-privileged",
            "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        if becomes_ready(port, etcd, server):
            return port, [etcd, server]
        for one in (server, etcd):
            one.kill()
            one.wait()
    raise SystemExit("kube-apiserver does not become ready")


def write_admin(folder: Path, port: int) -> Path:
    path = folder / "admin.kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [
            {
                "name": "tests",
                "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "certificate-authority": str(folder / "certs" / "apiserver.crt"),
                },
            }
        ],
        "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
    }
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def has_users(folder: Path) -> bool:
    pids = [one.name for one in (folder / "users").iterdir()]
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def main() -> None:
    folder, assets = Path(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shutil.rmtree(folder / "certs", ignore_errors=True)
    subprocess.run(
        ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"],
        check=True,
        capture_output=True,
    )
    (folder / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,1,system:masters\n")
    port, processes = start(folder, assets)
    admin = write_admin(folder, port)
    manager = assets / "kube-controller-manager"
    if manager.exists():
        words = (
            "--kubeconfig", str(admin), "--controllers", CONTROLLERS, "--leader-elect=false",
            "--port", "0", "--secure-port", "0",
        )  # fmt: skip
        processes.append(spawn(str(manager), *words))
    ready = {"url": f"https://127.0.0.1:{port}", "keeper": os.getpid()}
    draft = folder / "ready.new"
    draft.write_text(json.dumps(ready))
    draft.replace(folder / "ready.json")
    ends = [os.pidfd_open(one.pid) for one in processes]
    while has_users(folder) and not select.select(ends, [], [], LOOK_S)[0]:
        pass
    (folder / "ready.json").unlink(missing_ok=True)
    for one in reversed(processes):
        one.kill()
        one.wait()


if __name__ == "__main__":
    main()
