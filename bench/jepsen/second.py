"""Has a second checker read a history, in a process of its own, from text alone."""

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.jepsen.history import History

_CHECKER = Path(__file__).with_name("second_checker.py")
_CHECK_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Second:
    """What the second checker says."""

    in_words: str
    violations: tuple[str, ...]
    sha256: str  # of the history


def check_again(path: Path, rows: list[tuple[Any, ...]], history: History) -> Second:
    """Write the history as lines of JSON, and return what the second checker finds in it."""
    with path.open("w", encoding="utf-8") as file:
        for line in history_lines(rows, history):
            file.write(json.dumps(line) + "\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    done = subprocess.run(
        [sys.executable, "-I", str(_CHECKER), str(path)],
        capture_output=True, text=True, check=False, timeout=_CHECK_S_MAX,
    )  # fmt: skip
    try:
        told = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout)[-2000:]
        return Second("it failed", (f"the second checker failed: {said}",), digest)
    return Second(told["in_words"], tuple(told["violations"]), digest)


def history_lines(rows: list[tuple[Any, ...]], history: History) -> list[dict[str, object]]:
    """Return the lines of a history: the limits, each row, and what launchers saw."""
    found: list[dict[str, object]] = [{"limits": asdict(history.limits)}]
    for name, writer, epoch, committed, *row in rows:
        number, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum = row
        found.append(
            {
                "row": {
                    "journal": name, "writer": writer, "epoch": int(epoch), "committed": float(committed),
                    "number": number, "kind": kind, "major": major, "minor": minor, "unix": unix_s,
                    "monotonic": monotonic_s, "boot": boot_id, "body": bytes(body).decode(), "checksum": bytes(checksum).hex(),
                }
            }
        )  # fmt: skip
    found += [{"order": asdict(one)} for one in history.orders]
    found += [{"life": asdict(one)} for one in history.lives]
    return found
