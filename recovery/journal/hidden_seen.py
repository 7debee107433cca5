"""What of communication and reading ran beside the ranks' own work, as the journal keeps it, and who tells that. Pure.

Each source proves a least and a most, which are equal where it measures: docs/reference/goodput.md. What nobody tells is
absent, with the reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rankmend.told_hidden import ToldHidden


class HiddenSource(Enum):
    """What tells of hidden time."""

    COLLECTIVES = (
        "asynchronous_collectives"  # from their issue to the look at which they were complete
    )
    DDP = "ddp_statistics"  # PyTorch's window of sampled iterations: at most that
    SCRIPT = "background_sections"  # the script's own rankmend.background
    LOADER = "loader_without_workers"  # the thread that trains makes the batches: nothing is hidden


class HiddenGap(Enum):
    """Why it is not known how much was hidden."""

    UNTIMED = "untimed_collectives"  # nobody sees when a device has done them; or several models
    UNSAMPLED = "ddp_not_sampled"  # PyTorch has not told of an iteration yet
    WORKERS = "loader_workers"  # for how long other processes make batches nobody tells


@dataclass(frozen=True, slots=True)
class HiddenSeen:
    """What of one kind of work ran beside the own work of the ranks that tell it. Seconds, of these ranks together."""

    steps: int  # of these ranks together; 0: nobody tells it
    least_s: float = 0.0
    most_s: float | None = None  # None: nobody knows
    sources: tuple[str, ...] = ()  # values of HiddenSource
    gaps: tuple[str, ...] = ()  # values of HiddenGap: what nobody tells


def hidden_communication(before: ToldHidden, now: ToldHidden, steps: int) -> HiddenSeen | None:
    """Return what a rank told of communication in these steps; None where nothing was."""
    gaps = []
    if now.has_untimed:
        gaps.append(HiddenGap.UNTIMED)
    if now.has_replica and not now.samples:
        gaps.append(HiddenGap.UNSAMPLED)
    sent_s = max(0.0, now.sendings_s - before.sendings_s)
    least_s = max(0.0, now.works_least_s - before.works_least_s) + sent_s
    most_s = max(0.0, now.works_most_s - before.works_most_s) + sent_s
    sources = []
    if now.works > before.works:
        sources.append(HiddenSource.COLLECTIVES)
    if now.sendings > before.sendings:
        sources.append(HiddenSource.SCRIPT)
    if now.samples:
        sources.append(HiddenSource.DDP)
        most_s += steps * now.overlap_s / now.samples
    if not sources or (gaps and not least_s):
        return _seen(0, 0.0, None, (), gaps) if gaps else None
    return _seen(steps, least_s, None if gaps else most_s, sources, gaps)


def hidden_io(before: ToldHidden, now: ToldHidden, steps: int) -> HiddenSeen | None:
    """Return what a rank told of reading in these steps; None where nothing was."""
    gaps = [HiddenGap.WORKERS] if now.loads_in_workers else []
    if now.reads:
        read_s = max(0.0, now.reads_s - before.reads_s)
        return _seen(steps, read_s, None if gaps else read_s, [HiddenSource.SCRIPT], gaps)
    if gaps:
        return _seen(0, 0.0, None, (), gaps)
    return _seen(steps, 0.0, 0.0, [HiddenSource.LOADER], ()) if now.loads_itself else None


def add_hidden(told: Iterable[HiddenSeen | None]) -> HiddenSeen | None:
    """Return what ranks, or records, tell together."""
    known = [one for one in told if one is not None]
    if not known:
        return None
    telling = [one for one in known if one.steps]
    most = [one.most_s for one in telling if one.most_s is not None]
    return HiddenSeen(
        steps=sum(one.steps for one in telling),
        least_s=sum(one.least_s for one in telling),
        most_s=sum(most) if telling and len(most) == len(telling) else None,
        sources=_all(one.sources for one in known),
        gaps=_all(one.gaps for one in known),
    )


def _seen(
    steps: int,
    least_s: float,
    most_s: float | None,
    sources: Iterable[HiddenSource],
    gaps: Iterable[HiddenGap],
) -> HiddenSeen:
    names = tuple(one.value for one in sources)
    return HiddenSeen(steps, least_s, most_s, names, tuple(one.value for one in gaps))


def _all(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
