"""Links of alerts: absolute, whoever makes them."""

from pathlib import Path

import pytest

from agent import config as agent_config
from rankmend.errors import ConfigError
from rankmend.links import RUNBOOKS, check_runbooks
from recovery.service import controller_config

RELATIVE = [
    "docs/operate/runbooks",
    "/docs/operate/runbooks",
    "",
    "wiki",
    "ftp://h/x",
    "https://",
    "https://h/a b",
]


@pytest.mark.parametrize("url", [*RELATIVE, "https://h/x?y", "https://h/x#y", "https://h/\n"])
def test_a_link_that_leads_nowhere_is_refused_with_its_value(url: str) -> None:
    with pytest.raises(ConfigError, match="runbooks is not an absolute URL"):
        check_runbooks(url)


@pytest.mark.parametrize("url", [RUNBOOKS, "http://wiki:8080/x/", "file:///usr/share/doc/rankmend"])
def test_an_absolute_link_is_taken_without_its_final_slash(url: str) -> None:
    assert check_runbooks(url) == url.rstrip("/")


def test_agent_and_controller_refuse_a_relative_link_at_their_start(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[alerts]\nrunbooks = "docs/operate/runbooks"\n')
    text = f'state_dir = "{tmp_path}"\n[alertmanagers]\nrunbooks = "docs/operate/runbooks"\n'
    (tmp_path / "controller.toml").write_text(text)

    with pytest.raises(ConfigError, match=r"agent\.toml: runbooks is not an absolute URL"):
        agent_config.load(tmp_path / "agent.toml")
    with pytest.raises(ConfigError, match=r"controller\.toml: runbooks is not an absolute URL"):
        controller_config.load(tmp_path / "controller.toml")


def test_no_shipped_file_links_to_a_relative_runbook() -> None:
    deploy = Path(__file__).resolve().parents[2] / "deploy"
    rules = "".join(path.read_text() for path in deploy.rglob("*.yml"))

    links = [line.split("'")[1] for line in rules.splitlines() if "runbook_url:" in line]

    assert len(links) > 30
    assert all(link.startswith(f"{RUNBOOKS}/") for link in links)
