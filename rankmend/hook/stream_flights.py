"""How long collectives of NCCL are in flight beside what the rank's stream does: an event at the issue, two around the wait.

The host never sees when a device has done a collective, and nothing here asks it to wait. What a stream shows:
  it stands still at the wait   the collective was in flight all the time from its issue on
  it does not                   the collective ended somewhere between the issue and the wait, or was never hidden
So the first gives a least and a most that are equal, the second a most alone. The issue is dated by the stream on which
the script issues: NCCL's own stream follows that one. What the stream stands still for meanwhile is not hidden, and of
several in flight at once the time counts once. A collective that nobody waits for, or while a graph is captured, is untimed.
Nothing is held: a collective lives no longer because of this.
"""

from _weakref import ref

from rankmend.hook import layout
from rankmend.hook.own_errors import OWN_ERRORS

FLYING_MAX = 1024  # issued, and not waited for yet; further ones are not timed
_SWEEP_AT = 64  # in flight: then those are looked for that are gone
_STOOD_NS = 10**4  # between two events with nothing between them lie up to 5 us
_BASE_MS_MAX = 8000.0  # elapsed_time is a float of 32 bits: up to here it tells microseconds
_TAKEN_MAX = 64  # stretches that are remembered


class StreamFlights:
    """What is known of one rank's device; for the thread that trains."""

    def __init__(self, events, works):
        """``events``: the StreamWaits of the rank; ``works``: collectives timed, nanoseconds at least and at most."""
        self._events = events
        self._works = works
        self._flying = {}  # by id: reference, event at the issue
        self._sweep_at = _SWEEP_AT
        self._least, self._most = Stretches(), Stretches()
        self._base = None  # the event from which all others are dated
        self._base_ns = 0

    def __len__(self):
        """Return how many collectives have not been waited for."""
        return len(self._flying)

    def issued(self, work, writer):
        """Take note of a collective that the current stream has just handed over."""
        try:
            flying = self._flying
            if len(flying) >= self._sweep_at:
                self._sweep(writer)
            event = None
            if len(flying) < FLYING_MAX and self._events.is_on():
                if (
                    self._base is None
                ):  # one of its own: it is replaced while collectives are in flight
                    self._base = self._events.record()
                event = self._events.record()
            if event is None:
                writer.mark_fact(layout.HAS_UNTIMED)
                return
            key = id(work)
            if key in flying:  # nobody waited for the one that had this id before
                self.lose(flying.pop(key)[1], writer)
            flying[key] = ref(work), event
        except OWN_ERRORS:
            writer.mark_fact(layout.HAS_UNTIMED)

    def waits(self, work, writer):
        """Return the event at the issue of this collective, now that the rank waits for it, or None."""
        if not self._flying:
            return None
        found = self._flying.pop(id(work), None)
        if found is None:
            return None
        if found[0]() is work:
            return found[1]
        self.lose(found[1], writer)  # of another one, which had the same id
        return None

    def lose(self, event, writer):
        """Give up a collective whose wait can't be timed."""
        self._events.give_back(event)
        writer.mark_fact(layout.HAS_UNTIMED)

    def read(self, issue, first, last, passed_ns, stood_ns, writer):
        """Take in a wait that the stream has passed, and return the events that are free again.

        ``issue``: of the collective, or None where the wait is for something else. ``passed_ns``: between the events
        around the wait; ``stood_ns``: of it, what the host has not spent there.
        """
        if self._base is None:  # no collective was issued yet
            return first, last
        try:
            base_ms = self._base.elapsed_time(last)
            end_ns = self._base_ns + int(base_ms * 1e6)
            begin_ns = end_ns - passed_ns
            if issue is not None:
                issue_ns = begin_ns - int(issue.elapsed_time(first) * 1e6)
                self._add(issue_ns, begin_ns, stood_ns > _STOOD_NS)
            self._least.take(begin_ns, end_ns)
            self._most.take(begin_ns, end_ns)
            free = [first, last]
            if issue is not None:
                free.append(issue)
            if base_ms > _BASE_MS_MAX:
                free[1], self._base, self._base_ns = self._base, last, end_ns
            return free
        except OWN_ERRORS:
            writer.mark_fact(layout.HAS_UNTIMED)
            return first, last

    def _add(self, issue_ns, begin_ns, is_measured):
        works = self._works
        works[0] += 1
        works[2] += self._most.take(issue_ns, begin_ns)
        if is_measured:
            works[1] = min(works[1] + self._least.take(issue_ns, begin_ns), works[2])

    def _sweep(self, writer):
        """Drop what is gone without a wait."""
        gone = [key for key, found in self._flying.items() if found[0]() is None]
        for key in gone:
            self.lose(self._flying.pop(key)[1], writer)
        self._sweep_at = min(max(_SWEEP_AT, 2 * len(self._flying)), FLYING_MAX)


class Stretches:
    """Stretches of one clock, each instant of which counts once."""

    def __init__(self):
        self._taken = []  # apart from each other, in order
        self._floor = None  # what lies before is forgotten, and taken

    def take(self, begin, end):
        """Take a stretch, and return how much of it was free."""
        if self._floor is not None and begin < self._floor:
            begin = self._floor
        if end <= begin:
            return 0
        stretches = self._taken
        place = len(stretches)
        while place and stretches[place - 1][1] >= begin:
            place -= 1
        behind, free = place, end - begin
        low, high = begin, end
        while behind < len(stretches) and stretches[behind][0] <= end:
            first, last = stretches[behind]
            free -= max(0, min(end, last) - max(begin, first))
            low, high = min(low, first), max(high, last)
            behind += 1
        stretches[place:behind] = [(low, high)]
        if len(stretches) > _TAKEN_MAX:
            self._floor = stretches.pop(0)[1]
        return free


OWN_CODE = (
    StreamFlights.issued,
    StreamFlights.waits,
    StreamFlights.lose,
    StreamFlights.read,
    StreamFlights._add,
    StreamFlights._sweep,
    Stretches.take,
)
