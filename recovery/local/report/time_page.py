"""The report as one HTML file: where the time went, and what rankmend would have done where that is requested.

No script, no network, every text escaped. Geometry is computed here, `time_page.html.j2` only prints it. Needs Jinja2 (the extra `report`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detectors.wording import counted, moment
from rankmend.printable import duration, figure, printable
from recovery.accounting.goodput.figures import cause_in_words, figures_of
from recovery.accounting.goodput.job_time import IncidentTime, JobTime
from recovery.accounting.goodput.throughput import throughput_by_name
from recovery.accounting.goodput.time_bars import WIDTH, Bar, timeline_bars
from recovery.accounting.goodput.time_words import (
    anatomy_lines,
    gpu_hours,
    hours_name,
    share,
    throughput_lines,
)
from recovery.accounting.observe_mode.rows import plain_total, say_saved
from recovery.accounting.observe_mode.verdict import JudgedDecision
from recovery.local.report.time_report import JobReport, RankPace

TEMPLATE: Final = "time_page.html.j2"
_SPANS_MAX: Final = 2000  # rectangles of one timeline: more than a screen has pixels
_INCIDENTS_MAX: Final = 50  # waterfalls of one job, the newest
_LOSSES_MAX: Final = 30
_HEAT_COLUMNS: Final = 64
_HEAT_MAX: Final = 16_384  # ranks of one heat map
_NAME_MAX: Final = 200
_TEXT_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Waterfall:
    incident_id: str
    cause: str
    summary: str
    outcome: str
    mttr: str
    bars: tuple[Bar, ...]
    height: float


def render_page(
    reports: Sequence[JobReport],
    made_unix_s: float,
    version: str,
    judged: Sequence[JudgedDecision] | None = None,
    drills: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return the page. Needs Jinja2, of the extra ``report``. ``judged``: decisions that were not taken; None: not requested.

    ``drills``: what was broken on purpose, and what held (`recovery.lab.drill.drill_report`); None: this is no drill.
    """
    from jinja2 import (  # noqa: PLC0415 - only this report needs it
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        span=duration,
        share=share,
        hours=gpu_hours,
        figure=figure,
        moment=moment,
        counted=counted,
        saved=say_saved,
        clean=_clean,
        text=lambda text: printable(str(text))[:_TEXT_MAX],
    )
    jobs = [_job(report) for report in reports]
    total = figures_of([report.time for report in reports]) if len(reports) != 1 else None
    page: str = environment.get_template(TEMPLATE).render(
        jobs=jobs,
        by_name=_by_name(reports),
        hours_name=hours_name(report.time for report in reports),
        total=total,
        made_unix_s=made_unix_s,
        version=version,
        losses_max=_LOSSES_MAX,
        judged=judged,
        drills=drills,
        not_taken=None if judged is None else plain_total(judged),
    )
    return page


def _by_name(reports: Sequence[JobReport]) -> dict[str, list[str]]:
    """Return the throughput of jobs that ran under one name on several sizes."""
    found = throughput_by_name(report.time for report in reports)
    return {
        name: throughput_lines(throughput)
        for name, throughput in found.items()
        if len(throughput.sizes) > 1
    }


def _job(report: JobReport) -> dict[str, Any]:
    time, figures = report.time, report.figures
    newest = time.incidents[-_INCIDENTS_MAX:]
    return {
        "name": _clean(time.name) or "-",
        "job_id": time.job_id,
        "time": time,
        "figures": figures,
        "ledger": _ledger(report),
        "timeline": timeline_bars(time, _SPANS_MAX),
        "is_thinned": len(time.spans) > _SPANS_MAX,
        "waterfalls": [_waterfall(incident, time) for incident in reversed(newest)],
        "incidents_left_out": len(time.incidents) - len(newest),
        "heat": _heat(report.paces),
        "throughput": [] if report.throughput is None else throughput_lines(report.throughput),
        "step": [] if report.anatomy is None else anatomy_lines(report.anatomy),
        "heat_columns": _HEAT_COLUMNS,
    }


def _ledger(report: JobReport) -> list[Bar]:
    bars, x = [], 0.0
    wall_s = report.figures.wall_s
    for part, item in report.figures.parts.items():
        width = WIDTH * item.seconds / wall_s
        title = f"{part.value}: {duration(item.seconds)}, {share(item.seconds / wall_s)}"
        bars.append(Bar(x, width, part.value, title))
        x += width
    return bars


def _waterfall(item: IncidentTime, time: JobTime) -> _Waterfall:
    account = item.account
    costs = [span for span in time.spans if span.incident_id == account.incident_id]
    begin_s = min((span.begin_s for span in costs), default=0.0)
    end_s = max((span.end_s for span in costs), default=0.0)
    scale = WIDTH / (end_s - begin_s) if end_s > begin_s else 0.0
    bars = [
        Bar(
            (span.begin_s - begin_s) * scale,
            max(1.0, span.length_s * scale),
            span.part.value,
            f"{span.part.value}: {duration(span.length_s)}"
            + (" (estimated)" if span.is_estimated else ""),
            y=20.0 * place,
        )
        for place, span in enumerate(costs)
    ]
    finding = account.opened.failure.finding
    return _Waterfall(
        account.incident_id,
        cause_in_words(item),
        finding.summary,
        account.state.phase.value,
        duration(account.total_s),
        tuple(bars),
        20.0 * len(bars),
    )


def _heat(paces: Sequence[RankPace]) -> list[dict[str, Any]]:
    """Return a cell for each rank: its place, and how its step time compares, 0 to 1."""
    shown = sorted(paces, key=lambda pace: pace.rank)[:_HEAT_MAX]
    times = [pace.step_s for pace in shown]
    low, high = min(times, default=0.0), max(times, default=0.0)
    spread = max(high - low, 0.05 * high)  # equal ranks are not painted as if they differed
    return [
        {
            "x": place % _HEAT_COLUMNS,
            "y": place // _HEAT_COLUMNS,
            "heat": (pace.step_s - low) / spread if spread else 0.0,
            "title": f"rank {pace.rank}: {duration(pace.step_s)} a step",
        }
        for place, pace in enumerate(shown)
    ]


def _clean(text: object) -> str:
    return printable(str(text))[:_NAME_MAX]
