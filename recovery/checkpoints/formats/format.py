"""What a checkpoint format knows of its folders."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from recovery.checkpoints.files.content import check_file, identify
from recovery.checkpoints.files.reader import FileReader, PartsMissingError
from recovery.checkpoints.formats.tree import Tree
from recovery.messages.candidates import CheckpointFormat, HeldPart


class FolderFormat(Protocol):
    """One framework's folder. Every method is bounded by the deadline of the tree."""

    format: CheckpointFormat

    def recognises(self, tree: Tree) -> bool:
        """Return whether the framework wrote this folder, by names of its top level alone."""
        ...

    def step(self, tree: Tree) -> int | None:
        """Return the step that the content holds, or None where the name has to tell it.

        Raises DefectError when the file that holds it is damaged.
        """
        ...

    def check(self, tree: Tree) -> str:
        """Return what proves that every file of the save is there; raise DefectError otherwise.

        The content of each file is checked by the caller, in the same way for all formats.
        """
        ...


@runtime_checkable
class DividedFormat(FolderFormat, Protocol):
    """A format of which each rank's part may lie on the local disk of its own node.

    `check` raises PartsMissingError where parts are missing, and those that are there are whole.
    """

    def parts(self, tree: Tree) -> tuple[HeldPart, ...]:
        """Return the parts that lie here; none where the save is not divided."""
        ...


@runtime_checkable
class ContentFormat(FolderFormat, Protocol):
    """A format whose files show only together with others whether they are whole."""

    def check_content(self, tree: Tree, name: str, reader: FileReader) -> bool:
        """Return whether this file was checked, after `check`; raise DefectError when it is damaged."""
        ...


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
