"""The time in which no launcher or controller wrote: what it was shows in what follows. Pure."""

from dataclasses import dataclass

from recovery.goodput.timeline import TRAINING, Timeline, TimePart
from recovery.journal.job_records import LauncherStarted


@dataclass(frozen=True, slots=True)
class _Gap:
    begin_s: float  # the record before
    alive_s: float | None  # when the launcher or controller before was last alive
    end_s: float
    ranks_ended: bool  # it was a launcher: its ranks ended with it


class UnwrittenTime:
    """The newest such time, until it is known what it was."""

    def __init__(self) -> None:
        self._gap: _Gap | None = None

    def open(self, record: LauncherStarted, since_s: float, now_s: float) -> None:
        """Note that a launcher or a controller began to write at ``now_s``; ``since_s``: the record before."""
        alive_s = None
        if record.alive_age_s is not None:
            alive_s = min(max(since_s, now_s - record.alive_age_s), now_s)
        self._gap = _Gap(since_s, alive_s, now_s, ranks_ended=bool(record.nodes))

    def forget(self) -> None:
        """Note that ranks ran on while nobody wrote."""
        self._gap = None

    def close(self, line: Timeline, until_s: float) -> None:
        """Account it: no rank has outlived it.

        They ended with a launcher. Without a controller they may have trained on: when they ended nobody knows.
        """
        gap, self._gap = self._gap, None
        if gap is None:
            return
        if gap.alive_s is None or not gap.ranks_ended:
            begin_s = gap.begin_s if gap.alive_s is None else gap.alive_s
            line.paint(begin_s, gap.end_s, TimePart.UNACCOUNTED, only=TRAINING)
            line.paint(gap.end_s, until_s, TimePart.INTERRUPTED, only=TRAINING)
        else:
            line.paint(gap.alive_s, until_s, TimePart.INTERRUPTED)
