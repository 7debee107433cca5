"""The process of one node's part in the network check of a pre-flight check: `rankmend preflight job --network` starts it.

All nodes that are checked at once run `rankmend fabric test find` among themselves. It prints lines as a load does (`rankmend/loads/start.py`): what the
test says of this node, and what the node sent and received. Its starter ends it at a deadline, and with itself.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from detectors.fabric.fabric_verdict import FabricOutcome, FabricVerdict, PartKind, SlowPart
from detectors.preflight.figures import FigureUnit, say
from detectors.preflight.verdicts import CheckStanding
from detectors.wording import counted
from rankmend.errors import RankmendError
from recovery.lab.fabric.fabric_options import FabricKind, FabricOptions
from recovery.lab.fabric.fabric_place import find_place
from recovery.lab.fabric.fabric_test import FabricRun, run_fabric_test

NAME: Final = "network"
_OWN: Final = frozenset({PartKind.NODE, PartKind.NIC})  # parts of the node itself
_ADVICE: Final = (
    "`rankmend fabric test pairs` says more; look at the NIC, its cable and the switch port"
)
_NET: Final = Path("/sys/class/net")


class FlightShare(msgspec.Struct, frozen=True):
    """What `rankmend preflight` asks of this process."""

    node: str
    join_s: float
    limit_s: float
    rails: tuple[str, ...] = ()
    shared: str | None = None
    nnodes: int | None = None
    node_rank: int | None = None


def main(arguments: Sequence[str]) -> int:
    share = msgspec.json.decode(arguments[0], type=FlightShare)
    _print_line({"begin": NAME, "part": NAME})
    try:
        place = find_place(
            os.environ,
            nnodes=share.nnodes,
            node_rank=share.node_rank,
            shared=None if share.shared is None else Path(share.shared),
        )
        if place is None:
            _print_line(_verdict(CheckStanding.SKIPPED, "another process of this node takes part"))
        else:
            options = FabricOptions(
                FabricKind.FIND, join_s=share.join_s, limit_s=share.limit_s, rails=share.rails
            )
            for line in lines_of(run_fabric_test(place, share.node, options), share.node):
                _print_line(line)
    except RankmendError as error:
        _print_line(_verdict(CheckStanding.SILENT, str(error)))
    _print_line({"end": NAME})
    return 0


def lines_of(run: FabricRun, node: str) -> list[dict[str, Any]]:
    """Return what is told of this node. A part that is not the node's own keeps no node out."""
    lines: list[dict[str, Any]] = []
    model = _model_of(run)
    for figure, value in (
        ("network_sent_bytes_per_s", run.sent_bytes_per_s),
        ("network_received_bytes_per_s", run.received_bytes_per_s),
    ):
        if value is not None:
            lines.append({"figure": figure, "value": value, "part": NAME, "model": model})
    if run.verdict is not None:
        lines.append(_of_verdict(run.verdict, node))
    return lines


def _of_verdict(verdict: FabricVerdict, node: str) -> dict[str, Any]:
    own = [part for part in verdict.parts if part.kind in _OWN and node in part.nodes]
    others = [part for part in verdict.parts if part not in own]
    if own:
        return {
            **_verdict(CheckStanding.FAILED, "; ".join(map(_part_text, own))),
            "advice": _ADVICE,
        }
    usual = say(verdict.usual_bytes_per_s, FigureUnit.BYTES_PER_S)
    if verdict.outcome is FabricOutcome.UNCLEAR:
        return _verdict(
            CheckStanding.ABSTAINED,
            f"{counted(verdict.rounds, 'round')} of pairs, too little to name a part",
        )
    text = f"{counted(verdict.rounds, 'round')} of pairs, usually {usual}"
    if others:
        text += "; slow, and not this node's own: " + "; ".join(map(_part_text, others))
    return _verdict(CheckStanding.PASSED, text)


def _part_text(part: SlowPart) -> str:
    return (
        f"{part.kind.value} {part.name}: a byte takes {part.delay_ratio:.1f} times as long as usual"
    )


def _verdict(standing: CheckStanding, text: str) -> dict[str, Any]:
    return {"verdict": standing.value, "name": NAME, "part": NAME, "text": text[:300]}


def _model_of(run: FabricRun) -> str:
    """Return what rates are compared by: only those over interfaces of one speed are."""
    names = run.rails
    return "TCP, " + " and ".join(_speed(name) for name in names) if names else "TCP"


def _speed(interface: str) -> str:
    try:
        megabits = int((_NET / interface / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return "unknown speed"
    return f"{megabits} Mbit/s" if megabits > 0 else "unknown speed"


def _print_line(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
