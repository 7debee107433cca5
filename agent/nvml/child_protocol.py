"""What the collector child and the agent say to each other. Pure.

Child to agent, over a packet socket: one JSON object per packet, at most `MESSAGE_BYTES_MAX`
bytes; `agent/nvml/known_gpus.py` has the types that the agent accepts. Agent to child: one byte
asks for the values that no check reads, with the next sweep; the end of the connection ends the child.

The child records its current call on a page of shared memory, because a child that hangs in a
driver call can send nothing. One writer (`agent/nvml/nvml_calls.py`); a number before and after the
call reveals a torn read (`agent/nvml/children.py`).

Standard library only, and as little of it as possible: the child loads this.
"""

from struct import Struct
from typing import Final, NamedTuple

MESSAGE_BYTES_MAX: Final = (
    131072  # a GPU with 36 links needs 60 kB; the default send buffer is 208 kB
)
WANT_SHOWN: Final = b"s"
# number (odd: in a call), CLOCK_MONOTONIC at its start, GPU, name
CALL_ON_PAGE: Final = Struct("<Qdi44s")
NO_GPU: Final = -1  # a call about NVML as a whole


class NvmlCall(NamedTuple):
    """A driver call in progress. A tuple, because dataclasses would cost the child 1.4 MB."""

    number: int
    began_at_s: float  # CLOCK_MONOTONIC
    gpu: int  # index, or NO_GPU
    name: str
