"""A recorded trace of node faults, replayed: the format of the StepFun InfiniteHBD trace (arXiv 2502.03885).

A JSON list of events: `node_id`, `event_time` in days, `event_type` (`fault_start` or `fault_end`), and `fault_type` with
`Level`, `Class` and `Desc`. A start without an end lasts until the trace ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from rankmend.errors import ConfigError
from rankmend.files import read_capped
from recovery.lab.simulation.assumptions import Setup
from recovery.lab.simulation.faults import NodeFault
from recovery.lab.simulation.rate_table import Shows

FILE: Final = "infinitehbd-trace/fault_trace.json"  # below RANKMEND_DATASETS
_BYTES_MAX: Final = 100_000_000
_EVENTS_MAX: Final = 1_000_000
_DAY_S: Final = 86_400.0
_HANGS: Final = ("Parameter Plane Cable", "NIC", "Change")
_EXITS: Final = ("GPU", "Riser Card", "RAID Card")
_REPORTED_RATIO: Final = 0.9  # of GPU, cable and NIC faults; as in the shipped tables


class _Type(msgspec.Struct, frozen=True):
    class_: str = msgspec.field(name="Class")
    level: str = msgspec.field(name="Level", default="")
    desc: str = msgspec.field(name="Desc", default="")


class _Event(msgspec.Struct, frozen=True):
    node_id: str
    event_time: float
    event_type: str
    fault_type: _Type


@dataclass(frozen=True, slots=True)
class TracedFault:
    node: str
    from_day: float
    days: float
    cause: str


@dataclass(frozen=True, slots=True)
class Trace:
    nodes: tuple[str, ...]  # those that had a fault
    faults: tuple[TracedFault, ...]
    days: float


def read_trace(path: Path) -> Trace:
    """Return the faults of a trace. Raises ConfigError, which names the file and what is wrong."""
    data = read_capped(path, _BYTES_MAX, ConfigError, name=f"the trace {path}")
    try:
        events = msgspec.json.decode(data, type=list[_Event])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a trace of node faults: {error}") from error
    if not 0 < len(events) <= _EVENTS_MAX:
        raise ConfigError(f"{path} has {len(events)} events; 1 to {_EVENTS_MAX} are allowed")
    for event in events:
        if event.event_type not in ("fault_start", "fault_end"):
            raise ConfigError(f"{path}: event_type is {event.event_type!r}")
        if not 0 <= event.event_time < 1e5:
            raise ConfigError(f"{path}: event_time is {event.event_time}, not days from 0")
    return _trace(events)


def _trace(events: Sequence[_Event]) -> Trace:
    ends_day = max(event.event_time for event in events)
    waiting: dict[tuple[str, str, str], list[int]] = {}
    faults: list[TracedFault] = []
    for event in sorted(
        events, key=lambda event: (event.event_time, event.event_type == "fault_start")
    ):
        key = (event.node_id, event.fault_type.class_, event.fault_type.desc)
        if event.event_type == "fault_start":
            waiting.setdefault(key, []).append(len(faults))
            left_days = ends_day - event.event_time
            cause = event.fault_type.class_
            faults.append(TracedFault(event.node_id, event.event_time, left_days, cause))
        elif waiting.get(key):
            place = waiting[key].pop(0)
            lasted_days = event.event_time - faults[place].from_day
            faults[place] = replace(faults[place], days=lasted_days)
    nodes = tuple(dict.fromkeys(fault.node for fault in faults))
    return Trace(nodes, tuple(faults), ends_day)


def replay(trace: Trace, nodes_watched: int, setup: Setup, random: Random) -> list[NodeFault]:
    """Return the trace's faults on the nodes of a job.

    ``nodes_watched`` nodes were watched, so that those without a fault count, too. Each simulated node gets the history of
    one watched node, at random; more simulated nodes than watched ones share histories, each shifted by a time of its own.
    """
    if nodes_watched < len(trace.nodes):
        raise ConfigError(
            f"{nodes_watched} nodes were watched, and {len(trace.nodes)} of them had faults"
        )
    by_node: dict[str, list[TracedFault]] = {}
    for fault in trace.faults:
        by_node.setdefault(fault.node, []).append(fault)
    histories = [by_node[node] for node in trace.nodes]
    histories += [[] for _healthy in range(nodes_watched - len(histories))]
    found: list[NodeFault] = []
    count, order = setup.nodes + setup.spares, list(range(nodes_watched))
    for first in range(0, count, nodes_watched):
        random.shuffle(order)
        for number in range(first, min(count, first + nodes_watched)):
            shift_days = random.uniform(0.0, trace.days) if first else 0.0
            for fault in histories[order[number - first]]:
                at_s = (fault.from_day + shift_days) % trace.days * _DAY_S
                found += _repeated(fault, number, at_s, trace.days, setup, random)
    return sorted(found, key=lambda fault: fault.at_s)


def _repeated(
    fault: TracedFault, node: int, at_s: float, days: float, setup: Setup, random: Random
) -> list[NodeFault]:
    """Return the fault in each round of the trace: a simulation may be longer."""
    repair_s = max(0.0, fault.days) * _DAY_S
    made = []
    while at_s < setup.horizon_s:
        shows = Shows.HOST
        if fault.cause in _HANGS:
            shows = Shows.HANG
        elif fault.cause in _EXITS:
            shows = Shows.EXIT
        is_told = shows is not Shows.HOST and random.random() < _REPORTED_RATIO
        made.append(
            NodeFault(
                at_s, node, fault.cause, shows, stays=True, is_told=is_told, repair_s=repair_s
            )
        )
        at_s += days * _DAY_S
    return made
