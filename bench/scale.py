"""All figures of docs/operate/scale.md: what one controller carries, on one core. About 9 minutes on a quiet machine.

    python bench/scale.py                                        # measure, print the tables
    python bench/scale.py --write                                # and put them into docs/operate/scale.md
    python bench/scale.py --sizes 2000:1 --output /tmp/a.json    # nodes:seconds between two reports

Runs controller_core.py and, for each size, controller_load.py with the controller on one core and the
launchers on another. A part is measured several times and its median is shown; `latest.json` has all of it.
"""

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parent
LATEST = BENCH / "scale" / "latest.json"
PAGE = BENCH.parent / "docs/operate/scale.md"
BLOCK = re.compile(r"(<!-- figures: [^>]* -->\n).*?(<!-- end of figures -->)", re.DOTALL)
SPARES = 32
RUN_S_MAX = 420.0
# What is shown of each size: a row's name, the part it is of, and how it is read from it.
ROWS: tuple[tuple[str, str, Callable[[dict[str, Any]], Any]], ...] = (
    ("reports a second", "steady", lambda part: part["reports_per_s"]),
    ("bytes of a report", "steady", lambda part: part["report_bytes"]),
    ("report, p50, ms", "steady", lambda part: part["report_ms"]["p50"]),
    ("report, p99, ms", "steady", lambda part: part["report_ms"]["p99"]),
    ("report, longest, ms", "steady", lambda part: part["report_ms"]["p100"]),
    ("controller's CPU, % of the core", "steady", lambda part: part["controller_cpu_percent"]),
    ("controller's CPU, us a report", "steady", lambda part: part["controller_us_per_report"]),
    ("kept from its core by others, %", "steady", lambda part: part["controller_waited_percent"]),
    ("generator's CPU, %", "steady", lambda part: part["generator_cpu_percent"]),
    ("memory, MiB", "steady", lambda part: part["controller_rss_mib"]),
    ("grown in that time, MiB", "steady", lambda part: part["growth_mib"]),
    ("order to stop, journal to half, s", "orders", lambda part: part["stop_from_journal_s"]["half"]),
    ("order to stop, journal to the last, s", "orders", lambda part: part["stop_from_journal_s"]["all"]),
    ("order to start, journal to half, s", "orders", lambda part: part["start_from_journal_s"]["half"]),
    ("order to start, journal to the last, s", "orders", lambda part: part["start_from_journal_s"]["all"]),
    ("controller killed: all report again, s", "storm", lambda part: part["all_back_s"]),
    ("and hold their polls, s", "storm", lambda part: part["all_ordered_s"]),
    ("longest answer, handshake included, ms", "storm", lambda part: part["report_with_handshake_ms"]["p100"]),
    ("controller's CPU until then, s", "storm", lambda part: part["controller_cpu_s"]),
    ("without pauses: all report again, s", "storm_without_pauses", lambda part: part["all_back_s"]),
    ("and hold their polls, s", "storm_without_pauses", lambda part: part["all_ordered_s"]),
    ("longest answer, handshake included, ms", "storm_without_pauses", lambda part: part["report_with_handshake_ms"]["p100"]),
    ("controller's CPU until then, s", "storm_without_pauses", lambda part: part["controller_cpu_s"]),
    ("1,000 alerts: taken after, s", "alerts", lambda part: part["answered_s"]),
    ("incidents", "alerts", lambda part: part["records"].get("incident_opened", 0)),
    ("plans", "alerts", lambda part: part["records"].get("decided", 0)),
    ("plan decided after, s", "alerts", lambda part: part["first_record_after_s"].get("decided")),
    ("all nodes' ranks ordered to start after, s", "alerts", lambda part: part["first_record_after_s"].get("attempt_started")),
)  # fmt: skip


