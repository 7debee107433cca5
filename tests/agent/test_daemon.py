"""The agent as a whole: real processes, a real Prometheus, bad configuration, bad luck."""

import gzip
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import config as configuration
from agent.assembly.families import FAMILIES
from agent.collectors.ranks import RanksCollector
from agent.config import AgentConfig
from agent.page.application import make_app
from agent.page.http_server import HttpServer, parse_address
from agent.ranks.table import RankTable
from agent.sampling.collection import NO_ANSWER, CollectorOutcome, CollectorView
from rankmend.agent_socket import OfferedRank
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from rankmend.node import node_name, short_name
from recovery.launcher.agent_link import AgentLink
from tests.support.agent import (
    FIXTURE,
    JOB_ID,
    ROOT,
    FakeClock,
    make_progress_file,
    ranks_page,
    run_agent,
    running_agent,
    tmpfs_folder,
)
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.monitoring import fetch, query, running_prometheus

pytestmark = pytest.mark.process

_CHANGING = re.compile(
    r"^((?:process_\w+|rankmend_(?:agent_\w+|collector_(?:age|duration)_seconds))(?:\{[^}]*\})?) .*$",
    re.MULTILINE,
)


@pytest.fixture
def shm() -> Iterator[Path]:
    with tmpfs_folder() as folder:
        yield folder


def test_page_of_the_fixture_node_is_as_recorded() -> None:
    run = run_agent("--once", "--procfs", str(FIXTURE / "proc"), "--sysfs", str(FIXTURE / "sys"))

    page = _CHANGING.sub(r"\1 CHANGES", run.stdout)
    page = re.sub(r'python="[^"]*",version="[^"]*"', 'python="CHANGES",version="CHANGES"', page)
    assert run.returncode == 0, run.stderr
    assert page == (FIXTURE / "expected.prom").read_text()


def test_launcher_to_scrape_and_back(shm: Path) -> None:
    with running_agent("--socket", str(shm / "agent.sock"), "--interval", "0.1") as (agent, port):
        link = AgentLink([shm / "agent.sock"], SystemClock())
        link.offer(JOB_ID, "digits", 3, [(OfferedRank(2, 2, 77), make_progress_file(shm, 2, 3))])

        def own() -> list[
            dict[str, object]
        ]:  # beside those of jobs that are watched on this machine
            return [one for one in ranks_page(agent, port) if one["job_id"] == str(JOB_ID)]

        ranks = eventually(own, "the rank on the page")
        rank_on_page = f'attempt="3",job_id="{JOB_ID}",job_name="digits",pid="77",rank="2"'
        eventually(lambda: rank_on_page in agent.get(port, "/metrics")[1], "the rank's metrics")
        link.close()
        eventually(lambda: own() == [], "the rank to go")
        status = agent.stop()

    assert (ranks[0]["rank"], ranks[0]["attempt"], ranks[0]["job_name"]) == (2, 3, "digits")
    assert (ranks[0]["is_attached"], ranks[0]["error"]) == (False, None)
    assert len(ranks) == 1
    assert status == 0
    assert "agent stopped" in "".join(agent.lines)
    assert not (shm / "agent.sock").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_agent_cleanly(number: int, tmp_path: Path) -> None:
    with running_agent("--socket", str(tmp_path / "agent.sock")) as (agent, _port):
        status = agent.stop(number)

    assert status == 0, "".join(agent.lines)
    assert not (tmp_path / "agent.sock").exists()


def test_source_that_never_answers_holds_up_neither_the_page_nor_the_end(tmp_path: Path) -> None:
    proc = shutil.copytree(FIXTURE / "proc", tmp_path / "proc")
    (proc / "pressure" / "cpu").unlink()
    os.mkfifo(proc / "pressure" / "cpu")  # opening it waits for a writer for ever
    with running_agent("--socket", str(tmp_path / "agent.sock"), "--procfs", str(proc)) as found:
        agent, port = found
        page = eventually(
            lambda: (
                found
                if "host_load_processes{" in (found := agent.get(port, "/metrics")[1])
                else None
            ),
            "the others",
        )
        status = agent.stop()

    assert 'collector_age_seconds{collector="pressure"}' in page
    assert 'collector_success{collector="pressure"}' not in page
    assert "pressure_some_seconds" not in page
    assert status == 0


