"""Which silent nodes have no power: the proof that nothing runs there, long before the lease has passed.

Where the answers come from is the reader's business (`recovery.service.bmc_power`): here only a node of
the newest attempt is asked about that has been silent for a while, and only `Off` means anything.
"""

from typing import Final, Protocol

from recovery.job.nodes import JobNodes
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

        Reads in the background, as long as it is asked. ``silence`` names what must not have changed
        between the readings and this question: another one makes all readings void.
        """
        ...


class NoReader:
    """Knows the power of no node."""

    def is_off(self, _node: str, _silence: object, /) -> bool:
        return False


class PowerWatch:
    def __init__(self, reader: PowerReader, nodes: JobNodes, policy: Policy) -> None:
        self._reader = reader
        self._nodes = nodes
        self._silent_s = ASK_RATIO * policy.node_silent_s
        self._looked_at_s = float("-inf")

    def due(self, ledger: Ledger, now_s: float) -> NodesOff | None:
        """Return the record of nodes of the newest attempt that have lost their power, if there are any."""
        if not ledger.is_attempt_open or now_s - self._looked_at_s < LOOK_S:
            return None
        self._looked_at_s = now_s
        off = []
        for node in self._nodes.silent(ledger, now_s, self._silent_s):
            member = ledger.members.get(node)
            if member is None or member.ended_through is not None:
                continue
            if self._reader.is_off(node, self._silence(member)):
                off.append(OffNode(node, member.launcher_id, ledger.attempt))
        return NodesOff(tuple(off)) if off else None

    def _silence(self, member: Member) -> object:
        return member.launcher_id, self._nodes.heard_at_s(member.node)
