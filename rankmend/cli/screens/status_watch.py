"""The output of `rankmend status --watch` without a terminal: lines, for a file or a pipe."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from rankmend.cli.options import to_plain
from rankmend.cli.output import echo, echo_exact
from rankmend.printable import printable


class Changes:
    """Prints what has changed since the last call, each line with the time."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def add(self, key: str, text: str) -> None:
        """Print one more line, if it is new."""
        self.print([*self._shown.items(), (key, text)])

    def print(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print each line whose text has changed since the last call, and each key that is gone."""
        now = dict(lines)
        at = datetime.now(tz=timezone.utc).astimezone().strftime("%H:%M:%S")
        for key, text in now.items():
            if self._shown.get(key) != text:
                echo(printable(f"{at}  {text}"))
        for key in self._shown.keys() - now.keys():
            echo(printable(f"{at}  {key} is no longer listed"))
        self._shown = now


def print_json_line(value: Any) -> None:
    """Print a value as one line of JSON."""
    import json

    echo_exact(json.dumps(value, default=to_plain))


def repeat(pause_s: float, act: Callable[[], None]) -> None:
    """Call ``act`` with a pause between calls, until the person interrupts."""
    while True:
        act()
        time.sleep(pause_s)
