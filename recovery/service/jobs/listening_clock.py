"""The clock of a service's controllers: it runs only while the service listens.

A controller that is short of its processor finds reports late: they lie unread in sockets, or in the
queue of the thread that decides. Held against the nodes, that time makes all of them silent at once.
So silence, stand-stills and timeouts are counted in *listened* seconds, which are never more than
those of a watch on the wall:

- the event loop beats; what passes between two beats beyond `COUNTED_S` is not counted;
- while the queue is full, and reports are answered 503, nothing is counted;
- while reports wait for the deciding thread its time is that at which the oldest of them came in: up to then,
  and no further, everybody was heard.

Each subject has such a clock for its own jobs: while reports beyond its share of the queue are refused, or its reports wait, its time stands
still and nobody else's does. A subject that floods the queue delays its own jobs only.

A proof that counts time (docs/operate/fencing.md) takes no shorter for it, only longer.
"""

import threading
import weakref
from typing import Final

from rankmend.clock import Clock

BEAT_S: Final = 0.2
# Of the time between two beats: a report needs 3 to 5 rounds of the loop (head, handler, body, answer),
# so that with rounds of any length one comes through in little more than a counted second.
COUNTED_S: Final = 0.25


class Hearing:
    """`now_s` and `hear_through` are for the deciding thread, all else for any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: weakref.WeakValueDictionary[str, SubjectHearing] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._beat_at_s: float | None = None  # None: nobody beats, and all time counts
        self._listened_s = 0.0  # at that beat
        self._unheard_s = 0.0
        self._is_deaf = False
        self._through_s: float | None = None
        self._newest_s = 0.0

    def now_s(self) -> float:
        """Return the time up to which all reports were read; it never decreases."""
        at_s = self.listened_s() if self._through_s is None else self._through_s
        self._newest_s = max(at_s, self._newest_s)
        return self._newest_s

    def unix_s(self) -> float:
        return self._clock.unix_s()

    def of(self, subject: str) -> "SubjectHearing":
        """Return the clock of a subject's jobs. It lasts as long as somebody holds it: a job, or the queue of reports."""
        with self._lock:
            found = self._of.get(subject)
            if found is None:
                found = self._of[subject] = SubjectHearing(self)
            return found

    def subjects(self) -> "list[SubjectHearing]":
        """Return the clocks of all subjects that have jobs or reports here."""
        with self._lock:
            return list(self._of.values())

    def listened_s(self) -> float:
        """Return the listened seconds now, with which a report that comes in is dated."""
        with self._lock:
            now_s = self._clock.now_s()
            return now_s if self._beat_at_s is None else self._listened_s + self._counted_s(now_s)

    def _counted_s(self, now_s: float) -> float:
        assert self._beat_at_s is not None, "called after the first beat"
        return 0.0 if self._is_deaf else min(max(0.0, now_s - self._beat_at_s), COUNTED_S)

    @property
    def unheard_s(self) -> float:
        """Return how much time was not counted since the start."""
        return self._unheard_s

    def beat(self) -> None:
        """Note that the event loop goes round. Called each `BEAT_S`, as far as that is possible."""
        with self._lock:
            self._beat()

    def _beat(self) -> None:
        now_s = self._clock.now_s()
        if self._beat_at_s is None:
            self._listened_s = now_s
        else:
            counted_s = self._counted_s(now_s)
            self._listened_s += counted_s
            self._unheard_s += max(0.0, now_s - self._beat_at_s - counted_s)
        self._beat_at_s = now_s

    def refuse(self) -> None:
        """Note that a report was turned away since there is no room for it."""
        with self._lock:
            if self._beat_at_s is not None and not self._is_deaf:
                self._beat()
                self._is_deaf = True

    def admit(self) -> None:
        """Note that there is room for reports."""
        if self._is_deaf:
            with self._lock:
                self._beat()
                self._is_deaf = False

    def hear_through(self, listened_s: float) -> None:
        """Note that all reports are taken in that came before; those that came later wait."""
        self._through_s = listened_s


class SubjectHearing:
    """The clock of one subject's jobs. `now_s` and `hear_through` are for the deciding thread, all else for any."""

    def __init__(self, all_: Hearing) -> None:
        self._all = all_
        self._lock = threading.Lock()
        self._refused_s = 0.0  # listened seconds in which reports of the subject were refused
        self._refused_since_s: float | None = None  # None: its reports are admitted
        self._through_s: float | None = None
        self._newest_s = 0.0

    def now_s(self) -> float:
        """Return the time up to which all of the subject's reports were read; it never decreases."""
        at_s = self.listened_s() if self._through_s is None else self._through_s
        self._newest_s = max(at_s, self._newest_s)
        return self._newest_s

    def unix_s(self) -> float:
        return self._all.unix_s()

    def listened_s(self) -> float:
        """Return the listened seconds now, with which a report of the subject is dated."""
        with self._lock:
            since_s = self._refused_since_s
            return (self._all.listened_s() if since_s is None else since_s) - self._refused_s

    def refuse(self) -> None:
        """Record that a report was refused since the subject's share of the queue is used up."""
        with self._lock:
            if self._refused_since_s is None:
                self._refused_since_s = self._all.listened_s()

    def admit(self) -> None:
        """Record that the subject's share has room again."""
        with self._lock:
            if self._refused_since_s is not None:
                self._refused_s += self._all.listened_s() - self._refused_since_s
                self._refused_since_s = None

    def hear_through(self, listened_s: float) -> None:
        """Record that all of the subject's reports before this time are processed; later ones wait."""
        self._through_s = listened_s
