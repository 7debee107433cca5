"""Power feeds: figures against limits, and what hangs on them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.redfish import BmcHealth, BmcPart, BmcReading, HealthLevel, ReadingKind
from detectors.formats.site.plant_files import POWER_FILE, power_of_redfish
from detectors.formats.site.site_parts import parse_site_parts
from detectors.network_topology import NetworkTopology
from detectors.parts.fleet_parts import NO_PARTS, find_parts
from detectors.parts.power_feeds import PowerReading, judge_power
from detectors.parts.site_units import STALE_S, UnitQuantity, UnitVerdict
from rankmend.errors import SourceError

NOW = 1_800_000_000.0
GOOD = PowerReading(
    "pdu-0", NOW, power_watts=40e3, load_ratio=0.8, is_tripped=False, power_watts_max=45e3
)
SITE = "".join(
    f"[[power_feed]]\nname='pdu-{at}'\nnodes=['n[{10 * at}-{10 * at + 9}]']\n" for at in range(4)
)
PARTS = find_parts(NetworkTopology(parse_site_parts(SITE)))
NODES = list(PARTS.on)
TEN = [f"n{at}" for at in range(10)]


def judged(reading: PowerReading, short: list[str] | None = None) -> list[UnitVerdict]:
    found = judge_power([reading], short or [], NODES, PARTS, NOW)
    return [one for one in found if one.is_bad]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"power_watts": 45e3}, []),
        ({"power_watts": 45.1e3}, [UnitQuantity.POWER]),
        ({"power_watts": 99e3, "power_watts_max": None}, []),  # nobody says what it may carry
        ({"load_ratio": 1.0}, []),
        ({"load_ratio": 1.01}, [UnitQuantity.LOAD]),
        ({"load_ratio_max": 0.75}, [UnitQuantity.LOAD]),
        ({"load_ratio": 1.05, "load_ratio_max": 1.1}, []),  # the site knows
        ({"is_tripped": True}, [UnitQuantity.BREAKER]),
        ({"health": "critical"}, [UnitQuantity.HEALTH]),
        ({"health": "warning", "is_tripped": None}, []),
        ({"load_ratio": 2.0, "read_unix_s": NOW - STALE_S - 1}, []),  # too old
    ],
)
def test_each_figure_is_held_against_its_limit(
    changes: dict[str, object], found: list[UnitQuantity]
) -> None:
    verdicts = judged(replace(GOOD, **changes))  # type: ignore[arg-type]

    assert [one.quantity for verdict in verdicts for one in verdict.faults] == found


def test_ten_nodes_that_are_short_of_power_are_one_verdict_about_their_feed() -> None:
    (over,) = judged(replace(GOOD, power_watts=47e3), TEN)
    (sound,) = judged(GOOD, TEN)
    (unread,) = judge_power([], TEN, NODES, PARTS, NOW)

    assert (over.unit, over.harmed, over.is_named, over.is_broken) == (
        "pdu-0",
        tuple(TEN),
        True,
        True,
    )
    assert over.in_words().startswith(
        "power feed pdu-0: 47 kW, above 45 kW; 10 nodes of 10 on it short"
    )
    assert sound.in_words().endswith("its own figures are in order (40 kW, load 80%)")
    assert (unread.unit, unread.reading, unread.is_bad) == ("pdu-0", None, True)


def test_nodes_of_all_feeds_name_none_and_a_feed_without_harm_is_not_broken() -> None:
    (over,) = judged(replace(GOOD, power_watts=47e3))

    assert judged(GOOD, ["n1", "n11", "n21", "n31"]) == []
    assert judge_power([], ["n1", "n2"], NODES, NO_PARTS, NOW) == ()
    assert (over.is_bad, over.is_broken) == (True, False)


def test_a_file_is_read_as_it_was_written_and_a_broken_one_is_named() -> None:
    feeds = [GOOD, replace(GOOD, feed="pdu-1")]
    body = POWER_FILE.encode(feeds)

    assert list(POWER_FILE.parse(body)) == feeds
    for broken in (b"", b"{}", body.replace(b"pdu-1", b"pdu-0"), body.replace(b"power-1", b"x")):
        with pytest.raises(SourceError, match="power feeds"):
            POWER_FILE.parse(broken)


@given(st.binary(max_size=200))
def test_odd_bytes_are_no_file_of_feeds(body: bytes) -> None:
    with pytest.raises(SourceError):
        POWER_FILE.parse(body)


def test_of_redfish_powers_add_up_and_the_highest_load_counts() -> None:
    items = [
        BmcReading(ReadingKind.MAINS_POWER, "AC1", 20e3),
        BmcReading(ReadingKind.MAINS_POWER, "AC2", 21e3),
        BmcReading(ReadingKind.MAINS_POWER, "AC3", float("nan")),
        BmcReading(ReadingKind.MAINS_LOAD, "AC1", 0.7),
        BmcReading(ReadingKind.MAINS_LOAD, "AC2", 0.9),
        BmcReading(ReadingKind.SUPPLY_INPUT, "PSU1", 1e9),
        BmcHealth(BmcPart.BREAKER, "AC1", HealthLevel.OK),
        BmcHealth(BmcPart.CIRCUIT, "AC1", HealthLevel.WARNING),
    ]

    assert power_of_redfish("f", items, NOW) == PowerReading("f", NOW, 41e3, 0.9, False, "warning")
    assert power_of_redfish("f", [], NOW) == PowerReading("f", NOW)
