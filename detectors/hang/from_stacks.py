"""Which rank a hung job waits for, from where each rank's Python code stands.

Waiting ranks stand in a collective, or all at one place; the ranks elsewhere are waited for. This
is weaker than a flight recorder: a stack shows where a rank is but not what it waits for, and all
of a C++ call, such as a backward pass, shows as one place.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from detectors.diagnosis import Culprit, Diagnosis, Verdict
from detectors.failed.outages import CLIENT
from detectors.finding import Evidence
from detectors.hang.python_stack import Frame
from detectors.wording import ranks_in_words

EVIDENCE_MAX: Final = 32
SURE: Final = 0.6  # less than flight recorders: a place is no proof of a wait
_MINORITY_MAX: Final = 0.5  # if more are elsewhere, they share one cause and nobody is waited for
_RANKS_MIN: Final = 3  # without a known place of waiting, two ranks can't be told apart
# A rank there waits for others, or may wait. Every release of PyTorch 2 has these paths.
FRAMEWORKS: Final = frozenset(
    {
        *(
            "torch",
            "jax",
            "jaxlib",
            "flax",
            "tensorflow",
            "keras",
            "mpi4py",
            "horovod",
            "deepspeed",
        ),
        *("accelerate", "transformers", "lightning", "pytorch_lightning", "megatron", "nemo"),
        *("safetensors", "numpy", "h5py", "pandas", "pyarrow", "zarr", "orbax", "composer"),
    }
)
_WAITING: Final = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",  # wraps each collective
    "torch/autograd/graph.py",  # a backward pass: the gradients' all-reduce is in it
)


def diagnose_stacks(stacks: Mapping[int, tuple[Frame, ...]]) -> Diagnosis | None:
    """Return the ranks that the others wait for, or None if the stacks don't tell.

    ``stacks`` are the main threads; a rank without one is left out.
    """
    reported = {rank: frames for rank, frames in stacks.items() if frames}
    waiting = [rank for rank, frames in reported.items() if is_waiting(frames)]
    if not waiting and len(reported) >= _RANKS_MIN:
        waiting = _crowd(reported)
    others = sorted(set(reported) - set(waiting))
    if not waiting or not others or len(others) > _MINORITY_MAX * len(reported):
        return None
    crowd = reported[min(waiting)]
    evidence = [
        Evidence(
            f"Python stack of rank {rank}", f"{_own_place(reported[rank])}; it waits for nobody"
        )
        for rank in others[:EVIDENCE_MAX]
    ]
    at_wait = f"{ranks_in_words(sorted(waiting))}: {_own_place(crowd)}"
    evidence.append(Evidence("Python stacks", at_wait))
    return Diagnosis(
        verdict=Verdict.CULPRITS,
        culprits=tuple(Culprit(rank=rank, cause="host-stuck") for rank in others),
        cause="host-stuck",
        reason=f"{ranks_in_words(others)} stand{'s' * (len(others) == 1)} at "
        f"{_own_place(reported[others[0]])}, while {len(waiting)} of {len(reported)} ranks wait",
        onset=None,
        confidence=SURE,
        evidence=tuple(evidence),
    )


def is_waiting(frames: tuple[Frame, ...]) -> bool:
    """Return whether a stack stands where ranks wait for each other."""
    for frame in frames:
        if not _is_library(frame.file):
            return False  # the script's own code runs, such as a hook inside a backward pass
        if frame.file.endswith(_WAITING):
            return True
    return False


def is_in_client(frames: tuple[Frame, ...]) -> bool:
    """Return whether a stack stands in the client of something outside: a tracker, a hub, an object store, a database."""
    for frame in frames:
        if not _is_library(frame.file):
            return False
        if CLIENT.search(frame.file):
            return True
    return False


def _crowd(reported: Mapping[int, tuple[Frame, ...]]) -> list[int]:
    """Return the ranks at the place where more than half of them are."""
    places = {rank: (frames[0].file, frames[0].function) for rank, frames in reported.items()}
    place, count = Counter(places.values()).most_common(1)[0]
    return [rank for rank in reported if places[rank] == place] if 2 * count > len(reported) else []


def _own_place(frames: tuple[Frame, ...]) -> str:
    """Return where a stack stands, in the script's own code if it has any."""
    own = next((frame for frame in frames if not _is_library(frame.file)), frames[0])
    inner = "" if own is frames[0] else f", inside {frames[0].function}"
    return f"{own.text}{inner}"


def call_of(frames: tuple[Frame, ...]) -> str:
    """Return the call in which a stack stands: the collective, else the innermost one and the script's line."""
    for frame in frames:
        if frame.file.endswith(_WAITING[0]) and not frame.function.startswith("_"):
            return frame.function
    inner = frames[0]
    own = next((frame for frame in frames if not _is_library(frame.file)), None)
    where = f"{inner.function} ({inner.file.rpartition('/')[2]}:{inner.line})"
    return where if own is None or own is inner else f"{where}, from {own.file}:{own.line}"


def is_in_framework(frames: tuple[Frame, ...]) -> bool:
    """Return whether a stack stands in what trains, evaluates or saves a model, at any depth.

    To destroy the process groups is none of these: a script does it when all is done.
    """
    if any(frame.function == "destroy_process_group" for frame in frames):
        return False
    return any(set(frame.file.split("/")) & FRAMEWORKS for frame in frames)


def _is_library(file: str) -> bool:
    parts = file.split("/")
    return file.startswith("<") or any(
        part in ("site-packages", "dist-packages") or re.fullmatch(r"python3\.\d+", part)
        for part in parts
    )
