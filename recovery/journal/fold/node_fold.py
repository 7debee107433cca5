"""What the records of nodes and of alerts about them change in the ledger. Pure."""

from collections.abc import Iterable
from typing import Final

from recovery.journal.fold.budget_fold import replace
from recovery.journal.ledger import KeptEvidence, Ledger, Member, Moment, Wish, is_other_boot
from recovery.journal.node_records import (
    CheckpointReader,
    EndedLauncher,
    EvidenceDoubted,
    EvidenceTaken,
    FenceWaits,
    FinderChosen,
    Joined,
    LaunchersEnded,
    LeaveCause,
    LeaveReason,
    NodeLeft,
    NodesJoined,
    NodesOff,
)

_EVIDENCE_MAX: Final = 4096  # alerts that are remembered; a dead switch makes 1,000


def fold_nodes_joined(record: NodesJoined, ledger: Ledger) -> Ledger:
    members = dict(ledger.members)
    replaced_number = ledger.replaced_number
    for joined in record.nodes:
        before = members.get(joined.node)
        if before is not None and before.launcher_id != joined.launcher_id:
            replaced_number = ledger.number
        members[joined.node] = joined_member(before, joined, ledger.number)
    return replace(ledger, members=members, replaced_number=replaced_number)


def joined_member(before: Member | None, joined: Joined, number: int) -> Member:
    """Return a node as it stands after a launcher on it joined; ``number`` is its record\'s."""
    after = Member(
        joined.node,
        joined.launcher_id,
        joined.boot_id,
        joined.slots,
        joined.peer_endpoint,
        joined.launcher_started_s,
        joined=number,
        launcher_since=number,
        boot_since=0,
        folder_id=joined.folder_id,
        role=joined.role,
    )
    if before is None:
        return after
    is_same_launcher = before.launcher_id == joined.launcher_id
    return replace(
        after,
        joined=before.joined,
        launcher_since=before.launcher_since if is_same_launcher else number,
        boot_since=number if is_other_boot(before.boot_id, joined.boot_id) else before.boot_since,
        replaced=before.replaced if is_same_launcher else before.replaced | {before.launcher_id},
        left=None if before.is_lost else before.left,
        left_cause=None if before.is_lost else before.left_cause,
    )


def fold_launchers_ended(record: LaunchersEnded, ledger: Ledger) -> Ledger:
    text = LeaveReason(LeaveCause.ENDED).text
    return _with_ended(ledger, record.launchers, text, is_off=False)


def fold_nodes_off(record: NodesOff, ledger: Ledger) -> Ledger:
    """Power that is off ends a launcher, and leaves nothing of what it was ordered to run."""
    ended = [EndedLauncher(node.node, node.launcher_id, node.attempt) for node in record.nodes]
    return _with_ended(ledger, ended, "it has no power", is_off=True)


def _with_ended(
    ledger: Ledger, launchers: Iterable[EndedLauncher], text: str, *, is_off: bool
) -> Ledger:
    members, had_ranks = dict(ledger.members), {place.node for place in ledger.placement}
    replaced_number = ledger.replaced_number
    for launcher in launchers:
        member = members.get(launcher.node)
        if member is None or member.launcher_id != launcher.launcher_id:
            continue
        members[launcher.node] = replace(
            member,
            left=member.left or text,
            left_cause=member.left_cause or LeaveCause.ENDED,
            is_lost=member.left is None or member.is_lost,
            ended_through=launcher.empty_through,
            is_off=is_off,
        )
        if launcher.node in had_ranks:
            replaced_number = ledger.number
    return replace(ledger, members=members, replaced_number=replaced_number)


def fold_node_left(record: NodeLeft, ledger: Ledger) -> Ledger:
    member = ledger.members.get(record.node)
    if member is None:
        return ledger
    # Who was blamed and then falls silent does not come back by speaking.
    is_lost = record.is_lost and (member.left is None or member.is_lost)
    left = replace(
        member,
        left=record.reason,
        left_cause=record.cause,
        is_lost=is_lost,
        cut_off_from=record.cut_off_from,
    )
    members = {**ledger.members, record.node: left}
    return replace(ledger, members=members)


def fold_finder_chosen(record: FinderChosen, ledger: Ledger) -> Ledger:
    return replace(
        ledger,
        finder=record.node,
        finder_number=ledger.number,
        readers=record.readers or (CheckpointReader(record.node),),
        finders=tuple(dict.fromkeys((*ledger.finders, record.node))),
        wish=Wish.NOTHING,
        revision=ledger.number,
    )


def fold_fence_waits(record: FenceWaits, ledger: Ledger) -> Ledger:
    return replace(ledger, fence_waits=record.nodes)


def fold_evidence_doubted(record: EvidenceDoubted, ledger: Ledger) -> Ledger:
    retained = {
        identity: replace(evidence, doubted=record.reason)
        if identity in record.identities
        else evidence
        for identity, evidence in ledger.evidence.items()
    }
    return replace(ledger, evidence=retained)


def with_evidence(ledger: Ledger, record: EvidenceTaken, at: Moment) -> Ledger:
    """Return the ledger with the alerts of a moment; an alert that is over is forgotten."""
    retained = dict(ledger.evidence)
    for evidence in record.evidence:
        retained.pop(evidence.identity, None)
        if evidence.is_active:
            retained[evidence.identity] = KeptEvidence(
                evidence, record.attempt, record.incident_id, at
            )
    for identity in list(retained)[:-_EVIDENCE_MAX]:
        del retained[identity]
    accused = {evidence.node for evidence in record.evidence if evidence.is_active}
    return replace(ledger, evidence=retained, taken_back=ledger.taken_back - accused)
