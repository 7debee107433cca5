"""A console that takes everything, for tests of what is shown."""


class FakeConsole:
    """Collects what would go to the terminal."""

    def __init__(self) -> None:
        self.shown = {1: b"", 2: b""}
        self.is_slow = False

    def put(self, number: int, data: bytes) -> None:
        self.shown[number] += data

    def has_room(self, number: int) -> bool:
        return not self.is_slow

    def terminal(self, number: int) -> int | None:
        return None

    def flush(self) -> bool:
        return True
