"""Coolant units: figures against limits and the other units, and what hangs on them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.redfish import BmcHealth, BmcPart, BmcReading, HealthLevel, ReadingKind
from detectors.formats.site.plant_files import COOLING_FILE, cooling_of_redfish
from detectors.formats.site.site_parts import parse_site_parts
from detectors.network_topology import NetworkTopology
from detectors.parts.cooling import CoolingReading, judge_cooling
from detectors.parts.fleet_parts import NO_PARTS, find_parts
from detectors.parts.site_units import STALE_S, UnitQuantity, UnitVerdict
from rankmend.errors import SourceError

NOW = 1_800_000_000.0
GOOD = CoolingReading(
    "cdu-0",
    NOW,
    flow_liters_per_s=6.0,
    supply_celsius=32.0,
    return_celsius=42.0,
    pressure_pascals=200e3,
)
SITE = "".join(
    f"[[coolant_loop]]\nname='cdu-{at}'\nnodes=['n[{10 * at}-{10 * at + 9}]']\n" for at in range(4)
)
PARTS = find_parts(NetworkTopology(parse_site_parts(SITE)))
NODES = list(PARTS.on)


def units(**first: object) -> list[CoolingReading]:
    """Return four units of which the first differs."""
    others = [replace(GOOD, unit=f"cdu-{at}") for at in range(1, 4)]
    return [replace(GOOD, **first), *others]  # type: ignore[arg-type]


def judged(readings: list[CoolingReading], hot: list[str] | None = None) -> list[UnitVerdict]:
    return [one for one in judge_cooling(readings, hot or [], NODES, PARTS, NOW) if one.is_bad]


def faults(**first: object) -> list[tuple[UnitQuantity, bool | None]]:
    found = judged(units(**first))
    return [(one.quantity, one.is_of_peers) for verdict in found for one in verdict.faults]


def test_units_that_are_alike_are_all_in_order() -> None:
    assert judged(units()) == []


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ({"flow_liters_per_s": 4.1}, [(UnitQuantity.FLOW, True)]),
        ({"flow_liters_per_s": 4.2}, []),
        ({"return_celsius": 46.4}, [(UnitQuantity.RISE, True)]),
        ({"return_celsius": 46.2}, []),
        ({"pressure_pascals": 130e3}, [(UnitQuantity.PRESSURE, True)]),
        ({"flow_liters_per_s_min": 7.0}, [(UnitQuantity.FLOW, False)]),
        ({"flow_liters_per_s": 1.0, "flow_liters_per_s_min": 0.5}, []),  # the site knows
        ({"rise_kelvin_max": 9.0}, [(UnitQuantity.RISE, False)]),
        ({"pressure_pascals_min": 300e3}, [(UnitQuantity.PRESSURE, False)]),
        ({"is_leaking": True}, [(UnitQuantity.LEAK, False)]),
        ({"health": "critical"}, [(UnitQuantity.HEALTH, False)]),
        ({"health": "warning"}, []),
        ({"flow_liters_per_s": None, "supply_celsius": None}, []),
        ({"flow_liters_per_s": 0.1, "read_unix_s": NOW - STALE_S - 1}, []),  # too old
    ],
)
def test_each_figure_is_held_against_its_limit_or_the_other_units(
    first: dict[str, object], found: list[tuple[UnitQuantity, bool]]
) -> None:
    assert faults(**first) == found


def test_two_units_have_no_usual_figure() -> None:
    few = units(flow_liters_per_s=0.1)[:3]

    assert judged(few) == []


def test_ten_nodes_that_throttle_together_are_one_verdict_about_their_unit() -> None:
    hot = [f"n{at}" for at in range(10)]

    (one,) = judged(units(flow_liters_per_s=2.0), hot)
    (unread,) = judge_cooling([], hot, NODES, PARTS, NOW)
    (sound,) = judged(units(), hot)

    assert (one.unit, one.harmed, one.is_named) == ("cdu-0", tuple(hot), True)
    assert one.in_words().startswith(
        "coolant unit cdu-0: flow 120 l/min, below 252 l/min (by the other units); 10 nodes of 10"
    )
    assert (unread.unit, unread.reading, unread.is_bad) == ("cdu-0", None, True)
    assert sound.in_words().endswith("its own figures are in order")


def test_hot_nodes_of_all_units_name_none() -> None:
    assert judged(units(), ["n1", "n11", "n21", "n31"]) == []
    assert judge_cooling([], ["n1", "n2"], NODES, NO_PARTS, NOW) == ()


@given(st.floats(0.71, 1.4), st.integers(0, 3), st.sets(st.sampled_from(NODES), max_size=6))
def test_a_sound_unit_is_never_called_bad(factor: float, at: int, hot: set[str]) -> None:
    readings = units()
    readings[at] = replace(readings[at], flow_liters_per_s=6.0 * factor)

    for one in judge_cooling(readings, hot, NODES, PARTS, NOW):
        assert not one.faults
        assert not one.is_named or len(one.harmed) >= 8


def test_a_file_is_read_as_it_was_written_and_a_broken_one_is_named() -> None:
    body = COOLING_FILE.encode(units())

    assert list(COOLING_FILE.parse(body)) == units()
    for broken in (b"", b"{}", body.replace(b"cdu-1", b"cdu-2"), body.replace(b"cooling-1", b"x")):
        with pytest.raises(SourceError, match="coolant units"):
            COOLING_FILE.parse(broken)


@given(st.binary(max_size=200))
def test_odd_bytes_are_no_file_of_units(body: bytes) -> None:
    with pytest.raises(SourceError):
        COOLING_FILE.parse(body)


def test_of_redfish_the_side_of_the_racks_counts_and_flows_add_up() -> None:
    items = [
        BmcReading(ReadingKind.COOLANT_FLOW, "primary 1", 99.0),
        BmcReading(ReadingKind.COOLANT_FLOW, "secondary 1", 2.0),
        BmcReading(ReadingKind.COOLANT_FLOW, "secondary 2", 3.0),
        BmcReading(ReadingKind.COOLANT_SUPPLY, "secondary 1", 30.0),
        BmcReading(ReadingKind.COOLANT_RETURN, "secondary 1", 45.0),
        BmcReading(ReadingKind.COOLANT_PRESSURE, "secondary 1", 2e5),
        BmcReading(ReadingKind.COOLANT_PRESSURE, "secondary 2", float("nan")),
        BmcReading(ReadingKind.LEAK, "tray", 2.0),
        BmcHealth(BmcPart.PUMP, "1", HealthLevel.WARNING),
        BmcHealth(BmcPart.COOLING_UNIT, "CDU", HealthLevel.OK),
    ]

    found = cooling_of_redfish("cdu", items, NOW)

    assert (found.flow_liters_per_s, found.rise_kelvin, found.pressure_pascals) == (5.0, 15.0, 2e5)
    assert (found.is_leaking, found.health) == (True, "warning")
    assert cooling_of_redfish("cdu", [], NOW) == CoolingReading("cdu", NOW)
