"""Times what a rank's other threads do beside its training: `rankmend.background("io")`.

Of each kind the time counts once however many threads are at it, and only while the thread that trains does its own
work: while that one waits for a batch, say, the reading is not hidden. For any thread; the only lock of the hook, which
one thread may take again in a signal handler.
"""

from _thread import RLock
from time import monotonic_ns

_KINDS = ("io", "communication")  # as in layout.BACKGROUND


class Background:
    def __init__(self, writer):
        self._writer = writer
        self._lock = RLock()
        self._told = [0, 0] * len(_KINDS)  # begun and nanoseconds of each kind
        self.sections = {name: _Section(self, 2 * place) for place, name in enumerate(_KINDS)}

    def forget(self):
        """Begin anew in a forked child, where a thread that held the lock is gone."""
        self._lock = RLock()
        for section in self.sections.values():
            section.inside = 0

    def begin(self, section):
        with self._lock:
            if not section.inside:
                section.since_ns, section.own_ns = monotonic_ns(), self._writer.own_ns_beside()
            section.inside += 1
            self._told[section.place] += 1

    def end(self, section):
        with self._lock:
            if not section.inside:  # begun before the fork
                return
            section.inside -= 1
            if section.inside:
                return
            passed_ns = monotonic_ns() - section.since_ns
            own_ns = self._writer.own_ns_beside() - section.own_ns
            self._told[section.place + 1] += min(max(0, own_ns), passed_ns)
            self._writer.tell_background(*self._told)


class _Section:
    __slots__ = ("_all", "inside", "own_ns", "place", "since_ns")

    def __init__(self, background, place):
        self._all = background
        self.place = place
        self.inside = 0  # threads in it
        self.since_ns = self.own_ns = 0

    def __enter__(self):
        self._all.begin(self)

    def __exit__(self, *_error):
        self._all.end(self)
