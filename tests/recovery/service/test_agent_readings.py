"""A real controller reads the agent of a blamed node, and its page shows what that said: also one that means harm."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import urllib3
from aiohttp import web

from detectors.finding import Severity
from rankmend.clock import SystemClock
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.node_records import EvidenceTaken
from recovery.journal.records import Entry
from recovery.messages.outside import NodeEvidence
from recovery.readings.reading import NodeReading
from recovery.readings.reading_file import NODES_MAX, read_readings
from recovery.service.agent_readings import AgentReadings
from recovery.service.controller_config import Config, ConsoleSection, Discovery
from recovery.service.discovery import agent_address
from tests.support.agent_server import AgentServer, Handler, serve_agent
from tests.support.console_stage import Stage, make_files
from tests.support.goodput_jobs import BEGIN, FAILED, entries_of
from tests.support.long_journals import write
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
    folder: Path, handler: Handler, console: ConsoleSection, journal: str | None = None
) -> Iterator[tuple[Stage, AgentServer]]:
    """Run a controller for which every node's agent is the same server."""
    make_files(folder)
    with serve_agent(handler) as server:

        def change(config: Config) -> Config:
            told = msgspec.structs.replace(
                config.discovery, addresses={"*": f"127.0.0.1:{server.port}"}
            )
            return msgspec.structs.replace(config, discovery=told, console=console, journal=journal)

        with running(folder, change) as up, Stage(up) as stage:
            yield stage, server


def recover(stage: Stage) -> tuple[str, Path]:
    """Have a node's GPU fail and be recovered from; return the incident and the job's folder."""
    job = stage.start("small-train", ["n1", "n2", "n3"], slots=2, spares=1)
    incident = stage.recover(job)
    return incident, stage.up.service.worker.jobs.known[job.job_id].journal.folder


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


@contextmanager
def followed(handler: Handler) -> Iterator[tuple[AgentReadings, AgentServer]]:
    """Run readings without a controller around them."""
    with serve_agent(handler) as server:
        told = Discovery(addresses={"*": f"127.0.0.1:{server.port}"})
        config = Config(state_dir="/nowhere", discovery=told)
        readings = AgentReadings(SystemClock(), lambda: config)
        readings.start()
        try:
            yield readings, server
        finally:
            readings.stop()


def opened_on(node: str) -> list[Entry]:
    """Return an incident's life with a node to blame, without its end."""
    entries = entries_of(*BEGIN, *FAILED)
    place = next(i for i, one in enumerate(entries) if isinstance(one.record, IncidentOpened))
    opened = entries[place].record
    assert isinstance(opened, IncidentOpened)
    finding = replace(opened.failure.finding, node=node)
    record = replace(opened, failure=replace(opened.failure, finding=finding))
    entries[place] = replace(entries[place], record=record)
    return entries


def test_controller_that_starts_anew_within_an_incident_reads_its_end_alone(
    tmp_path: Path,
) -> None:
    entries = opened_on("n1")
    write(tmp_path, entries)

    with followed(honest) as (readings, _server):
        readings.journal_opened("job", tmp_path, entries[:9])
        for entry in entries[9:]:
            readings.entry("job", tmp_path, entry)
        wait_until(lambda: bool(read_readings(tmp_path, "inc-1")), "the reading")

    assert [one.at.value for one in read_readings(tmp_path, "inc-1")] == ["closed"]


def test_incident_that_was_over_before_the_controllers_start_is_not_read(tmp_path: Path) -> None:
    entries = opened_on("n1")
    write(tmp_path, entries)

    with followed(honest) as (readings, server):
        readings.journal_opened("job", tmp_path, entries)
        readings.ended("job")

    assert server.asked == []


def test_of_many_blamed_nodes_only_some_are_read(tmp_path: Path) -> None:
    entries = opened_on("n1")
    alerts = tuple(
        NodeEvidence(str(number), "RankmendLinkDown", f"n{number}", (), "", Severity.CRITICAL, "drain", "", 0.0)
        for number in range(20)
    )  # fmt: skip
    taken = EvidenceTaken(alerts, 1, "inc-1", "because")

    with followed(honest) as (readings, server):
        for entry in (*entries[:7], replace(entries[7], record=taken), *entries[7:]):
            readings.entry("job", tmp_path, entry)
        wait_until(lambda: len(read_readings(tmp_path, "inc-1")) == 2 * NODES_MAX, "all readings")

    assert len(server.asked) == 2 * NODES_MAX
