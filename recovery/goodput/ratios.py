"""Ratios and the units that figures are given in. Pure."""

from typing import Final

DAY_S: Final = 86400.0
GPU_DAYS: Final = 1000.0  # restarts and failures are given for so many


def ratio(above: float, below: float) -> float | None:
    """Return the ratio; None where nothing was measured."""
    return above / below if below > 0 else None
