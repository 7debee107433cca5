"""Where `status`, `incidents` and `why` read: a controller, or this machine's state folder.

Both answer in the same types, those of the API, so that the commands show one thing in one way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rankmend.cli.controller_options import Access, asking, is_local
from rankmend.cli.options import fail, find_state
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recovery.api import wire


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show of it all."""

    job: str | None
    with_ended: bool
    every_node: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """How everything stands, asked for within a moment."""

    controller: str | None  # URL of the one that answered; None: read from the state folder
    jobs: "Sequence[wire.JobView]"
    nodes: "Sequence[wire.NodeView]"
    plans: "Sequence[wire.PlanView]"
    cluster: "wire.Cluster"
    state_dir: str = ""


class Reader(Protocol):
    @property
    def watch_s(self) -> float:
        """How long to wait between two pictures."""
        ...

    def picture(self, wanted: Wanted) -> Picture: ...
    def picture_or_problem(self, wanted: Wanted) -> Picture | str:
        """Return a picture, or why there is none now and may be one later."""
        ...

    def incidents(self, job: str | None) -> "list[wire.IncidentView]": ...
    def notes(self, job: str | None) -> list[str]:
        """Return what is not known of incidents, and why."""
        ...

    def story(self, wanted: str) -> "wire.Story":
        """Return the story of an incident, or of the job whose name or UUID begins so."""
        ...


@contextmanager
def reading(access: Access, state_dir: Path | None) -> Iterator[Reader]:
    """Read where the command line says; what goes wrong ends the command with a message."""
    if is_local(access):
        from rankmend.cli.folder_reader import FolderReader

        try:
            yield FolderReader(find_state(state_dir))
        except RankmendError as error:
            fail(str(error))
        return
    from rankmend.cli.controller_reader import ControllerReader

    with asking(access) as client:
        yield ControllerReader(client, access)
