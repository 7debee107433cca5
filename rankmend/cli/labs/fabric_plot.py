"""The heat map of `rankmend fabric`: senders are rows, receivers columns, the colour the rate against the usual."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankmend.errors import StorageError
from rankmend.files import write_output

if TYPE_CHECKING:
    from recovery.lab.fabric.fabric_report import FabricReport

_NAMES_MAX: Final = 64  # more names than that can't be read


def write_heat_map(path: Path, pyplot: Any, report: "FabricReport") -> None:
    """Write the picture; the format is by the name. Raises StorageError, or ValueError for an unknown format or no readings."""
    import numpy as np

    from detectors.fabric.delay_matrix import delay_matrix, tabulate

    if not report.readings:
        raise ValueError(f"a test of {report.kind} measures no pairs")
    network = report.network
    tests = tabulate(network, report.readings)
    figure, axes = pyplot.subplots(
        1,
        len(network.rails),
        squeeze=False,
        layout="constrained",
        figsize=(6 * len(network.rails), 6),
    )
    for rail, axis in enumerate(axes[0]):
        with np.errstate(divide="ignore"):
            rates = 1.0 / delay_matrix(tests, rail)
        image = axis.imshow(rates, vmin=0.0, vmax=1.2, cmap="RdYlGn")
        axis.set(title=network.rails[rail], xlabel="receiver", ylabel="sender")
        if len(network.nodes) <= _NAMES_MAX:
            axis.set_xticks(range(len(network.nodes)), network.nodes, rotation=90, fontsize=6)
            axis.set_yticks(range(len(network.nodes)), network.nodes, fontsize=6)
    figure.colorbar(image, ax=axes[0].tolist(), label="rate against the usual", shrink=0.7)
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=path.suffix[1:] or "png")
    finally:
        pyplot.close(figure)
    write_output(path, picture.getvalue(), StorageError)
