"""A real controller reads the agent of a blamed node, and its page shows what that said: also one that means harm."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import urllib3
from aiohttp import web

from recovery.readings.reading import NodeReading
from recovery.readings.reading_file import read_readings
from recovery.service.controller_config import Config, ConsoleSection, Discovery
from recovery.service.discovery import agent_address
from tests.support.agent_server import AgentServer, Handler, serve_agent
from tests.support.console_stage import Stage, make_files
from tests.support.service import running, wait_until

UUID = "GPU-5f3c1c9a-7b1e-4a55-9f10-0c1d7e0a2b64"
PAGE = (
    f'rankmend_gpu_temperature_celsius{{gpu="3",uuid="{UUID}",pci_bus_id="0000:4b:00.0"}} 91\n'
    'rankmend_host_load_processes{window="1m"} 12.5\n'
)


async def honest(_request: web.Request) -> web.StreamResponse:
    return web.Response(text=PAGE)


async def hostile(_request: web.Request) -> web.StreamResponse:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    line = f'rankmend_gpu_success{{gpu="{evil}",uuid="{evil}",model="{evil}"}} 1\n'
    return web.Response(text=line + "rankmend_evil 1\n" + "# " + "A" * 1_000_000)


@contextmanager
def staged_with(
    folder: Path, handler: Handler, console: ConsoleSection
) -> Iterator[tuple[Stage, AgentServer]]:
    """Run a controller for which every node's agent is the same server."""
    make_files(folder)
    with serve_agent(handler) as server:

        def change(config: Config) -> Config:
            told = msgspec.structs.replace(
                config.discovery, addresses={"*": f"127.0.0.1:{server.port}"}
            )
            return msgspec.structs.replace(config, discovery=told, console=console)

        with running(folder, change) as up, Stage(up) as stage:
            yield stage, server


def recover(stage: Stage) -> tuple[str, Path]:
    """Have a node's GPU fail and be recovered from; return the incident and the job's folder."""
    job = stage.start("small-train", ["n1", "n2", "n3"], slots=2, spares=1)
    incident = stage.recover(job)
    return incident, stage.up.service.worker.jobs.known[job.job_id].path


def readings_of(folder: Path, incident: str) -> tuple[NodeReading, ...]:
    wait_until(lambda: len(read_readings(folder, incident)) == 2, "two readings")
    return read_readings(folder, incident)


def page_of(stage: Stage, incident: str) -> str:
    with urllib3.PoolManager(ca_certs=str(stage.up.ca), retries=False) as pool:
        return pool.request("GET", f"{stage.up.url}/incidents/{incident}").data.decode()


def test_page_of_an_incident_shows_what_the_blamed_nodes_agent_said(tmp_path: Path) -> None:
    with staged_with(tmp_path / "files", honest, ConsoleSection(open=True)) as (stage, server):
        incident, folder = recover(stage)
        readings = readings_of(folder, incident)
        page = page_of(stage, incident)

    assert [(one.node, one.at.value, one.problem) for one in readings] == [
        ("n1", "opened", ""),
        ("n1", "closed", ""),
    ]
    assert server.asked == ["/metrics", "/metrics"]
    assert "91 °C" in page
    assert "12.5" in page
    blamed = page.partition("<details open>")[2].partition("</details>")[0]
    assert UUID in blamed
    assert "blamed</b>" in blamed


def test_hostile_page_of_an_agent_is_text_on_the_page(tmp_path: Path) -> None:
    with staged_with(tmp_path / "files", hostile, ConsoleSection(open=True)) as (stage, _server):
        incident, folder = recover(stage)
        readings_of(folder, incident)
        page = page_of(stage, incident)

    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page


def test_agent_that_is_not_there_delays_no_recovery_and_is_said_with_the_reason(
    tmp_path: Path,
) -> None:
    async def failing(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    with staged_with(tmp_path / "files", failing, ConsoleSection(open=True)) as (stage, _server):
        incident, folder = recover(stage)
        readings_of(folder, incident)
        page = page_of(stage, incident)

    assert "not read: 127.0.0.1:" in page
    assert "answered HTTP 503" in page


@pytest.mark.parametrize(
    "console", [ConsoleSection(read_agents=False), ConsoleSection(enabled=False)]
)
def test_no_agent_is_read_where_the_configuration_says_so(
    tmp_path: Path, console: ConsoleSection
) -> None:
    with staged_with(tmp_path / "files", honest, console) as (stage, server):
        incident, folder = recover(stage)

    assert server.asked == []
    assert read_readings(folder, incident) == ()


@pytest.mark.parametrize("node", ["n1/../x", "n1:80", "n1?x=1", "u@n1", "n 1", "", "-n1", "[::1]"])
def test_name_that_is_no_host_name_is_asked_nowhere(node: str) -> None:
    told = Discovery(domain="cluster.example")

    assert agent_address(node, told) is None
    assert agent_address("n1", told) == ("n1.cluster.example", 9476)
