"""Metrics of nodes from agents' pages and from a real Prometheus, or the commands say why there are none."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rankmend.cli.diagnosis.diagnose_hosts import hosts
from rankmend.cli.diagnosis.diagnose_slow import slow
from tests.support.agent import ROOT
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.monitoring import fetch, query, running_prometheus
from tests.support.nvml_stub.node import (
    StubNode,
    library_folder,  # noqa: F401 - a fixture
)
from tests.support.slow_traces import NODES, ONSET_S, run_slow, write_trace

pytestmark = pytest.mark.process


def test_command_ends_with_2_where_the_metrics_can_not_be_read(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.csv", at_s=None)
    (tmp_path / "page.txt").write_text("{{{", encoding="utf-8")
    (tmp_path / "other.txt").write_text("up 1\n", encoding="utf-8")

    for arguments, said in (
        (["--metrics", str(tmp_path / "page.txt")], "page.txt"),
        (["--metrics", str(tmp_path / "other.txt")], "no metric of rankmend's agent"),
        (["--metrics", str(tmp_path / "absent")], "cannot read"),
        (["--prometheus", "ftp://x"], "not an http or https address"),
        (["--prometheus", "http://u:p@x"], "no password in the address"),
        (["--prometheus", "http://127.0.0.1:9"], "no unix times"),
        (["--prometheus", "http://127.0.0.1:9", "--start", "1", "--end", "100"], "cannot query"),
    ):
        got = CliRunner().invoke(slow, [str(trace), *arguments])
        assert (got.exit_code, said in got.stderr) == (2, True), got.output


def test_pages_of_the_agent_name_the_node_that_waits_for_a_cpu(
    tmp_path: Path,
    library_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    procfs = tmp_path / "proc"
    shutil.copytree(ROOT / "tests/fixtures/sys-node/proc", procfs, symlinks=True)
    sysfs = ROOT / "tests/fixtures/sys-node/sys"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library_folder))
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "gpus"))
    roots = ("--procfs", str(procfs), "--sysfs", str(sysfs))
    named = []
    for number in range(2):
        for node in ("n0", "n1", "n2"):
            is_bad = node == "n1"
            waited_us = 10_000_000 * number if is_bad else 1_000 * number
            line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}\n"
            (procfs / "pressure" / "cpu").write_text(line, encoding="ascii")
            stub = StubNode(gpus=2)
            if is_bad:
                stub.set(1, "nvmlDeviceGetCurrPcieLinkWidth", 8)
            stub.save(tmp_path / "gpus")
            run = subprocess.run(
                [sys.executable, "-m", "rankmend.cli", "agent", "--once", *roots],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=True,
            )
            page = tmp_path / f"{node}.{number}.prom"
            page.write_text(run.stdout, encoding="utf-8")
            stamp = ONSET_S + 20 * number
            os.utime(page, (stamp, stamp))
            named += ["--metrics", str(page)]
    trace = write_trace(tmp_path / "trace.csv", at_s=None)

    page = run_slow(trace, *named)

    causes = {one["cause"]: one for one in page["hardware"][0]["causes"]}
    assert causes["cpu_crowded"]["evidence"][0]["text"].startswith(
        "tasks waited for a CPU: 50% of the time, its peers 0%"
    )
    assert causes["pcie_degraded"]["device"].endswith("0001")
    assert list(causes) == ["cpu_crowded", "pcie_degraded"]


class Exporter:
    """Serves what the agents of four nodes would: counters that grow with the time, n1 throttled."""

    def page(self, node: str) -> str:
        now_s = time.time() - 1_600_000_000
        held_s = 0.4 * now_s if node == "n1" else 0.0
        return (
            "# TYPE rankmend_cgroup_cpu_throttled_seconds_total counter\n"
            f'rankmend_cgroup_cpu_throttled_seconds_total{{cgroup="/job"}} {held_s}\n'
            "# TYPE rankmend_agent_info gauge\nrankmend_agent_info 1\n"
            "# TYPE rankmend_host_cpu_seconds_total counter\n"
            f'rankmend_host_cpu_seconds_total{{mode="user"}} {now_s}\n'
            "# TYPE rankmend_rank_info gauge\n"
            f'rankmend_rank_info{{job_id="J",rank="{2 * int(node[1])}"}} 1\n'
        )


@contextmanager
def serving(exporter: Exporter) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exporter.page(self.path.strip("/").partition("/")[0]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_real_prometheus_is_asked_for_the_window(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with serving(Exporter()) as port:
        jobs = "".join(
            f"  - job_name: {node}\n    metrics_path: /{node}\n    static_configs:\n"
            f"      - targets: ['127.0.0.1:{port}']\n        labels: {{node: {node}}}\n"
            for node in NODES
        )
        text = f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{jobs}"
        (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
        with running_prometheus(tmp_path) as base:
            held = "count_over_time(rankmend_cgroup_cpu_throttled_seconds_total[1m]) >= 8"
            eventually(lambda: len(query(base, held)) == 4, "eight scrapes of four nodes")
            assert fetch(base, "/api/v1/labels")["status"] == "success"
            now_s = time.time()
            trace = write_trace(tmp_path / "trace.csv", at_s=None)
            asked = ["--prometheus", base, "--start", str(now_s - 60), "--end", str(now_s)]

            page = run_slow(trace, *asked, "--job", "J")
            alike = CliRunner().invoke(hosts, [*asked, "--job", "J", "--json"])
            unknown = CliRunner().invoke(slow, [str(trace), *asked, "--job", "K"])

    assert page["hardware"][0]["causes"], page["hardware"]
    (cause,) = page["hardware"][0]["causes"]
    assert (cause["cause"], cause["host"]) == ("cpu_throttled", "n1")
    said = re.match(
        r"kept from running by the CPU quota of /job: (\d+)% of the time, its peers 0%",
        cause["evidence"][0]["text"],
    )
    assert said is not None, cause
    assert 30 <= int(said[1]) <= 50, "0.4, but for how late a busy machine serves a page"
    told = json.loads(alike.stdout)
    assert (alike.exit_code, told["verdict"], told["class"]) == (0, "unknown", "too_little_data")
    assert (unknown.exit_code, "has no rank of job K" in unknown.stderr) == (2, True)


def run_hosts(*arguments: object) -> Any:
    return CliRunner().invoke(hosts, [str(one) for one in arguments])


def test_command_without_input_or_with_two_ends_with_2(tmp_path: Path) -> None:
    assert run_hosts().exit_code == 2
    assert run_hosts(tmp_path / "absent.json").exit_code == 2
    assert run_hosts(tmp_path / "absent.csv").exit_code == 2
    assert run_hosts(tmp_path / "x.json", "--prometheus", "http://127.0.0.1:9").exit_code == 2
    assert "cannot query" in run_hosts("--prometheus", "http://127.0.0.1:9").stderr
