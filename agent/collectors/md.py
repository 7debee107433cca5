"""Software RAID: arrays that run with a member missing, and how far a rebuild is.

Source: <root>/block/md*/md, Linux Documentation/admin-guide/md.rst. Level 0 and linear have no
        redundancy and so no `degraded`: a lost member is then an array without its files.
Cost:   five small reads an array, every 10 s; no privilege.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, gauge
from agent.sources.kept_files import KeptFiles
from rankmend.errors import NoSourceError, SourceError

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("md_success", "", ("device",), "1 when the array's files made sense, 0 when not."),
    gauge(
        "md_info",
        "",
        ("device", "level", "state"),
        "A software RAID, its level and state in the kernel's words; always 1.",
    ),
    gauge(
        "md_members",
        "",
        ("device",),
        "Members that the array has when it is whole; no series for a container.",
    ),
    gauge(
        "md_members_missing",
        "",
        ("device",),
        "Members that are missing or not yet rebuilt; no series where the level has no spare copy.",
    ),
    gauge(
        "md_sync_info",
        "",
        ("device", "action"),
        "A check, resync, recovery or reshape that is under way; always 1.",
    ),
    gauge("md_sync_ratio", "", ("device",), "Share of it that is done, 0 to 1."),
)


class MdCollector:
    name = "md"
    interval_s = 10.0

    def __init__(self, sysfs_root: Path) -> None:
        self._root = sysfs_root / "block"
        self._files = KeptFiles()

    def collect(self) -> Iterator[Metric]:
        arrays = sorted(path.parent for path in self._root.glob("md*/md"))
        if not arrays:
            raise NoSourceError(f"no software RAID below {self._root}")
        self._files.begin_run()
        for array in arrays:
            device = array.name
            labels = (("device", device),)
            try:
                yield from self._array(array / "md", device)
            except NoSourceError:  # stopped meanwhile
                continue
            except SourceError:
                yield Metric("rankmend_md_success", 0, labels)
            else:
                yield Metric("rankmend_md_success", 1, labels)

    def _array(self, folder: Path, device: str) -> Iterator[Metric]:
        labels = (("device", device),)
        level = self._files.read(f"{folder}/level")
        state = self._files.read(f"{folder}/array_state")
        found = [Metric("rankmend_md_info", 1, (*labels, ("level", level), ("state", state)))]
        for file, name in (("raid_disks", "members"), ("degraded", "members_missing")):
            count = parse_count(self._optional(folder / file) or "", f"{folder}/{file}")
            if count is not None:
                found.append(Metric(f"rankmend_md_{name}", count, labels))
        action = self._optional(folder / "sync_action")
        if action not in (None, "idle"):
            found.append(Metric("rankmend_md_sync_info", 1, (*labels, ("action", str(action)))))
            done = parse_completed(self._optional(folder / "sync_completed") or "none")
            if done is not None:
                found.append(Metric("rankmend_md_sync_ratio", done, labels))
        yield from found

    def _optional(self, path: Path) -> str | None:
        try:
            return self._files.read(str(path))
        except NoSourceError:
            return None


def parse_completed(text: str) -> float | None:
    """Return the share of a rebuild that is done ("sectors / sectors"), None where there is none."""
    done, slash, whole = text.partition(" / ")
    if not slash:
        return None
    total = _number(whole, "sync_completed")
    return _number(done, "sync_completed") / total if total else None


def parse_count(text: str, name: str) -> int | None:
    """Return a number of members, None where the file is empty.

    During a reshape the kernel prints two, the new one first: "4 (3)". Containers of IMSM and DDF
    metadata have no members of their own.
    """
    words = text.split()
    return _number(words[0], name) if words else None


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise SourceError(f"{name} is not a number: {text[:80]!r}")
    return int(text)
