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
        for one in self.events:
            newest[one.node, one.check] = one
        return tuple(one for one in newest.values() if one.change != "ended")


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
    for one in seen:
        before = found.get(one.key) or PartHistory(one.kind, one.serial, one.model, one.uuid)
        stays = before.stays
        is_same = bool(stays) and (stays[-1].node, stays[-1].device, stays[-1].slot) == (
            *(one.node, one.device, one.slot),
        )
        if is_same:
            stays = (*stays[:-1], replace(stays[-1], last_unix_s=now_unix_s))
        else:
            stays = (*stays, PartStay(one.node, one.device, one.slot, now_unix_s, now_unix_s))
        found[one.key] = replace(
            before,
            model=one.model or before.model,
            uuid=one.uuid or before.uuid,
            stays=stays[-STAYS_MAX:],
        )
    return found


def note_events(
    known: Mapping[str, PartHistory], told: Iterable[ToldEvent]
) -> dict[str, PartHistory]:
    """Return the histories with these changes of findings, each once, at the part that was in the place at the time."""
    by_uuid = {one.uuid: key for key, one in known.items() if one.uuid}
    in_place: dict[tuple[str, str], list[tuple[PartStay, str]]] = {}
    for key, history in known.items():
        for stay in history.stays:
            in_place.setdefault((stay.node, stay.device), []).append((stay, key))
    new: dict[str, list[PartEvent]] = {}
    for one in told:
        found = by_uuid.get(one.uuid) if one.uuid else None
        if found is None and one.device:
            found = _who_was_there(in_place.get((one.event.node, one.device), ()), one.event.unix_s)
        if found is not None:
            slot = _slot_of(known[found], one.event)
            new.setdefault(found, []).append(replace(one.event, slot=slot))
    return {
        key: history if key not in new else _with_events(history, new[key])
        for key, history in known.items()
    }


def _who_was_there(stays: Sequence[tuple[PartStay, str]], unix_s: float) -> str | None:
    """Return the part that was in a place: the newest that came before, else the first that is known there."""
    before = [one for one in stays if one[0].first_unix_s <= unix_s]
    if before:
        return max(before, key=lambda one: one[0].first_unix_s)[1]
    return min(stays, key=lambda one: one[0].first_unix_s)[1] if stays else None


def _slot_of(history: PartHistory, event: PartEvent) -> str:
    own = [one for one in history.stays if one.node == event.node]
    return own[-1].slot if own else ""


def _with_events(history: PartHistory, new: Sequence[PartEvent]) -> PartHistory:
    marks = {(one.node, one.check, one.change, one.unix_s) for one in history.events}
    open_now = {(one.node, one.check) for one in history.open_events}
    events = list(history.events)
    for one in sorted(new, key=lambda event: event.unix_s):
        mark = (one.node, one.check, one.change, one.unix_s)
        is_known = one.change == "seen" and (one.node, one.check) in open_now
        if mark not in marks and not is_known:
            marks.add(mark)
            events.append(one)
    events.sort(key=lambda event: event.unix_s)
    return replace(history, events=tuple(events[-EVENTS_MAX:]))
