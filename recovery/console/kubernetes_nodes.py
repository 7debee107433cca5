"""What the console shows of nodes in Kubernetes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.api import wire

_REQUESTS_MAX: Final = 8  # of one node, the newest; open ones come first


def is_noted(state: wire.KubernetesNodeView) -> bool:
    """Return whether there is something to say of a node: it is not plainly ready."""
    return bool(state.is_cordoned or state.conditions or state.taints)


@dataclass(frozen=True, slots=True)
class NodeInKubernetes:
    """A node's page: its state there, our cordons of it, and what was asked about it."""

    state: wire.KubernetesNodeView | None
    cordons: wire.SlurmNodeView | None
    requests: Sequence[wire.SlurmRequestView]

    @classmethod
    def of(cls, view: wire.SlurmView, name: str) -> "NodeInKubernetes | None":
        """Return None where Kubernetes has nothing about the node."""
        state = next((one for one in view.states if one.node == name), None)
        cordons = next((one for one in view.nodes if one.node == name), None)
        asked = [one for one in view.requests if name in one.nodes]
        asked.sort(key=lambda one: bool(one.outcome))
        if state is None and cordons is None and not asked:
            return None
        return cls(state, cordons, asked[:_REQUESTS_MAX])
