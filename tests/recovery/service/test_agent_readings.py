"""A real controller reads the agent of a blamed node, and its page shows what that said: also one that means harm."""

from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from detectors.finding import Severity
from recovery.accounting.readings.reading_file import NODES_MAX, read_readings
from recovery.journal.node_records import EvidenceTaken
from recovery.messages.outside import NodeEvidence
from recovery.service.controller_config import ConsoleSection, Discovery
from recovery.service.discovery import agent_address
from tests.support.agent_readings import (
    UUID,
    followed,
    honest,
    opened_on,
    page_of,
    readings_of,
    recover,
    staged_with,
)
from tests.support.eventually import eventually
from tests.support.goodput_jobs import BEGIN, FAILED, entries_of
from tests.support.long_journals import write

pytestmark = pytest.mark.process


async def hostile(_request: web.Request) -> web.StreamResponse:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    line = f'rankmend_gpu_success{{gpu="{evil}",uuid="{evil}",model="{evil}"}} 1\n'
    return web.Response(text=line + "rankmend_evil 1\n" + "# " + "A" * 1_000_000)


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


def test_controller_that_starts_anew_within_an_incident_reads_its_end_alone(
    tmp_path: Path,
) -> None:
    entries = opened_on("n1", entries_of(*BEGIN, *FAILED))
    write(tmp_path, entries)

    with followed(honest) as (readings, _server):
        readings.journal_opened("job", tmp_path, entries[:9])
        for entry in entries[9:]:
            readings.entry("job", tmp_path, entry)
        eventually(lambda: bool(read_readings(tmp_path, "inc-1")), "the reading")

    assert [one.at.value for one in read_readings(tmp_path, "inc-1")] == ["closed"]


def test_incident_that_was_over_before_the_controllers_start_is_not_read(tmp_path: Path) -> None:
    entries = opened_on("n1", entries_of(*BEGIN, *FAILED))
    write(tmp_path, entries)

    with followed(honest) as (readings, server):
        readings.journal_opened("job", tmp_path, entries)
        readings.ended("job")

    assert server.asked == []


def test_of_many_blamed_nodes_only_some_are_read(tmp_path: Path) -> None:
    entries = opened_on("n1", entries_of(*BEGIN, *FAILED))
    alerts = tuple(
        NodeEvidence(str(number), "RankmendLinkDown", f"n{number}", (), "", Severity.CRITICAL, "drain", "", 0.0)
        for number in range(20)
    )  # fmt: skip
    taken = EvidenceTaken(alerts, 1, "inc-1", "because")

    with followed(honest) as (readings, server):
        for entry in (*entries[:7], replace(entries[7], record=taken), *entries[7:]):
            readings.entry("job", tmp_path, entry)
        eventually(lambda: len(read_readings(tmp_path, "inc-1")) == 2 * NODES_MAX, "all readings")

    assert len(server.asked) == 2 * NODES_MAX
