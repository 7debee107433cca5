"""What an attempt needs before it can be ordered: nodes, a checkpoint, a place to meet.

Reads the reports and returns what is missing; decides nothing else and does nothing.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from detectors.parts.fleet_parts import NO_PARTS, with_domains
from detectors.wording import NAMES_SHOWN_MAX, reasons_in_words
from recovery.controller.cluster.gate import Pool
from recovery.controller.job.membership import choose_placement, size_for
from recovery.controller.job.nodes import JobNodes
from recovery.controller.job.restore.checkpoint_search import CheckpointSearch, StillLooking
from recovery.controller.job.restore.restore_choice import choose_checkpoint, without_folder
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.spare_choice import NOBODY_BARRED, FleetState, bar_spares, gone_nodes
from recovery.journal.attempt_records import Choice, Placement
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import Policy
from recovery.journal.node_records import FinderChosen
from recovery.messages.exchange import Endpoint

_LOOK_AGAIN_S: Final = 60.0  # each look is journaled, since it is an order to the launcher


@dataclass(frozen=True, slots=True)
class NeedsMet:
    """All that an attempt needs."""

    placement: tuple[Placement, ...]
    rendezvous: Endpoint | None
    choice: Choice


@dataclass(frozen=True, slots=True)
class NeedsMissing:
    """Something is missing."""

    reason: str
    left_s: float  # for how long it is still waited for; below 0: no longer
    is_for_nodes: bool = False
    about: str = ""  # how many nodes there are, and which are none of them


@dataclass(frozen=True, slots=True)
class AttemptNeeds:
    """The next attempt's preparation, as of now."""

    settings: JobSettings
    policy: Policy
    ledger: Ledger
    nodes: JobNodes
    pool: Pool
    now_s: float
    since: Callable[..., float]  # for how many seconds the situation of this name has lasted
    # Of the nodes without ranks, those that may get some; None: all that are usable.
    newcomers: frozenset[str] | None = None

    def usable(self, accused: Collection[str] = ()) -> dict[str, Member]:
        """Return the nodes that may get ranks now; ``accused``: nodes that the job is about to leave for a fault."""
        members = self.nodes.usable(self.ledger, self.now_s)
        free = {
            node: member
            for node, member in members.items()
            if self.pool.unusable(node) is None and self._unconfirmed(node) is None
        }
        if self.newcomers is not None:
            may_have = self.newcomers.union(place.node for place in self.ledger.placement)
            free = {node: member for node, member in free.items() if node in may_have}
        barred = self._barred(free, members, accused)
        return {node: member for node, member in free.items() if node not in barred}

    def _accused(self) -> frozenset[str]:
        return frozenset(self.pool.accused(self.settings.job_id))

    def healthy(self, usable: Collection[str]) -> set[str]:
        """Return those of these nodes that no alert rules out."""
        return set(usable) - self._accused()

    def _barred(
        self, free: Collection[str], there: Collection[str], accused: Collection[str]
    ) -> Mapping[str, str]:
        """Return the spares below parts that are known to be broken, and why they may take no place."""
        ledger, broken = self.ledger, self.pool.broken_parts
        if self.policy.spares_below_broken_parts or not ledger.placement:
            return NOBODY_BARRED
        placed = [place.node for place in ledger.placement]
        gone = gone_nodes(ledger, there) | set(accused)
        if len(gone) < 2 and not broken:
            return NOBODY_BARRED  # one lost node blames no part
        fleet = FleetState(with_domains(self.pool.parts, self.nodes.domains()), broken)
        return bar_spares(set(free).difference(placed, gone), placed, gone, fleet)

    def _unconfirmed(self, node: str) -> str | None:
        """Return why a node gets no ranks until a person confirms: it may have been held back."""
        adopted = self.ledger.adopted
        if adopted is None or self.ledger.unconfirmed is None:
            return None
        if node in adopted.heard or any(place.node == node for place in adopted.placement):
            return None
        return f"no report when attempt {adopted.attempt} was adopted: `rankmend reset-budgets`"

    def place(self) -> tuple[Placement, ...] | NeedsMissing:
        """Return which node would have which ranks."""
        settings, ledger = self.settings, self.ledger
        usable = self.usable()
        is_first = ledger.attempt == 0 or ledger.is_resumed
        gathered_s = self.since("gather", ledger.attempt)
        size = size_for(settings, len(usable))
        if is_first and len(usable) < settings.nodes_max and self._is_last_call(size, gathered_s):
            return self._waits_for_nodes(usable, settings.nodes_max, gathered_s)
        if size is None:
            return self._waits_for_nodes(usable, settings.sizes[-1], gathered_s)
        parts = NO_PARTS
        if any(place.node not in usable for place in ledger.placement):
            parts = with_domains(self.pool.parts, self.nodes.domains())
        slow, accused = ledger.probes.slow_nodes, self._accused()
        return choose_placement(settings, ledger.placement, usable, size, parts, slow, accused)

    def _is_last_call(self, size: int | None, gathered_s: float) -> bool:
        """Return whether a first attempt still waits for more nodes than its minimum.

        Nodes that would train are waited for from the moment that the minimum is there, as by torchrun's
        last_call_timeout. Mere spares are waited for no longer than that after the first look.
        """
        waited_s = gathered_s
        if size is not None and size < self.settings.sizes[0]:
            waited_s = self.since("last call", self.ledger.attempt)
        return waited_s < self.policy.join_wait_s

    def _waits_for_nodes(
        self, usable: dict[str, Member], wanted: int, waited_s: float
    ) -> NeedsMissing:
        unusable = self._unusable()
        reason = _shortage_text(len(usable), wanted, unusable)
        away = list(unusable)[:NAMES_SHOWN_MAX]
        about = f"{len(usable)}/{wanted} {' '.join(away)}"
        left_s = self.policy.spare_wait_s - waited_s
        return NeedsMissing(reason, left_s, is_for_nodes=True, about=about)

    def say_shortage(
        self,
        count: int,
        wanted: int,
        accused: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> str:
        """Return how many nodes may be used, and why the others may not.

        ``accused``: nodes that would be left, and why; ``without``: nodes that need no reason.
        """
        unusable = {**(accused or {}), **self._unusable()}
        named = self.ledger.members.keys() - set(without)
        reasons = {node: unusable[node] for node in sorted(unusable) if node in named}
        return _shortage_text(count, wanted, reasons)

    def _unusable(self) -> dict[str, str]:
        """Return why members may get no ranks, sorted by node."""
        # Once for all: while a job of 4,000 nodes gathered, asking for each node took four fifths of the thread.
        there = self.nodes.usable(self.ledger, self.now_s)
        found = {
            node: reason
            for node in sorted(self.ledger.members)
            if (reason := self._why_unusable(node, there)) is not None
        }
        barred = self._barred(there.keys() - found.keys(), there, ())
        return dict(sorted({**barred, **found}.items())) if barred else found

    def _why_unusable(self, node: str, there: Collection[str]) -> str | None:
        member = self.ledger.members[node]
        if member.left is not None:
            return member.left
        if (held := self.pool.unusable(node)) is not None:
            return held
        if (unconfirmed := self._unconfirmed(node)) is not None:
            return unconfirmed
        needed = self.settings.slots_of(member.slots)
        if member.slots < needed:
            return f"it has room for {member.slots} ranks, {needed} are needed"
        return None if node in there else "silent"

    def meet(self, placement: tuple[Placement, ...]) -> Endpoint | NeedsMissing | None:
        """Return where the ranks would meet; None where the launcher itself chooses."""
        node = placement[0].node
        member = self.ledger.members.get(node)
        if len(placement) == 1 and member is not None and member.peer_endpoint is None:
            return None  # no other node has to find it
        reported = self.nodes.rendezvous(node, self.ledger)
        if reported is not None:
            return reported
        waited_s = self.since("rendezvous", self.ledger.attempt, node)
        reason = f"{node} has named no new place where the ranks can meet"
        return NeedsMissing(reason, self.policy.start_timeout_s - waited_s)

    def find(
        self, placement: tuple[Placement, ...], *, may_begin: bool
    ) -> Choice | FinderChosen | NeedsMissing:
        """Return where to restore from, by the word of a launcher that looked after the fence.

        ``may_begin``: a person wants the job to begin at zero where nothing can be restored.
        """
        ledger = self.ledger
        if not self.settings.has_checkpoints:
            return without_folder(ledger)
        search = CheckpointSearch(
            self.policy, ledger, self.nodes, placement, self.usable(), self.now_s, self.since
        )
        found = search.go_on()
        if isinstance(found, FinderChosen):
            return found
        if isinstance(found, StillLooking):
            waited_s = self.since("finders", ledger.attempt, ledger.incident is None)
            return NeedsMissing(found.text, self.policy.spare_wait_s - waited_s)
        looked_s = self.since("found", ledger.finder_number)
        if (full := search.unwritable()) is not None:
            if looked_s < _LOOK_AGAIN_S:
                raise full
            return search.look_again("again, since nothing could be written")
        choice = choose_checkpoint(ledger, self.policy, found, may_begin=may_begin)
        if choice.is_possible or looked_s < _LOOK_AGAIN_S:
            return choice
        return search.look_again("again, since nothing could be restored")


def _shortage_text(count: int, wanted: int, unusable: Mapping[str, str]) -> str:
    """Return how many nodes may be used, and why the others may not."""
    why = reasons_in_words([f"{node}: {reason}" for node, reason in unusable.items()])
    text = f"{count} of {wanted} nodes are there and may be used"
    return f"{text} ({why})" if why else text
