"""The shipped configuration file and the documents that describe it, compared with the code."""

import fnmatch
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.assembly.families import FAMILIES
from agent.config import (
    COLLECTORS,
    RELOADABLE,
    SERVICE_STATE_DIR,
    AgentConfig,
    EndpointTls,
    load,
    with_state_dir,
)
from agent.daemon.node_agent import NodeAgent
from agent.sampling.runner import INTERVAL_S_MAX, INTERVAL_S_MIN
from agent.setup import template
from rankmend.errors import ConfigError
from tests.support.agent import ROOT, FakeClock

SHIPPED = ROOT / "deploy" / "agent.toml"
UNIT = ROOT / "deploy" / "systemd" / "rankmend-agent.service"
SWITCHED_OFF = re.compile(r"^#(?=\S)", re.MULTILINE)
# tables whose keys are names of the site's own; at least an example of each is shown
OPEN_TABLES = {"nic.planes", "nic.rails", "nic.rates_gbit", "expect.nics"}


def uncommented() -> str:
    return SWITCHED_OFF.sub("", SHIPPED.read_text(encoding="utf-8"))


def on_this_machine(text: str, folder: Path) -> Path:
    """Write a configuration whose folders are below ``folder``, and the files that it reads."""
    text = text.replace("/etc/rankmend", str(folder))
    text = text.replace("/var/lib/rankmend-agent", str(folder))
    (folder / "baseline.toml").write_text('kernel = "6.8.0-*"\n')
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def known_keys(
    type_: type[msgspec.Struct] = AgentConfig, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield every key that the types know, with its default."""
    for field in msgspec.structs.fields(type_):
        key = prefix + field.name
        if isinstance(field.default, msgspec.Struct):
            yield from known_keys(type(field.default), key + ".")
        elif key == "tls":
            yield from known_keys(EndpointTls, "tls.")
        elif key == "intervals_s":
            yield from ((f"intervals_s.{name}", None) for name in COLLECTORS)
        elif key == "plugins":
            yield "plugins.enabled", ()
        else:
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            yield key, default


def shown_keys(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key not in OPEN_TABLES:
            yield from shown_keys(value, key + ".")
        else:
            yield key, value


def test_shipped_file_is_what_init_writes_where_nothing_is_found() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == template.render({})


def test_shipped_file_changes_nothing_as_it_stands() -> None:
    assert load(SHIPPED) == AgentConfig()


def test_shipped_file_names_every_key_and_no_other() -> None:
    shown = dict(shown_keys(msgspec.toml.decode(uncommented())))

    assert sorted(shown) == sorted(key for key, _default in known_keys())
    assert not [key for key in OPEN_TABLES if not shown[key]]


def test_shipped_file_is_right_with_every_key_switched_on(tmp_path: Path) -> None:
    config = load(on_this_machine(uncommented(), tmp_path))

    assert config.tls is not None
    assert config.redfish.verify
    assert config.nic.rails == {"mlx5_0": 0}
    assert set(config.intervals_s) == set(COLLECTORS)


def test_values_that_are_shown_as_defaults_are_the_defaults() -> None:
    shown = dict(shown_keys(msgspec.toml.decode(uncommented())))

    for key, default in known_keys():
        if default is None or default is msgspec.NODEFAULT or key in OPEN_TABLES:
            continue  # an example: the comment says what holds without it
        value = tuple(shown[key]) if isinstance(shown[key], list) else shown[key]
        assert (key, value) == (key, default.value if isinstance(default, Enum) else default)


def test_intervals_that_are_shown_are_the_collectors_own() -> None:
    agent = NodeAgent(AgentConfig(), FakeClock())
    own_s = {collector.name: collector.interval_s for collector in agent.collectors}
    agent.stop()

    assert msgspec.toml.decode(uncommented())["intervals_s"] == own_s
    assert tuple(own_s) == COLLECTORS


# not of plugins: every other key there is a plugin's table
@pytest.mark.parametrize(
    "key", [key for key, _ in known_keys() if key not in {*OPEN_TABLES, "plugins.enabled"}]
)
def test_key_that_is_misspelled_is_refused_by_its_name(key: str, tmp_path: Path) -> None:
    name = key.rpartition(".")[2]
    text = uncommented()
    table = key.rpartition(".")[0]
    start = text.index(f"\n[{table}]\n") if table else 0
    place = text.index(f"\n{name} = ", start)
    wrong = f"{text[:place]}\n{name}x = {text[place + len(name) + 4 :]}"

    with pytest.raises(ConfigError, match=f"{name}x|missing required field `{name}`"):
        load(on_this_machine(wrong, tmp_path))


def test_every_key_is_explained_above_it() -> None:
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    explained = False
    for line in lines:
        if line.startswith("# "):
            explained = True
        elif not line:
            explained = False
        elif line.startswith("#") and line != "#":
            assert explained, f"nothing explains {line!r}"


def test_keys_that_need_a_restart_are_marked_and_no_others() -> None:
    marked, table = set(), None
    for paragraph in SHIPPED.read_text(encoding="utf-8").split("\n\n"):
        header = re.search(r"^#?\[(\w+)", paragraph, re.MULTILINE)
        table = header[1] if header else table
        keys = [table] if table else re.findall(r"^#(\w+) = ", paragraph, re.MULTILINE)
        if "(restart)" in paragraph:
            marked.update(keys)

    assert marked == set(AgentConfig.__struct_fields__) - RELOADABLE


def test_unit_and_documents_name_the_place_where_the_file_is_installed() -> None:
    unit = UNIT.read_text(encoding="utf-8")
    deploy = (ROOT / "docs/operate/agent.md").read_text(encoding="utf-8")
    state = re.search(r"^StateDirectory=(.+)$", unit, re.MULTILINE)
    assert state is not None

    assert str(SERVICE_STATE_DIR) == f"/var/lib/{state[1]}"
    assert "--config /etc/rankmend/agent.toml\n" in unit
    assert "install -D -m 644 deploy/agent.toml /etc/rankmend/agent.toml\n" in deploy
    for text in (SHIPPED.read_text(encoding="utf-8"), deploy, agent_page()):
        assert f'state_dir = "/var/lib/{state[1]}"' in text


@pytest.mark.parametrize(
    ("environment", "own", "expected"),
    [
        ({}, None, None),
        ({"STATE_DIRECTORY": ""}, None, None),
        ({"STATE_DIRECTORY": "{tmp}/one"}, None, "{tmp}/one"),
        ({"STATE_DIRECTORY": "{tmp}/one:{tmp}/two"}, None, "{tmp}/one"),
        ({"STATE_DIRECTORY": "{tmp}/one"}, "{tmp}/two", "{tmp}/two"),
    ],
)
def test_state_is_kept_in_the_folder_of_the_service_unless_another_is_named(
    tmp_path: Path, environment: dict[str, str], own: str | None, expected: str | None
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    here = {name: text.format(tmp=tmp_path) for name, text in environment.items()}
    config = AgentConfig(state_dir=own and own.format(tmp=tmp_path))

    assert with_state_dir(config, here).state_dir == (expected and expected.format(tmp=tmp_path))


def test_folder_of_the_service_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="state_dir is not a folder"):
        with_state_dir(AgentConfig(), {"STATE_DIRECTORY": str(tmp_path / "gone")})


# --- docs/operate/agent.md, docs/internals/comparison.md


def agent_page() -> str:
    return (ROOT / "docs/operate/agent.md").read_text(encoding="utf-8")


def test_documented_collectors_are_those_that_there_are() -> None:
    section = agent_page().partition("## Collectors")[2].partition("\n## ")[0]
    documented = [
        name
        for row in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]

    assert sorted(documented) == sorted([*COLLECTORS, "plugins"])


def test_documented_top_level_keys_and_tables_are_those_that_there_are() -> None:
    section = agent_page().partition("## Configuration")[2].partition("\n## ")[0]
    example = "\n".join(
        line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")
    )

    assert set(msgspec.toml.decode(example)) == set(AgentConfig.__struct_fields__) - {
        "kmsg_trusts_user"
    }


def test_metrics_and_findings_that_the_comparison_names_are_there() -> None:
    text = (ROOT / "docs/internals/comparison.md").read_text(encoding="utf-8")
    table = (ROOT / "detectors" / "data" / "node_policy.toml").read_bytes()
    known = {name.removeprefix("rankmend_") for name in FAMILIES}
    known |= set(msgspec.toml.decode(table))

    named = re.findall(r"`([a-z0-9]+_[a-z0-9_*]+)`", text)

    assert len(named) > 10
    assert not [name for name in named if not fnmatch.filter(known, name)]


def test_documented_bounds_of_an_interval_are_those_of_the_runner() -> None:
    bounds = f"{INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g}"

    assert bounds in agent_page()
    assert bounds in SHIPPED.read_text(encoding="utf-8")
