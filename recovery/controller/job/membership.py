"""Which nodes a job runs on, and when it is known to be gone from them. Pure.

Fencing (docs/operate/fencing.md): a node is empty by its launcher's word, by another boot, without power,
by a person's word, or because its launcher was alone for so long that it has stopped its ranks by itself. The
last holds only while the silent nodes can't be a majority among themselves.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.spare_choice import Spares
from recovery.journal.attempt_records import GoneProof, Placement, Proof
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import Policy
from recovery.journal.node_records import LeaveReason, cut_off_from
from recovery.messages.exchange import WITNESSES_MAX, Peer


def has_launcher_of_attempt(ledger: Ledger, member: Member) -> bool:
    """Return whether the node's launcher is the one that the newest attempt was ordered from."""
    return member.launcher_since < ledger.started_number


def have_all_ended(ledger: Ledger) -> bool:
    """Return whether every launcher on record has ended and none has left a rank of any attempt."""
    ends = [member.ended_through for member in ledger.members.values()]
    return bool(ends) and all(through is not None and through >= ledger.attempt for through in ends)


def witnesses(placement: Sequence[Placement]) -> tuple[str, ...]:
    """Return the nodes that count for the lease: all, or WITNESSES_MAX spread evenly."""
    return tuple(placement[group].node for group in witness_groups(len(placement)))


