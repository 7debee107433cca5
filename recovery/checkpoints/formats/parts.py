"""Formats of which each rank's part may lie on the local disk of its own node."""

from collections.abc import Iterable

from recovery.checkpoints.content import check_file, identify
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.model import HeldPart
from recovery.checkpoints.reader import PartsMissingError


def lacks_parts(
    tree: Tree, reason: str, names: Iterable[str], parts: tuple[HeldPart, ...]
) -> PartsMissingError:
    """Return the error that parts are missing here, once the files that are here were read.

    Raises DefectError where one of them is damaged.
    """
    for name in sorted(names):
        with tree.open(name) as reader:
            check_file(reader, identify(reader).format)
    return PartsMissingError(reason, parts)
