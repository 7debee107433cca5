"""Nothing from outside moves the cursor, forges a line or hides a word: in tables, lines and messages of the commands."""

import ast
import io
import json
import logging
import unicodedata
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rankmend.cli import cli as commands
from rankmend.cli import output
from rankmend.cli.acts import approve
from rankmend.cli.screens import incidents, status_view
from rankmend.cli.screens.status_watch import Changes
from rankmend.cli.sources.controller_options import Access, explain, tell
from rankmend.cli.sources.picture import Picture, Wanted
from rankmend.logs import LineFormatter, LogShape
from rankmend.printable import is_printable, printable, printable_lines
from recovery.api import wire
from recovery.api.controller_errors import RefusedError
from recovery.journal.accounting import RecoveryPhase

ROOT = Path(__file__).resolve().parents[2]
EVIL = "a\x1b]0;PWNED\x07\x1b[2J\x1b[1;1H\r\nFAKE  running\u202e\u2066\x9b31m[/red][bold]\u2028z"
JOB = "4f1c2d3e-0000-4000-8000-000000000000"


@given(st.text())
def test_printable_text_is_one_line_as_long_as_before_that_no_terminal_obeys(text: str) -> None:
    shown = printable(text)

    assert len(shown) == len(text)
    assert shown.splitlines() in ([], [shown])
    assert [char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")] == []
    assert printable(shown) == shown
    assert is_printable(shown)


def test_no_character_that_turns_or_hides_text_is_printable() -> None:
    kinds = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "B", "S", "BN"}
    needed = {" ", "\xad", "\u200c", "\u200d"}  # joiners of emoji and of Indic scripts
    every = map(chr, (*range(0xD800), *range(0xE000, 0x110000)))

    left = [c for c in every if unicodedata.bidirectional(c) in kinds and is_printable(c)]

    musical = {
        chr(code) for code in range(0x1BCA0, 0x1D17B)
    }  # format of musical notes and shorthand
    assert {char for char in left if char not in needed | musical} == set()


def test_letters_of_any_language_are_printed_as_they_are() -> None:
    for name in ("llama-70b", "Prüfung 3", "学習", "обучение", "👩‍💻", "نموذج"):
        assert printable(name) == name


def test_a_text_of_ours_keeps_its_newlines_and_nothing_else() -> None:
    assert printable_lines("one\ntwo\r\x1b[1m") == "one\ntwo␍␛[1m"


def test_commands_print_through_one_module_alone() -> None:
    found = []
    for file in sorted((ROOT / "rankmend/cli").glob("*.py")):
        if file.name == "output.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                is_raw = called in (
                    "click.echo",
                    "click.secho",
                    "print",
                    "Console",
                    "ClickException",
                )
                if is_raw or called.endswith((".write_line", "click.ClickException")):
                    found.append(f"{file.name}:{node.lineno}: {called}")

    assert found == []


# What people see.


def job_view(**changes: object) -> wire.JobView:
    values: dict[str, object] = {
        "job_id": JOB,
        "name": EVIL,
        "owner": EVIL,
        "state": "running",
        "attempt": 1,
        "world_size": 2,
        "nodes": 1,
        "restarts": 0,
        "restarts_without_progress": 0,
        "highest_step": None,
        "incidents": 1,
        "incident_id": "4f1c2d3e-1",
        "reason": EVIL,
        "problem": EVIL,
        "attributes": {EVIL: EVIL},
    }
    return wire.JobView(**(values | changes))  # type: ignore[arg-type]


def plan_view() -> wire.PlanView:
    return wire.PlanView(JOB, EVIL, "4f1c2d3e-1", 1, "move", EVIL, "wait", EVIL, [EVIL])


def picture() -> Picture:
    starts = [wire.StartView(EVIL, [0], EVIL)]
    node = wire.NodeView(EVIL, JOB, 0.1, 1, [0], False, "boot", EVIL, starts, EVIL, EVIL, EVIL)
    cluster = wire.Cluster(
        [wire.Pause("cluster", EVIL, EVIL)],
        [wire.HoldView(EVIL, "drain", EVIL, EVIL, None)],
        [wire.WindowView("w1", [EVIL], 0.0, 4e9, EVIL, EVIL)],
        [EVIL],
    )
    return Picture("https://c", [job_view()], [node], [plan_view()], cluster)


