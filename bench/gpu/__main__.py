"""Measures on a real NVIDIA GPU what the tests show with a stand-in, and writes a dated table: `make gpu`.

    python -m bench.gpu                                   # all areas, at most 10 minutes
    python -m bench.gpu --only nvml,sections              # some; the other rows are kept as they were
    python -m bench.gpu --output gpu.json --table docs/reference/proved-on-gpu.md

Needs an NVIDIA driver, PyTorch with CUDA and rankmend with its agent. Changes no setting of the GPU. Uses one GPU, the
first that PyTorch sees. Both files are written after each row, so that a run that is cut off keeps what it has measured; a
row that it doesn't come to stays as an earlier run left it.
Exit codes: 0 all rows passed or were not tried, 1 a row failed, 77 there is no GPU (says why).
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from bench.gpu import areas, machine, table
from bench.gpu.rows import Outcome, Row, Telling

ROOT = Path(__file__).resolve().parents[2]
LATEST = ROOT / "bench" / "gpu" / "latest.json"
BUDGET_S = 570.0  # from the start on: whoever allows ten minutes gets the end, too
SKIPPED = 77  # what automake calls a skipped test
END_S_MAX = 5.0
POLL_S = 0.2


def main() -> int:
    end_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "--only", metavar="AREA,...", default="", help="of: " + ", ".join(areas.NAMES)
    )
    parser.add_argument("--output", type=Path, default=LATEST)
    parser.add_argument(
        "--table", type=Path, default=ROOT / "docs" / "reference" / "proved-on-gpu.md"
    )
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all areas")
    parser.add_argument("--commit", help="name of this state of the code, where git can't tell")
    parser.add_argument("--area", help=argparse.SUPPRESS)  # one area, in a process of its own
    options = parser.parse_args()
    if options.area:
        area = areas.load(options.area)
        area.run(Telling(area.name, area.claims))
        return 0
    names = options.only.split(",") if options.only else list(areas.NAMES)
    if unknown := [name for name in names if name not in areas.NAMES]:
        parser.error(f"no such area: {', '.join(unknown)}")
    try:
        found = machine.probe()
    except machine.NoGpuError as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    for number in (signal.SIGTERM, signal.SIGHUP):  # an area is a session of its own: end it
        signal.signal(number, _stop)
    machine.use_one(found)
    report = table.read(options.output if options.output.exists() else LATEST)
    report.machine = machine.describe(found, options.commit)
    print(f"{report.machine['gpu']}, driver {report.machine['driver']}", flush=True)
    end_s += options.budget
    has_failed = False
    for name in unproved_first(names, report.rows):
        with contextlib.closing(run_area(name, end_s)) as rows:
            for row, is_reached in rows:
                if not is_reached and row.id in report.rows:
                    print(f"{'kept':10} {row.id:34} {row.why}", flush=True)
                    continue
                has_failed |= row.outcome is Outcome.FAILED
                report.add(row)
                report.write(options.output, options.table)
                print(
                    f"{row.outcome.value:10} {row.id:34} {row.why or row.claim}"[:180], flush=True
                )
    report.write(options.output, options.table)
    print(f"{options.output} and {options.table} are written")
    return int(has_failed)


def unproved_first(names: Sequence[str], rows: Mapping[str, Row]) -> list[str]:
    """Return the areas, those first that have rows which never passed: the time may not last for all."""

    def is_proved(name: str) -> bool:
        ids = [f"{name}.{row}" for row in areas.load(name).claims]
        return all(row in rows and rows[row].outcome is Outcome.PASSED for row in ids)

    return sorted(names, key=is_proved)


def run_area(name: str, end_s: float) -> Iterator[tuple[Row, bool]]:
    """Run an area as a process of its own; yield a row for each of its claims, and whether the run came to it."""
    area = areas.load(name)
    began_s = time.monotonic()
    limit_s = min(area.limit_s, end_s - began_s)
    left = dict(area.claims)
    code: int | None = None
    if limit_s > 0:
        rows = _run(name, limit_s)
        with contextlib.closing(rows):
            while True:
                try:
                    row = next(rows)
                except StopIteration as end:
                    code = end.value
                    break
                left.pop(row.id.partition(".")[2], None)
                yield row, True
    is_reached = code is not None or limit_s >= area.limit_s
    if code is not None:
        why = f"the area ended with {code} before this row"
    elif is_reached:
        why = f"the area did not come to this row within {limit_s:.0f} s"
    else:
        why = "no time was left"
    for row_name, claim in left.items():
        outcome = Outcome.FAILED if is_reached else Outcome.NOT_TRIED
        yield Row(f"{name}.{row_name}", claim, outcome, {}, why), is_reached
    print(f"           {name} took {time.monotonic() - began_s:.0f} s", flush=True)


def _run(name: str, limit_s: float) -> Generator[Row, None, int | None]:
    """Yield the rows of an area as it tells them; return its exit code, None where its time was up."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    end_s = time.monotonic() + limit_s
    with (
        tempfile.TemporaryFile() as output
    ):  # whoever the area leaves running can't hold it open for us
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu", "--area", name],
            stdout=output,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        code: int | None = None
        at = 0
        try:
            while code is None and (left_s := end_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(min(POLL_S, left_s))
                told, at = _read_rows(output.fileno(), at)
                yield from told
        finally:
            _end(process)
        told, at = _read_rows(output.fileno(), at)
        yield from told
    return code


def _read_rows(descriptor: int, at: int) -> tuple[list[Row], int]:
    """Return the rows told from this place on, and the place behind them. The area's own place stays as it is."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size - at, at)
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines(keepends=True)
    return [Row.from_json(line) for line in lines if line.endswith(b"}\n")], at + len(whole)


def _stop(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what the area has left running, and wait for the area itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} can't be killed", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
