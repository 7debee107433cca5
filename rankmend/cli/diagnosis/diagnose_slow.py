"""`rankmend diagnose slow`: name the slow rank in step records or a trace, or say why there is none.

Exit codes: 0 a verdict was reached (also nobody and unknown), 2 unreadable input.
"""

from dataclasses import replace
from math import inf, isfinite, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rankmend.cli.diagnosis.diagnose_heat import print_slow, write_plot
from rankmend.cli.diagnosis.diagnose_layout import Place, layout_options, read_hosts, read_sizes
from rankmend.cli.diagnosis.diagnose_readings import (
    Prometheus,
    parse_time,
    prometheus_options,
    read_files,
)
from rankmend.cli.diagnosis.diagnose_traces import Delays, load, read_text
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.printable import printable

if TYPE_CHECKING:
    from detectors.slow.explanation import SlowExplanation, SlowPeriod
    from detectors.slow.work_table import SlowDiagnosis, Span, WorkTable

UNREADABLE = 2
ACCUSED_MAX = 32  # culprits whose hardware is examined
SIZES = ("tp", "cp", "ep", "dp", "pp")


@click.command(epilog=examples("rankmend diagnose slow steps.csv"))
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write the heat map to this .svg or .png file."
)
@click.option(
    "--topology",
    type=click.Path(path_type=Path),
    help='Leaf switch of each host: the file of `rankmend fabric topology`, Slurm\'s topology.conf, or lines of "host switch".',
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="[NODE=]FILE",
    help="Look for the cause in these metrics: an agent's page, or a saved range query.",
)
@click.option(
    "--onset",
    "onset_s",
    type=parse_time,
    metavar="TIME",
    help="When the slowdown began, if the trace has no timestamps.",
)
@prometheus_options
@layout_options
def slow(
    file: Path,
    as_json: bool,
    plot: Path | None,
    topology: Path | None,
    hosts: Path | None,
    **more: Any,
) -> None:
    """Find the slow rank in step records or an operation trace, and why it is slow.

    FILE is a trace with the columns of StragglerAnalysis (parquet or CSV), a PAI mini-batch table,
    a PyTorch profiler trace or an NCCL Inspector log (or a folder with one per rank), or CSV or JSON
    lines with the columns rank, step and seconds, and more where known: kind, stage, dp_rank, tp_rank, group, host,
    device, nic, tokens, at.

    Exit codes: 0 a verdict was reached, 2 unreadable input.
    """
    from detectors.diagnosis import diagnosis_page
    from detectors.formats.site.slurm_topology import parse_parts
    from detectors.parts.fleet_parts import NO_PARTS
    from detectors.slow.explanation import explanation_page
    from detectors.slow.from_records import diagnose_slow

    if plot is not None and plot.suffix not in (".svg", ".png"):
        fail(f"--plot {plot}: name a .svg or .png file")
    try:
        parts = parse_parts(read_text(topology)) if topology else NO_PARTS
        places = read_hosts(hosts) if hosts else {}
        columns = load(file)
        if isinstance(columns, Delays):
            _print_delays(columns, as_json)
            return
        columns = _place(columns, places, {name: more[name] for name in SIZES})
        found = diagnose_slow(columns, parts=parts)
        found, explanations = _explain(columns, found, more)
    except RankmendError as error:
        named = "" if str(file) in str(error) else f"{file}: "
        fail(f"{named}{error}", UNREADABLE)
    if plot is not None:
        write_plot(plot, columns, found)
    if as_json:
        end = {} if found.end is None else {"end": {"step": found.end}}
        why = {}
        if explanations is not None:
            why = {"hardware": [explanation_page(explanation) for explanation in explanations]}
        page = diagnosis_page(found.diagnosis())
        spans = [_span_page(columns, span) for span in found.spans]
        print_json({**page, "parts": list(found.parts), "spans": spans, **end, **why})
        return
    print_slow(columns, found, explanations or ())


def _span_page(table: "WorkTable", span: "Span") -> dict[str, Any]:
    """Return one span for scripts: its workers, its time, and whether they changed together."""
    from detectors.slow.work_table import Reason

    workers = [table.workers[suspect.row] for suspect in span.suspects]
    is_joint = span.reason is Reason.SLOWER_TOGETHER
    goes_on = span.end >= len(table.steps)
    return {
        "reason": span.reason.value,
        "workers": [
            {"rank": worker.rank, "worker": worker.worker, "host": worker.host}
            for worker in workers
        ],
        "ratio": span.ratio,
        "onset": {"step": table.steps[span.first]},
        **({} if goes_on else {"end": {"step": table.steps[span.end - 1]}}),
        **({"peers": span.peers} if is_joint else {}),
    }


def _place(
    table: "WorkTable", places: dict[int, Place], sizes: dict[str, int | None]
) -> "WorkTable":
    """Return the table with each rank's host, stage and peers from the options.

    What the records themselves say comes first.
    """
    from detectors.parallel_groups import Parallelism, layout_groups, places_of

    ranks = [worker.rank for worker in table.workers]
    known = [rank for rank in ranks if rank is not None]
    layout = read_sizes(max(known, default=-1) + 1, sizes)
    if layout is None and not places:
        return table
    if not known:
        raise ConfigError("--hosts and parallel sizes need ranks, and these records have none")
    stands: dict[int, Any] = {}
    replicas: dict[int, str] = {}
    if layout is not None:
        groups = layout_groups(layout)
        stands = places_of(groups, known)
        for group in groups:
            if group.parallelism is Parallelism.DATA:
                replicas |= dict.fromkeys(group.ranks, group.name)
    workers = []
    for worker in table.workers:
        if worker.rank is None:
            workers.append(worker)
            continue
        host, device = places.get(worker.rank, (None, None))
        moved = replace(worker, host=worker.host or host, device=worker.device or device)
        if layout is not None and worker.stage is None and worker.peers[:1] != ("communicator",):
            stand = stands[worker.rank]
            # Without a data parallel group a rank has no peer: its work is unlike all others'.
            peers = ("replicas", replicas.get(worker.rank, str(worker.rank)))
            moved = replace(moved, stage=stand.stage, dp_rank=stand.dp_rank, peers=peers)
        workers.append(moved)
    return replace(table, workers=tuple(workers))