def test_pages_beside_the_metrics(tmp_path: Path) -> None:
    with running_agent("--socket", str(tmp_path / "agent.sock"), "--node", "<gpu-1>") as found:
        agent, port = found
        eventually(lambda: agent.get(port, "/healthz") == (200, "ok\n"), "health")
        # The page is rendered once a sample: the first may be from before the agent's own.
        eventually(
            lambda: "rankmend_agent_info{" in agent.get(port, "/metrics")[1], "its own series"
        )
        home_status, home = agent.get(port, "/")
        missing_status, _missing = agent.get(port, "/nothing")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            encoding, body = answer.headers["Content-Encoding"], answer.read()
        posting = urllib.request.Request(f"http://127.0.0.1:{port}/", data=b"x")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(posting, timeout=DEADLINE_S)

    assert (home_status, missing_status) == (200, 404)
    assert "agent on &lt;gpu-1&gt;" in home
    assert "<td>thermal</td>" in home
    assert encoding == "gzip"
    assert b"rankmend_agent_info{" in gzip.decompress(body)


def test_busy_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = run_agent("--listen", address, "--socket", str(tmp_path / "agent.sock"))

    assert run.returncode == 1
    assert f"cannot listen on {address}: Address already in use" in run.stderr
    assert "Traceback" not in run.stderr


def test_reload_takes_a_good_configuration_and_keeps_the_old_one_for_a_bad_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("interval_s = 0.1\n")
    arguments = ("--config", str(file), "--socket", str(tmp_path / "agent.sock"))
    with running_agent(*arguments) as (agent, port):
        file.write_text("intervall_s = 5\n")
        agent.process.send_signal(signal.SIGHUP)
        refusal = agent.wait_for_line("configuration not reloaded")
        eventually(lambda: agent.get(port, "/healthz")[0] == 200, "the old one to go on")
        file.write_text('disabled = ["thermal"]\nlisten = "127.0.0.1:1"\n')
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_for_line("configuration reloaded")
        _status, home = agent.get(port, "/")
        status = agent.stop()

    assert "intervall_s" in refusal
    assert "<td>thermal</td>" not in home
    assert status == 0
    assert "this setting needs a restart" not in "".join(
        agent.lines
    )  # --listen is given: no change


@pytest.mark.component("Prometheus")
def test_prometheus_scrapes_the_agent_and_knows_its_types(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with running_agent("--socket", str(tmp_path / "agent.sock")) as (_agent, port):
        text = (ROOT / "deploy" / "prometheus" / "rankmend.yml").read_text()
        config = text.replace("scrape_interval: 5s", "scrape_interval: 1s")
        (tmp_path / "prometheus.yml").write_text(config.replace("timeout: 4s", "timeout: 1s"))
        targets = [{"targets": [f"localhost:{port}"]}]
        (tmp_path / "rankmend-nodes.json").write_text(json.dumps(targets))
        # Prometheus asks for OpenMetrics, where a counter's family has no _total
        family = "rankmend_host_cpu_seconds"
        with running_prometheus(tmp_path) as base:
            agent_info = []

            def is_read() -> bool:  # a scrape that fails ends all series until the next one
                agent_info[:] = query(base, "rankmend_agent_info")
                return len(agent_info) == 1

            eventually(is_read, "a good scrape")
            metadata = fetch(base, f"/api/v1/metadata?metric={family}")

    assert agent_info[0]["metric"]["node"] == "localhost"
    assert metadata["data"][family][0]["type"] == "counter"


def test_importing_the_agent_loads_neither_numpy_nor_the_controller() -> None:
    script = "import sys, agent.daemon.service; print(*sys.modules)"

    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    tops = {name.partition(".")[0] for name in run.stdout.split()}
    assert not tops & {"numpy", "torch", "recovery", "pynvml", "rich"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("interval = 1", "interval"),
        ("interval_s = 'x'", "interval_s"),
        ("interval_s = 0", "interval_s"),
        ("intervals_s = {fpga = 1}", "no collector 'fpga'"),
        ("intervals_s = {disk = 1e9}", "disk"),
        ("disabled = ['gpus']", "no collector 'gpus'"),
        ("progress_glob = 'relative/*'", "relative"),
        ("procfs = '/nowhere'", "/nowhere"),
        ("listen = ", "agent.toml"),
        ("node = '\xff'", "agent.toml"),
    ],
)
def test_wrong_configuration_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError, match=re.escape(message)):
        configuration.load(file)


