"""For how long which ranks made every step of a job longer, by its journal. Pure."""

from dataclasses import replace

from recovery.goodput.job_time import SlowTime
from recovery.journal.slow_rank_records import SlowEnded, SlowExplained, SlowFound


class SlowSpells:
    def __init__(self) -> None:
        self._now: dict[int, SlowTime] = {}
        self._past: list[SlowTime] = []

    def __len__(self) -> int:
        return len(self._past) + len(self._now)

    def forget_before(self, begin_s: float) -> None:
        """Forget those that had ended by a moment."""
        self._past = [one for one in self._past if one.end_s > begin_s]

    def take(self, record: SlowFound | SlowExplained | SlowEnded, now_s: float) -> None:
        """Note what a record tells of a rank."""
        known = self._now.get(record.rank)
        match record:
            case SlowFound() if known is None:
                self._now[record.rank] = SlowTime(
                    record.attempt,
                    record.rank,
                    record.finding.node,
                    record.section,
                    record.step_factor,
                    now_s,
                    now_s,
                )
            case SlowExplained(cause=cause) if known is not None:
                self._now[record.rank] = replace(known, cause=cause)
            case SlowEnded() if known is not None:
                self._past.append(replace(known, end_s=now_s))
                del self._now[record.rank]
            case _:
                pass

    def end_all(self, now_s: float) -> None:
        """Note that the ranks do not train any more."""
        self._past += [replace(one, end_s=now_s) for one in self._now.values()]
        self._now.clear()

    def until(self, end_s: float) -> tuple[SlowTime, ...]:
        """Return those that have ended, and then those that go on until a moment."""
        return (*self._past, *(replace(one, end_s=end_s) for one in self._now.values()))
