"""The protocol between the collector child and the agent.

Child to agent, over a packet socket: one JSON object per packet, at most `MESSAGE_BYTES_MAX`
bytes; `agent/nvml/known_gpus.py` has the types that the agent accepts. Agent to child: one byte
asks for the values that no check reads, with the next sweep; the end of the connection ends the child.

The child records its current call on a page of shared memory, because a child that hangs in a
driver call can send nothing. One writer; a number before and after the call reveals a torn read.

Standard library only, and as little of it as possible: the child loads this.
"""

import mmap
import os
from struct import Struct
from typing import Final

from agent.nvml.driver_call import NO_GPU, NvmlCall

MESSAGE_BYTES_MAX: Final = (
    131072  # a GPU with 36 links needs 60 kB; the default send buffer is 208 kB
)
WANT_SHOWN: Final = b"s"
_CALL: Final = Struct("<Qdi44s")  # number (odd: in a call), CLOCK_MONOTONIC at its start, GPU, name
PAGE_BYTES: Final = _CALL.size


class CallPage:
    """The child's side of the page: records the call in progress."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, PAGE_BYTES)
        self._number = 0

    def begin(self, name: bytes, gpu: int, now_s: float) -> None:
        self._number += 1
        _CALL.pack_into(self._memory, 0, self._number, now_s, gpu, name)

    def end(self) -> None:
        self._number += 1
        _CALL.pack_into(self._memory, 0, self._number, 0.0, NO_GPU, b"")


def make_page() -> int:
    """Return the descriptor of a new page."""
    descriptor = os.memfd_create("rankmend-gpu-call", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, PAGE_BYTES)
    return descriptor


def read_call(descriptor: int) -> NvmlCall | None:
    """Return the call in progress, or None between two calls (or while one is being written)."""
    number, began_at_s, gpu, name = _CALL.unpack(os.pread(descriptor, PAGE_BYTES, 0))
    if number % 2 == 0 or _CALL.unpack(os.pread(descriptor, PAGE_BYTES, 0))[0] != number:
        return None
    return NvmlCall(number, began_at_s, gpu, name.rstrip(b"\0").decode("ascii", "replace"))