def test_missing_configuration_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.toml"):
        configuration.load(tmp_path / "agent.toml")


def test_flags_win_over_the_file_and_a_collectors_own_interval_over_the_common_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("listen = '127.0.0.1:1'\nnode = 'a'\ninterval_s = 2\nintervals_s = {disk = 30}")

    config = configuration.override(configuration.load(file), listen="127.0.0.1:2", node=None)

    assert (config.listen, config.node) == ("127.0.0.1:2", "a")
    assert configuration.interval_of(config, "disk", 10.0) == 30
    assert configuration.interval_of(config, "host", 1.0) == 2
    assert configuration.interval_of(AgentConfig(), "host", 1.0) == 1.0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9476", ("127.0.0.1", 9476)),
        ("[::1]:80", ("::1", 80)),
        (":9476", ("0.0.0.0", 9476)),
        ("gpu-1:0", ("gpu-1", 0)),
    ],
)
def test_listen_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "9476", "a:b", "a:65536", "::1:80", "a:-1", "a:1 2"])
def test_listen_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        parse_address(text)


def test_node_is_named_by_configuration_then_slurm_then_host() -> None:
    slurm = {"SLURMD_NODENAME": "gpu-7"}

    assert node_name("mine", slurm) == "mine"
    assert node_name(None, slurm) == "gpu-7"
    assert node_name(None, {}) == short_name(socket.gethostname())


@pytest.mark.parametrize(
    ("host", "name"),
    [("gpu-7", "gpu-7"), ("gpu-7.cluster.example", "gpu-7"), ("10.1.2.3", "10.1.2.3")],
)
def test_short_name_of_a_host_is_its_first_label_and_an_address_stays_whole(
    host: str, name: str
) -> None:
    assert short_name(host) == name


def stale_view(name: str, *, is_stale: bool) -> CollectorView:
    return CollectorView(
        name, 1.0, CollectorOutcome.MEASURED, "", 61.0, 0.1, 60.0, 60.0, 0, is_stale, NO_ANSWER
    )


def test_health_names_the_collector_that_is_stale() -> None:
    views = [stale_view("host", is_stale=False), stale_view("disk", is_stale=True)]
    clock = FakeClock()
    app = make_app("n", lambda: views, RanksCollector(RankTable(), clock), clock.now_s, FAMILIES)

    status, body = call(app, "/healthz")

    assert (status, body) == ("503 Service Unavailable", "stale: disk (61 s old)\n")
    assert "stale, measured, running for 60 s" in call(app, "/")[1]


def call(app: object, path: str, method: str = "GET") -> tuple[str, str]:
    answered: list[str] = []
    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "wsgi.input": io.BytesIO()}
    body = app(environ, lambda status, headers: answered.append(status))
    return answered[0], b"".join(body).decode()


def test_clients_that_say_nothing_do_not_shut_out_the_next_once_they_go() -> None:
    clock = FakeClock()
    app = make_app("n", list, RanksCollector(RankTable(), clock), clock.now_s, FAMILIES)
    server = HttpServer("127.0.0.1:0", app)
    server.start()
    try:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        for connection in silent:
            connection.close()

        def answers() -> bool:
            try:
                url = f"http://127.0.0.1:{server.port}/healthz"
                with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                    return answer.status == 200
            except OSError:
                return False

        eventually(answers, "an answer")
    finally:
        server.stop()
