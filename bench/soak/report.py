"""What the soak shows: a table and a plot. Both come from the saved report alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.table import Table

_MIB: Final = 1 << 20
_PANELS: Final = (
    ("pss_bytes", "PSS (MiB)", _MIB),
    ("descriptors", "descriptors", 1),
    ("threads", "threads", 1),
)


def usage_table(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (
        "PROCESS",
        "LIVES",
        "LONGEST",
        "PSS MiB",
        "OWN MiB/h",
        "LIMIT",
        "FDS",
        "THREADS",
    ):
        table.add_column(name, justify="left" if name == "PROCESS" else "right")
    for one in report["usage"]:
        slope, limits = one["slope_bytes_per_h"], one["limits"]
        table.add_row(
            one["part"],
            str(one["lives"]),
            f"{one['life_s'] / 60:.1f} min",
            f"{one['pss_first_bytes'] / _MIB:.1f} to {one['pss_last_bytes'] / _MIB:.1f}, peak {one['pss_max_bytes'] / _MIB:.1f} of {limits['pss_bytes_max'] / _MIB:g}",
            "-" if slope is None else f"{slope / _MIB:+.2f}",
            f"{limits['slope_bytes_per_h_max'] / _MIB:g}",
            f"{one['descriptors_max']} of {limits['descriptors_max']}",
            f"{one['threads_max']} of {limits['threads_max']}",
        )
    return table


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw memory, descriptors and threads of each process, and what lies on disk, over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "rankmend", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(4, 1, figsize=(8, 9), sharex=True, layout="constrained")
    for panel, (key, title, unit) in zip(panels, _PANELS, strict=False):
        for part in dict.fromkeys(one["part"] for one in report["samples"]):
            own = [one for one in report["samples"] if one["part"] == part]
            times = [one["at_s"] / 60 for one in own]
            panel.plot(times, [one[key] / unit for one in own], linewidth=1, label=part)
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
    last = panels[-1]
    times = [one["at_s"] / 60 for one in report["stored"]]
    for key, title in (
        ("controller", "controller's journals"),
        ("launchers", "launchers' state"),
        ("runtime", "shared memory"),
    ):
        last.plot(times, [one[key] / _MIB for one in report["stored"]], linewidth=1, label=title)
    last.set_ylabel("MiB")
    last.set_ylim(bottom=0)
    last.set_xlabel(
        f"minutes; {report['faults_made']} faults, {report['incidents']} incidents, seed {report['seed']}"
    )
    for panel in (panels[0], last):
        panel.legend(fontsize=7, ncols=3, frameon=False)
    for panel in panels:
        panel.grid(color="#dddddd", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
