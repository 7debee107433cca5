"""Calls of Kubernetes' API: what a throttling, a failing or an old server answers, and a token that the kubelet renews."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rankmend.kubernetes_api import (
    KubernetesApi,
    KubernetesAwayError,
    KubernetesBudgetError,
    KubernetesDeniedError,
    KubernetesError,
    KubernetesLoginError,
    connect,
)
from tests.support.eventually import DEADLINE_S
from tests.support.kubernetes import Cluster

pytestmark = pytest.mark.site
BUDGET = {"message": "Cannot evict pod", "details": {"causes": [{"reason": "DisruptionBudget"}]}}
Answer = tuple[int, dict[str, str], object]


class Server:
    """Gives its answers one after another, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                status, heads, body = (
                    served.answers.pop(0) if len(served.answers) > 1 else served.answers[0]
                )
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**heads, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_PATCH = do_GET  # noqa: N815 - as http.server names it

            def log_message(self, *_words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def api(self, timeout_s: float) -> KubernetesApi:
        from kubernetes import client

        settings = client.Configuration()
        settings.host = f"http://127.0.0.1:{self._server.server_port}"
        settings.retries = False
        return KubernetesApi(client.ApiClient(settings), timeout_s)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def busy(seconds: str) -> Answer:
    return (429, {"Retry-After": seconds}, {"message": "too many requests"})


def test_a_call_that_is_turned_away_unread_is_sent_again_within_its_time_out(
    server: Server,
) -> None:
    server.answers = [busy("0"), busy("0"), (200, {}, {"kind": "Node"})]

    told = server.api(30.0).call("PATCH", "/api/v1/nodes/n", body={})

    assert told == {"kind": "Node"}
    left_s = [
        float(parse_qs(urlsplit(one).query)["timeout"][0].rstrip("s")) for one in server.asked
    ]
    assert len(left_s) == 3
    assert left_s == sorted(
        left_s, reverse=True
    )  # what the server may take shrinks with what is left
    assert left_s[0] > left_s[2]


def test_throttling_beyond_the_time_out_is_an_api_that_is_away(server: Server) -> None:
    server.answers = [busy("600")]

    with pytest.raises(KubernetesAwayError, match="429: too many requests"):
        server.api(5.0).call("GET", "/api/v1/nodes/n")

    assert len(server.asked) == 1


@pytest.mark.parametrize("word", ["", "-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "\xb2"])
def test_a_pause_that_is_no_number_of_seconds_is_none(server: Server, word: str) -> None:
    server.answers = [busy(word)]

    with pytest.raises(KubernetesAwayError):
        server.api(5.0).call("GET", "/api/v1/nodes/n")

    assert len(server.asked) == 1


@pytest.mark.safety
def test_a_budget_that_forbids_an_eviction_is_not_asked_again_here(server: Server) -> None:
    server.answers = [(429, {"Retry-After": "0"}, BUDGET)]

    with pytest.raises(KubernetesBudgetError):
        server.api(5.0).call("PATCH", "/api/v1/namespaces/jobs/pods/a/eviction", body={})

    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, KubernetesLoginError),
        (403, KubernetesDeniedError),
        (500, KubernetesError),
        (502, KubernetesAwayError),
        (503, KubernetesAwayError),
        (504, KubernetesAwayError),
    ],
)
@pytest.mark.parametrize("body", [None, [], "x", {"message": None}, {"details": {"causes": None}}])
def test_every_refusal_is_of_its_kind_whatever_its_body(
    server: Server, status: int, kind: type[Exception], body: object
) -> None:
    server.answers = [(status, {}, body)]

    with pytest.raises(KubernetesError) as raised:
        server.api(5.0).call("GET", "/api/v1/nodes/n")

    assert type(raised.value) is kind
    assert str(raised.value) == f"GET /api/v1/nodes/n: {status}: no reason given"


IN_POD = """
import os, pathlib, subprocess, sys
folder = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
folder.mkdir(parents=True)
ca, port, good = sys.argv[1:]
(folder / "ca.crt").write_text(pathlib.Path(ca).read_text())
(folder / "token").write_text(good)
os.environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
from rankmend.errors import ManagerError
from rankmend.kubernetes_api import connect
api = connect(None, None, 20.0)
def ask():
    try:
        return len(api.call("GET", "/api/v1/namespaces", [("limit", "1")])["items"])
    except ManagerError as error:
        return type(error).__name__
def change(text):
    (folder / "token").write_text(text)
    return ask()
said = [ask(), change("worn out"), change(good + chr(10)), change("")]
(folder / "token").unlink()
print(*said, ask())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a mount namespace")
def test_a_pods_token_is_read_anew_at_each_call_and_one_that_is_away_is_kept(
    kubernetes_cluster: Cluster,
) -> None:
    rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}
    ]
    token = kubernetes_cluster.add_account("token-turns", "reader", rules)
    words = [
        *("unshare", "--mount", "--propagation", "private", sys.executable, "-c", IN_POD),
        *(str(kubernetes_cluster.ca_file), str(urlsplit(kubernetes_cluster.url).port), token),
    ]

    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert done.stdout.split() == ["1", "KubernetesLoginError", "1", "1", "1"], done.stderr


def write_kubeconfig(path: Path, cluster: Cluster, user: dict[str, str]) -> None:
    """Replace the file at once, as tools that renew it do."""
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {
                "name": "here",
                "cluster": {"server": cluster.url, "certificate-authority": str(cluster.ca_file)},
            }
        ],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(told))
    draft.replace(path)


def test_a_kubeconfig_and_the_token_file_that_it_names_are_read_anew_once_they_change(
    kubernetes_cluster: Cluster, tmp_path: Path
) -> None:
    rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}
    ]
    token = kubernetes_cluster.add_account("config-turns", "reader", rules)
    path, token_file = tmp_path / "config", tmp_path / "token"
    token_file.write_text("worn out")
    write_kubeconfig(path, kubernetes_cluster, {"tokenFile": "token"})  # beside the file
    api = connect(str(path), None, 20.0)

    def ask() -> str:
        try:
            return str(len(api.call("GET", "/api/v1/namespaces", [("limit", "1")])["items"]))
        except KubernetesLoginError:
            return "unknown"

    said = [ask()]
    token_file.write_text(token)
    said.append(ask())
    write_kubeconfig(path, kubernetes_cluster, {"token": "worn out, too"})
    said.append(ask())
    path.write_text("{")  # half written: what was read before counts
    said.append(ask())
    write_kubeconfig(path, kubernetes_cluster, {"token": token})
    said.append(ask())

    assert said == ["unknown", "1", "unknown", "unknown", "1"]
