"""What is known of PyTorch's process groups: their timeouts, who sees the end of their collectives, and where this rank
stands in the model's layout.
"""

from rankmend.hook.model_place import find_place
from rankmend.hook.own_errors import OWN_ERRORS

_GROUPS_MAX = 4096  # looks at timeouts that are kept, by the ids of process groups
_TIMEOUT_S_MAX = 10**9  # "never", as some scripts set it, still fits

BY_NOBODY = 0  # who sees when a collective of a group is complete
BY_HOST = 1  # `is_completed` tells it when data has arrived
BY_STREAM = 2  # the stream that waits stands still until then
BY_STREAM_OF_GPU = 3  # the same for tensors on a GPU; of others nobody
_HOST_BACKENDS = ("gloo",)
_STREAM_BACKENDS = ("nccl",)


class Groups:
    """The process groups by their timeouts, which end a collective that not every rank has entered, and their backends."""

    def __init__(self):
        self._known = {}  # by id: holding a group would keep it from being destroyed
        self._looks = 0
        self.news = None  # a place as in layout.PLACE that nobody has been told

    def of(self, group):
        """Return the timeout in nanoseconds, or 0 if PyTorch does not show it, and who sees ends."""
        self._looks += 1
        if self._looks >= _GROUPS_MAX:  # an id may be another group's by now
            self._looks = 0
            self._known.clear()
        key = id(group)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = read_timeout(group), seen_by(group)
            self.news = find_place()
        return known


def seen_by(group):
    """Return who sees when a collective of this group is complete."""
    try:
        backend = group._get_backend_name()
        if backend in _HOST_BACKENDS:
            return BY_HOST
        if backend not in _STREAM_BACKENDS:
            return BY_NOBODY
        types = [device.type for device in group._device_types]
        return BY_STREAM if types == ["cuda"] else BY_STREAM_OF_GPU
    except OWN_ERRORS:
        return BY_NOBODY


def is_on_gpu(arguments):
    """Return whether the tensors of a call to a process group are known to be on a GPU."""
    try:
        item = arguments[1]
        while isinstance(item, (list, tuple)):
            item = item[0]
        return item.is_cuda
    except OWN_ERRORS:
        return False


def read_timeout(group):
    """Return the longest timeout of a group's backends in nanoseconds, or 0."""
    longest_s = 0
    for device in getattr(group, "_device_types", ()):
        try:
            timeout = group._get_backend(device).options._timeout
            longest_s = max(longest_s, timeout.total_seconds())
        except OWN_ERRORS:
            pass
    return int(min(longest_s, _TIMEOUT_S_MAX) * 1e9)
