"""`rankmend logs`: what the ranks of a job wrote, from the log files on this machine."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.options import fail, find_state, state_option
from rankmend.cli.output import echo
from rankmend.cli.sources.controller_names import complete_job
from rankmend.errors import RankmendError
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.launcher.ranks.rank_logs import KeptLogs, LogReader

_LOOK_EVERY_S: Final = 0.5  # people read; a look stats a few files
_HOW: Final = "To keep it: rankmend run --log-dir logs --tee 3 ... (3: stdout and stderr; on the console, too)"


@click.command(
    epilog="""\b
Examples:
  rankmend logs                        the newest job of this machine
  rankmend logs llama --rank 3 --follow
  rankmend logs llama --attempt 2 --lines 50
"""
)
@click.argument("job", required=False, shell_complete=complete_job)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="R",
    help="Show this rank only. [default: all of this machine]",
)
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show this attempt only. [default: the newest]",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the last lines of each file only. [default: all]",
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the job ends.")
@state_option
def logs(
    job: str | None,
    rank: int | None,
    attempt: int | None,
    lines: int | None,
    follow: bool,
    state_dir: Path | None,
) -> None:
    """Show what the ranks of a job wrote.

    JOB is the beginning of a job's name or UUID. Reads the log files of this machine; those of
    other nodes are on them. A job keeps its output with `rankmend run --tee` or `--redirects` only.
    """
    from recovery.journal.folder.job_folder import find_launchers, is_held

    try:
        state = find_state(state_dir)
        folder = next(iter(find_launchers(state, job)), None)
    except RankmendError as error:
        fail(str(error))
    if folder is None:
        what = "job" if job is None else f"job {job!r}"
        fail(f"no {what} has run on this machine (in {state}; rankmend status --all lists all)")
    from recovery.launcher.ranks.rank_logs import kept_by, last_words

    retained = kept_by(folder)
    if retained.folder is None:
        _explain_none(retained, last_words(folder))
    printer = _Printer(retained, rank, attempt, lines)
    has_output = printer.print_new()
    if not has_output and not follow:
        fail(_nothing_there_text(retained, rank, attempt))
    if not has_output:
        echo(
            "rankmend: no output yet; new lines follow until the job ends or you press Ctrl-C",
            err=True,
        )
    if follow:
        _follow(printer, lambda: is_held(folder))
    printer.print_rest()


def _explain_none(retained: "KeptLogs", words: list[Path]) -> None:
    """Say that no output is kept, what is there all the same, and how to keep it next time."""
    text = f"{retained.job} keeps no output: its ranks write to the console of rankmend run only"
    if retained.is_older:
        text = f"an older rankmend started {retained.job}, and didn't record where its output is"
    there = f" The last lines before its newest incident: {words[0].parent}." if words else ""
    fail(f"{text}.{there} {_HOW}")


def _nothing_there_text(retained: "KeptLogs", rank: int | None, attempt: int | None) -> str:
    logs = retained.files()
    if not logs:
        return f"{retained.folder} has no log file: no rank has written yet, or somebody has removed them"
    ranks = ", ".join(str(number) for number in sorted({log.rank for log in logs}))
    attempts = ", ".join(str(number) for number in sorted({log.attempt for log in logs}))
    what = "" if rank is None else f" rank {rank}"
    what += "" if attempt is None else f" attempt {attempt}"
    return f"no output of{what} on this machine ({retained.folder} has ranks {ranks}, attempts {attempts})"


def _follow(printer: "_Printer", is_running: Callable[[], bool]) -> None:
    """Print what comes, also of later attempts, until the job ends or Ctrl-C."""
    try:
        while is_running():
            time.sleep(_LOOK_EVERY_S)
            printer.print_new()
    except KeyboardInterrupt:
        return
    printer.print_new()


class _Printer:
    """Prints the files that were requested, each from the place up to which it is printed."""

    def __init__(
        self, kept: "KeptLogs", rank: int | None, attempt: int | None, lines: int | None
    ) -> None:
        self._kept = kept
        self._rank = rank
        self._attempt = attempt
        self._lines = lines
        self._readers: dict[Path, LogReader] = {}

    def print_new(self) -> bool:
        """Print the new lines; return whether there is a file."""
        from recovery.launcher.ranks.rank_logs import LogReader, select

        for log in select(self._kept.files(), self._attempt, self._rank):
            if log.path not in self._readers:
                self._readers[log.path] = LogReader(log, self._lines)
            self._print(self._readers[log.path])
        self._lines = None  # files of later attempts are printed from their beginning
        return bool(self._readers)

    def print_rest(self) -> None:
        """Print last lines that have no end."""
        for reader in self._readers.values():
            self._print(reader, is_last=True)

    def _print(self, reader: "LogReader", *, is_last: bool = False) -> None:
        prefix = "" if self._rank is not None else f"[rank {reader.log.rank}] "
        while (lines := reader.read(is_last=is_last)) is not None:
            for line in lines:
                echo(f"{prefix}{printable(line)}", err=reader.log.stream == "stderr")
