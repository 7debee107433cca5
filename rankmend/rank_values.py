"""Values in a rank's progress file that agent, launcher and controller share.

Standard library only: the launcher and the agent load this.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class ScriptEnd(Enum):
    """How a script whose process may still run has ended. In the order of the codes in `rankmend.hook.layout`."""

    RUNNING = ""
    EXITED = (
        "exited"  # by sys.exit without a code of failure: perhaps in the middle of its training
    )
    RETURNED = "returned"  # it returned, or destroyed its default process group
    FAILED = "failed"  # by an exception or a code


@dataclass(frozen=True, slots=True)
class ToldHidden:
    """What ran beside a rank's own work since it attached, in total, and how that was measured (docs/reference/goodput.md)."""

    has_replica: bool = False  # DistributedDataParallel reduces gradients
    has_untimed: bool = False  # there were collectives whose end nobody sees
    loads_itself: bool = False  # the thread that trains makes batches of a data loader
    loads_in_workers: bool = False  # other processes make them
    works: int = 0  # asynchronous collectives that were timed
    works_least_s: float = 0.0  # in flight beside the rank's own work: at least, at most
    works_most_s: float = 0.0
    samples: int = 0  # iterations that DistributedDataParallel has reported
    window_s: float = 0.0  # in these, from the first bucket to the end
    overlap_s: float = 0.0  # the part of it in which backward still computed
    reads: int = 0  # that the script has reported in other threads
    reads_s: float = 0.0
    sendings: int = 0  # communication, the same
    sendings_s: float = 0.0


class ToldPlace(NamedTuple):
    """A rank's index along each dimension of parallelism; None: not known, or the model isn't split along it.

    Ranks that differ only in ``dp`` do the same work: they are each other's peers.
    """

    dp: int | None = None  # replica
    tp: int | None = None  # part of each tensor
    pp: int | None = None  # pipeline stage
    cp: int | None = None  # part of the sequence
    ep: int | None = None  # experts


class Unsaved(Enum):
    """Why a restart would lose what a job has trained: the name that records, the API and metrics share."""

    NO_FOLDER = "no_folder"  # the place of checkpoints is not known: no --checkpoint-dir
    NOTHING_FOUND = "nothing_found"  # nothing in that folder looks like a checkpoint
    NONE_VALID = "none_valid"  # something does, and can't be restored
    NONE_NEWER = "none_newer"  # one can be restored, and it is older than the training
