"""`rankmend check table`: what a newer catalogue of NVIDIA changes in the tables of XIDs and SXIDs.

Exit codes: 0 the tables agree, 1 the catalogue adds or words something otherwise, 2 it contradicts a row, 64 it could not be read.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankmend.cli import output
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.errors import ConfigError, RankmendError

if TYPE_CHECKING:
    from detectors.kernel.catalogue import Difference, Document

UNREADABLE = 64
_AGREES, _DIFFERS, _CONTRADICTS = 0, 1, 2
_BYTES_MAX = 16_000_000

_STYLES = {"contradicted": "bold red", "added": "yellow", "changed": "yellow", "gone": "dim"}


@click.command(epilog=examples("rankmend check table --against xid-catalogue.xlsx"))
@click.option(
    "--against",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="Catalogue that you saved: NVIDIA's Xid-Catalog.xlsx as CSV (its first sheet), or JSON.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="CSV file with your site's own rows: table,code,name,severity,action,hardware,source,meaning.",
)
@json_option
def table(file: Path, policy: Path | None, as_json: bool) -> None:
    """Compare the tables of XIDs with a newer catalogue of NVIDIA.

    Shows codes that it adds, rows whose words it changed or no longer has, and rows whose action it contradicts.
    Rows that differ from NVIDIA on purpose are shown only where NVIDIA changed its mind.

    Exit codes: 0 nothing differs, 1 something is added, changed or gone, 2 a row is contradicted, 64 the file could not be read.
    """
    from agent.findings.policy_files import load_documents, load_policy
    from detectors.kernel.catalogue import compare, parse_catalogue
    from rankmend.files import read_capped

    try:
        rows = load_policy(policy)
        data = read_capped(file, _BYTES_MAX, ConfigError, name=f"the catalogue {file}")
        catalogue = parse_catalogue(data.decode("utf-8", "replace"), str(file))
    except RankmendError as error:
        fail(str(error), UNREADABLE)
    differences = compare(catalogue, rows)
    edition = load_documents()["xid-catalog"]
    if as_json:
        print_json(
            {
                "file": str(file),
                "codes": len(catalogue),
                "edition": edition.edition,
                "read": edition.read,
                "differences": [_difference_json(each) for each in differences],
            }
        )
    else:
        _print(file, len(catalogue), differences, edition)
    sys.exit(_exit_code(differences))


def _exit_code(differences: "tuple[Difference, ...]") -> int:
    if any(each.change.value == "contradicted" for each in differences):
        return _CONTRADICTS
    return _DIFFERS if differences else _AGREES


def _difference_json(difference: "Difference") -> dict[str, str]:
    return {
        "change": difference.change.value,
        "table": difference.table.value,
        "code": difference.code,
        "name": difference.name,
        "before": difference.before,
        "now": difference.now,
        "severity": difference.severity,
        "action": difference.action,
        "differs": difference.differs,
    }


def _print(
    file: Path, codes: int, differences: "tuple[Difference, ...]", edition: "Document"
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from detectors.wording import counted

    console = output.console()
    if differences:
        shown = Table(box=box.SIMPLE_HEAD)
        shown.add_column("change", no_wrap=True)
        shown.add_column("code", no_wrap=True)
        shown.add_column("name", overflow="fold")
        shown.add_column("before", overflow="fold")
        shown.add_column("now", overflow="fold")
        shown.add_column("here", overflow="fold")
        for each in differences:
            here = f"{each.severity}, {each.action.replace('_', ' ')}" if each.action else "no row"
            shown.add_row(
                Text(each.change.value, style=_STYLES[each.change.value]),
                Text(f"{each.table.value} {each.code}"),
                Text(each.name),
                Text(each.before),
                Text(each.now),
                Text(here + (f": {each.differs}" if each.differs else "")),
            )
        console.print(shown)
    verdict = counted(len(differences), "difference") if differences else "nothing differs"
    console.print(
        Text(
            f"{file}: {counted(codes, 'code')}, {verdict}. The tables rest on the edition of {edition.read}: "
            f"{edition.edition}"
        ),
        soft_wrap=True,
    )
