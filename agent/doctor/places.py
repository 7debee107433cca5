"""Where a host's files are: the live host, or a tree with the files of one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from detectors.doctor.check import SourceFact, SourceState
from rankmend.errors import NoSourceError, SourceError


@dataclass(frozen=True, slots=True)
class Places:
    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    root: Path = Path("/")  # above dev, run, etc
    environment: Mapping[str, str] = field(default_factory=dict)
    is_live: bool = (
        True  # False: a recorded tree; this machine's devices, limits and clock are not its
    )

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def try_source(collect: Callable[[], Iterable[object]]) -> SourceFact:
    """Return what a collector of the agent says of its source."""
    try:
        for _metric in collect():
            pass
    except NoSourceError as error:
        return SourceFact(SourceState.ABSENT, str(error))
    except SourceError as error:
        return SourceFact(SourceState.BROKEN, str(error))
    return SourceFact(SourceState.MEASURED)
