"""Why a restart would lose what a job has trained: the name that records, the API and metrics share.

Standard library only: the launcher and the agent load this.
"""

from enum import Enum


class Unsaved(Enum):
    NO_FOLDER = "no_folder"  # nobody said where checkpoints are: no --checkpoint-dir
    NOTHING_FOUND = "nothing_found"  # nothing in that folder looks like a checkpoint
    NONE_VALID = "none_valid"  # something does, and can't be restored
    NONE_NEWER = "none_newer"  # one can be restored, and it is older than the training
