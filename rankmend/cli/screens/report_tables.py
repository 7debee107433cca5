"""The tables of `rankmend report` in the terminal, at most 80 columns wide."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table
from rich.text import Text

from detectors.wording import counted, moment
from rankmend.printable import duration, figure
from recovery.accounting.goodput.figures import Figures, Reliability, figures_of
from recovery.accounting.goodput.throughput import throughput_by_name
from recovery.accounting.goodput.time_words import (
    anatomy_lines,
    gpu_hours,
    hours_name,
    share,
    throughput_lines,
)

if TYPE_CHECKING:
    from rich.console import Console

    from recovery.local.report.time_report import JobReport, RankPace

_LOSSES_SHOWN: Final = 15
_GROUPS_SHOWN: Final = 15
_RANKS_SHOWN: Final = 32
_DAY_S: Final = 86_400.0


def show_report(
    out: "Console",
    reports: "Sequence[JobReport]",
    saving: Mapping[str, Sequence[str]],
    *,
    with_details: bool,
) -> None:
    """Print a summary of all jobs, and with ``with_details`` the tables of each.

    ``saving``: by job id, lines about what saving costs.
    """
    if not reports:
        out.print("no jobs")
        return
    if len(reports) > 1:
        out.print(_summary(reports))
        show_total(out, reports)
    if with_details:
        for report in reports:
            time = report.time
            began = moment(time.began_unix_s + time.begin_s)
            out.print(Text.assemble((time.name, "bold"), f"  {time.job_id}  from {began}"))
            _show_figures(out, report.figures, hours_name([time]))
            if report.throughput is not None:
                _show_lines(out, throughput_lines(report.throughput))
            if report.anatomy is not None:
                _show_lines(out, anatomy_lines(report.anatomy))
            _show_lines(out, saving.get(time.job_id, ()))
            if any(pace.anatomy is not None for pace in report.paces):
                out.print(_ranks(report.paces))


def show_total(out: "Console", reports: "Sequence[JobReport]") -> None:
    """Print what all jobs come to together."""
    if not reports:
        out.print("no jobs")
        return
    watched = sum(report.time.is_watched for report in reports)
    of_others = f", {watched} of them of other launchers" if watched else ""
    out.print(Text(f"all jobs: {len(reports)}{of_others}", style="bold"))
    times = [report.time for report in reports]
    _show_figures(out, figures_of(times), hours_name(times))
    _show_linearity(out, reports)


def _ranks(paces: "Sequence[RankPace]") -> Table:
    """Return the newest steps of the ranks on this machine, the slowest first."""
    table = _table("rank, now", "step", "compute", "communication", "waiting", "I/O", "checkpoint")
    for item in sorted(paces, key=lambda pace: -pace.step_s)[:_RANKS_SHOWN]:
        step = item.anatomy
        if step is not None:
            table.add_row(
                str(item.rank),
                *(
                    duration(seconds)
                    for seconds in (
                        step.step_s,
                        step.compute_s,
                        step.communication_s,
                        step.waited_s,
                        step.io_s,
                        step.checkpoint_s,
                    )
                ),
            )
    return table


def _summary(reports: "Sequence[JobReport]") -> Table:
    table = _table(
        "job",
        "wall time",
        hours_name(item.time for item in reports),
        "goodput",
        "ETTR",
        "lost in all",
        "failures",
        "MTTR",
    )
    for report in reports:
        figures = report.figures
        table.add_row(
            report.time.name + (" (watched)" if report.time.is_watched else ""),
            duration(figures.wall_s),
            gpu_hours(figures.device_s),
            _goodput(figures),
            share(figures.ettr_ratio),
            duration(figures.lost_s),
            str(figures.failures),
            duration(figures.mttr_s),
        )
    return table


def _show_figures(out: "Console", figures: Figures, hours: str) -> None:
    """Print the figures of one job or of several; ``hours``: the unit of device time."""
    out.print(
        f"goodput {_goodput(figures)}, ETTR {share(figures.ettr_ratio)}, "
        f"availability {share(figures.availability_ratio)}; lost in all {duration(figures.lost_s)}"
    )
    out.print(
        f"{counted(figures.failures, 'failure')}, MTBF {duration(figures.mtbf_s)}, MTTR {duration(figures.mttr_s)}; "
        f"{counted(figures.restarts, 'restart')}, per 1,000 {_days(hours)} {_restarts_often(figures, hours)}"
    )
    if figures.slow_s > 0:
        out.print(
            f"{duration(figures.slow_s)} of the training time ({share(figures.slow_s / figures.training_s)}) "
            "was spent waiting for a slow rank at each step"
        )
    out.print(_parts(figures, hours))
    if figures.losses:
        out.print(_losses(figures, hours))
    if figures.by_hardware:
        out.print(_hardware(figures))
    for title, groups in (("class", figures.by_class), ("node", figures.by_node)):
        if groups:
            out.print(_groups(title, groups, hours))


def _days(hours: str) -> str:
    """Return rank-days for rank-hours, and GPU-days for GPU-hours."""
    return hours.replace("hours", "days")


def _restarts_often(figures: Figures, hours: str) -> str:
    """Return restarts per 1,000 days of device time, and of how little time that is made where it is."""
    days = figures.device_s / _DAY_S
    often = figure(figures.restarts_per_1000_gpu_days)
    return (
        often
        if days >= 1 or not figures.restarts
        else f"{often} (seen: {figure(days)} {_days(hours)})"
    )


def _show_linearity(out: "Console", reports: "Sequence[JobReport]") -> None:
    """Print throughput of jobs that ran under one name on several sizes."""
    for name, throughput in throughput_by_name(report.time for report in reports).items():
        if len(throughput.sizes) > 1:
            out.print(Text(name, style="bold"))
            _show_lines(out, throughput_lines(throughput))


def _show_lines(out: "Console", lines: Sequence[str]) -> None:
    for line in lines:
        out.print(line)


def _goodput(figures: Figures) -> str:
    least, most = share(figures.goodput_ratio), share(figures.goodput_ratio_max)
    return least if least == most else f"{least} to {most}"


def _parts(figures: Figures, hours: str) -> Table:
    table = _table("where the time went", "time", "share", hours)
    for part, item in figures.parts.items():
        table.add_row(
            part.value.replace("_", " "),
            duration(item.seconds),
            share(item.seconds / figures.wall_s),
            gpu_hours(item.device_s),
        )
    return table


def _losses(figures: Figures, hours: str) -> Table:
    table = _table("lost to", hours, "time")
    for loss in figures.losses[:_LOSSES_SHOWN]:
        note = " (part of the training time)" if loss.is_within_training else ""
        table.add_row(loss.cause + note, gpu_hours(loss.device_s), duration(loss.seconds))
    left = len(figures.losses) - _LOSSES_SHOWN
    if left > 0:
        table.add_row(f"and {counted(left, 'smaller one')}", "", "")
    return table


def _groups(title: str, groups: Mapping[str, Reliability], hours: str) -> Table:
    table = _table(f"failures by {title}", "count", "MTBF", f"{hours} lost", "MTTR")
    for name, item in list(groups.items())[:_GROUPS_SHOWN]:
        table.add_row(
            name.replace("_", " "),
            str(item.failures),
            duration(item.mtbf_s),
            gpu_hours(item.lost_device_s),
            duration(item.mttr_s),
        )
    return table


def _hardware(figures: Figures) -> Table:
    table = _table(
        "hardware", "failures", "GPU-hours", "a failure each", "MTTR", "per 1,000 GPU-days"
    )
    for (hardware, name), item in list(figures.by_hardware.items())[:_GROUPS_SHOWN]:
        table.add_row(
            f"{hardware} {name}",
            str(item.failures),
            gpu_hours(item.device_s),
            gpu_hours(item.mtbf_device_s),
            duration(item.mttr_s),
            figure(item.failures_per_1000_gpu_days),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table
