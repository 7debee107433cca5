"""The controller's series of coolant units and power feeds: from the site's files to a scrape."""

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import urllib3

from detectors.parts.cooling import CoolingReading, judge_cooling
from detectors.parts.fleet_parts import NO_PARTS
from detectors.parts.power_feeds import PowerReading, judge_power
from detectors.parts.site_units import POWER_FEED, STALE_S, UnitVerdict
from recovery.service.controller_config import Config
from recovery.service.metrics.measures import Measures
from recovery.service.metrics.site_gauges import SHOWN_MAX, VERDICT_S_MAX
from recovery.service.pager import SiteReadings, SiteView
from recovery.service.paging.site_troubles import SiteFile
from tests.support.eventually import eventually
from tests.support.service import Running, make_folder, running

pytestmark = pytest.mark.process

NOW_S = 1.8e9
UNIT = CoolingReading("cdu-1", NOW_S - 30, 6.2, 32.0, 44.5, 2.1e5, False, "ok")
FEED = PowerReading("pdu-1", NOW_S - 5, 47e3, 0.86, False, "warning", power_watts_max=45e3)
SERIES = re.compile(
    r'^rankmend_controller_((?:coolant_unit|power_feed|site)_\w+)\{\w+="((?:[^"\\]|\\.)*)"\} (\S+)$',
    re.M,
)


def series_of(page: str) -> dict[tuple[str, str], float]:
    """Return the units' series on a page by their name and the unit's."""
    return {(name, unit): float(value) for name, unit, value in SERIES.findall(page)}


def shown(
    *readings: CoolingReading | PowerReading, judged_s_ago: float = 0.5
) -> dict[tuple[str, str], float]:
    """Return the series of a file with these readings, judged without any node."""
    cooling = tuple(one for one in readings if isinstance(one, CoolingReading))
    power = tuple(one for one in readings if isinstance(one, PowerReading))
    verdicts = (
        *judge_cooling(cooling, (), (), NO_PARTS, NOW_S),
        *judge_power(power, (), (), NO_PARTS, NOW_S),
    )
    site = SiteReadings(SiteFile("/c.json", cooling), SiteFile("/p.json", power))
    return rendered(SiteView(site, verdicts, judged_s_ago))


def rendered(view: SiteView) -> dict[tuple[str, str], float]:
    measures = Measures()
    measures.site.note(view, NOW_S)
    return series_of(measures.render().decode())


def test_all_that_a_unit_and_a_feed_tell_is_shown_in_base_units() -> None:
    assert shown(UNIT, FEED) == {
        ("coolant_unit_flow_liters_per_second", "cdu-1"): 6.2,
        ("coolant_unit_supply_celsius", "cdu-1"): 32.0,
        ("coolant_unit_return_celsius", "cdu-1"): 44.5,
        ("coolant_unit_rise_kelvin", "cdu-1"): 12.5,
        ("coolant_unit_pressure_pascals", "cdu-1"): 2.1e5,
        ("coolant_unit_leaking", "cdu-1"): 0,
        ("coolant_unit_health_id", "cdu-1"): 0,
        ("coolant_unit_reading_age_seconds", "cdu-1"): 30.0,
        ("coolant_unit_state_id", "cdu-1"): 0,
        ("power_feed_watts", "pdu-1"): 47e3,
        ("power_feed_load_ratio", "pdu-1"): 0.86,
        ("power_feed_tripped", "pdu-1"): 0,
        ("power_feed_health_id", "pdu-1"): 1,
        ("power_feed_reading_age_seconds", "pdu-1"): 5.0,
        ("power_feed_state_id", "pdu-1"): 1,
        ("site_file_success", "cooling"): 1,
        ("site_file_success", "power"): 1,
        ("site_units", "cooling"): 1,
        ("site_units", "power"): 1,
    }


def test_what_a_unit_does_not_tell_has_no_series() -> None:
    of_unit = {
        name
        for name, unit in shown(CoolingReading("cdu-9", NOW_S, health="odd"))
        if unit == "cdu-9"
    }

    assert of_unit == {"coolant_unit_reading_age_seconds", "coolant_unit_state_id"}


@pytest.mark.parametrize("age_s", [STALE_S + 1, -STALE_S - 1], ids=["old", "of the future"])
def test_a_reading_that_is_too_old_leaves_its_age_and_no_figure(age_s: float) -> None:
    found = shown(
        replace(UNIT, read_unix_s=NOW_S - age_s), replace(FEED, read_unix_s=NOW_S - STALE_S)
    )

    of_unit = {name: value for (name, unit), value in found.items() if unit == "cdu-1"}
    assert of_unit == {"coolant_unit_reading_age_seconds": age_s, "coolant_unit_state_id": 3}
    assert found["power_feed_watts", "pdu-1"] == 47e3, "at the limit it is fresh"


def test_a_unit_that_has_left_the_file_leaves_nothing_behind_its_last_verdict() -> None:
    verdicts = judge_power([FEED], (), (), NO_PARTS, NOW_S)
    view = SiteView(SiteReadings(power=SiteFile("/p.json", ())), verdicts)

    assert rendered(view) == {("site_file_success", "power"): 1, ("site_units", "power"): 0}


