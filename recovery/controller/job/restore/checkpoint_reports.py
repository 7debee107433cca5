"""Turns launchers' reports of checkpoints into verdicts, and joins those of several launchers and local disks. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.wording import counted, names_in_words
from rankmend.printable import size_in_words
from recovery.checkpoints.order import newest_joined
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Member
from recovery.journal.node_records import CheckpointReader
from recovery.messages.candidates import (
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Hindrance,
    Holds,
    Shape,
    Share,
)
from recovery.messages.exchange import FoundCheckpoint

_FORMATS: Final = {item.value: item for item in CheckpointFormat}
_HOLDS: Final = {holds.value: holds for holds in Holds}
_HINDRANCES: Final = {hindrance.value: hindrance for hindrance in Hindrance}

READERS_MAX: Final = 16
"""Launchers that share the reading of one folder.

At 200 MB/s each (`--checkpoint-check-rate`), 16 read 2.8 TB in 15 minutes beside training, and a recovery
reads as fast as it can. Each reader also lists the folder every few seconds: 2,000 of them would be a load that a
metadata server notices.
"""
# Defects of the checkpoint itself, whichever node sees them first.
_DEFECTS: Final = (Hindrance.DAMAGED, Hindrance.WRITING, Hindrance.MISSING, Hindrance.ALIAS)

_VerdictsByNode = Mapping[str, Sequence[CheckpointVerdict]]


def verdicts_of(found: Iterable[FoundCheckpoint]) -> tuple[CheckpointVerdict, ...]:
    """Return the verdicts; what a newer launcher calls by another name is of an unknown format."""
    return tuple(
        CheckpointVerdict(
            _candidate(checkpoint),
            checkpoint.is_valid,
            checkpoint.reason,
            _HINDRANCES.get(checkpoint.hindrance),
            checkpoint.share,
            checkpoint.parts,
            checkpoint.unchecked_bytes,
            checkpoint.has_wrong_sum,
        )
        for checkpoint in found
    )


def _candidate(found: FoundCheckpoint) -> Candidate:
    return Candidate(
        found.path,
        found.step,
        _FORMATS.get(found.kind, CheckpointFormat.UNKNOWN),
        found.size_bytes,
        found.modified_unix_s,
        found.is_step_exact,
        oldest_unix_s=found.oldest_unix_s,
        shape=Shape(
            _HOLDS.get(found.holds, Holds.UNKNOWN), found.tensors, found.elements, found.epoch
        ),
    )


@dataclass(frozen=True, slots=True)
class RankHome:
    """Where a rank is to run."""

    node: str
    folder_id: str  # of the checkpoint folder that it sees there


def join_disks(
    reported: Mapping[str, Sequence[CheckpointVerdict]],
    homes: Mapping[int, RankHome],
    saved_by: int,
    silent: Collection[str],
) -> tuple[CheckpointVerdict, ...]:
    """Return one verdict on each checkpoint, newest first, where each node has a checkpoint folder on its own disk.

    A save of which each rank wrote its part is whole once every rank of the next attempt finds a
    part of it on the disk of its node, and together they have the parts of all ranks: another
    rank's part is a replica, which the framework sends to where it belongs. The save's other files,
    and those of other formats, count where rank 0 will run.

    ``told``: reports by the id of each folder. ``silent``: folders without a report yet. ``saved_by``: how many
    ranks have saved.
    """
    paths: dict[str, dict[str, CheckpointVerdict]] = defaultdict(dict)
    for folder, verdicts in reported.items():
        for verdict in verdicts:
            paths[verdict.candidate.path][folder] = verdict
    joined = [
        _join_parts(by_folder, homes, saved_by, silent)
        if any(verdict.parts for verdict in by_folder.values())
        else _at_rank_0(by_folder, homes, silent)
        for by_folder in paths.values()
    ]
    return newest_joined(joined)


def _at_rank_0(
    by_folder: Mapping[str, CheckpointVerdict],
    homes: Mapping[int, RankHome],
    silent: Collection[str],
) -> CheckpointVerdict:
    """Return the verdict where rank 0 is to run: a script may have it read the file for all."""
    home = homes[min(homes)]
    if (verdict := by_folder.get(home.folder_id)) is not None:
        return verdict
    folder, verdict = next(iter(by_folder.items()))
    nodes = sorted({item.node for item in homes.values() if item.folder_id == folder})
    if home.folder_id in silent:
        reason = (
            f"{home.node}, where rank {min(homes)} is to run, has not reported what it sees yet"
        )
        return replace(verdict, is_valid=False, reason=reason, hindrance=Hindrance.UNREAD)
    reason = (
        f"only on the disk of {', '.join(nodes)}, and rank {min(homes)} is to run on {home.node}"
    )
    return replace(verdict, is_valid=False, reason=reason, hindrance=Hindrance.MISSING)


def _join_parts(
    by_folder: Mapping[str, CheckpointVerdict],
    homes: Mapping[int, RankHome],
    saved_by: int,
    silent: Collection[str],
) -> CheckpointVerdict:
    """Return whether every rank that is to run finds its part of one save."""
    for folder, verdict in by_folder.items():
        if verdict.hindrance is Hindrance.WRITING:
            return replace(verdict, reason=f"{_node_of(folder, homes)}: {verdict.reason}")
    seen: dict[int, set[int]] = defaultdict(set)  # ranks by the step of the save
    held: dict[int, set[int]] = defaultdict(set)  # found by a rank that is to run there
    for folder, verdict in by_folder.items():
        for part in verdict.parts:
            seen[part.step].add(part.rank)
            home = homes.get(part.holder)
            if home is not None and home.folder_id == folder:
                held[part.step].add(part.rank)
    ranks = set(homes)
    first = next(item for item in by_folder.values() if item.parts)
    for step in sorted(seen, reverse=True):
        if held[step] == ranks and seen[step] <= ranks and saved_by <= len(ranks):
            nodes = {home.node for home in homes.values()}
            reason = f"complete: {_parts_of(step)} of {counted(len(ranks), 'rank')}, on {counted(len(nodes), 'node')}"
            return replace(
                _dated(by_folder, step),
                is_valid=True,
                reason=reason,
                hindrance=None,
                parts=(),
                unchecked_bytes=sum(verdict.unchecked_bytes for verdict in by_folder.values()),
            )
    # The newest of those that the fewest ranks miss: a fault may have cut the last save short.
    newest = max(seen, key=lambda step: (len(held[step] & ranks), step))
    missing = min(ranks - held[newest], default=None)
    unsaid = None if missing is None else by_folder.get(homes[missing].folder_id)
    reason, hindrance = "", Hindrance.DAMAGED
    if missing is None:
        count = max(saved_by, max(seen[newest]) + 1)
        reason = f"saved by {counted(count, 'rank')}, and {len(ranks)} are to run"
    elif homes[missing].folder_id in silent:
        reason = (
            f"{homes[missing].node}, where rank {missing} is to run, has not reported its parts yet"
        )
        hindrance = Hindrance.UNREAD
    elif unsaid is not None and not unsaid.parts:
        reason = f"{homes[missing].node}: {unsaid.reason}"
        hindrance = unsaid.hindrance or Hindrance.DAMAGED
    else:
        reason = (
            f"the part of rank {missing} is not on the disk of {homes[missing].node}, where it is to run"
            f"{f' (iteration {newest})' if newest else ''}"
        )
    return replace(
        _dated(by_folder, newest),
        is_valid=False,
        reason=reason,
        hindrance=hindrance,
        parts=first.parts,
    )


def _dated(by_folder: Mapping[str, CheckpointVerdict], step: int) -> CheckpointVerdict:
    """Return the verdict on the save of this step: 0 where the candidate is one save."""
    candidates = [verdict.candidate for verdict in by_folder.values()]
    first = next(verdict for verdict in by_folder.values() if verdict.parts)
    candidate = replace(
        first.candidate,
        size_bytes=sum(item.size_bytes for item in candidates),
        modified_unix_s=max(item.modified_unix_s for item in candidates),
    )
    if step:
        candidate = replace(candidate, step=step, is_step_exact=True)
    return replace(first, candidate=candidate)


def _parts_of(step: int) -> str:
    return f"iteration {step}, the parts" if step else "the parts"


def _node_of(folder: str, homes: Mapping[int, RankHome]) -> str:
    return next((home.node for home in homes.values() if home.folder_id == folder), "a node")


def readers_of(
    placement: Sequence[Placement], members: Mapping[str, Member]
) -> tuple[CheckpointReader, ...]:
    """Return which nodes of a placement read the checkpoints, and which share each.

    Of the nodes that see one folder at most READERS_MAX read, spread evenly. A node that does not
    say which folder it sees is taken to see that of the first one that does.
    """
    seen = _folders_of(placement, members)
    folders: dict[str, list[str]] = defaultdict(list)
    for node, folder in seen.items():
        folders[folder].append(node)
    readers = {}
    for folder, nodes in folders.items():
        count = min(len(nodes), READERS_MAX)
        for number in range(count):
            node = nodes[number * len(nodes) // count]
            readers[node] = CheckpointReader(node, Share(number, count), folder)
    return tuple(readers[node] for node in seen if node in readers)


def homes_of(placement: Sequence[Placement], members: Mapping[str, Member]) -> dict[int, RankHome]:
    """Return where each rank of a placement is to run."""
    seen = _folders_of(placement, members)
    homes: dict[int, RankHome] = {}
    for place in placement:
        homes |= dict.fromkeys(place.ranks, RankHome(place.node, seen[place.node]))
    return homes


def divide(readers: Sequence[CheckpointReader]) -> tuple[CheckpointReader, ...]:
    """Return the same readers of one folder, which share the reading anew."""
    return tuple(
        replace(reader, share=Share(number, len(readers))) for number, reader in enumerate(readers)
    )


def join_checkpoints(
    readers: Sequence[CheckpointReader],
    reported: _VerdictsByNode,
    homes: Mapping[int, RankHome] | None = None,
    saved_by: int = 0,
) -> tuple[CheckpointVerdict, ...]:
    """Return one verdict on each checkpoint, newest first, from the reports of launchers that see one folder.

    Each launcher reads a share of a checkpoint's files: it is valid once all shares are, or once
    one launcher vouches for the whole, and a defect in any share damages it. A node vouches only
    for the share that it was given. Where nodes see different folders, `join_disks` joins the
    verdicts.

    ``told`` lacks the nodes that have not answered. ``homes``: where each rank will run, and
    ``saved_by``: how many ranks have saved; both count on local disks alone. A verdict that only
    needs another share, or another look, is `Hindrance.UNREAD`.
    """
    folders: dict[str, list[CheckpointReader]] = defaultdict(list)
    for reader in readers:
        folders[reader.folder_id].append(reader)
    joined = {folder: _join_folder(members, reported) for folder, members in folders.items()}
    if len(joined) == 1 or not homes:
        return next(iter(joined.values()))
    silent = {
        folder
        for folder, members in folders.items()
        if not any(reader.node in reported for reader in members)
    }
    return join_disks(joined, homes, saved_by, silent)


def _join_folder(
    readers: Sequence[CheckpointReader], reported: _VerdictsByNode
) -> tuple[CheckpointVerdict, ...]:
    """Return one verdict on each checkpoint of one folder."""
    if len(readers) == 1:
        (reader,) = readers
        return tuple(_of_its_share(reader, item) for item in reported.get(reader.node, ()))
    paths: dict[str, dict[str, CheckpointVerdict]] = defaultdict(dict)
    for reader in readers:
        for verdict in reported.get(reader.node, ()):
            paths[verdict.candidate.path][reader.node] = _of_its_share(reader, verdict)
    joined = [_join_shares(readers, reported, by_node) for by_node in paths.values()]
    return newest_joined(joined)


def needs_another_look(verdicts: Sequence[CheckpointVerdict]) -> bool:
    """Return whether a checkpoint that is newer than all valid ones might be valid, too."""
    for verdict in verdicts:
        if verdict.is_valid:
            return False
        if verdict.hindrance is Hindrance.UNREAD:
            return True
    return False


def _folders_of(placement: Sequence[Placement], members: Mapping[str, Member]) -> dict[str, str]:
    """Return which folder each node sees."""
    found = {place.node: members.get(place.node) for place in placement}
    ids = {node: "" if member is None else member.folder_id for node, member in found.items()}
    usual = next((folder for folder in ids.values() if folder), "")
    return {node: folder or usual for node, folder in ids.items()}


def _of_its_share(reader: CheckpointReader, verdict: CheckpointVerdict) -> CheckpointVerdict:
    """Return the verdict, unless it speaks for a share that another node was given."""
    if not verdict.is_valid or verdict.share.is_whole or verdict.share == reader.share:
        return verdict
    reason = f"{reader.node} has not checked its share yet"
    return replace(verdict, is_valid=False, reason=reason, hindrance=Hindrance.UNREAD)


def _join_shares(
    readers: Sequence[CheckpointReader],
    reported: _VerdictsByNode,
    by_node: Mapping[str, CheckpointVerdict],
) -> CheckpointVerdict:
    """Return the verdict on one checkpoint from those of the nodes that see it."""
    defect = _first(by_node, *_DEFECTS)
    if defect is not None:
        return _with_finder(defect, by_node)
    wholes = [
        verdict for verdict in by_node.values() if verdict.is_valid and verdict.share.is_whole
    ]
    if wholes:
        return min(wholes, key=lambda whole: whole.unchecked_bytes)
    valid = {node: verdict for node, verdict in by_node.items() if verdict.is_valid}
    missing = [reader.node for reader in readers if reader.node not in valid]
    if not missing:
        first = next(iter(valid.values()))
        reason = f"{first.reason}; read by {counted(len(valid), 'node')}"
        unchecked_bytes = sum(item.unchecked_bytes for item in valid.values())
        if unchecked_bytes and not first.unchecked_bytes:
            reason += f"; {size_in_words(unchecked_bytes)} were not checked yet"
        return replace(first, reason=reason, share=Share(), unchecked_bytes=unchecked_bytes)
    unreadable = _first(by_node, Hindrance.UNREADABLE, None)
    if unreadable is not None:
        return _with_finder(unreadable, by_node)
    seen = next(iter(valid.values() or by_node.values()))
    late = [node for node in missing if node not in reported]
    blind = [node for node in missing if node in reported and node not in by_node]
    reason = by_node[missing[0]].reason if missing[0] in by_node else ""
    if late:
        reason = f"{names_in_words(late)}: no report of its share yet"
    elif blind:
        reason = f"{names_in_words(blind)}: does not see it yet"
    return replace(seen, is_valid=False, reason=reason, hindrance=Hindrance.UNREAD)


def _first(
    by_node: Mapping[str, CheckpointVerdict], *hindrances: Hindrance | None
) -> CheckpointVerdict | None:
    return next(
        (
            verdict
            for verdict in by_node.values()
            if not verdict.is_valid and verdict.hindrance in hindrances
        ),
        None,
    )


def _with_finder(
    defect: CheckpointVerdict, by_node: Mapping[str, CheckpointVerdict]
) -> CheckpointVerdict:
    """Return the verdict with the node that has found it, where the others have not."""
    found = [node for node, verdict in by_node.items() if verdict.reason == defect.reason]
    if len(found) == len(by_node) > 1:
        return defect
    return replace(defect, reason=f"{found[0]}: {defect.reason}")
