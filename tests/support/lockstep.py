"""What the ranks of `tests/system/faults/jobs/lockstep.py` hold after a step, computed without them."""

import numpy as np


def undisturbed(step: int, world_size: int) -> dict[str, object]:
    """Return the result of an undisturbed run; the fixtures of `tests/system/faults` compare it with that of a real one."""
    state = np.ones(4, np.float32)
    for number in range(1, step + 1):
        shared = np.zeros(4, np.float32)
        for rank in range(world_size):  # in rank order, as the ring adds
            shared += state * (rank + 1) / 7 + number
        state = shared % 1000
    return {"step": step, "state": [float(value) for value in state]}
