"""`rankmend check cooling`: coolant units, what hangs on them, and which of it is slowed by heat."""

from typing import Any

import click

from rankmend.cli.checks.site_readings import SiteCheck, UnitColumn, check_units, unit_options


@click.command(
    epilog="""\b
Examples:
  rankmend check cooling cooling.json --topology topology.json --pages pages/
  rankmend check cooling cooling.json --redfish https://cdu3.example --credentials cdu.toml --unit cdu-3
"""
)
@unit_options("unit", "slowed by heat", "coolant loop")
def cooling(**options: Any) -> None:
    """Judge coolant units by flow, temperature rise and pressure, and by the nodes that are slowed by heat.

    FILE has the units' readings, from the site's monitoring or from --redfish.

    Exit codes: 0 all units are in order, 1 one is not or its reading is too old to judge it, 64 could not be read.
    """
    from detectors.formats.site.plant_files import COOLING_FILE, cooling_of_redfish
    from detectors.parts.cooling import judge_cooling
    from detectors.parts.site_units import COOLANT_UNIT

    check = SiteCheck(
        COOLANT_UNIT,
        COOLING_FILE,
        cooling_of_redfish,
        judge_cooling,
        unit="unit",
        harmed="hot",
        harmed_title="hot",
        columns=(
            UnitColumn("flow l/min", lambda item: item.flow_liters_per_s, 60),
            UnitColumn("rise K", lambda item: item.rise_kelvin),
            UnitColumn("pressure kPa", lambda item: item.pressure_pascals, 1e-3),
        ),
    )
    check_units(check, **options)
