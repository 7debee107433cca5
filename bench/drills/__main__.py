"""Runs every kind of fault in every phase of a job, and reports what was detected, blamed correctly and recovered, and with which MTTR.

    python -m bench.drills                                  # all sections, some 35 minutes; as root, with Slurm and PyTorch
    python -m bench.drills --section one-host --only killed --phase recovery
    python -m bench.drills --section slurm
    python -m bench.drills --output drills.json --page docs/reference/drills.md

A section is a kind of launcher: ours on one host, ours on several hosts with faults of the network between them, torchrun on Slurm with
requeue, and jobs that are only watched. The result of each job is known to the bit. The exit code is 1 if something did not hold.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Final

from bench.drills import nodes, one_host, torchrun_on_slurm, watched
from bench.drills.matrix import Cell
from bench.drills.told import PHASES, Section, Told, share, table_of
from rankmend.files import write_output
from rankmend.version import RANKMEND_VERSION
from recovery.lab.inject.supervisor import is_supervisor
from recovery.launcher.processes.bound_work import run_bound
from recovery.launcher.processes.prctl import die_with_parent

SECTIONS: Final = (one_host.SECTION, nodes.SECTION, torchrun_on_slurm.SECTION, watched.SECTION)


def page(told: Sequence[tuple[Section, Sequence[Told]]], took_s: float) -> str:
    """Return the result as a page of the documentation."""
    every = [one for _section, found in told for one in found]
    mttr_s = [one for found in every for one in found.mttr_s]
    rows = (
        ("scenarios", f"{len(every)}"),
        ("the fault detected, and nothing else", share([one.is_detected for one in every])),
        ("the right rank blamed, or none", share([one.is_blamed_rightly for one in every])),
        ("recovered", share([one.is_recovered for one in every])),
        ("the same final parameters", share([one.is_intact for one in every])),
        ("passed", share([one.held for one in every])),
        ("MTTR, median of all incidents", f"{statistics.median(mttr_s):.1f} s" if mttr_s else "-"),
    )
    lines = [
        "# What was broken on purpose",
        "",
        f"`make drills` on {date.today().isoformat()}, rankmend {RANKMEND_VERSION}: {os.cpu_count()} cores, "  # noqa: DTZ011
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}; {took_s / 60:.0f} minutes. Each fault hits a job in each phase,",
        "under four kinds of launchers ([drills](../use/drill.md)). A cell passes if only the right rank is blamed, every incident ends recovered, and the job ends with the same bits",
        "as without a fault. It shows the MTTR, or `held` if the fault must not become an incident and did not.",
        "",
        "| total | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
    ]
    for section, found in told:
        lines += table_of(section, found)
    return "\n".join(lines).rstrip("\n") + "\n"


def chosen(section: Section, only: Sequence[str], phase: str | None) -> list[Cell]:
    return [
        cell
        for cell in section.cells
        if any(part in cell.kind.name for part in only or ("",))
        and phase in (None, cell.phase.value)
        and (os.geteuid() == 0 or not cell.kind.needs_root)
    ]


def without_root(section: Section, only: Sequence[str] | None) -> list[str]:
    """Return the kinds that were asked for and need root, where this is another user."""
    kinds = dict.fromkeys(cell.kind.name for cell in section.cells if cell.kind.needs_root)
    asked = [name for name in kinds if any(part in name for part in only or ("",))]
    return [] if os.geteuid() == 0 else asked


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.drills", description=__doc__.splitlines()[0])
    names = [section.name for section in SECTIONS]
    parser.add_argument(
        "--section", choices=names, action="append", help="this one alone; repeatable"
    )
    parser.add_argument(
        "--only", action="append", help="kinds whose name contains this; repeatable"
    )
    parser.add_argument("--phase", choices=[phase.value for phase in PHASES])
    parser.add_argument("--output", type=Path, help="write all that was told as JSON")
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    parser.add_argument("--keep", type=Path, help="keep the jobs' folders here")
    parser.add_argument(
        "--end-with-parent", action="store_true", help="end when whoever started it is killed"
    )
    options = parser.parse_args()
    kept = [options.keep / section.name for section in SECTIONS] if options.keep else []
    if there := [str(path) for path in kept if path.exists()]:
        parser.error(f"--keep: there already: {', '.join(there)}")
    if options.end_with_parent:
        die_with_parent(os.getppid())
    with tempfile.TemporaryDirectory(prefix="rankmend-drills-") as made:
        home = (options.keep or Path(made)).resolve()
        return run_bound(lambda: run_matrix(options, home), is_spared=is_supervisor)


def run_matrix(options: argparse.Namespace, home: Path) -> int:
    """Run what is asked for, print and write what was told, and return the exit code."""
    began_s = time.monotonic()
    beside = run_wave(SECTIONS[1:], options, home)
    told = [*run_wave(SECTIONS[:1], options, home), *beside]
    if not any(found for _section, found in told):
        print("no drill was run: nothing that was asked for can be run here", file=sys.stderr)
        return 1
    text = page(told, time.monotonic() - began_s)
    print(text)
    every = [one for _section, found in told for one in found]
    if options.output is not None:
        plain = [
            {"section": section.name, **asdict(one)} for section, found in told for one in found
        ]
        write_output(options.output, json.dumps(plain, indent=1).encode(), RuntimeError)
    if options.page is not None:
        write_output(options.page, text.encode(), RuntimeError)
    return 0 if every and all(one.held for one in every) else 1


def run_wave(
    sections: Sequence[Section], options: argparse.Namespace, home: Path
) -> list[tuple[Section, Sequence[Told]]]:
    """Run sections beside each other: jobs on one host keep it busy, those of the others wait for most of their time."""
    wanted = []
    for section in sections:
        if section.name not in (options.section or [section.name]):
            continue
        if left_out := without_root(section, options.only):
            print(f"{section.name}: without root not run: {', '.join(left_out)}", flush=True)
        cells = chosen(section, options.only, options.phase)
        if not cells:
            continue
        if reason := section.why_not():
            print(f"{section.name}: not run: {reason}", flush=True)
        else:
            wanted.append((section, cells))
    with ThreadPoolExecutor(len(SECTIONS)) as pool:
        running = [
            (section, pool.submit(run_section, section, cells, home / section.name))
            for section, cells in wanted
        ]
    return [(section, found.result()) for section, found in running]


def run_section(section: Section, cells: Sequence[Cell], folder: Path) -> list[Told]:
    """Run cells of a section, and say of each what came of it."""
    folder.mkdir(parents=True)
    found: list[Told] = []

    def tell(cell: Cell, one: Told) -> None:
        found.append(one)
        mttr = one.shown or ", ".join(f"{mttr_s:.1f} s" for mttr_s in one.mttr_s)
        place = f"{section.name} {len(found)}/{len(cells)}"
        print(f"{place} {cell.scenario.name}: {one.failed or 'held'} {mttr}", flush=True)

    section.run_all(cells, folder, tell)
    return found


if __name__ == "__main__":
    sys.exit(main())
