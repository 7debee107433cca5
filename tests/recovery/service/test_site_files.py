"""The site's files of coolant units and power feeds in a controller: from the file to what no spare may hang on."""

import json
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from detectors.parts.power_feeds import PowerReading
from rankmend.cli import cli
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.service.controller_config import Config
from recovery.service.pager import SiteReadings, look
from recovery.service.paging.alerts import Links
from recovery.service.paging.site_troubles import SiteFile
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import make_folder, running

pytestmark = pytest.mark.process

SITE = """
[[power_feed]]
name = "pdu-1"
nodes = ["n[0-9]"]

[[power_feed]]
name = "pdu-2"
nodes = ["n[10-19]"]
"""
BRAKED = [
    IncomingAlert(
        {"alertname": "RankmendGpuPowerBrake", "node": f"n{number}", "severity": "critical"},
        {"summary": "the power brake held the clocks down"},
        None,
        is_firing=True,
    )
    for number in range(10)
]


def test_a_feed_over_its_limit_whose_nodes_have_a_power_brake_is_known_to_be_broken(
    tmp_path: Path,
) -> None:
    make_folder(tmp_path / "c")
    (tmp_path / "site.toml").write_text(SITE)
    topology, power = tmp_path / "topology.json", tmp_path / "power.json"
    words = ["fabric", "topology", "--site", str(tmp_path / "site.toml"), "-o", str(topology)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    feed = {
        "feed": "pdu-1",
        "read_unix_s": time.time(),
        "power_watts": 47e3,
        "power_watts_max": 45e3,
    }
    power.write_text(json.dumps({"format": "rankmend-power-1", "feeds": [feed]}))

    def change(one: Config) -> Config:
        told = msgspec.structs.replace(
            one.discovery, topology_file=str(topology), power_file=str(power)
        )
        return msgspec.structs.replace(one, discovery=told)

    with running(tmp_path / "c", change) as up:
        worker = up.service.worker
        desk = worker.desk
        worker.call(lambda: desk.note_running(f"n{number}" for number in range(20))).result(
            DEADLINE_S
        )
        worker.call(lambda: desk.take_alerts(BRAKED, {})).result(DEADLINE_S)
        eventually(lambda: bool(desk.broken_parts), "the feed is known to be broken")

    ((part, why),) = desk.broken_parts.items()
    assert str(part) == "power feed pdu-1"
    assert "47 kW, above 45 kW; 10 nodes of 10 on it short of power" in why


def test_a_feed_that_is_no_longer_read_is_told_to_people_until_it_is(tmp_path: Path) -> None:
    make_folder(tmp_path / "c")
    links, since = Links("https://wiki/runbooks", "https://console"), {"site-readings": 0.0}

    def told(age_s: float) -> list[str]:
        reading = PowerReading("pdu-1", time.time() - age_s)
        site = SiteReadings(power=SiteFile("/srv/power.json", (reading,)))
        found = worker.call(lambda: look(worker, links, 1e6, site, since)).result(DEADLINE_S)
        return [one.labels["incident"] for one in found.alerts if "incident" in one.labels]

    with running(tmp_path / "c") as up:
        worker = up.service.worker
        seen = told(0), told(3600), told(3600)

    assert seen == ([], ["site-readings"], ["site-readings"])
