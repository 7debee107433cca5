"""Tells how much communication ran behind a rank's own work, where PyTorch shows it.

Three sources, each with what it can prove:
  asynchronous collectives    from their issue to the look at which they are first seen complete, at the
                              latest when the script waits for them. One that is not complete at the wait
                              was in flight all the time. One that is was so at least until the look before:
                              looks are at other collectives and at each backward. Of gloo only: of others
                              the host does not see the end of what a device does. It then says that there
                              were some, but for those that the script waits for at once.
  the same of NCCL            by events on the rank's stream: `rankmend.hook.stream_flights`
  DistributedDataParallel     issues its collectives in C++. PyTorch samples iterations (each hundredth) and
                              tells the time from the first bucket to the end, and how much of it lay before
                              the end of backward's compute. The network may have rested in between: no more
                              than that was hidden, perhaps less.
All times are those of the rank's own work (`Writer.own_ns`): what it stands still for is not hidden.
Nothing is held: neither a collective nor a model lives longer because of this.
"""

from _thread import get_ident
from _weakref import ref
from time import monotonic_ns

import rankmend
from rankmend.hook import layout
from rankmend.hook.own_errors import OWN_ERRORS
from rankmend.hook.process_groups import BY_HOST, BY_STREAM, BY_STREAM_OF_GPU, is_on_gpu
from rankmend.hook.stream_flights import StreamFlights

_FLYING_MAX = 64  # collectives in flight, or intervals not added up; then they are settled
_SETTLE_NS = 10**6  # of own work at least between two times that so many in flight are looked at
_AT_ONCE_NS = 10**6  # of own work between issue and wait: so little can't hide anything
_TELL_NS = 10**8  # between two times that collectives are told
_LOOK_NS = 10**9  # between two reads of DDP's statistics, of 50 us
_WARM_UP = 2  # iterations before DDP has its final buckets
_NO_REPLICA = lambda: None  # noqa: E731


class Hidden:
    """What is known of one rank; for the thread that trains."""

    def __init__(self, events=None):
        """``events``: the StreamWaits of the rank's device."""
        self._flying = {}  # by id: [reference, issued, newest look at which it was in flight]
        self._least, self._most = [], []  # intervals that are over
        self._works = [0, 0, 0]  # timed, nanoseconds at least and at most
        self._told_works = []
        self.is_joining = False  # what begins now is part of one collective, which ends the joining
        self._events = events
        self.flights = None
        if events is not None:
            self.flights = events.flights = StreamFlights(events, self._works)
        self._replicas = [0, 0, 0]  # samples, window, overlap
        self._tell_at = self._settled_at = 0
        self._unseen = None  # id and issue of a collective whose end the host won't see
        self.find_replica = None  # has DDP's models found
        self._replica = _NO_REPLICA
        self._iteration = -1
        self._look_at = 0

    # Asynchronous collectives.

    def began(self, work, writer, seen_by, arguments, is_asynchronous):
        """Take note of a collective that has begun, seen by whom `process_groups` says.

        ``arguments``: of the call; ``is_asynchronous``: None if PyTorch does not say.
        """
        if self.is_joining:
            return
        if seen_by != BY_STREAM and not (seen_by == BY_STREAM_OF_GPU and is_on_gpu(arguments)):
            self.issued(work, writer, seen_by == BY_HOST)
        elif is_asynchronous:
            self.flights.issued(work, writer)
        elif is_asynchronous is None:
            self.issued(work, writer, False)
        elif (
            self._events.is_beside()
        ):  # a framework's own stream, for which the rank's may wait later
            writer.mark_fact(layout.HAS_UNTIMED)
        else:  # hides nothing: the stream waits right there
            self._works[0] += 1

    def issued(self, work, writer, is_seen):
        """Take note of a collective that has begun; ``is_seen``: the host will see when it is complete."""
        try:
            at = writer.own_ns()
            flying = self._flying
            if not is_seen:
                if self._unseen is not None:  # one before it is still in flight
                    writer.mark_fact(layout.HAS_UNTIMED)
                self._unseen = id(work), at
                return
            if flying:
                self._look(at)
                if len(flying) >= _FLYING_MAX and at - self._settled_at >= _SETTLE_NS:
                    self._settle(at)
                if len(flying) >= _FLYING_MAX:
                    writer.mark_fact(layout.HAS_UNTIMED)
                    return
            flying[id(work)] = [ref(work), at, at]
        except OWN_ERRORS:
            pass

    def waits(self, work, writer):
        """Take note that the rank is about to wait for a collective."""
        try:
            if self._unseen is not None:
                (key, at), self._unseen = self._unseen, None
                if key != id(work) or writer.own_ns() - at > _AT_ONCE_NS:
                    writer.mark_fact(layout.HAS_UNTIMED)
            flying = self._flying
            if not flying and not self._most:
                return
            at = writer.own_ns()
            entry = flying.pop(id(work), None)
            if entry is not None and entry[0]() is work:
                least = entry[2] if work.is_completed() else at
                if not flying and not self._most:  # the only one: nothing to add up
                    works = self._works
                    works[0] += 1
                    works[1] += least - entry[1]
                    works[2] += at - entry[1]
                else:
                    self._end(entry, at, least)
            if flying:
                self._look(at)
            if self._most and (not flying or len(self._most) >= _FLYING_MAX):
                self._settle(at)
            self.tell_when_due(writer)
        except OWN_ERRORS:
            pass

    def tell_when_due(self, writer):
        """Tell of collectives that have been timed since the last time, if that was long enough ago."""
        if self._works != self._told_works:
            now = monotonic_ns()
            if now >= self._tell_at:
                self._tell_at = now + _TELL_NS
                self._tell(writer)

    def look(self, writer):
        """See what is complete, at a moment between the issue of collectives and the wait for them."""
        if self._flying:
            try:
                self._look(writer.own_ns())
            except OWN_ERRORS:
                pass

    def _look(self, at):
        """See what is complete, from the oldest collective on: they mostly end in the order of their issue."""
        flying = self._flying
        while flying:
            key = next(iter(flying))
            entry = flying[key]
            work = entry[0]()
            if work is not None and not work.is_completed():
                entry[2] = at
                return
            del flying[key]
            self._end(entry, at, entry[2])

    def _end(self, entry, at, least):
        self._works[0] += 1
        self._least.append((entry[1], least))
        self._most.append((entry[1], at))

    def _settle(self, at):
        """Add up the intervals until now, those of what is still in flight included."""
        self._settled_at = at
        for key, entry in list(self._flying.items()):
            work = entry[0]()
            if work is None or work.is_completed():
                del self._flying[key]
                self._end(entry, at, entry[2])
            else:
                self._least.append((entry[1], at))
                self._most.append((entry[1], at))
                entry[1] = entry[2] = at
        self._works[1] += length_of(self._least)
        self._works[2] += length_of(self._most)
        self._least.clear()
        self._most.clear()

    # DistributedDataParallel.

    def follow(self, replica, writer):
        """Read the statistics of this model from now on; None: of several models, which are not told apart."""
        try:
            self._iteration = -1
            self._replica = _NO_REPLICA if replica is None else ref(replica)
            writer.mark_fact(layout.HAS_UNTIMED if replica is None else layout.HAS_REPLICA)
        except OWN_ERRORS:
            pass

    def look_at_replica(self, writer):
        """Take in what DDP has sampled since the look before, once a second at most."""
        now = monotonic_ns()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_NS
        replica = self._replica()
        try:
            if replica is None:
                if self._replica is not _NO_REPLICA and self.find_replica is not None:
                    self._replica = _NO_REPLICA  # the script has made another one, perhaps
                    self.find_replica()
                return
            reported = replica._get_ddp_logging_data()
            iteration = reported["iteration"]
            if iteration in (self._iteration, *range(_WARM_UP + 1)):
                return
            window, overlap = (
                reported["backward_comm_time"],
                reported["backward_compute_comm_overlap_time"],
            )
            if not 0 <= overlap <= window or not window:
                return
            self._iteration = iteration
            samples, all_window, all_overlap = self._replicas
            self._replicas = [samples + 1, all_window + int(window), all_overlap + int(overlap)]
            self._tell(writer)
        except OWN_ERRORS:
            pass

    def _tell(self, writer):
        self._told_works = self._works[:]
        writer.tell_hidden(*self._works, *self._replicas)


