"""`rankmend report --would-have`: what rankmend would have done and did not, in the terminal, as JSON or CSV."""

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detectors.wording import counted, moment
from rankmend.cli.options import print_json
from rankmend.cli.output import echo_exact
from rankmend.cli.sources.controller_options import console
from rankmend.cli.sources.picture import Reader
from rankmend.printable import duration, figure

if TYPE_CHECKING:
    from recovery.accounting.observe_mode.decision import Decision
    from recovery.accounting.observe_mode.verdict import JudgedDecision, NodeDrained
    from recovery.api import wire


def show_would_have(
    judged: "Sequence[JudgedDecision]", *, as_json: bool, as_csv: bool, has_page: bool
) -> None:
    """Print the report in the shape that is requested."""
    from recovery.accounting.observe_mode.rows import csv_rows, plain

    if as_json:
        print_json(plain(judged))
    elif as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(csv_rows(judged))
        echo_exact(text.getvalue(), nl=False)
    elif not has_page:
        _show(judged)


def judged_decisions(
    reader: Reader, job: str | None, since_unix_s: float | None
) -> "list[JudgedDecision]":
    """Return the decisions that were not taken, each with what became of it."""
    from recovery.accounting.observe_mode.decision import read_history
    from recovery.accounting.observe_mode.verdict import judge_all

    # Every job: one of the same name may be the one that was started again.
    histories = [read_history(entries) for entries in reader.journals()]
    cluster = reader.untaken()
    decisions = [decision for history in histories for decision in history.decisions]
    decisions += [_decision(view) for view in cluster.untaken]
    if job is not None:
        decisions = [
            decision
            for decision in decisions
            if (decision.job or "").startswith(job) or decision.job_id.startswith(job)
        ]
    if since_unix_s is not None:
        decisions = [decision for decision in decisions if decision.at_unix_s >= since_unix_s]
    return judge_all(decisions, histories, [_drained(drain) for drain in cluster.drains])


def _decision(view: "wire.UntakenView") -> "Decision":
    from recovery.accounting.observe_mode.decision import Decision

    return Decision(
        at_unix_s=view.at_unix_s,
        source=view.source,
        action=view.action,
        why_not=view.why_not,
        reason=view.reason,
        job_id=view.job_id,
        job=view.job,
        incident_id=view.incident_id,
        nodes=tuple(view.nodes),
    )


def _drained(view: "wire.DrainSeenView") -> "NodeDrained":
    from recovery.accounting.observe_mode.verdict import NodeDrained

    return NodeDrained(view.unix_s, view.node, view.who, view.where)


def _show(judged: "Sequence[JudgedDecision]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from rankmend.printable import printable
    from recovery.accounting.observe_mode.rows import plain_total, say_saved

    out = console()
    if not judged:
        out.print("nothing that rankmend would have done and did not")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("when", "job", "would have", "instead", "verdict", "saved"):
        table.add_column(name, overflow="fold")
    for item in judged:
        decision = item.decision
        nodes = f" {', '.join(decision.nodes[:4])}" if decision.nodes else ""
        cells = (
            moment(decision.at_unix_s),
            decision.job or decision.source,
            f"{decision.action}{nodes} ({decision.why_not}): {decision.reason}",
            item.instead,
            f"{item.verdict.value}: {item.because}",
            say_saved(item),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    out.print(table)
    total = plain_total(judged)
    out.print(f"right {total['right']}, wrong {total['wrong']}, unknown {total['unknown']}")
    if total["saved_s"] is not None:
        hours = total["saved_gpu_hours"]
        gpus = "" if hours is None else f" and {figure(hours)} GPU-hours"
        out.print(
            f"would have saved {duration(total['saved_s'])}{gpus}, by {counted(total['estimated'], 'decision')} with an estimate"
        )
