"""When bad looks become a finding and when the finding ends: one set of rules for all detectors.

Rules, in this order:
  raise    N of the newest M looks are bad. A look is one answer of the source: reading the same
           answer ten times is one look.
  end      enough good looks in a row, the sticky time since the last bad look is over, and no latch
           holds it. Silence is not a good look: a silent source ends nothing.
  latch    held until the next boot, or across boots until a person releases it.
  damping  a finding raised too often within the flap window stays until a whole window was good.
A `Track` is a value: save it, restore it (`shifted`, `after_reboot`) and continue.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

LOOKS_MAX: Final = 1_000  # kept for one track
FORGET_S: Final = 7 * 86_400.0  # how long an ended finding is remembered, for flaps and reboots


class Latch(Enum):
    NONE = "none"
    BOOT = "boot"  # until the node has booted again
    RELEASE = "release"  # across boots, until a person releases it


@dataclass(frozen=True, slots=True)
class Persistence:
    """How much evidence raises a finding, and how much ends it."""

    bad_looks: int = 1  # N
    of_looks: int = 1  # M
    clear_looks: int = 3
    sticky_s: float = 0.0
    latch: Latch = Latch.NONE
    flap_raises: int = 3  # gpud keeps a flapping port's state, NVSentinel#1488 lost it
    flap_window_s: float = 3_600.0

    def __post_init__(self) -> None:
        if not 1 <= self.bad_looks <= self.of_looks <= LOOKS_MAX:
            raise ValueError(f"{self.bad_looks} bad looks of {self.of_looks}, at most {LOOKS_MAX}")
        if not 1 <= self.clear_looks <= LOOKS_MAX:
            raise ValueError(f"{self.clear_looks} looks to clear, from 1 to {LOOKS_MAX}")
        if not (0 <= self.sticky_s <= FORGET_S and 0 <= self.flap_window_s <= FORGET_S):
            raise ValueError(f"sticky and flap times are from 0 to {FORGET_S:.0f} s")
        if self.flap_raises < 2:
            raise ValueError(f"{self.flap_raises} raises are not flapping: give 2 or more")


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of one subject. Times are monotonic seconds of the current boot."""

    looks: tuple[bool, ...]  # bad or not, newest last
    good_run: int
    last_look_at_s: float
    last_bad_at_s: float
    is_active: bool = False
    since_s: float | None = None  # when the active finding's first bad look was
    is_latched: bool = False
    is_flapping: bool = False
    raises_at_s: tuple[float, ...] = ()  # newest last, within the flap window
    raises: int = 0  # since it was forgotten
    boot: int = 0  # counts boots since it was forgotten
    bad_boot: int | None = None  # the boot of the newest evidence
    bad_boots: int = 0  # boots with enough evidence


def look(track: Track | None, rules: Persistence, *, is_bad: bool, at_s: float) -> Track | None:
    """Return the track after one look at ``at_s``; None is a subject that was never bad.

    A look that is not newer than the last one is a repeat and changes nothing.
    """
    if track is None:
        if not is_bad:
            return None
        track = Track((), 0, at_s, at_s)
    elif at_s <= track.last_look_at_s:
        return track
    elif at_s - track.last_bad_at_s > FORGET_S and not track.is_active:
        return look(None, rules, is_bad=is_bad, at_s=at_s)
    looks = (*track.looks, is_bad)[-rules.of_looks :]
    track = replace(
        track,
        looks=looks,
        good_run=0 if is_bad else min(track.good_run + 1, LOOKS_MAX),
        last_look_at_s=at_s,
        last_bad_at_s=at_s if is_bad else track.last_bad_at_s,
        since_s=_since_s(track, is_bad=is_bad, at_s=at_s),
    )
    if is_bad and sum(looks) >= rules.bad_looks:
        return _raised(track, rules, at_s)
    if track.is_active and _is_over(track, rules, at_s):
        return _ended(track)
    return track


def _since_s(track: Track, *, is_bad: bool, at_s: float) -> float | None:
    if track.is_active:
        return track.since_s
    if is_bad:
        return at_s if track.since_s is None else track.since_s
    return track.since_s if any(track.looks[1:]) else None


def _raised(track: Track, rules: Persistence, at_s: float) -> Track:
    if track.bad_boot != track.boot:
        track = replace(track, bad_boot=track.boot, bad_boots=track.bad_boots + 1)
    if track.is_active:
        return track
    recent = tuple(past for past in track.raises_at_s if at_s - past <= rules.flap_window_s)
    raises_at_s = (*recent, at_s)[-rules.flap_raises :]
    return replace(
        track,
        is_active=True,
        is_latched=rules.latch is not Latch.NONE,
        is_flapping=len(raises_at_s) >= rules.flap_raises,
        raises_at_s=raises_at_s,
        raises=track.raises + 1,
    )


def _is_over(track: Track, rules: Persistence, at_s: float) -> bool:
    good_s = at_s - track.last_bad_at_s
    needed_s = max(rules.sticky_s, rules.flap_window_s if track.is_flapping else 0.0)
    return not track.is_latched and track.good_run >= rules.clear_looks and good_s >= needed_s


def _ended(track: Track) -> Track:
    raises_at_s = () if track.is_flapping else track.raises_at_s
    return replace(
        track,
        looks=(),
        is_active=False,
        since_s=None,
        is_latched=False,
        is_flapping=False,
        raises_at_s=raises_at_s,
    )


def vanished(track: Track, now_s: float, absent_s: float) -> Track:
    """Return the track of a subject that its working source no longer reports.

    Absence is neither good nor bad; after ``absent_s`` the finding ends.
    """
    if track.is_active and not track.is_latched and now_s - track.last_look_at_s >= absent_s:
        return _ended(track)
    return track


def released(track: Track) -> Track:
    """Return the track after a person released its latch: from now on, good looks end it."""
    return replace(track, is_latched=False)


def after_reboot(track: Track, rules: Persistence) -> Track:
    """Return the track as it stands at the start of the next boot.

    A boot proves nothing by itself: an active finding stays until good looks end it.
    """
    return replace(
        track,
        looks=(),
        good_run=0,
        boot=track.boot + 1,
        is_latched=track.is_latched and rules.latch is Latch.RELEASE,
        since_s=track.since_s if track.is_active else None,
    )


def shifted(track: Track, by_s: float) -> Track:
    """Return the track with all times shifted to another boot's monotonic clock."""
    return replace(
        track,
        last_look_at_s=track.last_look_at_s + by_s,
        last_bad_at_s=track.last_bad_at_s + by_s,
        since_s=None if track.since_s is None else track.since_s + by_s,
        raises_at_s=tuple(past + by_s for past in track.raises_at_s),
    )


def is_forgotten(track: Track, now_s: float) -> bool:
    """Return whether nothing about this subject needs to be kept."""
    return not track.is_active and now_s - track.last_bad_at_s > FORGET_S
