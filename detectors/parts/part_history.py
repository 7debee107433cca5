"""The history of a device by its serial number, wherever it was built in. Pure.

A node's findings name a GPU by its UUID, and other devices by their name in the system, such as ``nvme0``. So a finding belongs to the part that was in that
place of that node when it was found: a card that is swapped takes its history along and leaves none to the next one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

STAYS_MAX: Final = 64  # newest, of one part
EVENTS_MAX: Final = 500
PARTS_MAX: Final = 500_000  # 20,000 nodes with 8 GPUs, 9 NICs and some disks


@dataclass(frozen=True, slots=True)
class PartSeen:
    """A device as its node's agent tells it now."""

    kind: str  # gpu, nic, disk, transceiver
    serial: str
    node: str
    device: str  # its name on the node: gpu3, mlx5_0, nvme0
    slot: str = ""  # PCI address; "": not known
    model: str = ""
    uuid: str = ""  # by which findings name it; "": by its device

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.serial}"


@dataclass(frozen=True, slots=True)
class PartStay:
    node: str
    device: str
    slot: str
    first_unix_s: float
    last_unix_s: float


@dataclass(frozen=True, slots=True)
class PartEvent:
    """A change of a finding about the part."""

    unix_s: float
    node: str
    slot: str
    change: (
        str  # raised, changed, ended; seen: only on a page of metrics, which has no time of its own
    )
    check: str
    severity: str
    action: str
    summary: str
    evidence: tuple[str, ...] = ()  # the figures


@dataclass(frozen=True, slots=True)
class PartHistory:
    kind: str
    serial: str
    model: str
    uuid: str = ""
    stays: tuple[PartStay, ...] = ()  # oldest first
    events: tuple[PartEvent, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.serial}"

    @property
    def place(self) -> PartStay:
        return self.stays[-1]

    @property
    def open_events(self) -> tuple[PartEvent, ...]:
        """Return the newest event of each finding that has not ended."""
        newest: dict[tuple[str, str], PartEvent] = {}
        for event in self.events:
            newest[event.node, event.check] = event
        return tuple(event for event in newest.values() if event.change != "ended")


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """A change of a finding as its node tells it: of which device, but not of which part."""

    event: PartEvent
    device: str
    uuid: str = ""


def note_seen(
    known: Mapping[str, PartHistory], seen: Iterable[PartSeen], now_unix_s: float
) -> dict[str, PartHistory]:
    """Return the histories with where each part is now; a part in another place than before begins a stay there."""
    found = dict(known)
    for item in seen:
        before = found.get(item.key) or PartHistory(item.kind, item.serial, item.model, item.uuid)
        stays = before.stays
        is_same = bool(stays) and (stays[-1].node, stays[-1].device, stays[-1].slot) == (
            *(item.node, item.device, item.slot),
        )
        if is_same:
            stays = (*stays[:-1], replace(stays[-1], last_unix_s=now_unix_s))
        else:
            stays = (*stays, PartStay(item.node, item.device, item.slot, now_unix_s, now_unix_s))
        found[item.key] = replace(
            before,
            model=item.model or before.model,
            uuid=item.uuid or before.uuid,
            stays=stays[-STAYS_MAX:],
        )
    return found


def note_events(
    known: Mapping[str, PartHistory], reported: Iterable[ToldEvent]
) -> dict[str, PartHistory]:
    """Return the histories with these changes of findings, each once, at the part that was in the place at the time."""
    by_uuid = {item.uuid: key for key, item in known.items() if item.uuid}
    in_place: dict[tuple[str, str], list[tuple[PartStay, str]]] = {}
    for key, history in known.items():
        for stay in history.stays:
            in_place.setdefault((stay.node, stay.device), []).append((stay, key))
    new: dict[str, list[PartEvent]] = {}
    for event in reported:
        found = by_uuid.get(event.uuid) if event.uuid else None
        if found is None and event.device:
            found = _who_was_there(
                in_place.get((event.event.node, event.device), ()), event.event.unix_s
            )
        if found is not None:
            slot = _slot_of(known[found], event.event)
            new.setdefault(found, []).append(replace(event.event, slot=slot))
    return {
        key: history if key not in new else _with_events(history, new[key])
        for key, history in known.items()
    }


def _who_was_there(stays: Sequence[tuple[PartStay, str]], unix_s: float) -> str | None:
    """Return the part that was in a place: the newest that came before, else the first that is known there."""
    before = [stay for stay in stays if stay[0].first_unix_s <= unix_s]
    if before:
        return max(before, key=lambda stay: stay[0].first_unix_s)[1]
    return min(stays, key=lambda stay: stay[0].first_unix_s)[1] if stays else None


def _slot_of(history: PartHistory, event: PartEvent) -> str:
    own = [stay for stay in history.stays if stay.node == event.node]
    return own[-1].slot if own else ""


def _with_events(history: PartHistory, new: Sequence[PartEvent]) -> PartHistory:
    marks = {(event.node, event.check, event.change, event.unix_s) for event in history.events}
    open_now = {(event.node, event.check) for event in history.open_events}
    events = list(history.events)
    for item in sorted(new, key=lambda event: event.unix_s):
        mark = (item.node, item.check, item.change, item.unix_s)
        is_known = item.change == "seen" and (item.node, item.check) in open_now
        if mark not in marks and not is_known:
            marks.add(mark)
            events.append(item)
    events.sort(key=lambda event: event.unix_s)
    return replace(history, events=tuple(events[-EVENTS_MAX:]))
