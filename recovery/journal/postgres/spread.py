"""Which controller takes which free job, so that they share the work evenly without talking to each other. Pure.

Rendezvous hashing (Thaler and Ravishankar, 1998): of each pair of job and controller a weight is computed, and the controller
with the greatest takes the job. If a controller goes, only its own jobs are divided among the others; if one comes, the others let
go of jobs that are its own, until none has more than its share and a tenth.

A controller to which no launcher gets through leaves all its jobs to the others (`Deafness`).
"""

import hashlib
import math
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

SHARE_MAX: Final = (
    1.1  # of the mean: a job that moves costs its launchers a new join, and gains little
)

# Longer than a node may be silent (10 s), than a launcher waits for the answer to a report (15 s), and than jobs take to move.
DEAF_S_MIN: Final = 30.0
DEAF_LEASES: Final = 4.0
DEAF_RETRY_S: Final = 1800.0  # then it takes part again, and at worst is deaf again


class Deafness:
    """Whether this controller gives its leases back, because it receives no report of any of its jobs.

    It can't distinguish a network that is cut on its side from launchers that have all died. Both are safe: another controller takes the
    jobs from their journals. Only a controller that has others beside it gives up, so the last one keeps the jobs.
    """

    def __init__(self, lease_s: float) -> None:
        self.silent_s_max = max(DEAF_S_MIN, DEAF_LEASES * lease_s)
        self._until_s: float | None = None  # None: it takes part

    @property
    def is_deaf(self) -> bool:
        return self._until_s is not None

    def hear(self) -> None:
        """Record that a launcher has got through."""
        self._until_s = None

    def observe(self, now_s: float, silent_s: float | None, others: int) -> bool:
        """Return whether to give the leases back, or to go on without any.

        ``silent_s``: since the newest report of any job here; None: there is no job. ``others``: controllers that live beside this one.
        """
        if self._until_s is not None and now_s >= self._until_s:
            self._until_s = None
        elif (
            self._until_s is None
            and silent_s is not None
            and silent_s >= self.silent_s_max
            and others
        ):
            self._until_s = now_s + DEAF_RETRY_S
        return self._until_s is not None


def choose_controller(job_id: uuid.UUID, controllers: Iterable[uuid.UUID]) -> uuid.UUID | None:
    """Return the controller that takes this job; None where there is none."""
    return max(controllers, key=lambda controller: _weight(job_id, controller), default=None)


def choose_leaving(
    held: Mapping[uuid.UUID, uuid.UUID], ours: uuid.UUID, controllers: Collection[uuid.UUID]
) -> tuple[uuid.UUID, ...]:
    """Return the jobs that the controller ``ours`` is to let go, so that the others get their share.

    ``held``: the controller of each running job. ``controllers`` are those that have stayed for a while.
    """
    if ours not in controllers:
        return ()
    mine = [job_id for job_id, holder in held.items() if holder == ours]
    surplus = len(mine) - math.ceil(SHARE_MAX * len(held) / len(controllers))
    theirs = [job_id for job_id in mine if choose_controller(job_id, controllers) != ours]
    return tuple(sorted(theirs)[: max(0, surplus)])


def _weight(job_id: uuid.UUID, controller_id: uuid.UUID) -> bytes:
    return hashlib.sha256(job_id.bytes + controller_id.bytes).digest()