def _explain(
    table: "WorkTable", found: "SlowDiagnosis", options: dict[str, Any]
) -> "tuple[SlowDiagnosis, tuple[SlowExplanation, ...] | None]":
    """Return the verdict with the evidence of the readings, and why each culprit is slow."""
    from detectors.slow.cause_table import METRICS, SELECTIONS
    from detectors.slow.causes import explain_slow
    from detectors.slow.explanation import Scope, SlowPlace, SlowSection

    if not options["metrics"] and options["url"] is None:
        return found, None
    sections = {
        "slow_compute": SlowSection.COMPUTE,
        "slow_io": SlowSection.IO,
        "slow_communication": SlowSection.COMMUNICATION,
    }
    section = sections.get(found.class_name or "", SlowSection.UNKNOWN)
    accused = [
        SlowPlace(
            section, culprit.rank, culprit.host, culprit.device or culprit.nic, options["job_id"]
        )
        for culprit in found.culprits[:ACCUSED_MAX]
    ]
    window = _window(table, found, options)
    url, token_file = options["url"], options["token_file"]
    requested = Prometheus(url, token_file) if url is not None else None
    readings = read_files(options["metrics"], METRICS)
    if requested is not None:
        if isinf(window.start_s) or isinf(window.end_s):
            raise ConfigError("the records have no unix times: give --start and --end")
        nodes = [item.node for item in accused if item.node]
        readings += requested.readings(
            SELECTIONS, window.start_s, window.end_s, nodes=nodes, job_id=options["job_id"]
        )
    if not readings:
        raise SourceError(
            "found no metric of rankmend's agent in the input: rankmend agent --once prints them"
        )
    explanations = explain_slow(accused, readings, window)
    culprits = list(found.culprits)
    for place, explanation in enumerate(explanations):
        if explanation.causes:
            worker, best = culprits[place], explanation.causes[0]
            device = worker.device
            if best.scope in (Scope.GPU, Scope.NIC):
                device = device or best.device or None
            culprits[place] = replace(worker, host=worker.host or best.node, device=device)
    return replace(found, culprits=tuple(culprits)), explanations


def _window(table: "WorkTable", found: "SlowDiagnosis", options: dict[str, Any]) -> "SlowPeriod":
    """Return when the job was slow: from the options, else from the times of the records."""
    import numpy as np

    from detectors.slow.explanation import SlowPeriod
    from detectors.slow.work_table import Reason

    known = np.array([]) if table.starts_s is None else table.starts_s
    known = known[np.isfinite(known)]
    start_s, end_s = (float(known.min()), float(known.max())) if len(known) else (-inf, inf)
    onset_s = options["onset_s"]
    always = any(suspect.reason is Reason.ALWAYS_SLOWER for suspect in found.suspects)
    if onset_s is None and found.onset is not None and table.starts_s is not None and not always:
        begun = float(table.starts_s[table.steps.index(found.onset)])
        onset_s = begun if isfinite(begun) else None
        if found.end is not None and options["end"] is None:
            last = float(table.starts_s[table.steps.index(found.end)])
            end_s = last if isfinite(last) else end_s
    given = (options["start"], options["end"])
    start_s, end_s = (b if a is None else a for a, b in zip(given, (start_s, end_s), strict=True))
    # Prometheus counts in milliseconds: keep its newest sample inside the window.
    return SlowPeriod(round(start_s, 3), round(end_s, 3), onset_s)


def _print_delays(delays: Delays, as_json: bool) -> None:
    from detectors.diagnosis import Culprit, Diagnosis, Verdict, diagnosis_page
    from detectors.finding import Evidence
    from detectors.slow.placement import locate_delay

    parts = locate_delay(delays.names, delays.matrix)
    lines = tuple(
        Evidence("delay matrix", f"{part.kind} {part.name}: {part.share:.0%} of its cells are hot")
        for part in parts
    )
    names = ", ".join(f"{part.kind} {part.name}" for part in parts)
    ends = [part for part in parts if part.kind in ("sender", "receiver")]
    culprits = tuple(
        Culprit(
            rank=int(part.name) if part.name.isdecimal() else None,
            host=None if part.name.isdecimal() or part.kind == "link" else part.name,
            device=f"link {part.name}" if part.kind == "link" else f"NIC ({part.kind})",
        )
        for part in parts
    )
    diagnosis = Diagnosis(
        verdict=Verdict.CULPRITS if parts else Verdict.NOBODY,
        culprits=culprits,
        cause="slow_communication" if parts else "balanced",
        reason=f"Slow: {names}."
        if parts
        else "No sender, receiver or link is slower than the rest.",
        onset=None,
        confidence=0.0 if not parts and not delays.names else (0.8 if ends or not parts else 0.7),
        evidence=lines,
    )
    if as_json:
        print_json({**diagnosis_page(diagnosis), "parts": [f"{p.kind} {p.name}" for p in parts]})
        return
    echo(printable(diagnosis.reason))
    for line in lines:
        echo(printable(f"  {line.text}"))
