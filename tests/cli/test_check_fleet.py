"""`rankmend check fleet` and `check lemons` as a person runs them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankmend.cli import cli

PAGE = """# TYPE rankmend_version_info gauge
rankmend_version_info{{component="nvidia",device="",version="{driver}"}} 1.0
rankmend_version_info{{component="nvme",device="nvme0",version="A"}} 1.0
rankmend_version_info{{component="nvme",device="nvme1",version="B"}} 1.0
"""


def check(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["check", *words])
    return done.exit_code, done.output


def test_pages_of_nodes_are_compared_by_component(tmp_path: Path) -> None:
    for node, driver in (("a", "570"), ("b", "570"), ("c", "550")):
        (tmp_path / node).write_text(PAGE.format(driver=driver))

    code, told = check("fleet", str(tmp_path), "--json")

    assert code == 1
    found = json.loads(told)
    assert found["nodes"] == 3
    assert [one["component"] for one in found["drift"]] == ["nvidia"]
    assert found["drift"][0]["others"] == [["c", "550"]]


def test_nodes_that_are_alike_end_with_0(tmp_path: Path) -> None:
    for node in "ab":
        (tmp_path / node).write_text(PAGE.format(driver="570"))

    assert check("fleet", str(tmp_path)) == (0, "2 nodes, 0 differences\n")


def test_a_file_that_is_no_page_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")

    code, told = check("fleet", str(tmp_path))

    assert code == 64
    assert "a names no version" in told


def test_without_incidents_there_are_no_lemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKMEND_CONTROLLER", raising=False)

    code, told = check("lemons", "--state-dir", str(tmp_path))

    assert (code, told) == (0, "no node has 3 faults within 28 days\n")


def test_lemons_are_held_against_a_policy_and_a_broken_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKMEND_CONTROLLER", raising=False)
    policy = tmp_path / "policy.toml"
    policy.write_text("[lemons]\ndays = 7\nfaults = 2\n")

    code, told = check("lemons", "--state-dir", str(tmp_path), "--policy", str(policy), "--json")
    policy.write_text("[lemons]\nfaults = -2\n")
    broken, why = check("lemons", "--state-dir", str(tmp_path), "--policy", str(policy))

    assert (code, json.loads(told)) == (0, {"days": 7.0, "min": 3, "lemons": [], "over": {}})
    assert (broken, "faults is -2" in why) == (64, True)