def witness_groups(count: int) -> tuple[int, ...]:
    """Return the group ranks of the nodes that count for the lease, of ``count`` nodes."""
    if count <= WITNESSES_MAX:
        return tuple(range(count))
    return tuple(index * count // WITNESSES_MAX for index in range(WITNESSES_MAX))


def peers_of(ledger: Ledger) -> tuple[Peer, ...]:
    """Return the launchers that the newest attempt's launchers count for the lease.

    Empty where one of them can't be queried: then there is no lease, and silence proves nothing.
    """
    peers = []
    for node in witnesses(ledger.placement):
        peer = _peer(ledger, node)
        if peer is None:
            return ()
        peers.append(peer)
    return tuple(peers)


def neighbours_of(ledger: Ledger, group: int) -> tuple[Peer, ...]:
    """Return the launchers before and after this group rank in the ring, of those that can be queried."""
    placement = ledger.placement
    ring = (placement[group - 1].node, placement[(group + 1) % len(placement)].node)
    others = dict.fromkeys(node for node in ring if node != placement[group].node)
    return tuple(peer for node in others if (peer := _peer(ledger, node)) is not None)


def _peer(ledger: Ledger, node: str) -> Peer | None:
    member = ledger.members.get(node)
    if member is None or member.peer_endpoint is None:
        return None
    return Peer(node, member.launcher_id, member.peer_endpoint)


@dataclass(frozen=True, slots=True)
class Word:
    """What a node has reported since this controller started. Times are its monotonic seconds."""

    reported_at_s: float  # its newest report
    empty_through: int
    empty_at_s: float  # when it first reported that
    launcher_at_s: float  # when its present launcher first reported


@dataclass(frozen=True, slots=True)
class Gone:
    """Whether an attempt is gone from its nodes."""

    is_proved: bool
    proofs: tuple[GoneProof, ...] = ()  # besides the launchers' own words
    busy: tuple[str, ...] = ()  # reporting, and not empty
    silent: tuple[str, ...] = ()  # silent, and not proved
    off: tuple[str, ...] = ()  # nodes without power, which is a record of its own


def judge_gone(
    ledger: Ledger,
    placement: Sequence[Placement],
    words: Mapping[str, Word],
    policy: Policy,
    now_s: float,
    *,
    started_at_s: float,
    confirmed_at_s: Mapping[str, float],
    ended_at_s: Mapping[str, float] | None = None,
) -> Gone:
    """Return whether every node is proved to be empty of the newest attempt.

    ``started_at_s`` is when this controller started: earlier reports are forgotten.
    ``confirmed_at_s``: when a person confirmed it, ``ended_at_s``: when a launcher's end was reported or its
    node's power was read, where that was since then.
    """
    attempt = ledger.attempt
    ended = ended_at_s or {}
    proofs: list[GoneProof] = []
    off: list[str] = []
    busy: list[str] = []
    silent: list[str] = []
    last_at_s = started_at_s  # when the last counted launcher can have answered a silent one
    counted = set(witnesses(placement))
    for place in placement:
        word = words.get(place.node)
        if word is not None and word.empty_through >= attempt:
            if place.node in counted:
                last_at_s = max(last_at_s, word.empty_at_s)
        elif _is_off(ledger, place):
            off.append(place.node)
            last_at_s = max(last_at_s, ended.get(place.node, started_at_s))
        elif (proof := _proof(ledger, place)) is not None:
            proofs.append(proof)
            since_s = confirmed_at_s.get(place.node, started_at_s)
            if proof.proof is Proof.LAST_WORD:
                since_s = ended.get(place.node, started_at_s)
            if proof.proof is Proof.BOOT and word is not None:
                since_s = word.launcher_at_s
            last_at_s = max(last_at_s, since_s)
        elif word is not None and now_s - word.reported_at_s < policy.node_silent_s:
            busy.append(place.node)
        else:
            silent.append(place.node)
    if not busy and not silent:
        return Gone(True, tuple(proofs), off=tuple(off))
    # Of a lost journal the placement is without ranks: then the copy of the budgets has it.
    is_known = any(place.ranks for place in placement) and peers_of(ledger)
    if busy or not (is_known or ledger.has_lost_lease):
        return Gone(False, (), tuple(busy), tuple(silent))
    voices = sum(node in counted for node in silent)
    reported_at_s = max(
        words[node].reported_at_s if node in words else started_at_s for node in silent
    )
    bound_s = policy.lease_s + policy.kill_bound_s + policy.lease_margin_s
    alone_s = now_s - max(last_at_s, reported_at_s)
    if len(placement) == 1 or 2 * voices > len(counted) or alone_s < bound_s:
        return Gone(False, (), (), tuple(silent))
    reason = (
        f"silent, with {voices} of {len(counted)} counted launchers: no majority for {alone_s:.0f} s. Within {bound_s:g} s "
        f"its launcher or guardian has killed its ranks; if both stand still, a rank with the hook begins no further step "
        f"and publishes nothing, but may still hold its devices"
    )
    proofs += [GoneProof(node, Proof.LEASE, reason) for node in silent]
    return Gone(True, tuple(proofs), off=tuple(off))


def _is_off(ledger: Ledger, place: Placement) -> bool:
    member = ledger.members.get(place.node)
    return member is not None and member.is_off and _has_ended(ledger, place, member)


def _proof(ledger: Ledger, place: Placement) -> GoneProof | None:
    node = place.node
    member = ledger.members.get(node)
    if member is not None and _has_ended(ledger, place, member):
        reason = f"launcher {member.launcher_id} has ended and left no process behind"
        return GoneProof(node, Proof.LAST_WORD, reason)
    if member is not None and member.boot_since > ledger.started_number:
        return GoneProof(node, Proof.BOOT, f"rebooted: {member.boot_id}")
    if ledger.confirmed.get(node, 0) >= ledger.attempt:
        return GoneProof(node, Proof.PERSON, "a person confirmed it")
    return None


def _has_ended(ledger: Ledger, place: Placement, member: Member) -> bool:
    """Return whether the launcher's end is the end of the newest attempt on its node.

    No order that was sent to it is carried out any more, so nothing of an attempt that was ordered
    from it can be there; of others only what its word names.
    """
    if member.ended_through is None:
        return False
    is_its = bool(place.ranks) and has_launcher_of_attempt(ledger, member)
    return is_its or member.ended_through >= ledger.attempt


def choose_placement(
    settings: JobSettings,
    before: Sequence[Placement],
    usable: Mapping[str, Member],
    nodes: int,
    parts: FleetParts = NO_PARTS,
    slow: Collection[str] = (),
    accused: Collection[str] = (),
) -> tuple[Placement, ...]:
    """Return a placement on ``nodes`` of the usable nodes.

    ``slow``: spares that are taken after the others; ``accused``: those that are taken last.

    Who had ranks keeps its place where it can; the spares nearest to them take the places of who left, of
    equally near ones those that joined first. Ranks are dense: each node has those after the ranks of the node before it.
    """
    stay = [place.node if place.node in usable else None for place in before]
    held = {node for node in stay if node is not None}
    spares = sorted(
        (member for node, member in usable.items() if node not in held),
        key=lambda member: (member.joined, member.node),
    )
    waiting = Spares(
        [spare.node for spare in spares],
        [placement.node for placement in before],
        [placement.node for placement, node in zip(before, stay, strict=True) if node is None],
        parts,
        slow,
        accused,
    )
    if len(held) >= nodes:
        chosen: list[str] = [node for node in stay if node is not None][:nodes]
    else:
        # Vacant places are filled from the front, so that fewer nodes close the gaps behind.
        wanted = nodes - len(held)
        chosen = []
        for place, node in zip(before, stay, strict=True):
            if node is not None:
                chosen.append(node)
            elif wanted and (spare := waiting.take(place.node)) is not None:
                chosen.append(spare)
                wanted -= 1
        chosen += waiting.take_first(wanted)
    sizes = [settings.slots_of(usable[node].slots) for node in chosen]
    return place_ranks(chosen, sizes)


def place_ranks(nodes: Sequence[str], sizes: Sequence[int]) -> tuple[Placement, ...]:
    """Return a placement of so many ranks on each node, by group rank."""
    ends = list(accumulate(sizes))
    return tuple(
        Placement(node, tuple(range(end - size, end)))
        for node, size, end in zip(nodes, sizes, ends, strict=True)
    )


def size_for(settings: JobSettings, usable: int) -> int | None:
    """Return on how many nodes the job can run with ``usable`` ones; None: on none yet."""
    return next((size for size in settings.sizes if size <= usable), None)


def next_finder(
    placement: Sequence[Placement], usable: Collection[str], requested: Collection[str]
) -> str | None:
    """Return the next node to look for checkpoints: the lowest usable group rank without a request so far."""
    placed = [place.node for place in placement if place.node in usable]
    others = sorted(node for node in usable if node not in placed)
    return next((node for node in (*placed, *others) if node not in requested), None)


def find_torn(
    unreachable: Mapping[str, Collection[str]], nodes: Sequence[str]
) -> dict[str, LeaveReason]:
    """Return the nodes without which all others reach each other, as far as they tell, and why.

    ``unreachable``: for each reporting node, which others it can't reach. Of two that can't
    reach each other nobody knows whose cable it is: the one that more others miss goes, else the later.
    """
    missed: dict[str, set[str]] = {node: set() for node in nodes if node in unreachable}
    for node, others in unreachable.items():
        for other in others:
            if node in missed and other in missed and other != node:
                missed[node].add(other)
                missed[other].add(node)
    torn: dict[str, LeaveReason] = {}
    # A dead switch tears thousands of pairs at once, so the next node comes from a heap. Its counts
    # are those of when they were put there, and only fall.
    heap = [
        (-len(missed[node]), -number, node) for number, node in enumerate(nodes) if node in missed
    ]
    heapify(heap)
    while heap and heap[0][0] < 0:
        count, number, node = heap[0]
        if len(missed[node]) < -count:
            heapreplace(heap, (-len(missed[node]), number, node))
            continue
        heappop(heap)
        others = sorted(missed[node])
        torn[node] = cut_off_from(others)
        for other in others:
            missed[other].discard(node)
    return torn
