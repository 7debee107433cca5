"""What is known of PyTorch's process groups: their timeouts, whether the host sees the end of their collectives, and
where this rank stands in the model's layout.
"""

from rankmend.hook.model_place import find_place
from rankmend.hook.own_errors import OWN_ERRORS

_GROUPS_MAX = 4096  # looks at time-outs that are kept, by the ids of process groups
_TIMEOUT_S_MAX = 10**9  # "never", as some scripts set it, still fits


_SEEN = ("gloo",)  # backends of which `is_completed` tells the host when data has arrived


class Groups:
    """The process groups by their timeouts, which end a collective that not every rank has entered, and their backends."""

    def __init__(self):
        self._known = {}  # by id: holding a group would keep it from being destroyed
        self._looks = 0
        self.news = None  # a place as in layout.PLACE that nobody has been told

    def of(self, group):
        """Return the timeout in nanoseconds, or 0 if PyTorch does not show it, and whether ends are seen."""
        self._looks += 1
        if self._looks >= _GROUPS_MAX:  # an id may be another group's by now
            self._looks = 0
            self._known.clear()
        key = id(group)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = read_timeout(group), is_seen(group)
            self.news = find_place()
        return known


def is_seen(group):
    """Return whether the host sees when a collective of this group is complete."""
    try:
        return group._get_backend_name() in _SEEN
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
