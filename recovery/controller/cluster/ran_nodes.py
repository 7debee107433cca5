"""How many nodes the fleet has: those that ran ranks within a day, the denominator of every percentage. Pure.

A launcher chooses its node's name. One subject whose job is "on" a thousand nodes that nobody has would lift the share of the fleet that may
be held back, and hide that a rule accuses most of it. So of the nodes that one subject's launchers alone have named only `own_max` count, where
others may launch jobs, too; those count all that Slurm, Kubernetes, the node's agent (by its certificate) or the settings know. No subject
makes the others' nodes count less: whoever names the same ones adds nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from recovery.controller.cluster.cluster_limits import DAY_S


@dataclass(frozen=True, slots=True)
class FleetSize:
    nodes: int
    unconfirmed: tuple[str, ...] = ()  # of subjects that have named too many


class RanNodes:
    def __init__(self) -> None:
        self._ran: dict[str, dict[str, float]] = {}  # by subject: node -> when it last ran ranks

    def note(self, nodes: Iterable[str], subject: str, now_s: float) -> None:
        self._ran.setdefault(subject, {}).update(dict.fromkeys(nodes, now_s))

    def __iter__(self) -> Iterator[str]:
        return (node for nodes in self._ran.values() for node in nodes)

    def count(
        self,
        now_s: float,
        own_max: int,
        is_bound: Callable[[str], bool],
        is_confirmed: Callable[[str], bool],
    ) -> FleetSize:
        """Return how many nodes count, and forget those that ran nothing within a day.

        ``own_max``: nodes that count by one subject's word alone; ``is_bound``: whether others may launch jobs beside it.
        """
        found: set[str] = set()
        unconfirmed: list[str] = []
        for subject, nodes in list(self._ran.items()):
            for node in [name for name, at_s in nodes.items() if at_s < now_s - DAY_S]:
                del nodes[node]
            if not nodes:
                del self._ran[subject]
            if len(nodes) <= own_max or not is_bound(subject):
                found.update(nodes)
                continue
            alone = [node for node in nodes if not is_confirmed(node)]
            found.update(nodes.keys() - set(alone), alone[:own_max])
            unconfirmed += alone if len(alone) > own_max else ()
        return FleetSize(len(found), tuple(unconfirmed))
