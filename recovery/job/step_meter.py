"""Adds up what the ranks of one attempt spend their steps on, by the sections that they tell. Pure.

The first step that is heard of a rank is no part of it: it may have begun with the start.
"""

from rankmend.told_hidden import ToldHidden
from recovery.journal.attempt_records import StepsSeen
from recovery.journal.hidden_seen import add_hidden, hidden_communication, hidden_io
from recovery.messages.exchange import Report, StepTiming

# A step of a rank: when it was told, and the totals until then
_Mark = tuple[float, StepTiming, ToldHidden | None]


class StepMeter:
    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget all: another attempt begins."""
        self._attempt = attempt
        self._base: dict[int, _Mark] = {}  # by rank: at the newest `take`, or as first heard
        self._newest: dict[int, _Mark] = {}

    def note_report(self, report: Report, now_s: float) -> None:
        """Take in the steps that a report tells of."""
        if report.attempt != self._attempt:
            return
        base, newest = self._base, self._newest
        for rank in report.ranks:
            if not (rank.timings and rank.sections_entered):
                continue
            timing = rank.timings[-1]
            mark = newest[rank.rank] = (now_s, timing, rank.hidden)
            known = base.get(rank.rank)
            if known is None or timing.number < known[1].number:  # of another process
                base[rank.rank] = mark

    def take(self) -> StepsSeen | None:
        """Return what was spent since the last call; None where no rank with sections has made a step."""
        ranks = steps = 0
        step_s = compute_s = communication_s = waited_s = io_s = checkpoint_s = 0.0
        communication, reading = [], []
        for rank, (told_s, after, hidden) in self._newest.items():
            known_s, before, hidden_before = self._base[rank]
            if after.number <= before.number:
                continue
            ranks += 1
            steps += after.number - before.number
            step_s += max(0.0, (told_s - after.age_s) - (known_s - before.age_s))
            compute_s += max(0.0, after.compute_s - before.compute_s)
            communication_s += max(0.0, after.communication_s - before.communication_s)
            waited_s += max(0.0, after.waited_s - before.waited_s)
            io_s += max(0.0, after.io_s - before.io_s)
            checkpoint_s += max(0.0, after.checkpoint_s - before.checkpoint_s)
            if hidden is not None:
                since = (hidden_before or ToldHidden(), hidden, after.number - before.number)
                communication.append(hidden_communication(*since))
                reading.append(hidden_io(*since))
        if not steps:
            return None
        self._base = dict(self._newest)
        return StepsSeen(
            self._attempt,
            ranks,
            steps,
            step_s,
            compute_s,
            communication_s,
            waited_s,
            io_s,
            checkpoint_s,
            add_hidden(communication),
            add_hidden(reading),
        )
