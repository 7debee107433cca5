"""Adds up the work that the ranks of one attempt tell: FLOPs, tokens, samples. Pure.

What a rank had told when it was first heard is no part of it: the first step's time is that of a start.
"""

from typing import Final

from recovery.journal.attempt_records import WorkSeen
from recovery.messages.exchange import RankWork, Report

_TOOK_S_MIN: Final = 1.0  # reports come twice a second: in less, their dates are most of the result


class WorkMeter:
    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget all: another attempt begins."""
        self._attempt = attempt
        self._base: dict[int, RankWork] = {}  # by rank: at the newest `take`, or as first heard
        self._newest: dict[int, RankWork] = {}
        self._since_s: float | None = None
        self._changed_s = 0.0

    def note_report(self, report: Report, now_s: float) -> None:
        """Take in the work that a report tells of."""
        if report.attempt != self._attempt:
            return
        for rank in report.ranks:
            work = rank.work
            if work is None or work == self._newest.get(rank.rank):
                continue
            self._newest[rank.rank] = work
            self._changed_s = now_s
            if rank.rank not in self._base:
                self._base[rank.rank] = work
                if self._since_s is None:
                    self._since_s = now_s

    def take(self, now_s: float) -> WorkSeen | None:
        """Return the work since the last call; None where there is none, or too little time."""
        since_s = self._since_s
        if since_s is None or self._changed_s - since_s < _TOOK_S_MIN:
            return None
        newest, base = self._newest, self._base
        types = {work.data_type for work in newest.values()}
        devices = {work.device for work in newest.values()}
        seen = WorkSeen(
            attempt=self._attempt,
            took_s=self._changed_s - since_s,
            age_s=max(0.0, now_s - self._changed_s),
            ranks=len(newest),
            flops=sum(max(0.0, one.flops - base[rank].flops) for rank, one in newest.items()),
            tokens=sum(max(0.0, one.tokens - base[rank].tokens) for rank, one in newest.items()),
            samples=sum(max(0.0, one.samples - base[rank].samples) for rank, one in newest.items()),
            data_type=types.pop() if len(types) == 1 else "",
            device=devices.pop() if len(devices) == 1 else "",
        )
        self._base, self._since_s = dict(newest), self._changed_s
        return seen
