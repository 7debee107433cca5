"""`rankmend diagnose log`: which rank failed, why, and whether to start again, from the log of a job.

Exit codes: 0 restart, 3 stop, 4 unknown; 2 the input can't be read, 64 it is no log of a training job.
"""

import gc
import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import click

from rankmend.cli import output
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.errors import ConfigError
from rankmend.printable import printable

if TYPE_CHECKING:
    from detectors.job_log.lines import LogSource
    from detectors.job_log.verdict import LogVerdict
    from rankmend.cli.diagnosis.second_opinion import SecondOpinion
    from recovery.local.report.scrub import Scrubber

UNREADABLE: Final = 2
NO_TRAINING_LOG: Final = os.EX_USAGE
EXIT_CODES: Final = {"restart": 0, "stop": 3, "unknown": 4}
FILES_MAX: Final = 40_000  # standard output and error of 16,384 ranks, and some
_PIECE_BYTES: Final = 1 << 20
_REST_BYTES_MAX: Final = 65_536  # of a line without an end
_GZIP: Final = b"\x1f\x8b"
_STYLES: Final = {"restart": "bold yellow", "stop": "bold red", "unknown": "bold"}
_PROBLEMS_MAX: Final = 8


@click.command(
    epilog=examples("rankmend diagnose log slurm-4711.out", "rankmend diagnose log logs/ --json")
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option(
    "--second-opinion",
    metavar="COMMAND",
    help="Show what this program answers to the verdict as JSON on its standard input; no shell.",
)
@json_option
def log(files: tuple[Path, ...], second_opinion: str | None, as_json: bool) -> None:
    """Find the rank that failed, why, and whether to start the job again.

    FILE is what a job printed: the output of torchrun, srun, mpirun or `rankmend run`, one file or
    one for each rank or node, plain or gzip; a folder of them; - reads standard input. Ranks come
    from prefixes such as [rank3]: and from file names. No model and no network are used.

    Exit codes: 0 restart, 3 stop (the same start would fail the same way), 4 unknown, 2 unreadable
    input, 64 no log of a training job.
    """
    from detectors.job_log.verdict import diagnose_log, log_page
    from rankmend.cli.diagnosis.second_opinion import ask_program, words_of
    from recovery.local.report.scrub import Scrubber

    try:
        words = words_of(second_opinion) if second_opinion is not None else None
    except ConfigError as error:
        fail(str(error), UNREADABLE)
    gc.disable()  # the facts of 16,384 ranks are walked through again and again, and none of them is a circle
    problems: list[str] = []
    sources = [_source(path, name, problems) for path, name in _find_files(files)]
    verdict = diagnose_log(sources)
    if problems and len(problems) >= len(sources):
        fail(f"cannot read {problems[0]}", UNREADABLE)
    scrubber = Scrubber((os.environ,), str(Path.home()))
    shown = scrubber.scrub_value(log_page(verdict, problems[:_PROBLEMS_MAX]))
    page = cast(dict[str, object], shown)
    if not as_json:
        _print_person(verdict, problems, scrubber)
        sys.stdout.flush()  # the other answer takes a while
    opinion = ask_program(words, page) if words is not None else None
    if as_json:
        reported = {} if opinion is None else {"second_opinion": asdict(opinion)}
        print_json({**page, **reported})
    elif opinion is not None:
        _print_opinion(opinion)
    sys.exit(EXIT_CODES[verdict.decision.value] if verdict.is_training_log else NO_TRAINING_LOG)


def _find_files(files: tuple[Path, ...]) -> list[tuple[Path, str]]:
    """Return the files to read with their names; those of a folder are named within it."""
    found: list[tuple[Path, str]] = []
    for path in files:
        if str(path) == "-":
            found.append((path, "standard input"))
        elif path.is_dir():
            try:
                inside = sorted(each for each in path.rglob("*") if each.is_file())
            except OSError as error:
                fail(f"cannot read {path}: {error.strerror or error}", UNREADABLE)
            found += [(each, str(each.relative_to(path))) for each in inside]
        elif not path.exists():
            fail(f"cannot read {path}: there is no such file", UNREADABLE)
        elif path.is_block_device() or (path.is_char_device() and not path.samefile(os.devnull)):
            fail(f"cannot read {path}: it is a device, which may have no end", UNREADABLE)
        else:
            found.append((path, str(path)))
        if len(found) > FILES_MAX:
            fail(f"{path}: more than {FILES_MAX} files; name fewer", UNREADABLE)
    if not found:
        fail(f"{files[0]} has no files", UNREADABLE)
    return found


def _source(path: Path, name: str, problems: list[str]) -> "LogSource":
    from detectors.job_log.lines import LogSource

    return LogSource(name, _lines_of(path, name, problems))


def _lines_of(path: Path, name: str, problems: list[str]) -> Iterator[bytes]:
    """Yield the lines of a file; what can't be read is added to ``problems``."""
    try:
        if str(path) == "-":
            yield from _unpacked(sys.stdin.buffer)
            return
        with path.open("rb") as stream:
            yield from _unpacked(stream)
    except EOFError:
        problems.append(f"the end of {name}: its compressed data is truncated")
    except (OSError, zlib.error) as error:
        problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    head = stream.read(len(_GZIP))
    if head != _GZIP:
        yield from _split(stream, head)
        return
    if stream.seekable():
        stream.seek(-len(head), os.SEEK_CUR)
        yield from _split(cast(BinaryIO, gzip.GzipFile(fileobj=stream)), b"")
        return
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    rest = unpacker.decompress(head)
    while piece := stream.read(_PIECE_BYTES):
        *lines, rest = (rest + unpacker.decompress(piece)).split(b"\n")
        yield from lines
        rest = rest[:_REST_BYTES_MAX]
    yield from (rest + unpacker.flush()).split(b"\n")


def _split(stream: BinaryIO, rest: bytes) -> Iterator[bytes]:
    """Yield the lines of a stream; a line without an end is cut."""
    while piece := stream.read(_PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        rest = rest[:_REST_BYTES_MAX]
    if rest:
        yield rest


def _print_opinion(opinion: "SecondOpinion") -> None:
    echo(f"second opinion, of {printable(opinion.program)}, which decides nothing:")
    for line in opinion.answer.splitlines():
        echo(f"  {line}")
    if opinion.problem:
        echo(f"  ({opinion.problem})")


def _print_person(verdict: "LogVerdict", problems: list[str], scrubber: "Scrubber") -> None:
    from rich.text import Text

    from detectors.wording import ranks_in_words

    console = output.console()
    decision = verdict.decision.value

    def show(text: str, style: str = "") -> None:
        console.print(Text(scrubber.scrub(text), style=style), soft_wrap=True)

    show(f"{decision.upper()}: {verdict.reason}", _STYLES[decision])
    show(f"  {verdict.decision_reason}")
    if verdict.is_training_log:
        known, kind = verdict.error_class.value, verdict.kind.value
        named = known if known == kind else f"{known} ({kind})"
        show(
            f"  class {named}; blamed: {verdict.blame.value} ({verdict.blame.legend}); "
            f"confidence {verdict.confidence:.2f}"
        )
    if verdict.victims:
        show(f"  victims: {ranks_in_words(verdict.victims)}")
    for line in verdict.evidence:
        show(f"  {line.file}:{line.line}: {line.text}", "dim")
    show(f"  next: {verdict.next_step}")
    for problem in problems[:_PROBLEMS_MAX]:
        show(f"  not read: {problem}")
