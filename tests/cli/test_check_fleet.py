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


RANK = """rankmend_rank_info{{job_id="{job}",rank="{rank}",pid="7",attempt="{attempt}",job_name="{name}"}} 1.0
rankmend_rank_nccl_info{{job_id="{job}",rank="{rank}",version="{nccl}"}} 1.0
"""
JOB = "6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10"


def write_rank(page: Path, rank: int, nccl: str, name: str = "train", attempt: int = 1) -> None:
    with page.open("a") as file:
        file.write(RANK.format(job=JOB, rank=rank, attempt=attempt, name=name, nccl=nccl))


def test_a_job_with_two_versions_of_nccl_is_named_with_its_nodes(tmp_path: Path) -> None:
    for rank, (node, nccl) in enumerate((("a", "2.27.3"), ("b", "2.27.3"), ("c", "2.21.5"))):
        (tmp_path / node).write_text(PAGE.format(driver="570"))
        write_rank(tmp_path / node, rank, nccl)

    code, told = check("fleet", str(tmp_path))
    as_json, plain = check("fleet", str(tmp_path), "--json")

    assert (code, as_json) == (1, 1)
    assert told == (
        f"job train ({JOB}) has loaded 2 versions of NCCL: 2.27.3 in ranks 0 and 1 on 2 nodes (a, b); "
        "2.21.5 in rank 2 on 1 node (c)\n3 nodes, 1 difference\n"
    )
    (mixed,) = json.loads(plain)["mixed_jobs"]
    assert mixed["job_id"] == JOB
    assert mixed["shares"][1] == {"version": "2.21.5", "nodes": ["c"], "ranks": [2]}


def test_a_jobs_name_can_neither_forge_a_line_nor_speak_to_the_terminal(tmp_path: Path) -> None:
    name = 'x\\nfine, all alike \x1b[2J\\" \\\\'
    for rank, (node, nccl) in enumerate((("a", "2.27.3"), ("b", "2.21.5"))):
        (tmp_path / node).write_text(PAGE.format(driver="570"))
        write_rank(tmp_path / node, rank, nccl, name)

    _code, told = check("fleet", str(tmp_path))

    assert len(told.splitlines()) == 2
    assert "\x1b" not in told
    assert told.startswith(
        'job x\N{SYMBOL FOR LINE FEED}fine, all alike \N{SYMBOL FOR ESCAPE}[2J" \\ ('
    )


def test_pages_of_two_attempts_are_not_mixed_up(tmp_path: Path) -> None:
    for rank, (node, nccl) in enumerate((("a", "2.27.3"), ("b", "2.21.5"))):
        (tmp_path / node).write_text(PAGE.format(driver="570"))
        write_rank(tmp_path / node, rank, nccl, attempt=rank + 1)

    assert check("fleet", str(tmp_path)) == (0, "2 nodes, 0 differences\n")


def test_redirects_of_pcie_bridges_are_compared(tmp_path: Path) -> None:
    acs = 'rankmend_version_info{{component="pcie_acs",device="{bridge}",version="{acs}"}} 1.0\n'
    for node in "abc":
        on = "ReqRedir CmpltRedir UpstreamFwd" if node == "c" else "off"
        text = PAGE.format(driver="570")
        text += acs.format(bridge="0000:16:00.0", acs="off")
        text += acs.format(bridge="0000:17:00.0", acs=on)
        (tmp_path / node).write_text(text)

    code, told = check("fleet", str(tmp_path), "--json")

    (drift,) = json.loads(told)["drift"]
    assert (code, drift["component"], drift["usual"]) == (1, "pcie_acs", "off")
    assert drift["others"] == [["c", "ReqRedir CmpltRedir UpstreamFwd, off"]]


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
