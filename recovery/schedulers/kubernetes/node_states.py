"""What Kubernetes says of a node, for people: cordon and whose it is, readiness, conditions, taints. Pure and bounded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rankmend.printable import printable
from recovery.schedulers.kubernetes.answers import read_node
from recovery.schedulers.slurm.requests import mark_in

SHOWN_MAX: Final = 16  # conditions, and taints, of one node
_TEXT_MAX: Final = 160
_CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"  # Kubernetes' own mirror of a cordon


@dataclass(frozen=True, slots=True)
class SeenNode:
    node: str
    is_cordoned: bool
    is_ours: bool  # the cordon
    cordoned_by: str  # field managers, where others have cordoned it and the server says who
    ready: str  # True, False or Unknown; empty: no kubelet has said
    conditions: tuple[str, ...]  # that are true beside Ready, and why it is not ready
    taints: tuple[str, ...]  # beside that of a cordon
    seen_unix_s: float

    @property
    def is_plain(self) -> bool:
        """Return whether there is nothing to say."""
        is_noted = self.is_cordoned or self.conditions or self.taints
        return self.ready == "True" and not is_noted


def read_state(reported: Mapping[str, Any], unix_s: float) -> SeenNode:
    """Return the state in a node's object."""
    node = read_node(reported)
    conditions = (reported.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next(
        (condition for condition in conditions if condition.get("type") == "Ready"), {}
    )
    status = str(ready.get("status", ""))
    said = [] if status == "True" else [_condition_text("Ready", ready)]
    said += [
        _condition_text(str(condition.get("type")), condition)
        for condition in conditions
        if condition.get("type") != "Ready" and condition.get("status") == "True"
    ]
    taints = [
        _short(_taint_text(item))
        for item in (reported.get("spec") or {}).get("taints") or ()
        if item.get("key") != _CORDON_TAINT
    ]
    return SeenNode(
        node=node.name,
        is_cordoned=node.is_drained,
        is_ours=mark_in(node.reason) is not None,
        cordoned_by=_short(node.reason_by),
        ready=status[:16],
        conditions=tuple(said[:SHOWN_MAX]),
        taints=tuple(taints[:SHOWN_MAX]),
        seen_unix_s=unix_s,
    )


def _condition_text(kind: str, condition: Mapping[str, Any]) -> str:
    status = condition.get("status")
    name = kind if status == "True" else f"{kind} is {status or 'not reported'}"
    why = condition.get("message") or condition.get("reason") or ""
    return _short(f"{name}: {why}" if why else name)


def _taint_text(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


def _short(text: str) -> str:
    return printable(text[:_TEXT_MAX])
