"""The timeouts of PyTorch's process groups."""

from rankmend.hook.own_errors import OWN_ERRORS

_GROUPS_MAX = 4096  # looks at time-outs that are kept, by the ids of process groups
_TIMEOUT_S_MAX = 10**9  # "never", as some scripts set it, still fits


class Timeouts:
    """The timeout of each process group: it ends a collective that not every rank has entered."""

    def __init__(self):
        self._known = {}  # by id: holding a group would keep it from being destroyed
        self._looks = 0

    def of(self, group):
        """Return the timeout in nanoseconds, or 0 if PyTorch does not show it."""
        self._looks += 1
        if self._looks >= _GROUPS_MAX:  # an id may be another group's by now
            self._looks = 0
            self._known.clear()
        key = id(group)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = read_timeout(group)
        return known


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
