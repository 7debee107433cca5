"""The note beside the checkpoints that names the host of a job's controller, without a service.

<checkpoint folder>/.rankmend/host.json     the host, its address, the secret; 0600, replaced each 2 s
<checkpoint folder>/.rankmend/host-<epoch>  claims: whoever makes one (O_EXCL) is host of that epoch

A host's beat is a growing number; a reader measures by its own clock how long it has not changed.
"""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import ConfigError, LaunchError, SourceError
from rankmend.files import create_file, list_numbers, read_if_there, replace_file
from rankmend.foreign_links import refuse_foreign_link
from recovery.checkpoints.marks import BESIDE
from recovery.journal.job_records import JobOutcome

BYTES_MAX: Final = 64 * 1024
CLAIMS_KEPT: Final = 10
_CLAIM: Final = re.compile(r"host-(\d{1,9})")


class HostNote(msgspec.Struct, frozen=True, kw_only=True):
    key: str  # the job's key
    node: str
    url: str
    secret: str
    fingerprint: str
    epoch: int
    beat: int
    outcome: JobOutcome | None = None  # the job's outcome under this host
    slurm_run: str = ""  # start of the Slurm step whose launchers meet; "": not named by Slurm


class HostFolder:
    """The note and the claims. Every call accesses the storage and may wait for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "host.json"

    def read(self) -> HostNote | None:
        """Return the note, or None if there is none."""
        body = read_if_there(
            self._path, BYTES_MAX, SourceError, follow_link=False, check=self._refuse_unless_private
        )
        if body is None:
            return None
        try:
            return msgspec.json.decode(body, type=HostNote)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SourceError(f"{self._path} is not a host's note: {error}") from error

    def _refuse_unless_private(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"{self._path} belongs to uid {status.st_uid} with mode "
                f"{status.st_mode & 0o777:04o}: it must be yours and unreadable for others"
            )

    def write(self, note: HostNote) -> None:
        """Replace the note; return once it is on stable storage."""
        self._make_folder()
        replace_file(self._path, msgspec.json.encode(note), LaunchError)

    def forget(self) -> None:
        """Remove the note, which came with a copy of another job's folder."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise LaunchError(f"cannot remove {self._path}: {error.strerror}") from error

    def newest_claim(self) -> int:
        """Return the highest claimed epoch; 0 for none."""
        return max(self._claims(), default=0)

    def claim(self, epoch: int, node: str) -> bool:
        """Claim this epoch; return False if another node already has."""
        self._make_folder()
        try:
            create_file(self.folder / f"host-{epoch}", f"{node}\n".encode(), LaunchError)
        except FileExistsError:
            return False
        for old in self._claims():
            if old <= epoch - CLAIMS_KEPT:
                (self.folder / f"host-{old}").unlink(missing_ok=True)
        return True

    def _claims(self) -> list[int]:
        return list_numbers(self.folder, _CLAIM, SourceError)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            refuse_foreign_link(self.folder, LaunchError)
        except OSError as error:
            raise LaunchError(f"cannot make {self.folder}: {error.strerror}") from error


def find_host(checkpoint_dir: Path) -> HostNote:
    """Return the note of the host of the job with these checkpoints, or raise with why there is none."""
    note = HostFolder(checkpoint_dir / BESIDE).read()
    if note is None:
        raise ConfigError(
            f"no launcher has left a note in {checkpoint_dir / BESIDE}: either no job of rankmend run "
            f"--rdzv-endpoint uses this checkpoint folder, or none of its launchers has started yet"
        )
    if note.outcome is not None:
        raise ConfigError(f"the job of {checkpoint_dir} has ended: {note.outcome.reason}")
    return note
