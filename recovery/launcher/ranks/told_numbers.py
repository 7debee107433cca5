"""What a launcher reports of the losses and gradient norms in a progress file."""

import math

from rankmend.progress import RankNumbers
from recovery.messages.exchange import BadNumber, NotFinite, StepNumbers


def numbers_after(told: RankNumbers | None, sent: int) -> tuple[StepNumbers, ...]:
    """Return the numbers of the records after the one that was sent last."""
    if told is None:
        return ()
    return tuple(
        StepNumbers(one.count, one.step, _on_wire(one.loss), _on_wire(one.grad_norm))
        for one in told.records
        if one.count > sent
    )


def first_bad_loss(told: RankNumbers | None) -> BadNumber | None:
    if told is None or told.first_bad is None:
        return None
    return _bad(told.first_bad.loss_step, told.first_bad.loss)


def first_bad_grad_norm(told: RankNumbers | None) -> BadNumber | None:
    if told is None or told.first_bad is None:
        return None
    return _bad(told.first_bad.grad_norm_step, told.first_bad.grad_norm)


def _bad(step: int | None, value: float) -> BadNumber | None:
    # The file is the user's: a finite value there is no bad one.
    told = _on_wire(value)
    return BadNumber(step, told) if step is not None and isinstance(told, NotFinite) else None


def _on_wire(value: float | None) -> float | NotFinite | None:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return NotFinite.NAN
    return NotFinite.INFINITE if value > 0 else NotFinite.MINUS_INFINITE
