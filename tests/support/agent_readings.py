"""A controller that reads the agents of blamed nodes, which are one server that says what a test wants."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import urllib3
from aiohttp import web

from rankmend.clock import SystemClock
from recovery.accounting.readings.reading import NodeReading
from recovery.accounting.readings.reading_file import read_readings
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.records import Entry
from recovery.service.agent_readings import AgentReadings
from recovery.service.controller_config import Config, ConsoleSection, Discovery
from tests.support.agent_server import AgentServer, Handler, serve_agent
from tests.support.console_stage import Stage, make_files
from tests.support.eventually import eventually
from tests.support.service import running

UUID = "GPU-5f3c1c9a-7b1e-4a55-9f10-0c1d7e0a2b64"
PAGE = (
    f'rankmend_gpu_temperature_celsius{{gpu="3",uuid="{UUID}",pci_bus_id="0000:4b:00.0"}} 91\n'
    'rankmend_host_load_processes{window="1m"} 12.5\n'
)


async def honest(_request: web.Request) -> web.StreamResponse:
    return web.Response(text=PAGE)


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
    eventually(lambda: len(read_readings(folder, incident)) == 2, "two readings")
    return read_readings(folder, incident)


def page_of(stage: Stage, incident: str) -> str:
    with urllib3.PoolManager(ca_certs=str(stage.up.ca), retries=False) as pool:
        return pool.request("GET", f"{stage.up.url}/incidents/{incident}").data.decode()


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


def opened_on(node: str, life: Sequence[Entry]) -> list[Entry]:
    """Return the life of an incident with this node to blame."""
    entries = list(life)
    place = next(i for i, one in enumerate(entries) if isinstance(one.record, IncidentOpened))
    opened = entries[place].record
    assert isinstance(opened, IncidentOpened)
    finding = replace(opened.failure.finding, node=node)
    record = replace(opened, failure=replace(opened.failure, finding=finding))
    entries[place] = replace(entries[place], record=record)
    return entries
