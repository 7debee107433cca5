"""Which silent nodes have no power: the proof that nothing runs there, long before the lease has passed.

Where the answers come from is the reader's business (`recovery.service.bmc.bmc_power`): here only a node of
the newest attempt is queried about that has been silent for a while, and only `Off` means anything.

With `power_off_to_fence` a BMC gets the request to switch a lost node off. That is bounded on every side: the attempt is
being fenced, the node counts as silent, most of the job's nodes report, and the cluster's rules and
budget allow it (`PowerSwitch`).
"""

from typing import Final, Protocol

from recovery.controller.job.nodes import JobNodes
from recovery.journal.cluster_records import PowerOffAsked
from recovery.journal.incident_machine import Phase
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import Policy
from recovery.journal.node_records import NodesOff, OffNode

# A launcher reports at least once a second: after four missing reports (of the 10 s that make a node
# silent) a look is worth a request, and does no harm if the node is alive.
ASK_RATIO: Final = 0.4
LOOK_S: Final = 0.25  # between two looks at all nodes: 10,000 cost 3 ms


class PowerReader(Protocol):
    def is_off(self, node: str, silence: object, /) -> bool:
        """Return whether the node was read `Off` twice within this silence. Never blocks or raises.

        Reads in the background, as long as it is queried. ``silence`` names what must not have changed
        between the readings and this question: another one makes all readings void.
        """
        ...


class PowerSwitch(Protocol):
    def allow_off(self, requested: PowerOffAsked, /) -> bool:
        """Return whether the node may be switched off, once that is on record in the cluster's journal."""
        ...

    def switch_off(self, node: str, /) -> None:
        """Ask the node's BMC to switch its power off, in the background. Never blocks or raises."""
        ...


class NoSwitch:
    """Switches nothing off."""

    def allow_off(self, _asked: PowerOffAsked, /) -> bool:
        return False

    def switch_off(self, _node: str, /) -> None:
        return


class PowerWatch:
    def __init__(
        self, reader: PowerReader | None, switch: PowerSwitch, nodes: JobNodes, policy: Policy
    ) -> None:
        self._reader = reader
        self._switch = switch
        self._nodes = nodes
        self._tried_at_s = float("-inf")
        self._silent_s = ASK_RATIO * policy.node_silent_s
        self._looked_at_s = float("-inf")

    def due(self, ledger: Ledger, now_s: float) -> NodesOff | None:
        """Return the record of nodes of the newest attempt that have lost their power, if there are any."""
        reader = self._reader
        if reader is None or not ledger.is_attempt_open or now_s - self._looked_at_s < LOOK_S:
            return None
        self._looked_at_s = now_s
        off = []
        for node in self._nodes.silent(ledger, now_s, self._silent_s):
            member = ledger.members.get(node)
            if member is None or member.ended_through is not None:
                continue
            if reader.is_off(node, self._silence(member)):
                off.append(OffNode(node, member.launcher_id, ledger.attempt))
        return NodesOff(tuple(off)) if off else None

    def lost(self, ledger: Ledger, job_id: str, now_s: float) -> PowerOffAsked | None:
        """Return the record of a lost node that may now be switched off, if there is one."""
        incident = ledger.incident
        if incident is None or now_s - self._tried_at_s < LOOK_S:
            return None
        self._tried_at_s = now_s
        for node in nodes_to_switch_off(ledger, self._nodes, now_s):
            requested = PowerOffAsked(node, job_id, incident.state.incident_id)
            if self._switch.allow_off(requested):
                return requested
        return None

    def switch_off(self, requested: PowerOffAsked) -> None:
        """Act on the record, which is durable."""
        self._switch.switch_off(requested.node)

    def _silence(self, member: Member) -> object:
        return member.launcher_id, self._nodes.reported_at_s(member.node)


def nodes_to_switch_off(ledger: Ledger, nodes: JobNodes, now_s: float) -> list[str]:
    """Return the lost nodes of an attempt that is being fenced, as far as the job's policy allows it.

    Most of the attempt's nodes must report: otherwise it may be the controller that is cut off.
    """
    incident = ledger.incident
    if incident is None or not incident.policy.power_off_to_fence:
        return []
    if incident.state.phase is not Phase.FENCING or not ledger.is_attempt_open or ledger.paused_by:
        return []
    silent = nodes.silent(ledger, now_s, incident.policy.node_silent_s)
    if 2 * len(silent) > len(ledger.placement) or len(ledger.placement) < 2:
        return []
    members = [ledger.members.get(node) for node in silent]
    return [
        member.node
        for member in members
        if member is not None
        and member.ended_through is None
        and member.boot_since <= ledger.started_number
    ]
