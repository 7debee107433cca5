"""Durations and shares in words, for the terminal and the page. Pure."""

from collections.abc import Iterable
from typing import Final

from detectors.wording import counted
from rankmend.printable import duration, figure
from recovery.accounting.goodput.anatomy import HiddenTime, StepAnatomy
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.throughput import Throughput
from recovery.journal.attempt_records import HiddenGap, HiddenSource

_SOURCES: Final = {
    HiddenSource.COLLECTIVES.value: "asynchronous collectives",
    HiddenSource.DDP.value: "DistributedDataParallel's own statistics",
    HiddenSource.SCRIPT.value: "the script's background sections",
    HiddenSource.LOADER.value: "a data loader without workers",
}
_GAPS: Final = {
    HiddenGap.UNTIMED.value: "nobody sees the end of some collectives",
    HiddenGap.UNSAMPLED.value: "DistributedDataParallel has not sampled an iteration yet",
    HiddenGap.WORKERS.value: "nothing reports how long the data loader's workers read",
}


def share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f} %"


def gpu_hours(device_s: float | None) -> str:
    if device_s is None or device_s < 3600 * 1000:
        return figure(None if device_s is None else device_s / 3600)
    return f"{device_s / 3600:,.0f}"


def hours_name(jobs: Iterable[JobTime]) -> str:
    """Return the unit of device time: GPU-hours where nodes of every job report a GPU, else what is counted, ranks' hours."""
    seen = list(jobs)
    has_gpus = all(any(kinds.gpu for kinds in job.kinds.values()) for job in seen)
    return "GPU-hours" if seen and has_gpus else "rank-hours"


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


def anatomy_line(anatomy: StepAnatomy) -> str:
    """Return the mean step and its parts in one line."""
    parts = [
        f"{name} {duration(seconds)} ({share(seconds / anatomy.step_s)})"
        for name, seconds in anatomy.parts.items()
    ]
    waited = (
        ""
        if anatomy.waited_s is None
        else f"; {duration(anatomy.waited_s)} waiting for other ranks"
    )
    return f"a step takes {duration(anatomy.step_s)}: {', '.join(parts)}{waited}"


def anatomy_lines(anatomy: StepAnatomy) -> list[str]:
    """Return the mean step in a line, and what of it was hidden in one for each kind that is told."""
    kinds = (("communication", anatomy.hidden_communication), ("I/O", anatomy.hidden_io))
    hidden = [_hidden_line(kind, reported) for kind, reported in kinds if reported is not None]
    return [anatomy_line(anatomy), *hidden]


def _hidden_line(kind: str, time: HiddenTime) -> str:
    by = ", ".join(_SOURCES.get(name, name.replace("_", " ")) for name in time.sources)
    why = "; ".join(_GAPS.get(name, name.replace("_", " ")) for name in time.gaps)
    if time.least_s is None:
        return f"hidden {kind}: not known: {why}"
    if time.most_s is None:
        return f"hidden {kind}: at least {_with_share(time.least_s, time.least_ratio)} of it, by {by}; {why}"
    if time.most_s == 0:
        return f"hidden {kind}: nothing, by {by}"
    if share(time.least_ratio) == share(time.most_ratio):
        shown = _with_share(time.most_s, time.most_ratio)
    elif time.least_s == 0:
        shown = f"at most {_with_share(time.most_s, time.most_ratio)}"
    else:
        least = _with_share(time.least_s, time.least_ratio)
        shown = f"{least} to {_with_share(time.most_s, time.most_ratio)}"
    return f"hidden {kind}: {shown} of it, by {by}"


def _with_share(seconds: float, ratio: float | None) -> str:
    return f"{duration(seconds)} ({share(ratio)})"


def throughput_lines(throughput: Throughput) -> list[str]:
    """Return throughput, MFU and linearity in lines; what is not known is left out."""
    rates = [
        rate(value, unit)
        for value, unit in (
            (throughput.tokens_per_s, "tokens"),
            (throughput.samples_per_s, "samples"),
            (throughput.flops_per_s, "FLOP"),
        )
        if value is not None
    ]
    lines = [", ".join(rates)] if rates else []
    if throughput.mfu_ratio is not None:
        peak = (
            f"of the dense {throughput.data_type} peak of {throughput.device}"
            if throughput.device
            else ""
        )
        lines.append(f"MFU {share(throughput.mfu_ratio)} {peak}".rstrip())
    elif throughput.flops_per_s is not None:
        what = (
            f"{throughput.device or 'the accelerators'}, {throughput.data_type or 'several types'}"
        )
        lines.append(f"no MFU: the peak of {what} is not known")
    if len(throughput.sizes) > 1:
        shown = [
            f"{counted(size.devices, 'rank')} {share(size.linearity_ratio)}"
            for size in throughput.sizes
        ]
        lines.append(f"linearity by {throughput.unit} per rank: {', '.join(shown)}")
    return lines
