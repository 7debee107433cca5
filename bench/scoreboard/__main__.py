"""Every detector over every labelled case, beside the simple rules it has to beat.

    RANKMEND_DATASETS=DIR python -m bench.scoreboard [--truth DIR] [--json FILE] [--no-delays]

Recorded and injected cases are never mixed in one row. docs/internals/scoreboard.md explains the columns.
"""

import argparse
import io
import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.scoreboard import baselines
from bench.scoreboard.cases import (
    IDENTITIES,
    Case,
    Truth,
    datasets_folder,
    injected_cases,
    is_same,
    recorded_cases,
)
from bench.scoreboard.scores import Result, score
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.from_dumps import diagnose_hang
from detectors.slow.from_records import diagnose_slow
from detectors.slow.host_table import METRICS, HostTable
from detectors.slow.host_table import table_of as table_of_readings
from detectors.slow.odd_nodes import diagnose_hosts
from detectors.slow.work_table import WorkTable, total_work
from rankmend.cli import main as rankmend
from rankmend.cli.diagnosis.diagnose_hosts import read_csv_table
from rankmend.cli.diagnosis.diagnose_readings import read_files
from rankmend.cli.diagnosis.diagnose_traces import load
from rankmend.errors import RankmendError

OUTPUT = Path("results/scoreboard.json")  # not tracked
DUMP_BYTES_MAX = 100_000_000
PREFIX_STEPS_MAX = 300  # verdicts tried from the onset on, to find the delay
Rule = Callable[[Case], tuple[list[dict[str, Any]], str | None]]


def ask_rankmend(case: Case) -> tuple[list[dict[str, Any]], str | None]:
    """Return what the command that people use says of a case."""
    if case.table is not None:
        found = diagnose_slow(case.table).diagnosis()
        return [_identity(culprit) for culprit in found.culprits], found.cause
    if case.job is not None or case.hosts is not None:
        found = diagnose_hang(case.job) if case.job else diagnose_hosts(case.hosts)  # type: ignore[arg-type]
        return [_identity(culprit) for culprit in found.culprits], found.cause
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            rankmend(["diagnose", case.truth.kind, str(case.path), "--json"])
        except SystemExit as error:
            code = error.code
    if code not in (0, None):
        raise RankmendError(f"exit code {code}: {err.getvalue().strip()[:500]}")
    page = json.loads(out.getvalue())
    return page["culprits"], page["class"]


def _identity(culprit: Any) -> dict[str, Any]:
    return {name: getattr(culprit, name) for name in IDENTITIES}


def table_of(case: Case) -> WorkTable:
    table = case.table if case.table is not None else load(case.path)  # type: ignore[arg-type]
    if not isinstance(table, WorkTable):
        raise RankmendError(f"{case.truth.name}: holds no work table")
    return table


def on_table(rule: Callable[[WorkTable], list[dict[str, Any]]]) -> Rule:
    return lambda case: (rule(table_of(case)), None)


def ask_lowest(case: Case) -> tuple[list[dict[str, Any]], str | None]:
    if case.job is not None:
        return baselines.lowest_of_job(case.job), None
    dumps = {}
    for file in sorted(Path(case.path).iterdir()):  # type: ignore[arg-type]
        match = re.search(r"(\d+)(?:\.\w+)?$", file.name)
        if match is None or file.stat().st_size > DUMP_BYTES_MAX:
            continue
        try:
            dumps[int(match[1])] = parse_dump(file.read_bytes())
        except RankmendError:
            continue
    return baselines.lowest_last_enqueued(dumps), None


def ask_z_score(case: Case) -> tuple[list[dict[str, Any]], str | None]:
    return baselines.z_score(hosts_of(case)), None


def hosts_of(case: Case) -> HostTable:
    if case.hosts is not None:
        return case.hosts
    path = case.path
    assert path is not None
    if path.suffix == ".csv":
        return read_csv_table(path)
    return table_of_readings(read_files([str(path)], METRICS))


RULES: dict[str, dict[str, Rule]] = {
    "slow": {
        "rankmend": ask_rankmend,
        "fastest-rank ratio 0.75": on_table(baselines.fastest_ratio),
        "single-step 1.1x": on_table(baselines.single_step),
    },
    "hang": {"rankmend": ask_rankmend, "lowest last-enqueued": ask_lowest},
    "hosts": {"rankmend": ask_rankmend, "z-score 3, no continuity": ask_z_score},
}


def run_case(case: Case, rule: Rule) -> Result:
    """Return what a rule says of a case; what it can't read is an error of that case."""
    start_s = time.perf_counter()
    try:
        named, class_name = rule(case)
    except (RankmendError, OSError) as error:
        return Result(case.truth, (), None, time.perf_counter() - start_s, error=str(error))
    return Result(case.truth, tuple(named), class_name, time.perf_counter() - start_s)


def add_delay(case: Case, result: Result) -> Result:
    """Return the result with how many recorded steps after the onset it would have come."""
    if case.truth.onset is None or not result.is_exact:
        return result
    if case.truth.kind == "hosts":
        return _add_host_delay(hosts_of(case), case.truth, result)
    table = table_of(case)
    if case.truth.onset not in table.steps:
        return result
    first = table.steps.index(case.truth.onset)
    for end in range(first + 1, min(len(table.steps), first + PREFIX_STEPS_MAX) + 1):
        found = diagnose_slow(_prefix(table, end)).diagnosis()
        named = [_identity(culprit) for culprit in found.culprits]
        if len(named) == len(case.truth.culprits) and all(
            any(is_same(one, got) for got in named) for one in case.truth.culprits
        ):
            slowest = np.nanmax(total_work(table)[:, first:end], axis=0)
            return replace(result, delay_steps=end - first, delay_s=float(np.nansum(slowest)))
    return result


