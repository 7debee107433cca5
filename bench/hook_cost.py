"""What the hook costs the training loop, for each interpreter given.

    python bench/hook_cost.py [PYTHON ...] [--batches 400] [--json]

In each interpreter, with a real progress file in /dev/shm: nanoseconds for one call, the median
of many batches less the median of batches of an empty loop; and the milliseconds that
`import rankmend` takes, the median of 21 fresh processes (and as much again for attaching).
The columns "off" are for a process that rankmend did not start.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from rich.console import Console
from rich.table import Table
from yardstick import measure_yardstick

from rankmend.hook import layout
from rankmend.progress import RankIdentity, create

ROOT = Path(__file__).resolve().parent.parent
GOALS_NS = {"step": 500, "section": 1000, "work": 2000}
IMPORT_GOAL_MS = 10
IMPORTS = 21
CALLS = 2000  # in a batch: some 1 ms, shorter than a time slice

# Runs under Python 3.8, too.
MEASURE = """
import json, os, statistics, sys
from time import perf_counter_ns as now
import rankmend
batches, calls = int(sys.argv[1]), int(sys.argv[2])

def empty():
    for number in range(calls):
        pass

def step():
    for number in range(calls):
        rankmend.step(number)

def section():
    for number in range(calls):
        with rankmend.section("compute"):
            pass

def work():
    for number in range(calls):
        rankmend.work(flops=1e15, tokens=4096)

def inside():  # as in a training loop: three sections and a step
    for number in range(calls):
        with rankmend.section("io"):
            pass
        with rankmend.section("compute"):
            with rankmend.section("communication"):
                pass
        rankmend.step(number)

def median_ns(function):
    times = []
    for _ in range(batches):
        start = now()
        function()
        times.append(now() - start)
    return statistics.median(times) / calls

rankmend.step(0)
loop = median_ns(empty)
print(json.dumps({f.__name__: median_ns(f) - loop for f in (step, section, work, inside)}))
"""
IMPORT = """
from time import perf_counter_ns as now
start = now()
import rankmend
imported = now()
rankmend.attach()
print(imported - start, now() - imported)
"""


def run(python: str, code: str, *arguments: object, file: Path | None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(layout.ENV_PROGRESS_FILE, None)
    if file is not None:
        environment[layout.ENV_PROGRESS_FILE] = str(file)
    command = [python, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def measure(python: str, batches: int) -> dict[str, object]:
    version = run(python, "import platform; print(platform.python_version())", file=None).strip()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder) / "rank0"
        os.close(create(file, RankIdentity(uuid.uuid4(), 1, 0, 0, 1)))
        on = json.loads(run(python, MEASURE, batches, CALLS, file=file))
        imports = [run(python, IMPORT, file=file).split() for _ in range(IMPORTS)]
    off = json.loads(run(python, MEASURE, batches, CALLS, file=None))
    return {
        "python": version,
        "step_ns": round(on["step"]),
        "section_ns": round(on["section"]),
        "work_ns": round(on["work"]),
        "training_step_ns": round(on["inside"]),
        "step_off_ns": round(off["step"]),
        "section_off_ns": round(off["section"]),
        "import_ms": round(statistics.median(int(pair[0]) for pair in imports) / 1e6, 2),
        "attach_ms": round(statistics.median(int(pair[1]) for pair in imports) / 1e6, 2),
    }


def make_table(rows: list[dict[str, object]], load: float) -> Table:
    cores = os.cpu_count()
    table = Table(
        title=f"What the hook costs ({platform.machine()}, {cores} cores, load {load:.1f})",
        caption=f"goals: step {GOALS_NS['step']} ns, section {GOALS_NS['section']} ns, work {GOALS_NS['work']} ns, "
        f"import {IMPORT_GOAL_MS} ms; training step: three sections and a step",
    )
    headings = ["Python", "step ns", "section ns", "work ns", "training step ns", "step off ns"]
    for heading in [*headings, "section off ns", "import ms", "attach ms", "goals"]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()), "met" if meets_goals(row) else "[red]missed[/red]")
    return table


def meets_goals(row: dict[str, object]) -> bool:
    step_ns, section_ns, work_ns, import_ms = (
        row[name] for name in ("step_ns", "section_ns", "work_ns", "import_ms")
    )
    assert isinstance(step_ns, int)
    assert isinstance(section_ns, int)
    assert isinstance(work_ns, int)
    assert isinstance(import_ms, float)
    return (
        step_ns <= GOALS_NS["step"]
        and section_ns <= GOALS_NS["section"]
        and work_ns <= GOALS_NS["work"]
        and import_ms <= IMPORT_GOAL_MS
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--batches", type=int, default=400, help="of 2,000 calls (default 400)")
    parser.add_argument("--json", action="store_true", help="print JSON and no table")
    arguments = parser.parse_args()
    rows = [measure(python, arguments.batches) for python in arguments.pythons]
    load = os.getloadavg()[0]
    yardstick = measure_yardstick()
    if arguments.json:
        told = {"machine": platform.machine(), "cores": os.cpu_count(), "load": load, "rows": rows}
        print(json.dumps({**told, "yardstick": yardstick.as_dict()}))
    else:
        Console().print(make_table(rows, load))
        print(yardstick)


if __name__ == "__main__":
    main()
