"""How long a CUDA stream stands still where a rank waits for others: pairs of events around the place.

The events are read once the stream has passed them, and never waited for. The host is usually far ahead of
the device, by a whole step and all collectives in it; so many pairs are kept. What a collective hid until the wait for it
`rankmend.hook.stream_flights` finds by the same events.
"""

from collections import deque
from time import monotonic_ns

from rankmend.hook.own_errors import OWN_ERRORS

PAIRS_MAX = 4096  # that the stream hasn't passed; further waits are not timed until it has
_STREAMS_MAX = 256


class StreamWaits:
    """Times waits on the current stream.

    Where the host stood still in the same place (a barrier, a backend that blocks, the first collective, which
    connects the ranks), the stream did too, unless it had work: that time is in the section already, and counts once.
    """

    def __init__(self, cuda, find_stream=None, now_ns=monotonic_ns):
        """``find_stream`` returns the current stream, quicker than ``cuda`` itself finds it."""
        self._cuda = cuda
        self._find_stream = find_stream
        self._now_ns = now_ns
        self._is_ready = False
        self._free = []
        self._waiting = deque()
        self._issues = 0  # of these, with the issue of a collective
        self._own = None  # the stream on which the rank computes
        self.flights = (
            None  # a StreamFlights, which is told of each wait that the stream has passed
        )

    def __len__(self):
        """Return how many pairs wait for the stream."""
        return len(self._waiting)

    def is_on(self):
        cuda = self._cuda
        try:
            if not self._is_ready:
                self._is_ready = cuda.is_initialized()
            return self._is_ready and not cuda.is_current_stream_capturing()
        except OWN_ERRORS:  # a device that has failed answers every call with its error
            return False

    def mark_own(self):
        """Take the current stream for the one on which the rank computes."""
        try:
            if self._is_ready and self._find_stream is not None:
                self._own = self._find_stream()
        except OWN_ERRORS:
            pass

    def is_beside(self):
        """Return whether the current stream is known for another one than that on which the rank computes."""
        try:
            return self._own is not None and self._find_stream() is not self._own
        except OWN_ERRORS:
            return False

    def begin(self, writer):
        """Return an event recorded now and the time, or None where that can't be."""
        try:
            if len(self._waiting) >= PAIRS_MAX:
                self._read(writer)
                if len(self._waiting) >= PAIRS_MAX:
                    return None
            return self.record(), self._now_ns()
        except OWN_ERRORS:
            return None

    def end(self, start, writer, issue=None):
        """Record the end, and add to the rank's waiting what the stream has passed since.

        ``issue``: the event at the issue of the collective that was waited for.
        """
        try:
            event, began_ns = start
            self._waiting.append((event, self.record(), self._now_ns() - began_ns, issue))
            if issue is not None:
                self._issues += 1
            self._read(writer)
        except OWN_ERRORS:
            pass

    def _read(self, writer):
        waiting = self._waiting
        while waiting and waiting[0][1].query():
            first, last, host_ns, issue = waiting.popleft()
            flights = self.flights
            # A collective that is issued from now on was not in flight here, on no stream: nothing to subtract from it.
            is_beside = self._issues or (flights is not None and len(flights))
            if issue is not None:
                self._issues -= 1
            passed_ns = int(first.elapsed_time(last) * 1e6)
            stood_ns = max(passed_ns - host_ns, 0)
            writer.add_wait(stood_ns)
            if is_beside:
                self._free += flights.read(issue, first, last, passed_ns, stood_ns, writer)
            else:
                self._free += (first, last)

    def give_back(self, event):
        """Take an event that nobody reads any more."""
        self._free.append(event)

    def record(self):
        """Return an event recorded now on the current stream. Raises what the device says."""
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        if self._find_stream is None:
            event.record()
        else:
            event.record(self._find_stream())
        return event


def make_find_stream(torch):
    """Return a function that finds the current stream, or None where this PyTorch has no quick way.

    ``torch.cuda.current_stream`` makes a new object at each call, in several layers of Python: most of what
    recording an event costs. Streams are known by what C++ says of them, and kept.
    """
    inner = getattr(torch, "_C", None)
    ask = getattr(inner, "_cuda_getCurrentStream", None)
    device = getattr(inner, "_cuda_getDevice", None)
    if ask is None or device is None:
        return None
    known = {}

    def find_stream():
        key = ask(device())
        stream = known.get(key)
        if stream is None:
            if len(known) >= _STREAMS_MAX:
                known.clear()
            stream = known[key] = torch.cuda.current_stream()
        return stream

    return find_stream


OWN_CODE = (
    StreamWaits.is_on,
    StreamWaits.mark_own,
    StreamWaits.is_beside,
    StreamWaits.begin,
    StreamWaits.end,
    StreamWaits._read,
    StreamWaits.give_back,
    StreamWaits.record,
    make_find_stream,
)
