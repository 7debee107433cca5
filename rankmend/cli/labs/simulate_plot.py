"""The picture of `rankmend simulate --plot`: where the time went, lost GPU-hours, intervals, what changes are worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from recovery.lab.simulation.planning import Study

_CAUSES_DRAWN: Final = 10
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # distinguished by the colour-blind


def write_plot(path: Path, pyplot: Any, study: "Study") -> None:
    """Write the picture; the format is by the name. Raises OSError, or ValueError for an unknown format."""
    from recovery.lab.simulation.campaign import losses, total_parts

    panels = 2 + bool(study.intervals) + bool(study.worth)
    figure, axes = pyplot.subplots(panels, 1, figsize=(8, 3 * panels), layout="constrained")
    setup = study.setup
    figure.suptitle(
        f"{setup.gpus:,} GPUs, {setup.days:g} days: {study.source}", fontsize=8, wrap=True
    )
    for axis, title in zip(axes, titles_of(study), strict=True):
        axis.set_title(title, loc="left", fontsize=10, fontweight="bold", wrap=True)
    parts = {
        name: part for name, part in total_parts(study.outcomes).items() if name != "productive"
    }
    _bars(axes[0], {name: (100 * o.p10, 100 * o.p50, 100 * o.p90) for name, o in parts.items()})
    axes[0].set_xlabel("share of the time lost, % (10th, 50th and 90th percentile)")
    lost = dict(list(losses(study.outcomes).items())[:_CAUSES_DRAWN])
    _bars(axes[1], {name: (item.p10, item.p50, item.p90) for name, item in lost.items()})
    axes[1].set_xlabel("lost GPU-hours")
    if study.intervals:
        for best, colour in zip(study.intervals, _COLOURS, strict=False):
            seconds = [interval.interval_s for interval in best.measured]
            axes[2].plot(
                seconds,
                [100 * interval.ettr.p50 for interval in best.measured],
                "o-",
                color=colour,
                label=best.tier,
            )
            axes[2].axvline(best.daly_s, color=colour, linestyle=":", label=f"Daly, {best.tier}")
        axes[2].set(xscale="log", xlabel="interval, s", ylabel="ETTR, %")
        axes[2].legend()
    if study.worth:
        won = {worth.what: worth.gpu_hours for worth in study.worth}
        _bars(axes[-1], {name: (item.p10, item.p50, item.p90) for name, item in won.items()})
        axes[-1].set_xlabel("GPU-hours won")
    try:
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def titles_of(study: "Study") -> list[str]:
    """Return the result that each panel shows, as a sentence; medians over the seeds."""
    from rankmend.printable import figure
    from recovery.accounting.goodput.time_words import share
    from recovery.lab.simulation.campaign import losses, total_parts

    parts = {name: part.p50 for name, part in total_parts(study.outcomes).items()}
    parts.pop("productive", None)
    lost, titles = sum(parts.values()), []
    if lost > 0:
        most = max(parts, key=lambda name: parts[name])
        of_it = f"{figure(100 * parts[most] / lost)} % of it by {most.replace('_', ' ')}"
        titles.append(f"{figure(100 * lost)} % of the time is lost, {of_it}")
    else:
        titles.append("No time is lost")
    causes = {name: loss.p50 for name, loss in losses(study.outcomes).items()}
    whole = sum(causes.values())
    if whole > 0:
        first = max(causes, key=lambda name: causes[name])
        titles.append(
            f"{figure(whole)} GPU-hours are lost, {share(causes[first] / whole)} of them to {first}"
        )
    else:
        titles.append("No GPU-hour is lost")
    if study.intervals:
        best = study.intervals[0]
        peak = max(best.measured, key=lambda interval: interval.ettr.p50)
        titles.append(
            f"The best interval of {best.tier} is {figure(peak.interval_s)} s; Daly's formula says {figure(best.daly_s)} s"
        )
    if study.worth:
        top = max(study.worth, key=lambda worth: worth.gpu_hours.p50)
        titles.append(f"{top.what} wins the most: {figure(top.gpu_hours.p50)} GPU-hours")
    return titles


def _bars(axis: Any, values: dict[str, tuple[float, float, float]]) -> None:
    ordered = sorted(values.items(), key=lambda pair: pair[1][1])
    names = [name for name, _value in ordered]
    medians = [value[1] for _name, value in ordered]
    below = [max(0.0, value[1] - value[0]) for _name, value in ordered]
    above = [max(0.0, value[2] - value[1]) for _name, value in ordered]
    axis.barh(names, medians, xerr=[below, above], color=_COLOURS[0])
