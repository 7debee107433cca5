"""Waits, after the last fault, until nothing of a run is open any more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LOOK_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How the jobs stand at one look."""

    journals: int  # jobs that have begun
    open: int  # incidents that have not ended
    unheard: int  # jobs with a dead rank of whose attempt the controller has not made an end


def settle(
    look: Callable[[], Standing],
    now_s: Callable[[], float],
    sleep: Callable[[float], None],
    say: Callable[[str], None],
    *,
    jobs: int,
    calm_s: float,
    within_s: float,
) -> float:
    """Wait until all jobs have begun, no rank is dead unheard and no incident is open; return how long that took.

    For ``calm_s`` without a break: so long a controller takes to take a job over, and a launcher to find it. A look that fails, while the
    database may still be starting, is no break: what opens in between is open at the next one. ``within_s`` where it never is so.
    """
    began_s = now_s()
    calm_since_s: float | None = None
    while (passed_s := now_s() - began_s) < within_s:
        sleep(LOOK_S)
        try:
            seen = look()
        except Exception as error:  # noqa: BLE001 - it may still be starting
            say(f"the database does not answer yet: {error!r:.200}")
            continue
        if seen.open or seen.unheard or seen.journals < jobs:
            calm_since_s = None
        elif calm_since_s is None:
            calm_since_s = passed_s
        elif passed_s - calm_since_s >= calm_s:
            return passed_s
        say(
            f"{passed_s:.0f} s: {seen.open} incidents of {seen.journals} jobs are open, "
            f"deaths in {seen.unheard} are not handled yet"
        )
    return within_s