def _add_host_delay(table: HostTable, truth: Truth, result: Result) -> Result:
    """Return the result with how many samples after the onset it would have come."""
    assert truth.onset is not None
    first = int(np.searchsorted(table.times_s, truth.onset))
    for end in range(first + 1, min(len(table.times_s), first + PREFIX_STEPS_MAX) + 1):
        values = {name: matrix[:, :end] for name, matrix in table.values.items()}
        found = diagnose_hosts(HostTable(table.nodes, table.times_s[:end], values))
        named = [{"host": culprit.host} for culprit in found.culprits]
        if len(named) == len(truth.culprits) and is_same(truth.culprits[0], named[0]):
            delay_s = float(table.times_s[end - 1] - truth.onset)
            return replace(result, delay_steps=end - first, delay_s=delay_s)
    return result


def _prefix(table: WorkTable, end: int) -> WorkTable:
    return replace(
        table,
        steps=table.steps[:end],
        seconds=table.seconds[:, :, :end],
        microbatches=None if table.microbatches is None else table.microbatches[:, :, :end],
        tokens=None if table.tokens is None else table.tokens[:, :end],
        pauses=None if table.pauses is None else table.pauses[:, :end],
    )


def run_set(name: str, cases: Sequence[Case], *, delays: bool) -> list[dict[str, Any]]:
    """Return one row of figures a kind and a rule."""
    rows = []
    for kind, rules in RULES.items():
        chosen = [case for case in cases if case.truth.kind == kind]
        for rule_name, rule in rules.items() if chosen else ():
            results = [run_case(case, rule) for case in chosen]
            if delays and kind in ("slow", "hosts") and rule_name == "rankmend":
                pairs = zip(chosen, results, strict=True)
                results = [add_delay(case, result) for case, result in pairs]
            rows.append(
                {"set": name, "kind": kind, "rule": rule_name, **score(results)}
                | {"details": [_detail(result) for result in results]}
            )
    return rows


def _detail(result: Result) -> dict[str, Any]:
    return {
        "case": result.truth.name,
        "exact": result.is_exact,
        "truth": [dict(one) for one in result.truth.culprits],
        "named": list(result.named)[:64],
        "class": result.class_name,
        "delay_steps": result.delay_steps,
        "took_s": round(result.took_s, 4),
        "error": result.error,
    }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    head = (
        f"{'set':<9} {'kind':<5} {'rule':<24} {'n':>4} {'exact':>6} {'95 % interval':>14} {'prec':>5}"
        f" {'recall':>6} {'F1':>5} {'top-1':>5} {'class':>7} {'abst. ok':>8} {'wrong':>5} {'accused':>7}"
        f" {'delay':>5} {'s':>6} {'took ms':>8} {'errors':>6}"
    )
    print(head)
    for row in rows:
        low, high = row["exact_interval"]
        print(
            f"{row['set']:<9} {row['kind']:<5} {row['rule']:<24} {row['cases']:>4}"
            f" {row['exact'] / row['cases']:>6.2f} {f'{low:.2f} to {high:.2f}':>14}"
            f" {_figure(row['precision']):>5} {_figure(row['recall']):>6} {_figure(row['f1']):>5}"
            f" {_figure(row['top1']):>5} {row['classes_right'] or '-':>7} {row['abstentions_right']:>8} {row['abstentions_wrong']:>5}"
            f" {row['accused_wrongly']:>7} {_figure(row['delay_steps_median'], 0):>5}"
            f" {_figure(row['delay_s_median'], 1):>6} {row['took_s_median'] * 1e3:>8.1f}"
            f" {row['errors']:>6}"
        )


def _figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, help="folder with cases: data and truth.toml each")
    parser.add_argument("--json", type=Path, default=OUTPUT, help=f"[default: {OUTPUT}]")
    parser.add_argument("--no-delays", action="store_true", help="skip the replay step by step")
    parser.add_argument("--no-injected", action="store_true", help="recorded cases only")
    options = parser.parse_args()
    datasets = datasets_folder()
    if datasets is None:
        print("RANKMEND_DATASETS is unset: no recorded data; see docs/internals/scoreboard.md")
    try:
        recorded = recorded_cases(datasets, options.truth)
        base = [case for case in recorded if case.truth.name == "straggler-analysis ST"]
        trace = table_of(base[0]) if base else None
    except RankmendError as error:
        parser.exit(2, f"scoreboard: {error}\n")
    delays = not options.no_delays
    rows = run_set("recorded", recorded, delays=delays)
    if not options.no_injected:
        rows += run_set("injected", list(injected_cases(trace)), delays=delays)
    print_rows(rows)
    for row in rows:
        for detail in row["details"]:
            if row["rule"] == "rankmend" and not detail["exact"]:
                said = detail["error"] or f"named {detail['named']}, class {detail['class']}"
                print(f"  not exact: {detail['case']}: truth {detail['truth']}; {said}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"saved {options.json}")


if __name__ == "__main__":
    main()
