"""Clocks that a test sets by hand."""


class FakeClock:
    """Stands still until a test moves it on; its wall clock moves with it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.time_s = now_s

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1.7e9 + self.time_s
