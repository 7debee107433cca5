"""Paths and host names are the same in documents, shipped files, units and commands."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rankmend.cli import cli
from recovery.journal.accounting import RecoveryPhase
from tests.support.shipped import HISTORY, shipped_files

ROOT = Path(__file__).resolve().parents[2]
HOST = "controller.example"
"""The controller's host in every example; `rankmend controller init --host` makes the certificate for it."""

FOLDERS = {"agent.toml", "controller", "tls"}
"""What lies directly below /etc/rankmend, beside single files of the agent."""

AGENT_FILES = {
    "drills.toml",
    "watch-off",
    "node-policy.toml",
    "kernel-policy.csv",
    "baseline.toml",
    "bmc.toml",
    "bmc-ca.pem",
    "preflight.toml",
    "preflight-baseline.json",
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != HISTORY),
]
SHIPPED = shipped_files()
CONTROLLER_FILES = ("tokens.toml", "controller.toml", "policy.toml", "server.crt", "server.key")


def commands_of(command: click.Command, path: str = "rankmend") -> Iterator[click.Context]:
    """Yield a context of each command; commands are imported only when they are asked for by name."""
    context = click.Context(command, info_name=path)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands_of(child, f"{path} {name}")


def help_texts() -> dict[str, str]:
    return {one.command_path: one.command.get_help(one) for one in commands_of(cli)}


def texts() -> dict[str, str]:
    files = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (*PAGES, *SHIPPED)
    }
    return {**files, **help_texts()}


def test_every_controller_in_an_example_has_the_name_that_its_certificate_has() -> None:
    hosts = {
        (name, host)
        for name, text in texts().items()
        for host in re.findall(r"([\w.-]+):9477", text)
        if host not in ("127.0.0.1", "localhost")
        and not host.endswith(".svc")  # a name within Kubernetes
    }

    assert {host.partition(".")[2] or host for _name, host in hosts} == {"example"}, hosts
    assert {
        one for one in hosts if one[1] != HOST and not one[1].startswith("controller-")
    } == set()


def test_every_certificate_in_an_example_is_for_the_controller_of_the_examples() -> None:
    made = {
        (name, host)
        for name, text in texts().items()
        for command in re.findall(r"rankmend controller (?:init|server-cert)[^\n`]*", text)
        for host in re.findall(r"--host ([\w.-]+)", command)
        # Who tries it on one machine, and the service in a cluster of Kubernetes.
        if host not in ("NAME", "localhost", "rankmend-controller.rankmend.svc")
    }

    assert {host for _name, host in made} == {HOST}, made


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_files_lie_where_init_and_the_units_look(path: Path) -> None:
    named = re.findall(r"/etc/rankmend/([\w./-]+)", path.read_text(encoding="utf-8"))

    assert {name for name in named if name.partition("/")[0] not in FOLDERS | AGENT_FILES} == set()
    assert {name for name in named if name in CONTROLLER_FILES} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_name_the_same_paths_as_the_shipped_files(page: Path) -> None:
    named = set(re.findall(r"/etc/rankmend/?([\w./-]*)", page.read_text(encoding="utf-8")))

    assert {name for name in named if name.partition("/")[0] not in FOLDERS | AGENT_FILES} == set()


def test_commands_use_the_folders_of_the_units() -> None:
    unit = (ROOT / "deploy/systemd/rankmend-controller.service").read_text(encoding="utf-8")
    defaults = {
        str(option.default)
        for context in commands_of(cli)
        for option in context.command.params
        if str(option.default).startswith("/etc/")
    }

    agent = (ROOT / "deploy/systemd/rankmend-agent.service").read_text(encoding="utf-8")

    assert "--config /etc/rankmend/controller/controller.toml" in unit
    assert "--config /etc/rankmend/agent.toml" in agent
    assert defaults == {
        "/etc/rankmend/agent.toml",
        "/etc/rankmend/controller",
        "/etc/rankmend/controller/controller.toml",
        "/etc/rankmend/controller/tokens.toml",
    }


def test_the_page_on_the_time_to_recovery_has_every_phase_in_its_order() -> None:
    page = (ROOT / "docs/operate/mttr.md").read_text(encoding="utf-8")
    table = page.split("\n| phase |")[1].split("\n\n")[0]

    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [phase.value for phase in RecoveryPhase]
