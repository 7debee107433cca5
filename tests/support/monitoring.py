"""Real Prometheus and Alertmanager, each in a process of its own."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.bound_to_test import BOUND_TO_TEST
from tests.support.eventually import DEADLINE_S
from tests.support.free_port import free_port


@contextmanager
def running_prometheus(folder: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [
            *BOUND_TO_TEST,
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE_S)


def fetch(base: str, path: str) -> dict[str, object]:
    with urllib.request.urlopen(base + path, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())


def query(base: str, expression: str) -> list[dict[str, object]]:
    try:
        found = fetch(base, f"/api/v1/query?query={urllib.parse.quote(expression)}")
    except OSError:
        return []  # not up yet
    return found["data"]["result"]


@contextmanager
def running_alertmanager(folder: Path) -> Iterator[str]:
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("alertmanager is not installed")
    (folder / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    port = free_port()
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
            "--log.level=error",
        ]
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE_S)


def active_alerts(base: str) -> list[dict[str, object]]:
    try:
        with urllib.request.urlopen(
            f"{base}/api/v2/alerts?active=true", timeout=DEADLINE_S
        ) as answer:
            return json.loads(answer.read())
    except OSError:
        return []  # not up yet
