"""Which faults a simulated cluster has, and when: drawn from a rate table by a seed."""

from dataclasses import dataclass
from random import Random
from typing import Final

from recovery.lab.simulation.assumptions import REPAIRS, Assumptions, Setup
from recovery.lab.simulation.rate_table import RatedCause, RateTable, Shows

SLOW: Final = "slow node"
FALSE_ALARM: Final = "false alarm"
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class NodeFault:
    at_s: float
    node: int
    cause: str
    shows: Shows
    stays: bool = False  # it comes again where the node is used on
    is_told: bool = False  # the node's agent sends an alert that ends its use
    repair_s: float = 0.0  # out of service, once the job has left the node


def draw_faults(
    rates: RateTable, setup: Setup, assumptions: Assumptions, random: Random
) -> list[NodeFault]:
    """Return the faults of the job's nodes and spares until the end, in the order of time."""
    nodes = setup.nodes + setup.spares
    lemons = random.sample(range(nodes), round(assumptions.lemon_nodes_ratio * nodes))
    is_lemon = set(lemons)
    others = [node for node in range(nodes) if node not in is_lemon] or lemons

    def node() -> int:
        is_bad = lemons and random.random() < assumptions.lemon_faults_ratio
        return random.choice(lemons if is_bad else others)

    per_s = rates.per_gpu_day * setup.gpus_per_node * nodes / _DAY_S
    weights = [cause.count for cause in rates.causes]
    faults = [
        _drawn(at_s, node(), random.choices(rates.causes, weights)[0], random)
        for at_s in _moments(per_s, setup.horizon_s, random)
    ]
    slow_per_s = assumptions.slow_per_1000_node_days * nodes / 1000.0 / _DAY_S
    faults += [
        NodeFault(at_s, node(), SLOW, Shows.SLOW, stays=True, repair_s=draw_repair_s("gpu", random))
        for at_s in _moments(slow_per_s, setup.horizon_s, random)
    ]
    false_per_s = assumptions.false_alarms_per_day / _DAY_S
    faults += [
        NodeFault(at_s, random.randrange(nodes), FALSE_ALARM, Shows.FALSE_ALARM)
        for at_s in _moments(false_per_s, setup.horizon_s, random)
    ]
    return sorted(faults, key=lambda fault: fault.at_s)


def _moments(per_s: float, until_s: float, random: Random) -> list[float]:
    """Return the moments of a Poisson process."""
    moments: list[float] = []
    if per_s <= 0:
        return moments
    at_s = random.expovariate(per_s)
    while at_s < until_s:
        moments.append(at_s)
        at_s += random.expovariate(per_s)
    return moments


def _drawn(at_s: float, node: int, cause: RatedCause, random: Random) -> NodeFault:
    shows = Shows.HANG if random.random() < cause.hangs else cause.shows
    return NodeFault(
        at_s,
        node,
        cause.name,
        shows,
        stays=random.random() < cause.stays,
        is_told=random.random() < cause.told,
        repair_s=draw_repair_s(cause.repair, random),
    )


def draw_repair_s(name: str, random: Random) -> float:
    """Return for how long a node is out of service, in seconds."""
    repair = REPAIRS[name]
    if repair.sigma == 0:
        return repair.median_h * 3600.0
    return repair.median_h * 3600.0 * random.lognormvariate(0.0, repair.sigma)
