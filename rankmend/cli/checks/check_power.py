"""`rankmend check power`: power feeds, what hangs on them, and which of it is short of power."""

from typing import Any

import click

from rankmend.cli.checks.site_readings import SiteCheck, UnitColumn, check_units, unit_options


@click.command(
    epilog="""\b
Examples:
  rankmend check power power.json --topology topology.json --pages pages/
  rankmend check power power.json --redfish https://pdu7.example --credentials pdu.toml --feed pdu-a7
"""
)
@unit_options("feed", "short of power", "power feed")
def power(**options: Any) -> None:
    """Judge power feeds by load, limits and breakers, and by the nodes that are slowed for power or have lost a supply.

    FILE has the feeds' readings, from the site's monitoring or from --redfish.

    Exit codes: 0 all feeds are in order, 1 one is not or its reading is too old to judge it, 64 could not be read.
    """
    from detectors.formats.site.plant_files import POWER_FILE, power_of_redfish
    from detectors.parts.power_feeds import judge_power
    from detectors.parts.site_units import POWER_FEED

    check = SiteCheck(
        POWER_FEED,
        POWER_FILE,
        power_of_redfish,
        judge_power,
        unit="feed",
        harmed="short",
        harmed_title="short of power",
        columns=(
            UnitColumn("power kW", lambda item: item.power_watts, 1e-3),
            UnitColumn("limit kW", lambda item: item.power_watts_max, 1e-3),
            UnitColumn("load", lambda item: item.load_ratio, form=".0%"),
        ),
    )
    check_units(check, **options)
