"""Reads what `detectors/doctor/storage.py` judges."""

import getpass
from collections.abc import Mapping
from pathlib import Path

from detectors.doctor.storage import StorageFacts
from rankmend.errors import RankmendError
from recovery.doctor.folders import look_at_checkpoints, look_at_state
from recovery.journal.job_folder import default_state_folder
from recovery.journal.network_storage import refuse_network_file_system


def read_storage(
    environment: Mapping[str, str], state_dir: Path | None, checkpoint_dir: Path | None
) -> StorageFacts:
    try:
        state = state_dir or default_state_folder(environment, refuse_network_file_system)
    except RankmendError:  # another user's folder is in its place: `run` says so, too
        state = Path("/var/tmp")  # noqa: S108 - only looked at
    return StorageFacts(
        state=look_at_state(state),
        user=_user(),
        checkpoints=look_at_checkpoints(checkpoint_dir) if checkpoint_dir else None,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry in passwd
        return "$(id -u)"
