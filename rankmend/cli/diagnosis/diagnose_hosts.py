"""`rankmend diagnose hosts`: name the node that began to differ from the others, from host metrics alone.

Exit codes: 0 a verdict was reached (also nobody and unknown), 2 unreadable input.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.diagnosis.diagnose_readings import Prometheus, prometheus_options, read_files
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.files import read_capped

if TYPE_CHECKING:
    from detectors.diagnosis import Diagnosis
    from detectors.slow.host_table import HostTable

UNREADABLE: Final = 2
LOOK_BACK_S: Final = 1_800.0  # without --start: twice Minder's 15 min, so that most have a past
NODES_MAX: Final = 64  # with 8 GPUs each some 3 million samples, 500 MB
FILE_BYTES_MAX: Final = 512_000_000


@click.command(epilog=examples("rankmend diagnose hosts pages/*.prom"))
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@json_option
@prometheus_options
def hosts(files: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Find the node that started to differ from the others, from host metrics alone.

    FILES are one CSV (node,time,metric,value, or time and one column per node), or saved range
    queries and pages of the agents' metrics. --prometheus queries the last 30 minutes, or --start
    to --end. It is weaker than `rankmend diagnose slow` but needs nothing from the job.

    Exit codes: 0 a verdict was reached, 2 unreadable input.
    """
    from detectors.diagnosis import diagnosis_page
    from detectors.slow.odd_nodes import diagnose_hosts

    try:
        diagnosis = diagnose_hosts(_table(files, options))
    except RankmendError as error:
        fail(str(error), UNREADABLE)
    if as_json:
        print_json(diagnosis_page(diagnosis))
    else:
        _print(diagnosis)


def _table(files: tuple[Path, ...], options: dict[str, Any]) -> "HostTable":
    from detectors.slow.host_table import METRICS, SELECTIONS, table_of

    if options["url"] is not None:
        if files:
            raise ConfigError("give files or --prometheus, not both")
        requested = Prometheus(options["url"], options["token_file"])
        end_s = options["end"] or time.time()
        start_s = options["start"] or end_s - LOOK_BACK_S
        readings = requested.readings(
            SELECTIONS, start_s, end_s, job_id=options["job_id"], nodes_max=NODES_MAX
        )
        return table_of(readings)
    if not files:
        raise ConfigError("no input: name files, or give --prometheus URL")
    if len(files) == 1 and files[0].suffix == ".csv":
        return read_csv_table(files[0])
    return table_of(read_files([str(file) for file in files], METRICS))


def read_csv_table(path: Path) -> "HostTable":
    """Return the table of a CSV file, or raise SourceError."""
    from detectors.formats.traces.host_csv import read
    from detectors.formats.traces.neutral import read_csv

    data = read_capped(path, FILE_BYTES_MAX, SourceError)
    try:
        return read(read_csv(data.decode("utf-8-sig")), path.stem)
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from error


def _print(diagnosis: "Diagnosis") -> None:
    from rich.text import Text

    console = output.console()
    style = "bold red" if diagnosis.culprits else "bold"
    console.print(Text(diagnosis.reason, style=style), soft_wrap=True)
    for line in diagnosis.evidence:
        console.print(Text(f"  {line.text}", style="dim"), soft_wrap=True)
    console.print(Text(f"  confidence {diagnosis.confidence:.2f}", style="dim"))
