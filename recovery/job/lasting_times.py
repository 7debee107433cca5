"""For how long things have lasted that a job's controller waits for, by keys that name an attempt, an incident or a node. Pure."""

Key = tuple[object, ...]


class LastingTimes:
    """Bounded: what nobody asks for in a whole attempt is forgotten, for keys name attempts and incidents that are over then."""

    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}
        self._before_s: dict[Key, float] = {}  # not asked for in this attempt

    def __len__(self) -> int:
        return len(self._since_s) + len(self._before_s)

    def since(self, now_s: float, key: Key) -> float:
        """Return for how many seconds what is named by ``key`` has lasted: from the first question on."""
        if key not in self._since_s:
            self._since_s[key] = self._before_s.pop(key, now_s)
        return now_s - self._since_s[key]

    def begin_attempt(self) -> None:
        self._since_s, self._before_s = {}, self._since_s

    def forget(self) -> None:
        self._since_s, self._before_s = {}, {}

    def forgive(self, paused_s: float) -> None:
        """Count so many seconds less of everything."""
        for times_s in (self._since_s, self._before_s):
            times_s.update({key: at_s + paused_s for key, at_s in times_s.items()})