class ReplicaFinder:
    """Finds the script's DistributedDataParallel: wraps what it calls before each forward, until it does so again."""

    _NAME = "_pre_forward"

    def __init__(self, replica, hidden, replace):
        """``replica``: the class; ``replace``: wraps a method of it."""
        self._replica = replica
        self._replace = replace
        self._hidden = hidden
        self._original = vars(replica).get(self._NAME)
        self._first = _NO_REPLICA
        hidden.find_replica = self.begin

    def begin(self):
        """Look for the model that is called next."""
        if self._original is not None:
            self._first = _NO_REPLICA
            self._replace(self._replica, self._NAME, make_finding, self)

    def found(self, replica):
        """Take note that this model is called: the first one, if no other is called before it is called again."""
        if not isinstance(replica, self._replica):
            return
        if self._first() is None:
            self._first = ref(replica)
            return
        setattr(self._replica, self._NAME, self._original)
        writer = rankmend._writer
        if writer is not None:
            self._hidden.follow(replica if self._first() is replica else None, writer)


def make_finding(original, finder):
    """Return what tells ``finder`` of the model that is called."""

    def finding(*arguments, **named):
        if arguments:
            finder.found(arguments[0])
        return original(*arguments, **named)  # rankmend passes this on

    return finding


def make_joining(original, trainer, hidden):
    """Return what begins to join calls into one collective, as PyTorch's coalescing does."""

    def joining(*arguments, **named):
        if get_ident() == trainer:
            hidden.is_joining = True
        return original(*arguments, **named)  # rankmend passes this on

    return joining


def make_joined(original, trainer, groups, hidden):
    """Return what ends it and hands the collective over."""

    def joined(*arguments, **named):
        writer = rankmend._writer
        if writer is None or get_ident() != trainer:
            return original(*arguments, **named)  # rankmend passes this on
        hidden.is_joining = False
        work = original(*arguments, **named)  # rankmend passes this on
        if work is not None and arguments:
            if groups.of(arguments[0])[1] in (BY_STREAM, BY_STREAM_OF_GPU):
                hidden.flights.issued(work, writer)
            else:
                hidden.issued(work, writer, False)
        return work

    return joined


def length_of(intervals):
    """Return what intervals cover together; ones that overlap count once."""
    covered, end = 0, None
    for begin, last in sorted(intervals):
        if end is None or begin > end:
            covered += last - begin
            end = last
        elif last > end:
            covered += last - end
            end = last
    return covered
