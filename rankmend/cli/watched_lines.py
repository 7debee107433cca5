"""The lines of `rankmend status` about ranks on this machine, and about jobs that other launchers have started."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from detectors.wording import counted, rank_ranges
from rankmend.cli.screens.network_lines import say_nccl
from rankmend.printable import duration, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from recovery.api import wire
    from recovery.local.report.overview import StoredRankView

_SHOWN: Final = 40  # jobs; those in trouble come first
_COLOURS: Final = {"training": "green", "hung": "red", "slow": "yellow", "unknown": "yellow"}


def is_named(job: "wire.WatchedView", wanted: str) -> bool:
    """Return whether a person's word names the job: the beginning of its name or UUID, or its number in Slurm."""
    return job.name.startswith(wanted) or job.job_id.startswith(wanted) or job.slurm_job == wanted


def say_head(job: "wire.WatchedView") -> str:
    """Return what the job is and how far it has come, in one line."""
    slurm = f", Slurm job {job.slurm_job}" if job.slurm_job else ""
    seen = "" if job.ranks_seen == job.world_size else f" ({job.ranks_seen} seen)"
    head = f"{job.launcher} of {job.user}{slurm}, {counted(job.world_size, 'rank')}{seen} on {counted(len(job.nodes), 'node')}"
    if job.step is not None:
        head += f", step {job.step}"
    if job.step_s is not None:
        head += f", {duration(job.step_s)} a step"
    return printable(head)


def say_trouble(job: "wire.WatchedView") -> list[str]:
    """Return what is wrong, with the evidence, and what is done about it."""
    lines = [job.reason] if job.reason and job.state != "ended" else []
    if job.state in ("hung", "slow"):
        lines += [f"  {line}" for finding in job.findings for line in finding.evidence]
    if job.act:
        lines.append(job.act)
    lines += say_nccl(job.nccl)
    return [printable(line) for line in lines]


def render_ranks(ranks: "Sequence[StoredRankView]") -> "list[RenderableType]":
    """Return the ranks on this machine, one a row, and below them once why they were not forked."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("rank", "pid", "step", "step time", "last step"):
        table.add_column(column, justify="right")
    table.add_column("section")
    has_starts = any(rank.start == "forked" or rank.why_not_forked for rank in ranks)
    if has_starts:
        table.add_column("start")
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            str(rank.pid),
            "-" if rank.step is None else str(rank.step),
            duration(rank.step_seconds),
            "-" if rank.step_age_s is None else f"{duration(rank.step_age_s)} ago",
            printable(rank.problem or rank.section or "no step yet"),
            *([printable(rank.start or "-")] if has_starts else []),
        )
    reasons: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.why_not_forked:
            reasons.setdefault(rank.why_not_forked, []).append(rank.rank)
    return [
        table,
        *(
            Text(f"  not forked: ranks {rank_ranges(found)}: {printable(reason)}", style="dim")
            for reason, found in reasons.items()
        ),
    ]


def render_watched(jobs: "Sequence[wire.WatchedView]") -> "list[RenderableType]":
    """Return the lines for people."""
    from rich.text import Text

    from recovery.local.report.overview import LocalWatchedView

    lines: list[RenderableType] = []
    for job in jobs[:_SHOWN]:
        colour = _COLOURS.get(job.state, "white")
        name = (printable(job.name), "bold")
        lines.append(Text.assemble(name, "  ", (job.state, colour), f"  {say_head(job)}"))
        lines += [Text(f"  {line}") for line in say_trouble(job)]
        if isinstance(job, LocalWatchedView) and job.ranks:
            lines += render_ranks(job.ranks)
    if len(jobs) > _SHOWN:
        lines.append(Text(f"and {len(jobs) - _SHOWN} more watched jobs (--json)", style="dim"))
    return lines
