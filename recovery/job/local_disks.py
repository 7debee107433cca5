"""Joins what nodes with a checkpoint folder each on its own disk say of the checkpoints. Pure.

A save of which each rank wrote its part is whole once every rank that is to run finds a part of it on the disk of its node,
and together they have the parts of all ranks: another rank's part is a replica, which the framework sends to where it belongs.
The save's other files, and those of other formats, count where rank 0 is to run.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from detectors.wording import counted
from recovery.checkpoints.model import CheckpointVerdict, Hindrance
from recovery.checkpoints.order import newest_joined


@dataclass(frozen=True, slots=True)
class RankHome:
    """Where a rank is to run."""

    node: str
    folder_id: str  # of the checkpoint folder that it sees there


def join_disks(
    told: Mapping[str, Sequence[CheckpointVerdict]],
    homes: Mapping[int, RankHome],
    saved_by: int,
    silent: Collection[str],
) -> tuple[CheckpointVerdict, ...]:
    """Return one verdict on each checkpoint, newest first.

    ``told``: by the id of each folder. ``silent``: folders of which nobody has told anything yet.
    ``saved_by``: how many ranks have saved.
    """
    paths: dict[str, dict[str, CheckpointVerdict]] = defaultdict(dict)
    for folder, verdicts in told.items():
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
    nodes = sorted({one.node for one in homes.values() if one.folder_id == folder})
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
    first = next(one for one in by_folder.values() if one.parts)
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
        size_bytes=sum(one.size_bytes for one in candidates),
        modified_unix_s=max(one.modified_unix_s for one in candidates),
    )
    if step:
        candidate = replace(candidate, step=step, is_step_exact=True)
    return replace(first, candidate=candidate)


def _parts_of(step: int) -> str:
    return f"iteration {step}, the parts" if step else "the parts"


def _node_of(folder: str, homes: Mapping[int, RankHome]) -> str:
    return next((home.node for home in homes.values() if home.folder_id == folder), "a node")
