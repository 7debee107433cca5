"""Every `rankmend ...` that documents and messages name can be typed; the messages that cli.md quotes exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import split_arg_string

from rankmend.cli import cli
from tests.support.shipped import HISTORY, shipped_files, texts_of_code

ROOT = Path(__file__).resolve().parents[2]
CLI_PAGE = ROOT / "docs/operate/cli.md"
MESSAGE_ROW = re.compile(r"^\| `([^`]+)`.* \| .+ \|$", re.MULTILINE)
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != HISTORY),
    *shipped_files(),
]
SPAN = re.compile(r"`(rankmend(?: [^`]*)?)`", re.DOTALL)
LINE = re.compile(r"^(?: {4}|\$ |ExecStart=\S*/)?(rankmend (?:[^\n\\]|\\\n)*)", re.MULTILINE)
FENCE = re.compile(r"^```.*?$(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?: {4}.*|ExecStart=.*)(?:\n {4}.*)*", re.MULTILINE)
NO_COMMANDS = ("rankmend journal 1",)  # what a checksum begins from
END = re.compile(r"\s#\s|;|\s[|>]\s|\s\|\|\s|\s&&\s|\s&$")  # of a command, in a shell or a table


def commands_in(text: str) -> Iterator[str]:
    """Yield what stands as a command in a page: in backticks, or on a line of code."""
    blocks = "\n".join([*FENCE.findall(text), *INDENTED.findall(text)])
    spans = SPAN.findall(FENCE.sub("", text))
    for found in (*spans, *LINE.findall(blocks)):
        for part in END.split(" ".join(found.replace("\\\n", " ").split())):
            command = part.strip()
            if command.startswith("rankmend ") and command not in NO_COMMANDS:
                yield command


def what_is_wrong(line: str) -> str | None:
    """Return why the command can't be typed so, or None.

    A command that is only named needs no arguments; one that is given any, or options where it takes
    no arguments, needs all, options that it can't do without included.
    """
    words = _bare(line)[1:]
    if "..." in words:
        del words[words.index("...") :]
    command: click.Command = cli
    context = click.Context(cli, info_name="rankmend")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        names = words.pop(0).split("|")  # token add|list|revoke
        found = [command.get_command(context, name) for name in names]
        if None in found:
            return f"there is no command {names}"
        assert found[0] is not None
        command = found[0]
        settings = command.context_settings
        context = click.Context(command, parent=context, info_name=names[0], **settings)
    if not words:
        return None
    last = next((one for one in command.params if words[-1] in one.opts), None)
    if isinstance(last, click.Option) and not (last.is_flag or last.count):
        words.append("VALUE")  # an option that is only named
    try:
        given, left, _order = command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return error.format_message()
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if left and not context.allow_extra_args:
        return f"unexpected: {left}"
    if any(given.get(str(one.name)) for one in arguments) or not arguments:
        missing = [
            one.name for one in command.params if one.required and not given.get(str(one.name))
        ]
        return f"missing: {missing}" if missing else None
    return None


def _bare(line: str) -> list[str]:
    """Return the words of a usage: what is in brackets is optional, and checked too."""
    text = re.sub(r"(?<=[A-Z])\[,[A-Z]+\]", "", line)  # URL[,URL]
    text = text.replace("[", " ").replace("]", " ")
    return split_arg_string(text) if "'" in text else shlex.split(text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists_with_its_options(path: Path) -> None:
    told = list(commands_in(path.read_text(encoding="utf-8")))

    assert {line: why for line in told if (why := what_is_wrong(line))} == {}


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    told = {found for text in texts_of_code() for found in SPAN.findall(text)}

    assert any(line.startswith("rankmend confirm-gone WORD --job") for line in told)
    assert {line: why for line in told if (why := what_is_wrong(line))} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rankmend resume NODE", "unexpected"),
        ("rankmend confirm-gone NODE", "missing: ['job']"),
        ("rankmend pause --cluster", "missing: ['reason']"),
        ("rankmend mend", "no command"),
        ("rankmend why INCIDENT --loud", "No such option"),
    ],
)
def test_a_command_that_can_not_be_typed_is_found_out(line: str, why: str) -> None:
    assert why in str(what_is_wrong(line))


def test_options_of_a_users_script_are_its_own() -> None:
    assert what_is_wrong("rankmend run --standalone train.py --lr 3e-4") is None


def test_commands_are_found_in_spans_blocks_and_units() -> None:
    text = (
        "rankmend looks, so do `rankmend why X | less`, or\n\n    rankmend status   # all\n\n"
        "ExecStart=/opt/rankmend/bin/rankmend agent --once\n"
        "```sh\nrankmend stop a; rankmend stop b\nrankmend run --nnodes 2 \\\n    train.py\n```\n"
    )

    assert sorted(commands_in(text)) == [
        "rankmend agent --once",
        "rankmend run --nnodes 2 train.py",
        "rankmend status",
        "rankmend stop a",
        "rankmend stop b",
        "rankmend why X",
    ]


def test_documents_make_a_token_for_each_user_first() -> None:
    text = (ROOT / "docs/operate/controller.md").read_text()

    made, used = text.find("token add alice --role launch"), text.find("--token-file alice.token")
    assert 0 < made < used
    assert "--token-file launch.token" not in text


def quoted_messages() -> list[str]:
    table = CLI_PAGE.read_text(encoding="utf-8").partition("| message | what to do |\n")[2]
    return MESSAGE_ROW.findall(table.partition("\n\n")[0])


@pytest.fixture(scope="module")
def messages() -> str:
    """Return every text of the code; a value filled in stands as WORD."""
    return "\n".join(texts_of_code())


def test_the_page_quotes_messages() -> None:
    assert len(quoted_messages()) >= 10


@pytest.mark.parametrize("quoted", quoted_messages())
def test_a_quoted_message_is_one_that_the_code_prints(quoted: str, messages: str) -> None:
    """Capital letters in a quotation stand for a value; a message may be two texts, put together."""
    texts = [re.sub(r"\b[A-Z]{4,}\b", "WORD", text) for text in quoted.split(": ")]

    missing = [text for text in texts if text != "..." and text not in messages]

    assert not missing, f"{CLI_PAGE.name} quotes a message that no code prints"
