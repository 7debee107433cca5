"""A table of fault rates, and runs of the simulation with it."""

from pathlib import Path

from click.testing import CliRunner, Result

from rankmend.cli import cli

SMALL = ("--gpus", "64", "--days", "54", "--seeds", "2", "--set", "step_s=30")
TABLE = """
title = "a test's"
source = "nowhere"
gpus = 64
days = 54.0
[[cause]]
name = "GPU"
count = 20
shows = "exit"
stays = 0.2
told = 0.5
[[cause]]
name = "hang"
count = 10
shows = "hang"
"""


def simulate(*arguments: str) -> Result:
    """Run `rankmend simulate` with these arguments."""
    return CliRunner().invoke(cli, ["simulate", *arguments])


def write_rates(folder: Path) -> str:
    """Write the table to a folder; return its path."""
    path = folder / "rates.toml"
    path.write_text(TABLE)
    return str(path)
