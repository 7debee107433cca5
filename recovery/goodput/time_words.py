"""Durations, shares and moments in words, for the terminal and the page. Pure."""

from datetime import datetime, timezone

from recovery.goodput.anatomy import StepAnatomy
from recovery.goodput.throughput import Throughput


def in_words(seconds: float | None) -> str:
    """Return a duration with three significant figures; a dash for None."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f} %"


def gpu_hours(device_s: float | None) -> str:
    return "-" if device_s is None else f"{device_s / 3600:,.4g}"


def moment(unix_s: float) -> str:
    """Return a time in UTC: whoever reads the page may be anywhere."""
    try:
        at = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s since 1970"
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def rate(per_s: float | None, unit: str) -> str:
    """Return a rate: FLOP with a prefix, others with thousands; a dash for None."""
    if per_s is None:
        return "-"
    if unit != "FLOP":
        return f"{per_s:,.0f} {unit}/s" if per_s >= 100 else f"{per_s:.3g} {unit}/s"
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G")):
        if per_s >= factor:
            return f"{per_s / factor:.3g} {prefix}FLOP/s"
    return f"{per_s:.3g} FLOP/s"


def anatomy_line(one: StepAnatomy) -> str:
    """Return the mean step and its parts in one line."""
    parts = [
        f"{name} {in_words(seconds)} ({share(seconds / one.step_s)})"
        for name, seconds in one.parts.items()
    ]
    waited = "" if one.waited_s is None else f"; {in_words(one.waited_s)} waiting for other ranks"
    return f"a step takes {in_words(one.step_s)}: {', '.join(parts)}{waited}"


def throughput_lines(one: Throughput) -> list[str]:
    """Return throughput, MFU and linearity in lines; what is not known is left out."""
    rates = [
        rate(value, unit)
        for value, unit in (
            (one.tokens_per_s, "tokens"),
            (one.samples_per_s, "samples"),
            (one.flops_per_s, "FLOP"),
        )
        if value is not None
    ]
    lines = [", ".join(rates)] if rates else []
    if one.mfu_ratio is not None:
        peak = f"of the dense {one.data_type} peak of {one.device}" if one.device else ""
        lines.append(f"MFU {share(one.mfu_ratio)} {peak}".rstrip())
    elif one.flops_per_s is not None:
        what = f"{one.device or 'the accelerators'}, {one.data_type or 'several types'}"
        lines.append(f"no MFU: the peak of {what} is not known")
    if len(one.sizes) > 1:
        shown = [f"{size.devices} GPUs {share(size.linearity_ratio)}" for size in one.sizes]
        lines.append(f"linearity by {one.unit} per GPU: {', '.join(shown)}")
    return lines
