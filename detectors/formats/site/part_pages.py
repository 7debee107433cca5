"""What a node's agent tells of its devices with serial numbers, and of findings about them: a metrics page, and its journal of findings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from detectors.formats.page_samples import read_samples
from detectors.parts.part_history import PartEvent, PartSeen, ToldEvent
from rankmend.errors import SourceError
from rankmend.printable import printable

TEXT_CHARS_MAX: Final = 1_000
SERIAL_CHARS_MAX: Final = 128
LINES_MAX: Final = 100_000
EVIDENCE_MAX: Final = 16
_UNKNOWN: Final = frozenset({"", "0", "N/A", "[N/A]", "None", "Unknown", "To be filled by O.E.M."})
_FINDING: Final = "rankmend_finding_active"
_STATE: Final = "rankmend_inventory_state_id"
_KINDS: Final = {
    "rankmend_gpu_info": "gpu",
    "rankmend_amd_info": "gpu",
    "rankmend_disk_health_info": "disk",
    "rankmend_transceiver_info": "transceiver",
}
_METRICS: Final = frozenset({_FINDING, _STATE, *_KINDS})


def read_part_page(
    node: str, text: str, now_unix_s: float
) -> tuple[list[PartSeen], list[ToldEvent]]:
    """Return the devices with a serial number, and the findings that are active now.

    A NIC's serial number is not told: its GUID or MAC, which is as lasting, stands for it.
    """
    seen: dict[tuple[str, str], PartSeen] = {}
    slots: dict[tuple[str, str], str] = {}
    events: list[ToldEvent] = []
    for metric, reported, value in read_samples(text, _METRICS):
        labels = {name: printable(said) for name, said in reported.items()}
        if metric == _FINDING:
            events.append(_active(node, labels, now_unix_s))
        elif metric == _STATE:
            kind, device = labels.get("kind", ""), labels.get("device", "")
            slots[kind, device] = labels.get("pci_bus_id", "")
            if kind in ("nic", "ethernet") and value == 0 and _is_serial(labels.get("identity", "")):  # fmt: skip
                item = PartSeen("nic", labels["identity"], node, device, slots[kind, device])
                seen["nic", device] = item
        elif _is_serial(labels.get("serial", "")):
            kind = _KINDS[metric]
            device = f"gpu{labels.get('gpu', '')}" if kind == "gpu" else labels.get("device", "")
            model = labels.get("model") or " ".join(
                labels[name] for name in ("vendor", "part") if labels.get(name)
            )
            seen[kind, device] = PartSeen(
                *(kind, labels["serial"], node, device, labels.get("pci_bus_id", "")),
                *(model, labels.get("uuid", "")),
            )
    parts = [
        item if item.slot else replace(item, slot=slots.get(key, "")) for key, item in seen.items()
    ]
    return parts, events


def read_findings_journal(node: str, text: str) -> Iterator[ToldEvent]:
    """Return the changes in an agent's `findings.jsonl`; a line that is torn or of another form is passed over."""
    for number, line in enumerate(text.splitlines()):
        if number >= LINES_MAX:
            raise SourceError(f"the findings of {node}: more than {LINES_MAX} lines")
        try:
            reported = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if isinstance(reported, dict) and isinstance(reported.get("at"), int | float):
            labels = reported.get("labels")
            labels = labels if isinstance(labels, dict) else {}
            uuid = labels.get("uuid")
            device = labels.get("device")
            yield ToldEvent(
                PartEvent(
                    float(reported["at"]),
                    node,
                    "",
                    _text(reported.get("change")) or "raised",
                    _text(reported.get("check")),
                    _text(reported.get("severity")),
                    _text(reported.get("action")),
                    _text(reported.get("summary")),
                    _texts(reported.get("evidence")),
                ),
                device if isinstance(device, str) else "",
                uuid if isinstance(uuid, str) else "",
            )


def _active(node: str, labels: dict[str, str], now_unix_s: float) -> ToldEvent:
    check = labels.get("check", "")
    event = PartEvent(
        *(now_unix_s, node, "", "seen", check, labels.get("severity", "")),
        *(labels.get("action", ""), check.replace("_", " ")),
    )
    return ToldEvent(event, labels.get("device", ""), labels.get("uuid", ""))


def _is_serial(text: str) -> bool:
    return text not in _UNKNOWN and len(text) <= SERIAL_CHARS_MAX and text.isprintable()


def _text(value: Any) -> str:
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in value[:EVIDENCE_MAX]) if isinstance(value, list) else ()
