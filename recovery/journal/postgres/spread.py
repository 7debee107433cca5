"""Which controller takes which free job, so that they share the work evenly without talking to each other. Pure.

Rendezvous hashing (Thaler and Ravishankar, 1998): of each pair of job and controller a weight is computed, and the controller
with the greatest takes the job. If a controller goes, only its own jobs are divided among the others; if one comes, the others let
go of jobs that are its own, until none has more than its share and a tenth.
"""

import hashlib
import math
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

SHARE_MAX: Final = (
    1.1  # of the mean: a job that moves costs its launchers a new join, and gains little
)


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
