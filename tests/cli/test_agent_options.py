"""Options before and behind the commands of `rankmend agent` mean the same agent, or are refused."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankmend.cli import cli

pytestmark = pytest.mark.process
COMMANDS = (["release"], ["resume"], ["forget", "--all"])


def run(*words: str) -> str:
    done = CliRunner().invoke(cli, ["agent", *words])

    assert done.exit_code != 0
    return " ".join(done.output.split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_socket_before_the_command_is_the_one_that_is_asked(
    tmp_path: Path, command: list[str]
) -> None:
    before = run("--socket", f"{tmp_path}/mine.sock", *command)
    behind = run(*command, "--socket", f"{tmp_path}/mine.sock")

    assert f"{tmp_path}/mine" in before
    assert before == behind


def test_a_socket_behind_the_command_counts_where_both_are_given(tmp_path: Path) -> None:
    told = run("--socket", f"{tmp_path}/a.sock", "resume", "--socket", f"{tmp_path}/b.sock")

    assert f"{tmp_path}/b" in told
    assert f"{tmp_path}/a." not in told


def test_a_configuration_names_the_agent_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(f'socket = "{tmp_path}/other.sock"\n')

    assert f"{tmp_path}/other" in run("--config", f"{tmp_path}/agent.toml", "resume")


@pytest.mark.parametrize("command", [*COMMANDS, ["init", "-"]], ids=" ".join)
@pytest.mark.parametrize(
    "option",
    [["--listen", "127.0.0.1:1"], ["--node", "n1"], ["--once"], ["--procfs", "/x"]],
    ids=str,
)
def test_an_option_that_the_command_would_not_see_is_refused_by_name(
    command: list[str], option: list[str]
) -> None:
    told = run(*option, *command)

    assert f"{option[0]} is an option of `rankmend agent` itself" in told


def test_no_other_command_has_options_at_two_levels() -> None:
    """A group whose options a command behind it does not see needs what `agent` has."""

    def groups(command: click.Command, path: str) -> list[str]:
        if not isinstance(command, click.Group):
            return []
        context = click.Context(command)
        found = (
            [path] if [one for one in command.params if one.name not in ("help", "version")] else []
        )
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += groups(inner, f"{path} {name}")
        return found

    assert groups(cli, "rankmend") == ["rankmend agent"]
