"""`rankmend check table`: a saved catalogue against the tables, for people and scripts."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.findings.policy_files import load_policy
from detectors.kernel.event_policy import EventTable
from rankmend.cli import cli

HEAD = (
    "Code,Mnemonic,Resolution Bucket (Immediate Action),Resolution Bucket (Investigatory Action)\n"
)


def catalogue(**changed: str) -> str:
    """Return the catalogue of the tables' own edition, with some codes worded otherwise."""
    rows = {
        code: policy.says
        for (table, code), policy in load_policy().items()
        if table is EventTable.XID and policy.document == "xid-catalog"
    }
    rows |= {code.removeprefix("xid"): says for code, says in changed.items()}
    cells = (
        f'{code},N,"{says.partition(" / ")[0]}","{says.partition(" / ")[2]}"'
        for code, says in rows.items()
    )
    return HEAD + "\n".join(cells) + "\n"


def check_table(tmp_path: Path, text: str, *arguments: str) -> Result:
    path = tmp_path / "Xid-Catalog.csv"
    path.write_text(text)
    return CliRunner().invoke(cli, ["check", "table", "--against", str(path), *arguments])


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({}, 0, "nothing differs"),
        ({"xid999": "RESET_GPU"}, 1, "added"),
        ({"xid79": "RESTART_BM / INVESTIGATE_SW"}, 1, "changed"),
        ({"xid79": "RESET_GPU / CONTACT_SUPPORT"}, 2, "contradicted"),
    ],
)
def test_exit_code_says_how_much_a_catalogue_changes(
    tmp_path: Path, changed: dict[str, str], code: int, words: str
) -> None:
    result = check_table(tmp_path, catalogue(**changed))

    assert result.exit_code == code
    assert words in result.stdout


def test_json_holds_what_the_catalogue_said_before_and_says_now(tmp_path: Path) -> None:
    result = check_table(tmp_path, catalogue(xid79="RESET_GPU / CONTACT_SUPPORT"), "--json")

    report = json.loads(result.stdout)
    assert report["differences"] == [
        {
            "change": "contradicted",
            "table": "xid",
            "code": "79",
            "name": "N",
            "before": "RESTART_BM / CONTACT_SUPPORT",
            "now": "RESET_GPU / CONTACT_SUPPORT",
            "severity": "critical",
            "action": "reboot",
            "differs": "",
        }
    ]
    assert report["edition"]


def test_a_sites_own_row_answers_a_contradiction(tmp_path: Path) -> None:
    site = tmp_path / "site.csv"
    site.write_text(
        "table,code,name,severity,action,hardware,source,meaning,document,says,differs\n"
        "xid,79,N,critical,reset_gpu,yes,the new catalogue,m,xid-catalog,RESET_GPU / CONTACT_SUPPORT,\n"
    )
    text = catalogue(xid79="RESET_GPU / CONTACT_SUPPORT")

    assert check_table(tmp_path, text, "--policy", str(site)).exit_code == 0


def test_what_is_no_catalogue_is_neither_same_nor_other(tmp_path: Path) -> None:
    result = check_table(tmp_path, "step 1 loss 2\n")

    assert result.exit_code == 64
    assert "Code" in result.output
