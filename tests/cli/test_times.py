"""Times that people type and read: with a zone, or in one that is said."""

import os
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rankmend.cli import cli
from rankmend.cli.options import local_time
from rankmend.cli.times import TimeParameter, ZoneParameter, say_time

NOW = 1_796_083_200.0  # 2026-12-01 00:00 UTC
BERLIN = ZoneInfo("Europe/Berlin")


def read(text: str, zone: str | None = None) -> datetime:
    known = None if zone is None else ZoneParameter().convert(zone, None, None)
    unix_s = TimeParameter().convert(text, None, None).unix_s(known, NOW)
    return datetime.fromtimestamp(unix_s, tz=timezone.utc)


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("2026-12-01T08:00Z", None, "2026-12-01T08:00"),
        ("2026-12-01T08:00+01:00", None, "2026-12-01T07:00"),
        ("2026-12-01 08:00:30 -0530", None, "2026-12-01T13:30:30"),
        ("2026-12-01T08:00", "Europe/Berlin", "2026-12-01T07:00"),
        ("2026-07-01T08:00", "Europe/Berlin", "2026-07-01T06:00"),
        ("2026-12-01T08:00", "+09:00", "2026-11-30T23:00"),
        ("2026-12-01T08:00Z", "Europe/Berlin", "2026-12-01T08:00"),
        ("08:00", "UTC", "2026-12-01T08:00"),
        ("08:00", "America/Los_Angeles", "2026-11-30T16:00"),  # where today is still the 30th
        ("08:00+09:00", None, "2026-11-30T23:00"),
    ],
)
def test_a_time_is_read_in_its_own_zone_else_in_that_of_the_option(
    text: str, zone: str | None, utc: str
) -> None:
    assert read(text, zone) == datetime.fromisoformat(utc).replace(tzinfo=timezone.utc)


def test_a_time_without_any_zone_is_this_machines() -> None:
    local = datetime.fromisoformat("2026-07-01T08:00").astimezone()

    assert read("2026-07-01T08:00") == local


def test_a_time_is_shown_with_its_zone() -> None:
    assert say_time(NOW, BERLIN) == "2026-12-01 01:00 CET"
    assert say_time(NOW, timezone(timedelta(0))) == "2026-12-01 00:00 UTC"
    here = datetime.fromtimestamp(NOW, tz=timezone.utc).astimezone()
    assert say_time(NOW) == f"{here:%Y-%m-%d %H:%M} {here.tzname()}", "this machine's zone, too"
    assert say_time(1.8e15) == "1.8e+15 s since 1970", "what no year has is said as it is"


@pytest.mark.parametrize(
    "text", ["soon", "25:00", "2026-13-01T08:00", "08:00 CET", "8", "", "08:00+25:00"]
)
def test_what_is_no_time_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time: write 2026-12-01T08:00"):
        TimeParameter().convert(text, None, None)


@pytest.mark.parametrize("zone", ["Berlin", "../etc/passwd", "", "+25", "+25:00", "/etc/localtime"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time zone"):
        ZoneParameter().convert(zone, None, None)


def test_a_window_that_is_over_is_refused_with_the_zone_in_which_it_was_meant() -> None:
    words = ["maintenance", "add", "n1", "--until", "2020-01-01T12:00", "--zone", "Asia/Tokyo"]
    environment = {name: "" for name in os.environ if name.startswith("RANKMEND_")}

    done = CliRunner().invoke(cli, [*words, "--reason", "r"], env=environment)

    assert done.exit_code == 2
    assert "would end at 2020-01-01 12:00 JST" in done.output


@given(st.floats())
def test_every_number_is_some_time_or_said_to_be_none(unix_s: float) -> None:
    assert local_time(unix_s, "%Y-%m-%d %H:%M")
