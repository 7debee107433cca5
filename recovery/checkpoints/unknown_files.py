"""Files that are named like checkpoints, in a form that rankmend does not know: what to tell of them. Pure."""

from collections.abc import Sequence

from detectors.wording import names_in_words

_SHOWN_MAX = 3


def describe_unknown(folder: str, names: Sequence[str]) -> str:
    """Return what a person who expects a restart from these files has to know."""
    are, they = ("are", "they are checkpoints") if len(names) > 1 else ("is", "it is one")
    like = "checkpoints" if len(names) > 1 else "a checkpoint"
    return (
        f"{folder}: {names_in_words(names, _SHOWN_MAX)} {are} named like {like}, but in no format that rankmend knows, so no restart "
        f"begins from there. If {they}, save into a folder for each step, with a file that you write last, and name that file with "
        "--checkpoint-marker: then any format will do"
    )
