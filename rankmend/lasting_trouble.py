"""Logs a trouble that a loop meets again and again: as it begins, once a minute with a count, and as it ends.

A loop that turns once a second would else write 3,600 lines an hour that differ in nothing but their time.
"""

import logging
from typing import Final

from rankmend.clock import Clock

REPEAT_S: Final = 60.0  # between two lines about one trouble


class LastingTrouble:
    """One kind of trouble of one loop. For one thread."""

    def __init__(
        self, log: logging.Logger, text: str, clock: Clock, *, level: int = logging.WARNING
    ) -> None:
        """``text``: the constant message of its lines."""
        self._log = log
        self._text = text
        self._clock = clock
        self._level = level
        self._since_s: float | None = None  # None: there is none
        self._logged_at_s = 0.0
        self._times = 0

    def note(self, error: object) -> None:
        """Note that the trouble was met, and log it unless it was logged within the last minute."""
        now_s = self._clock.now_s()
        self._times += 1
        fields: dict[str, object] = {"error": str(error) or type(error).__name__}
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._logged_at_s < REPEAT_S:
            return
        else:
            fields |= {"times": self._times, "for_s": round(now_s - self._since_s)}
        self._logged_at_s = now_s
        self._log.log(self._level, self._text, extra=fields)

    def end(self) -> None:
        """Note that all went well, and log the end of a trouble that was logged."""
        if self._since_s is None:
            return
        fields = {"times": self._times, "lasted_s": round(self._clock.now_s() - self._since_s)}
        self._since_s, self._times = None, 0
        self._log.info("over: %s", self._text, extra=fields)
