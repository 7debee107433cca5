"""Writes a manual page for each command from its help, with the environment of the package.

    python manual_pages.py FOLDER

click-man walks only groups that hold their commands in a dictionary, cuts the first sentence of a page, and knows
no blocks in which lines stay as they are.
"""

import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import click

from rankmend.cli import cli
from rankmend.version import RANKMEND_VERSION

KEPT: Final = "\b"  # click: the lines of this paragraph stay as they are
FILES: Final = (
    ("/etc/rankmend/agent.toml", "The agent's configuration."),
    ("/etc/rankmend/controller", "What `rankmend controller init` makes: configuration, certificates, tokens."),
    ("/usr/share/rankmend", "Slurm's prolog, epilog and health check; rules of Prometheus; routes of Alertmanager."),
    ("/usr/share/doc/rankmend", "Licences, changes, and the commented configuration of controller and policy."),
)  # fmt: skip


def escape(text: str) -> str:
    r"""Return text as roff prints it: ``\``, ``-`` and a leading ``.`` or ``'`` have a meaning there."""
    escaped = (
        text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("^", r"\(ha")
    )
    escaped = escaped.replace("~", r"\(ti").replace('"', r"\(dq")
    return re.sub(r"(?m)^([.'])", r"\&\1", escaped)


def paragraphs_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the paragraphs of a help text, each with whether its lines stay as they are."""
    for part in re.split(r"\n\s*\n", text.partition("\f")[0].strip("\n")):
        lines = [line.strip() if KEPT not in part else line.rstrip() for line in part.splitlines()]
        if KEPT in part:
            yield "\n".join(line for line in lines if KEPT not in line), True
        elif any(lines):
            yield " ".join(filter(None, lines)), False


def body_of(text: str) -> str:
    blocks = []
    for paragraph, is_kept in paragraphs_of(text):
        shown = escape(paragraph)
        blocks.append(f".PP\n.nf\n{shown}\n.fi" if is_kept else f".PP\n{shown}")
    return "\n".join(blocks)


def first_sentence(command: click.Command) -> str:
    text = next(paragraphs_of(command.help or ""), ("", False))[0]
    return re.split(r"(?<=[.:]) ", text)[0].rstrip(".:")


def section(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    entries = "".join(f".TP\n{head}\n{escape(text) or '.'}\n" for head, text in rows)
    return f".SH {title}\n{entries}"


def name_of(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def page_of(context: click.Context, children: list[click.Context], date: str) -> str:
    command = context.command
    name = name_of(context)
    usage = escape(" ".join(command.collect_usage_pieces(context)))
    named = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    options = [record for option in named if (record := option.get_help_record(context))]
    related = [
        "rankmend",
        *([name_of(context.parent)] if context.parent and context.parent.parent else []),
    ]
    related += [name_of(child) for child in children if context.parent]
    return "\n".join(
        filter(
            None,
            [
                f'.TH "{escape(name.upper())}" 1 "{date}" "rankmend {RANKMEND_VERSION}" "rankmend manual"',
                ".nh\n.ad l",
                f".SH NAME\n{escape(name)} \\- {escape(first_sentence(command))}",
                f".SH SYNOPSIS\n.B {escape(context.command_path)}\n{usage}",
                f".SH DESCRIPTION\n{body_of(command.help or '')}",
                section(
                    "COMMANDS",
                    [(rf"\fB{escape(name_of(one))}\fR(1)", f"{first_sentence(one.command)}.") for one in children],
                ),
                section("OPTIONS", [(rf"\fB{escape(head)}\fR", text) for head, text in options]),
                f".SH NOTES\n{body_of(command.epilog)}" if command.epilog else "",
                section("FILES", [(rf"\fI{escape(path)}\fR", text) for path, text in FILES])
                if context.parent is None
                else "",
                ".SH SEE ALSO\n" + ",\n".join(rf"\fB{escape(one)}\fR(1)" for one in dict.fromkeys(related) if one != name)
                if context.parent
                else "",
            ],
        )
    )  # fmt: skip


def commands_of(context: click.Context) -> list[click.Context]:
    """Return the contexts of the commands of a group, hidden ones left out."""
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [
        click.Context(command, info_name=name, parent=context)
        for name, command in found
        if command is not None and not command.hidden
    ]


def write_pages(folder: Path, context: click.Context, date: str) -> None:
    """Write the page of a command and of all below it."""
    children = commands_of(context)
    text = page_of(context, children, date).rstrip("\n") + "\n"
    (folder / f"{name_of(context)}.1").write_text(text, encoding="utf-8")
    for child in children:
        write_pages(folder, child, date)


if __name__ == "__main__":
    made_at = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    write_pages(Path(sys.argv[1]), click.Context(cli, info_name="rankmend"), f"{made_at:%Y-%m-%d}")