def story() -> wire.Story:
    line = wire.StoryLine(1, 0.0, 0.0, "b", "job_opened", EVIL, [EVIL], msgspec.Raw(b"{}"))
    return wire.Story(JOB, EVIL, None, [line])


def incident_row() -> dict[str, object]:
    phases = {f"{phase.value}_s": None for phase in RecoveryPhase}
    return {
        "id": EVIL,
        "opened_unix_s": 0.0,
        "outcome": "recovered",
        "job": EVIL,
        "summary": EVIL,
        "blame": EVIL,
        "phases": phases,
        "steps_recomputed": None,
        "restored_from": EVIL,
        "restored_step": None,
        "total_s": None,
        "recovered_s": None,
        "caught_up_s": None,
    }


def show_status() -> None:
    wanted = Wanted(None, with_ended=False, every_node=True)
    output.console(is_wide=True).print(status_view.render(picture(), wanted))


def show_incidents() -> None:
    row = incident_row()
    output.echo(printable(incidents.line_of(row)))
    output.console(is_wide=True).print(incidents._table([row], 1.0))
    output.console(is_wide=True).print(incidents._phases([row]))


SHOWN = {
    "status": show_status,
    "status lines": lambda: Changes().print(status_view._lines(picture())),
    "incidents": show_incidents,
    "why": lambda: incidents._print_story(story(), None),
    "approve": lambda: output.echo(approve.describe(plan_view())),
    "tell": lambda: tell(EVIL, as_json=False),
    "a table": lambda: output.console().print(table_of(EVIL)),
    "a group": lambda: output.console().print(Group(Text(EVIL), EVIL, table_of(EVIL))),
    "a refusal": lambda: output.echo(
        explain(RefusedError("x", 409, wire.Problem(EVIL)), Access((), None, None))
    ),
}


def table_of(text: str) -> Table:
    table = Table("one", "two")
    table.add_row(text, Text(text, style="red"))
    table.add_row(Group(Text(text), text), "")
    return table


@pytest.mark.parametrize("what", SHOWN)
def test_hostile_texts_neither_steer_the_terminal_nor_forge_a_line(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # nothing is folded
    SHOWN[what]()

    said = capsys.readouterr().out
    assert "FAKE" in said
    assert "[/red][bold]" in said, "square brackets are text"
    assert [line for line in said.splitlines() if line.lstrip(" │┃|").startswith("FAKE")] == []
    assert not set(said) & {"\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2066", "\u2028"}


def test_styles_of_ours_still_reach_a_terminal() -> None:
    file = io.StringIO()
    terminal = output._console_type()(file=file, force_terminal=True, color_system="standard")

    terminal.print(Text(f"x{EVIL}", style="red"))

    assert file.getvalue().startswith("\x1b[31mx")
    assert "\x1b]0" not in file.getvalue()
    assert "\x1b[2J" not in file.getvalue()


def test_json_holds_every_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from rankmend.cli.options import print_json

    print_json({"name": EVIL})

    said = capsys.readouterr().out
    assert json.loads(said) == {"name": EVIL}
    assert "\x1b" not in said


@pytest.mark.parametrize("shape", LogShape)
def test_log_line_holds_no_escape_sequence_and_no_line_of_others(shape: LogShape) -> None:
    record = logging.makeLogRecord({"msg": f"said {EVIL}", "levelname": "WARNING", "error": EVIL})

    line = LineFormatter(shape).format(record)

    assert line.isprintable()
    assert "FAKE" in line


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (option, name)
        for option in ("--job", "--rdzv-id", "--node-name")
        for name in ("a\x1b[2J", "a\nb", "a\u202eb", " a", "", "x" * 257)
        if name
        or option != "--rdzv-id"  # `--rdzv-id=$JOB` where nothing is set, as torchrun takes it
    ],
)
def test_name_that_would_steer_a_terminal_is_refused_with_the_option(
    option: str, name: str
) -> None:
    done = CliRunner().invoke(commands, ["run", "--standalone", option, name, "train.py"])

    assert done.exit_code == 2
    assert option in done.output
    assert "is not a name" in done.output
    assert "\x1b" not in done.output
