"""Chooses the source of `status`, `incidents` and `why`: a controller, or this machine's state folder.

Both answer in the types of the API (`rankmend.cli.sources.picture`), so that the commands show everything in one way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmend.cli.options import fail, find_state
from rankmend.cli.sources.controller_options import Access, asking, is_local, is_own_state
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from rankmend.cli.sources.picture import Reader

NOTHING_RUNS: Final = "no running job (--all shows ended ones)"


def find_empty(access: Access, state_dir: Path | None) -> Path | None:
    """Return this machine's state folder if it is the one to read, and no job has ever run here; else None.

    Journals are read with all their types of records, which take 0.3 s of a processor to make: a prompt or a prolog that
    asks each minute pays that only where there is a job.
    """
    if not is_local(access):
        return None
    try:
        state = find_state(state_dir)
    except RankmendError as error:
        fail(str(error))
    if (state / "watched").exists() or next(state.glob("jobs/*"), None) is not None:
        return None
    return None if next(state.glob("hosts/*/*/jobs/*"), None) is not None else state


def has_watched() -> bool:
    """Return whether a rank of this user, for root of anybody, is watched here now.

    Files of ranks that have ended stay for a day. To read them takes 0.1 s of a processor, to judge what lives takes 1 s more.
    """
    import os

    from rankmend.hook.watched_layout import FOLDER_PREFIX, PROGRESS_SUFFIX, ROOT

    uid = os.geteuid()
    users = "*" if uid == 0 else f"{uid}*"
    found = Path(ROOT).glob(f"{FOLDER_PREFIX}{users}/*/rank-*{PROGRESS_SUFFIX}")
    try:
        if next(found, None) is None:
            return False
    except OSError:
        return False  # another user's folder, which closes while it is read
    from agent.ranks.watched import WatchedRanks

    ranks = WatchedRanks(only_uid=None if uid == 0 else uid)
    try:
        return bool(ranks.look().ranks)
    finally:
        ranks.close()


@contextmanager
def reading(
    access: Access, state_dir: Path | None, *, with_watched: bool = False
) -> "Iterator[Reader]":
    """Give the reader that the command line selects; a failure ends the command with a message.

    ``with_watched``: this machine's own state folder comes with its ranks under `rankmend watch env`.
    """
    if is_local(access):
        from rankmend.cli.sources.folder_reader import FolderReader

        try:
            if with_watched and is_own_state():
                from rankmend.cli.sources.watched_here import WatchedHere

                yield FolderReader(find_state(state_dir), WatchedHere().views)
            else:
                yield FolderReader(find_state(state_dir))
        except RankmendError as error:
            fail(str(error))
        return
    from rankmend.cli.sources.controller_reader import ControllerReader

    with asking(access) as client:
        yield ControllerReader(client, access)
