"""Which controller takes which free job, so that they share the work evenly without talking to each other. Pure.

Rendezvous hashing (Thaler and Ravishankar, 1998): of each pair of job and controller a weight is computed, and the controller
with the greatest takes the job. If a controller goes, only its own jobs are divided among the others.
"""

import hashlib
import uuid
from collections.abc import Iterable


def choose_controller(job_id: uuid.UUID, controllers: Iterable[uuid.UUID]) -> uuid.UUID | None:
    """Return the controller that takes this job; None where there is none."""
    return max(controllers, key=lambda one: _weight(job_id, one), default=None)


def _weight(job_id: uuid.UUID, controller_id: uuid.UUID) -> bytes:
    return hashlib.sha256(job_id.bytes + controller_id.bytes).digest()