def test_a_file_that_cant_be_read_leaves_only_that() -> None:
    site = SiteReadings(cooling=SiteFile("/c.json", problem="/c.json: broken"))

    assert rendered(SiteView(site)) == {
        ("site_file_success", "cooling"): 0,
        ("site_units", "cooling"): 0,
    }


def test_a_site_without_such_files_has_no_series_of_them() -> None:
    assert rendered(SiteView()) == {}
    assert series_of(Measures().render().decode()) == {}


def test_a_feed_that_only_nodes_tell_of_has_a_state() -> None:
    verdict = UnitVerdict(POWER_FEED, "pdu-7", harmed=("n1", "n2"), is_named=True)

    assert rendered(SiteView(verdicts=(verdict,))) == {("power_feed_state_id", "pdu-7"): 2}


def test_a_verdict_that_the_deciding_thread_no_longer_renews_is_not_shown() -> None:
    assert ("power_feed_state_id", "pdu-1") in shown(FEED, judged_s_ago=VERDICT_S_MAX)
    stuck = shown(FEED, judged_s_ago=VERDICT_S_MAX + 1)
    assert ("power_feed_state_id", "pdu-1") not in stuck
    assert ("power_feed_watts", "pdu-1") in stuck


def test_a_tripped_breaker_is_broken_whoever_hangs_on_it() -> None:
    found = shown(replace(FEED, is_tripped=True))

    assert (found["power_feed_tripped", "pdu-1"], found["power_feed_state_id", "pdu-1"]) == (1, 2)


def test_of_too_many_units_the_first_are_shown_and_all_counted() -> None:
    found = shown(*(replace(UNIT, unit=f"cdu-{number:05}") for number in range(SHOWN_MAX, -1, -1)))

    units = {unit for name, unit in found if name == "coolant_unit_flow_liters_per_second"}
    assert (len(units), "cdu-00000" in units, f"cdu-{SHOWN_MAX:05}" in units) == (
        SHOWN_MAX,
        True,
        False,
    )
    assert len([1 for name, _unit in found if name == "coolant_unit_state_id"]) == SHOWN_MAX
    assert found["site_units", "cooling"] == SHOWN_MAX + 1


def test_any_name_of_the_file_is_one_label() -> None:
    name = 'a "b" \\ {c="d"} ü'

    found = shown(replace(UNIT, unit=name))

    assert found["coolant_unit_rise_kelvin", 'a \\"b\\" \\\\ {c=\\"d\\"} ü'] == 12.5


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_the_series() -> None:
    measures = Measures()
    site = SiteReadings(SiteFile("/c.json", (UNIT,)), SiteFile("/p.json", (FEED,)))
    measures.site.note(SiteView(site, judge_power([FEED], (), (), NO_PARTS, NOW_S)), NOW_S)
    page = measures.render()

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )

    about = [
        line
        for line in checked.stderr.decode().splitlines()
        if re.search("coolant_unit|power_feed|controller_site", line)
    ]
    assert b"rankmend_controller_power_feed_watts" in page
    assert about == []


def scrape(up: Running) -> dict[tuple[str, str], float]:
    token = (up.folder / "admin.token").read_text().strip()
    with urllib3.PoolManager(ca_certs=str(up.ca)) as pool:
        answer = pool.request(
            "GET", f"{up.url}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
    assert answer.status == 200
    return series_of(answer.data.decode())


def test_a_controller_shows_its_files_as_they_change(tmp_path: Path) -> None:
    make_folder(tmp_path / "c")
    file = tmp_path / "power.json"

    def write(*feeds: str) -> None:
        told = [{"feed": one, "read_unix_s": time.time(), "power_watts": 41e3} for one in feeds]
        file.write_text(json.dumps({"format": "rankmend-power-1", "feeds": told}))

    def change(one: Config) -> Config:
        told = msgspec.structs.replace(one.discovery, power_file=str(file))
        return msgspec.structs.replace(one, discovery=told)

    def feeds_of(name: str) -> set[str]:
        return {unit for found, unit in scrape(up) if found == name}

    write("pdu-1", "pdu-2")
    with running(tmp_path / "c", change) as up:
        eventually(lambda: feeds_of("power_feed_state_id") == {"pdu-1", "pdu-2"}, "both are judged")
        both = scrape(up)
        write("pdu-2")
        eventually(lambda: feeds_of("power_feed_watts") == {"pdu-2"}, "one has left the file")
        left = scrape(up)
        file.write_text("broken")
        eventually(lambda: not feeds_of("power_feed_watts"), "the file is broken")
        broken = scrape(up)

    assert both["power_feed_watts", "pdu-1"] == 41e3
    assert both["power_feed_state_id", "pdu-1"] == 0
    assert not any(unit == "pdu-1" for _name, unit in left)
    assert broken == {("site_file_success", "power"): 0, ("site_units", "power"): 0}
