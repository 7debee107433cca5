"""Whether an attempt trains ahead or repeats steps, and from when on. Pure.

An attempt repeats steps until it makes one that no earlier attempt has made. Which of its records shows that depends
on what is known of the attempts before: the highest step, steps from the same checkpoint, or only for how long they trained.
"""

from dataclasses import dataclass, replace

from recovery.accounting.goodput.timeline import Timeline, TimePart
from recovery.journal.attempt_records import AttemptVerified, Milestone, RelativeMilestone


@dataclass(frozen=True, slots=True)
class _Mode:
    """What training is from a moment on, until the next mode."""

    from_s: float
    part: TimePart
    incident_id: str = ""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class KnownBefore:
    """What is known of the attempts before one that begins."""

    highest: int | None = None  # steps that an attempt before had made
    reach: int | None = None  # the same of relative steps from this checkpoint
    trained_s: float = 0.0  # since the checkpoint that it begins from
    has_trained: bool = False


@dataclass(slots=True)
class _Attempt:
    """What is known of the newest attempt."""

    begin_s: float
    incident_id: str  # that it was started for; empty: none
    before: KnownBefore
    is_verified: bool = False
    passed_s: float | None = None  # it passed the highest step from before


class TrainingModes:
    def __init__(self) -> None:
        self._attempt: _Attempt | None = None
        self._modes: list[_Mode] = []

    @property
    def has_trained(self) -> bool:
        """Return whether the newest attempt has trained, or one before on whose steps it goes on."""
        attempt = self._attempt
        return attempt is not None and (attempt.is_verified or attempt.before.has_trained)

    @property
    def waits_for_verified(self) -> bool:
        return self._attempt is not None and not self._attempt.is_verified

    def begin(self, begin_s: float, incident_id: str, before: KnownBefore) -> None:
        """Note that an attempt was ordered."""
        self._attempt = _Attempt(begin_s, incident_id, before)
        self._modes.append(_Mode(begin_s, TimePart.UNDIVIDED))

    def verify(self, now_s: float, record: AttemptVerified) -> float:
        """Note that every rank trains; return when the slowest ended its first step."""
        attempt = self._attempt
        assert attempt is not None, "called for an attempt that waits for it"
        attempt.is_verified = True
        first_s = max(attempt.begin_s, now_s - (record.first_step_age_s or 0.0))
        self._modes += _modes_from(first_s, attempt, record)
        return first_s

    @property
    def highest_before(self) -> tuple[int | None, int | None]:
        """Return the step, and the relative one, beyond which the attempt repeats no more; None: none is awaited."""
        attempt = self._attempt
        if attempt is None or attempt.passed_s is not None:
            return None, None
        return attempt.before.highest, attempt.before.reach

    def shows_pass(self, record: Milestone | RelativeMilestone) -> bool:
        """Return whether a record is the first that shows a step which no earlier attempt had made."""
        highest, reach = self.highest_before
        if isinstance(record, Milestone):
            return highest is not None and record.step > highest
        return reach is not None and record.steps > reach

    def pass_before(self, at_s: float) -> None:
        """Note that the attempt made its first step beyond those of earlier attempts."""
        attempt = self._attempt
        if attempt is None:
            return
        attempt.passed_s = at_s = max(at_s, attempt.begin_s)
        if attempt.is_verified:
            self._modes = [mode for mode in self._modes if mode.from_s <= at_s]
            self._modes.append(_Mode(at_s, TimePart.PRODUCTIVE))

    def forget_before(self, begin_s: float) -> None:
        """Forget what training was before a moment."""
        later = [place for place, mode in enumerate(self._modes) if mode.from_s > begin_s]
        first = later[0] if later else len(self._modes)
        self._modes = self._modes[max(0, first - 1) :]

    def paint(self, line: Timeline) -> None:
        """Give the time of training its parts, as far as is known now."""
        ends = [mode.from_s for mode in self._modes[1:]] + [line.end_s]
        for mode, until_s in zip(self._modes, ends, strict=False):
            if mode.part is not TimePart.UNDIVIDED:
                line.paint(
                    mode.from_s,
                    until_s,
                    mode.part,
                    only={TimePart.UNDIVIDED},
                    incident_id=mode.incident_id,
                    is_estimated=mode.is_estimated,
                )


def _modes_from(first_s: float, attempt: _Attempt, record: AttemptVerified) -> list[_Mode]:
    """Return what training is from the first step on, as far as is known now."""
    new = _Mode(first_s, TimePart.PRODUCTIVE)
    again = _Mode(first_s, TimePart.RECOMPUTED, attempt.incident_id)
    before, first_step = attempt.before, record.first_step
    modes: list[_Mode] = []  # nothing tells whether its steps are new
    if attempt.passed_s is not None:
        modes = [again, _Mode(max(first_s, attempt.passed_s), TimePart.PRODUCTIVE)]
    elif record.telling_ranks and not before.has_trained:
        modes = [new]
    elif record.telling_ranks and record.is_comparable:
        highest = before.highest
        is_new = highest is None or (first_step is not None and first_step > highest)
        modes = [new if is_new else again]
    elif record.telling_ranks and before.reach is not None:
        modes = [again]
    elif record.telling_ranks and before.trained_s > 0:
        passed_s = first_s + before.trained_s
        modes = [
            replace(again, is_estimated=True),
            _Mode(passed_s, TimePart.PRODUCTIVE, is_estimated=True),
        ]
    return modes
