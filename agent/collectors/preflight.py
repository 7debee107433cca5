"""The newest pre-flight check of this node: whether it passed, when, and what failed.

Source: <folder>/last.json, which `rankmend preflight` writes (agent/preflight/result_file.py).
Cost:   one small read a minute; the file is parsed where it has changed.

A failed check stays a finding until a later check passes: that is what keeps the node out of use where the controller,
Slurm or Kubernetes act on findings. Checks named `health` are findings of their own already.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, gauge
from agent.preflight.result_file import NEWEST, SavedResult, read_result
from detectors.preflight.health import HEALTH_CHECK
from detectors.preflight.verdicts import CheckStanding, FlightOutcome
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

FAILED_MAX: Final = 64

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("preflight_passed", "", ("level",), "1 when the newest pre-flight check failed nowhere."),
    gauge(
        "preflight_check_failed",
        "",
        ("check", "part"),
        "1 for what failed in the newest pre-flight check.",
    ),
    gauge("preflight_age_seconds", "seconds", ("level",), "Time since its begin."),
    gauge("preflight_duration_seconds", "seconds", ("level",), "How long it took."),
)


class PreflightCollector:
    name = "preflight"
    interval_s = 60.0

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        """``folder``: of the results; None beside a recorded tree of another node."""
        self._path = None if folder is None else folder / NEWEST
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._result: SavedResult | None = None

    def collect(self) -> Iterator[Metric]:
        result = self._read()
        level = (("level", result.level),)
        is_failed = result.outcome == FlightOutcome.FAILED.value
        yield Metric("rankmend_preflight_passed", int(not is_failed), level)
        age_s = max(0.0, self._clock.unix_s() - result.began_unix_s)
        yield Metric("rankmend_preflight_age_seconds", age_s, level)
        yield Metric("rankmend_preflight_duration_seconds", result.took_s, level)
        failed = [check for check in result.checks if check.standing == CheckStanding.FAILED.value]
        parts = {(check.name, check.part) for check in failed if check.name != HEALTH_CHECK}
        for name, part in sorted(parts)[:FAILED_MAX]:
            yield Metric("rankmend_preflight_check_failed", 1, (("check", name), ("part", part)))

    def _read(self) -> SavedResult:
        if self._path is None:
            raise NoSourceError("no pre-flight check of a recorded node")
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise NoSourceError(f"no pre-flight check has written {self._path}") from None
        except OSError as error:
            raise SourceError(f"cannot stat {self._path}: {error.strerror}") from error
        seen = (found.st_mtime_ns, found.st_size)
        if self._result is None or seen != self._seen:
            self._result, self._seen = read_result(self._path), seen
        return self._result
