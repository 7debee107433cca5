"""What people mistype, and terminals that say nonsense of their width."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from rankmend.cli import cli
from rankmend.cli.output import console
from tests.support.agent import ROOT
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["statsu"], "No such command 'statsu'. Did you mean status?"),
        (["check", "nod"], "Did you mean node?"),
        (["diagnose", "slwo"], "Did you mean slow?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["--statsu"], "No such option"),
        (["report", "--since", "yesterday"], "'yesterday' is neither a duration (7d, 12h) nor"),
    ],
)
def test_mistake_is_named_with_what_was_meant(typed: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, typed)

    assert result.exit_code == 2
    assert said in result.output
    assert result.output.splitlines()[-1].startswith("rankmend: "), "as all errors begin"


@pytest.mark.parametrize("columns", ["0", "1", "39"])
def test_output_is_never_narrower_than_a_line_can_be_read(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert console().width == console(is_wide=True).width == 40


def test_width_of_the_terminal_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    assert console().width == 100


@pytest.mark.parametrize("module", ["rankmend", "rankmend.cli"])
def test_command_is_found_by_the_name_of_its_module(module: str) -> None:
    """As people type `python -m torch.distributed.run`."""
    done = subprocess.run(
        [sys.executable, "-m", module, "status", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: rankmend status")