def run(script: str, *arguments: str) -> Any:
    print(f"{script} {' '.join(arguments)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "told.json"
        command = [sys.executable, str(BENCH / script), *arguments, "--output", str(output)]
        subprocess.run(command, check=True, timeout=RUN_S_MAX, stdout=sys.stderr)
        return json.loads(output.read_text())


def measure_size(size: str, options: argparse.Namespace) -> dict[str, Any]:
    nodes, every_s = size.split(":")
    parts = ["steady"] * options.repeat + ["orders"] * options.repeat + ["storm", "alerts"]
    told = run(
        "controller_load.py",
        *("--nodes", nodes, "--spares", str(options.spares), "--every", every_s),
        *("--seconds", f"{options.seconds:g}", "--settle", f"{options.settle:g}"),
        *("--parts", ",".join(parts)),
        *(f"--controller-core={options.controller_core}", f"--generator-core={options.generator_core}"),
    )  # fmt: skip
    assert isinstance(told, dict)
    return told


def all_of(told: dict[str, Any], part: str) -> list[dict[str, Any]]:
    return [value for key, value in told.items() if key.partition("_again")[0] == part]


def show(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def median(told: dict[str, Any], part: str, read: Callable[[dict[str, Any]], Any]) -> str:
    """Return the median of a figure and, where it was measured again, the least and the most."""
    values = [value for one in all_of(told, part) if (value := read(one)) is not None]
    if not values:
        return "-"
    text = show(statistics.median(values))
    if len(values) > 1 and max(values) - min(values) > 0.05 * max(values):
        text += f" ({show(min(values))} to {show(max(values))})"
    return text


def render(told: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    sizes = told["sizes"]
    heads = [f"{one['nodes']:,} nodes, each {one['every_s']:g} s" for one in sizes]
    lines = [f"| of one controller | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(sizes)]
    lines += [
        f"| {name} | {' | '.join(median(one, part, read) for one in sizes)} |"
        for name, part, read in ROWS
    ]
    busy = [one["load_average"] for size in sizes for one in all_of(size, "steady")]
    lines += [
        "",
        f"Measured on {told['machine']}; load average of the machine meanwhile "
        f"{min(busy):.1f} to {max(busy):.1f}, of which the two processes make about 1.",
        "",
        "| deciding thread alone | " + " | ".join(f"{one['ranks']:,} ranks" for one in told["core"]) + " |",
        "| --- |" + " ---: |" * len(told["core"]),
    ]  # fmt: skip
    rows = (
        ("reports of each node each second, % of a core", "reports_percent"),
        ("ticks, % of a core (the slow-rank watch is part of them)", "ticks_percent"),
        ("longest tick, ms", "tick_max_ms"),
        ("tick that makes the orders of an attempt, ms", "start_ms"),
        ("look at all ranks for a hang, ms", "look_ms"),
    )
    lines += [
        f"| {name} | {' | '.join(show(one[key]) for one in told['core'])} |" for name, key in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["2000:1", "9860:5"], help="nodes:seconds")
    parser.add_argument("--spares", type=int, default=SPARES)
    parser.add_argument("--seconds", type=float, default=15.0, help="of one steady part")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds between two parts")
    parser.add_argument("--repeat", type=int, default=3, help="of the steady part and the orders")
    parser.add_argument("--controller-core", type=int, default=0)
    parser.add_argument("--generator-core", type=int, default=1)
    parser.add_argument("--output", type=Path, default=LATEST)
    parser.add_argument("--render", action="store_true", help="the file's figures, measure nothing")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/operate/scale.md"
    )
    options = parser.parse_args()
    if options.render:
        told = json.loads(options.output.read_text())
    else:
        nodes = [size.partition(":")[0] for size in options.sizes]
        told = {
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "core": run("controller_core.py", "--seconds", "5", "--nodes", *nodes),
            "sizes": [measure_size(size, options) for size in options.sizes],
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(told, indent=1) + "\n")
    tables = render(told)
    print(tables)
    if options.write:
        text, found = BLOCK.subn(lambda block: block[1] + tables + block[2], PAGE.read_text())
        if found != 1:
            sys.exit(f"{PAGE}: {found} blocks of figures, one is wanted")
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
