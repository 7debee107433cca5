"""The panic that ended the previous boot, as the firmware or the RAM has kept it.

Source: <sysfs>/fs/pstore/dmesg-<backend>-*, Linux Documentation/ABI/testing/pstore; and the folder to which
        systemd-pstore.service moves these files at boot, /var/lib/systemd/pstore.
Form:   the first line is ``Panic#1 Part1`` (fs/pstore/platform.c: reason, count, part), then the kernel's last lines.
Cost:   one listing; the files are read once, for they don't change in a boot. Needs CAP_DAC_READ_SEARCH or root
        where the folder is closed to others.

A record may be years old: nobody has to clear the store. So a panic counts only where its file was written
within `BEFORE_BOOT_S` before this boot, or in its first minutes, when the kernel makes the files.
Proved on recorded trees, not on a machine that panicked.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, gauge
from rankmend.errors import NoSourceError, SourceError

BEFORE_BOOT_S: Final = (
    3600.0  # from the panic to the next start of the kernel: firmware and a dump take minutes
)
AFTER_BOOT_S: Final = 600.0  # backends without a time of their own stamp the file when it is made
FILES_MAX: Final = 256  # a panic has some 20 parts of 1 to 64 kB
FILE_BYTES_MAX: Final = 1 << 20
REASON_CHARS_MAX: Final = 160
ARCHIVE: Final = Path("/var/lib/systemd/pstore")
_HEAD: Final = re.compile(r"Panic#\d+ Part\d+")
_REASON: Final = re.compile(r"Kernel panic - not syncing: (.+)")
_UNSAID: Final = "of unknown cause"

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "host_previous_boot_panic",
        "",
        ("reason",),
        "1 where a panic ended the boot before this one, with the kernel's own words (pstore).",
    ),
)


class PstoreCollector:
    name = "pstore"
    interval_s = 600.0

    def __init__(self, sysfs_root: Path, procfs_root: Path, archive: Path | None) -> None:
        """``archive``: where systemd-pstore puts the records; None beside a recorded tree."""
        self._folder = sysfs_root / "fs" / "pstore"
        self._stat = procfs_root / "stat"
        self._archive = archive
        self._reasons: tuple[str, ...] | None = (
            None  # as of the first look that could read everything
        )

    def collect(self) -> Iterator[Metric]:
        if self._reasons is None:
            self._reasons = self._look()
        for reason in self._reasons:
            yield Metric("rankmend_host_previous_boot_panic", 1, (("reason", reason),))

    def _look(self) -> tuple[str, ...]:
        booted_at_s = _boot_time_s(self._stat)
        files = [*_files(self._folder, "dmesg-*")]
        if self._archive is not None:
            files += _files(self._archive, "**/dmesg*")
        if not files and not self._folder.is_dir():
            raise NoSourceError(f"no {self._folder}: the kernel keeps no panics")
        texts = [
            text for path in files[:FILES_MAX] if (text := _read(path, booted_at_s)) is not None
        ]
        panics = [text for text in texts if _HEAD.match(text) or _REASON.search(text)]
        if not panics:
            return ()
        said = dict.fromkeys(
            _printable(found[1]) for text in panics if (found := _REASON.search(text)) is not None
        )
        return tuple(said)[:1] or (_UNSAID,)


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the records of a folder, the newest first; raises SourceError where it is closed to us."""
    if not folder.is_dir():
        return []
    try:
        next(folder.iterdir(), None)
        return sorted(folder.glob(pattern), key=lambda path: -path.stat().st_mtime)
    except PermissionError as error:
        raise NoSourceError(f"{folder} is closed to this user") from error
    except OSError as error:
        raise SourceError(f"cannot list {folder}") from error


def _read(path: Path, booted_at_s: float) -> str | None:
    """Return the text of a record of the previous boot; None for an older one, or what is no file."""
    try:
        written_at_s = path.stat().st_mtime
        if not path.is_file() or not (
            booted_at_s - BEFORE_BOOT_S <= written_at_s <= booted_at_s + AFTER_BOOT_S
        ):
            return None
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except PermissionError as error:
        raise NoSourceError(f"{path} is closed to this user") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}") from error


def _boot_time_s(stat: Path) -> float:
    """Return when the kernel started, in seconds since 1970 (btime of proc(5))."""
    try:
        for line in stat.read_text(encoding="ascii", errors="replace").splitlines():
            name, _space, value = line.partition(" ")
            if name == "btime" and value.strip().isdecimal():
                return float(value)
    except OSError as error:
        raise SourceError(f"cannot read {stat}") from error
    raise SourceError(f"{stat} has no btime")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text.strip())[:REASON_CHARS_MAX]
