"""What the tables rest on, and what a newer catalogue says against them."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.findings.policy_files import load_check_rows, load_documents, load_policy
from detectors.finding import Action
from detectors.kernel.catalogue import (
    CatalogueRow,
    TableChange,
    compare,
    disagrees,
    parse_catalogue,
)
from detectors.kernel.event_policy import EventTable, PolicyTable
from rankmend.errors import ConfigError

POLICY = load_policy()
XID = EventTable.XID
HEAD = (
    "Type (XID),Code,Mnemonic,Description,Applies to A100,Resolution Bucket (Immediate Action),"
    "Resolution Bucket (Investigatory Action),Xid 154 linkage,Trigger Conditions"
)


def same_edition() -> tuple[CatalogueRow, ...]:
    """Return the catalogue that the shipped table was written from."""
    rows = []
    for (table, code), policy in POLICY.items():
        if table is XID and policy.document == "xid-catalog":
            immediate, _slash, investigatory = policy.says.partition(" / ")
            rows.append(CatalogueRow(table, code, policy.name, immediate, investigatory))
    return tuple(rows)


def changes(rows: tuple[CatalogueRow, ...], table: PolicyTable = POLICY) -> dict[str, TableChange]:
    return {each.code: each.change for each in compare(rows, table)}


def with_row(code: str, immediate: str, investigatory: str = "") -> tuple[CatalogueRow, ...]:
    others = tuple(row for row in same_edition() if row.code != code)
    return (*others, CatalogueRow(XID, code, "N", immediate, investigatory))


def test_the_edition_that_the_table_rests_on_changes_nothing() -> None:
    assert changes(same_edition()) == {}


@pytest.mark.parametrize(
    ("code", "immediate", "investigatory", "change"),
    [
        ("999", "RESET_GPU", "", TableChange.ADDED),
        ("79", "RESTART_BM", "INVESTIGATE_SW", TableChange.CHANGED),  # the action still fits
        ("79", "RESET_GPU", "CONTACT_SUPPORT", TableChange.CONTRADICTED),
        ("79", "IGNORE", "", TableChange.CONTRADICTED),
        ("43", "RESET_GPU", "CONTACT_SUPPORT", TableChange.CONTRADICTED),
        ("167", "RESTART_BM", "", TableChange.CHANGED),  # it had no action, and ours is this one
        ("167", "RESET_GPU", "", TableChange.CONTRADICTED),
        ("48", "WORKFLOW_XID_48", "CONTACT_SUPPORT", TableChange.CHANGED),  # rules decide it
    ],
)
def test_a_newer_catalogue_adds_changes_and_contradicts(
    code: str, immediate: str, investigatory: str, change: TableChange
) -> None:
    assert changes(with_row(code, immediate, investigatory)) == {code: change}


def test_a_code_that_the_catalogue_no_longer_has_is_gone() -> None:
    rows = tuple(row for row in same_edition() if row.code != "79")

    assert changes(rows) == {"79": TableChange.GONE}


def test_a_row_that_differs_on_purpose_counts_again_once_its_document_changes() -> None:
    assert POLICY[XID, "157"].differs
    assert changes(with_row("157", "IGNORE", "CONTACT_SUPPORT")) == {}
    assert changes(with_row("157", "RESET_GPU")) == {"157": TableChange.CONTRADICTED}


def test_a_row_without_a_reason_is_contradicted_by_its_own_document() -> None:
    table = {**POLICY, (XID, "79"): replace(POLICY[XID, "79"], action=Action.WATCH)}

    assert changes(same_edition(), table) == {"79": TableChange.CONTRADICTED}


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}\nXID,79,FALLEN,Off the bus,YES,RESTART_BM,CONTACT_SUPPORT,R565,\n",
        f'Xid-Catalog\n\n{HEAD}\r\nXID,79,FALLEN,"a\nb, c",YES,RESTART_BM,CONTACT_SUPPORT,,\r\n\r\n',
        f"{HEAD}\nXID,79.0,FALLEN,,YES,RESTART_BM,CONTACT_SUPPORT,,".replace(",", ";"),
        f"{HEAD}\nXID,79,FALLEN,,YES,RESTART_BM,CONTACT_SUPPORT,,".replace(",", "\t"),
        "\ufeffCode,Mnemonic,Immediate Action,Investigatory Action\n79,FALLEN,RESTART_BM,CONTACT_SUPPORT\n",
        json.dumps(
            [
                {
                    "Code": 79,
                    "Mnemonic": "FALLEN",
                    "Resolution Bucket (Immediate Action)": "RESTART_BM",
                    "Resolution Bucket (Investigatory Action)": "CONTACT_SUPPORT",
                }
            ]
        ),
        json.dumps(
            {
                "Xids": {
                    "79": {
                        "mnemonic": "FALLEN",
                        "immediate_action": "RESTART_BM",
                        "investigatory_action": "CONTACT_SUPPORT",
                    }
                }
            }
        ),
    ],
    ids=["comma", "preamble", "semicolon", "tab", "mark", "list", "by code"],
)
def test_each_form_of_a_saved_catalogue_is_read(text: str) -> None:
    assert parse_catalogue(text, "c") == (
        CatalogueRow(XID, "79", "FALLEN", "RESTART_BM", "CONTACT_SUPPORT"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "none of the first 20 lines"),
        ("PK\x03\x04", "save its first sheet as CSV"),
        ("a,b\n1,2\n", "none of the first 20 lines"),
        (f"{HEAD}\n", "no code with a resolution"),
        ("[1, 2]", "no code with a resolution"),
        ("{", "c: "),
        ("[" * 100_000, "c: "),
    ],
)
def test_what_is_no_catalogue_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_catalogue(text, "c")


@given(st.text(max_size=300))
def test_no_text_raises_anything_but_config_errors(text: str) -> None:
    for each in (text, f"{HEAD}\n{text}", f"[{text}]"):
        with contextlib.suppress(ConfigError):
            parse_catalogue(each, "c")


def test_sxids_of_a_catalogue_are_compared_with_their_own_table() -> None:
    text = f"{HEAD}\nSXID,20034,LTSSM,,YES,RESTART_BM,,,\nSXID,29999,NEW,,YES,RESET_GPU,,,\n"

    found = {
        (each.table.value, each.code): each.change
        for each in compare(parse_catalogue(text, "c"), POLICY)
    }

    assert found["sxid", "29999"] is TableChange.ADDED
    assert not [code for table, code in found if table == "xid"]


def test_each_row_of_the_tables_names_a_dated_document_and_what_it_says() -> None:
    documents = load_documents()
    coded = {key: row for key, row in POLICY.items() if key[0] is not EventTable.LOG}
    checks = load_check_rows()

    assert [key for key, row in POLICY.items() if row.document not in documents] == []
    assert [key for key, row in coded.items() if not row.says] == []
    assert [name for name, row in checks.items() if row.get("document") not in documents] == []
    assert all(each.title and each.edition and each.read for each in documents.values())
    assert [key for key, each in documents.items() if not each.url] == ["own"]
    used = {row.document for row in POLICY.values()} | {row["document"] for row in checks.values()}
    assert used == set(documents)


def test_a_row_says_otherwise_than_its_document_only_with_a_reason() -> None:
    assert [key for key, row in POLICY.items() if disagrees(row) and not row.differs] == []
