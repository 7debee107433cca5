"""What coolant units and power feeds have in common: files, and verdicts on what nobody has read lately."""

from dataclasses import replace

import pytest

from detectors.formats.site.plant_files import COOLING_FILE
from detectors.parts.cooling import CoolingReading, judge_cooling
from detectors.parts.fleet_parts import NO_PARTS
from detectors.parts.site_units import STALE_S
from rankmend.errors import SourceError

NOW = 1_800_000_000.0
LEAKING = CoolingReading("cdu-1", NOW, is_leaking=True)


@pytest.mark.parametrize(
    ("age_s", "is_stale"), [(0, False), (STALE_S, False), (STALE_S + 1, True), (-STALE_S - 1, True)]
)
def test_a_reading_judges_nothing_once_it_is_too_old_or_from_the_future(
    age_s: float, is_stale: bool
) -> None:
    old = replace(LEAKING, read_unix_s=NOW - age_s)

    (one,) = judge_cooling([old], (), (), NO_PARTS, NOW)

    assert (one.is_stale, bool(one.faults)) == (is_stale, not is_stale)


@pytest.mark.parametrize("name", ["", "cdu\n1", "\x1b[2J", "cdu\u202e1", "x" * 129], ids=ascii)
def test_a_name_that_nobody_could_print_is_refused_by_name(name: str) -> None:
    body = COOLING_FILE.encode([replace(LEAKING, unit=name)])

    with pytest.raises(SourceError, match="printable characters"):
        COOLING_FILE.parse(body)


def test_a_name_that_is_there_twice_is_refused_with_how_often() -> None:
    body = COOLING_FILE.encode([LEAKING, LEAKING, replace(LEAKING, unit="cdu-2")])

    with pytest.raises(SourceError, match="names 'cdu-1' 2 times"):
        COOLING_FILE.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"format": "rankmend-cooling-1", "units": [], "more": 1}',
        b'{"format": "rankmend-cooling-1", "units": [{"unit": "a", "read_unix_s": 1e999}]}',
        b'{"format": "rankmend-cooling-1", "units": [{"unit": "a", "read_unix_s": "now"}]}',
        b'{"format": "rankmend-cooling-1", "units": ' + b"[" * 100_000,
        b'{"format": "rankmend-cooling-1", "units": [{"unit": "\xff", "read_unix_s": 1}]}',
        COOLING_FILE.encode([LEAKING])[:-20],
        COOLING_FILE.encode(replace(LEAKING, unit=f"u{at}") for at in range(10_001)),
    ],
    ids=["unknown key", "infinite", "no number", "deep", "not UTF-8", "torn", "too many"],
)
def test_a_hostile_file_is_refused_and_what_it_is_of_is_named(body: bytes) -> None:
    with pytest.raises(SourceError, match="coolant units"):
        COOLING_FILE.parse(body)
