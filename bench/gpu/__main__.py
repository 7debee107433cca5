"""Measures on a real NVIDIA GPU what the tests show with a stand-in, and writes a dated table: `make gpu`.

    python -m bench.gpu                                   # all areas, at most 10 minutes
    python -m bench.gpu --only nvml,sections              # some; the other rows are kept as they were
    python -m bench.gpu --output gpu.json --table docs/reference/proved-on-gpu.md

Needs an NVIDIA driver, PyTorch with CUDA and rankmend with its agent. Changes no setting of the GPU.
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.gpu import areas, machine, table
from bench.gpu.rows import Outcome, Row, Telling

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 600.0
SKIPPED = 77  # what automake calls a skipped test
END_S_MAX = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "--only", metavar="AREA,...", default="", help="of: " + ", ".join(areas.NAMES)
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "gpu" / "latest.json")
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
    if reason := machine.why_no_gpu():
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    report = table.read(options.output)
    report.machine = machine.describe(options.commit)
    print(f"{report.machine['gpu']}, driver {report.machine['driver']}", flush=True)
    end_s = time.monotonic() + options.budget
    for name in names:
        for row in run_area(name, end_s):
            report.rows[row.id] = replace(row, commit=report.machine["commit"])
            print(f"{row.outcome.value:10} {row.id:34} {row.why or row.claim}"[:180], flush=True)
        report.write(options.output, options.table)  # what ends this run early costs the area alone
    print(f"{options.output} and {options.table} are written")
    return int(any(report.rows[row].outcome is Outcome.FAILED for row in report.rows))


def run_area(name: str, end_s: float) -> Iterator[Row]:
    """Run an area as a process of its own, and yield a row for each of its claims."""
    area = areas.load(name)
    began_s = time.monotonic()
    limit_s = min(area.limit_s, end_s - began_s)
    left = dict(area.claims)
    if limit_s <= 0:
        why = "no time was left"
    else:
        told: list[Row] = []
        why = _run(name, limit_s, told)
        for row in told:
            left.pop(row.id.partition(".")[2], None)
            yield row
    for row_name, claim in left.items():
        outcome = Outcome.NOT_TRIED if limit_s <= 0 else Outcome.FAILED
        yield Row(f"{name}.{row_name}", claim, outcome, {}, why)
    print(f"           {name} took {time.monotonic() - began_s:.0f} s", flush=True)


def _run(name: str, limit_s: float, told: list[Row]) -> str:
    """Fill ``told`` with the rows of an area; return why there are no more of them."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
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
        try:
            why = f"the area ended with {process.wait(limit_s)} before this row"
        except subprocess.TimeoutExpired:
            why = f"the area did not come to this row within {limit_s:.0f} s"
        finally:
            _end(process)
        output.seek(0)
        told += [Row.from_json(line) for line in output if line.endswith(b"}\n")]
    return why


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
