"""NVRx local checkpoints: `<session>/<rank>/iter_<N>_<rank>_local.pt`.

Each rank renames its own part from a `.dirty` name, so a save is whole when every rank has a part
of one iteration. The script's manager finds the newest one itself: the session folder is the
candidate. On local disks a node has the folders of the ranks that run, or once ran, on it; a rank looks into
its own folder alone, where replicas of other ranks' parts lie, too. A `.dirty` part that was left is ignored.
Source: nvidia-resiliency-ext 0.4.1, checkpointing/local/ckpt_managers/{base,local}_manager.py.
"""

import re
from collections import defaultdict
from typing import Final

from recovery.checkpoints.formats.format import lacks_parts
from recovery.checkpoints.formats.tree import Tree
from recovery.messages.candidates import CheckpointFormat, HeldPart

DIRTY_PART: Final = re.compile(r"iter_[0-9]{7,}_[0-9]+_local\.dirty\.pt")
_ITERATIONS_MAX: Final = 4  # told of; its manager keeps one, and a second one while it saves
_PART: Final = re.compile(r"([0-9]+)/iter_([0-9]{7,})_([0-9]+)_local\.pt")


class NvrxLocalFormat:
    format = CheckpointFormat.NVRX_LOCAL

    def recognises(self, tree: Tree) -> bool:
        return any(_PART.fullmatch(name) for name in tree.files)

    def step(self, tree: Tree) -> int | None:
        ranks, iterations = _iterations(tree)
        return max((step for step, owners in iterations.items() if owners >= ranks), default=None)

    def check(self, tree: Tree) -> str:
        ranks, iterations = _iterations(tree)
        step = self.step(tree)
        if step is None:
            newest = max(iterations)
            rank = min(ranks - iterations[newest])
            reason = f"no iteration is there for all {len(ranks)} ranks: {newest} lacks rank {rank}"
            names = [name for name in tree.files if _PART.fullmatch(name) is not None]
            raise lacks_parts(tree, reason, names, self.parts(tree))
        return f"iteration {step} of {len(ranks)} ranks"

    def parts(self, tree: Tree) -> tuple[HeldPart, ...]:
        """Return the parts that lie here, of the newest iterations."""
        parts = sorted(
            HeldPart(int(match[2]), int(match[3]), int(match[1]))
            for name in tree.files
            if (match := _PART.fullmatch(name)) is not None
        )
        newest = sorted({part.step for part in parts})[-_ITERATIONS_MAX:]
        return tuple(part for part in parts if part.step in newest)


def _iterations(tree: Tree) -> tuple[set[int], dict[int, set[int]]]:
    """Return the ranks that have a folder, and which ranks' parts each iteration has."""
    iterations: dict[int, set[int]] = defaultdict(set)
    for name in tree.files:
        if (match := _PART.fullmatch(name)) is not None:
            iterations[int(match[2])].add(int(match[3]))  # a replica lies in another rank's folder
    return {int(name) for name in tree.top_folders if name.isdecimal()}, iterations
