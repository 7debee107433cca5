"""Kernels of a few lines of PTX, which the driver compiles: they take no compiler, and only the driver's library."""

import ctypes
from typing import Any

_SUCCESS = 0


class PtxKernel:
    """A kernel whose parameters are numbers of 64 bits, loaded into the current context.

    Raises OSError where there is no driver, RuntimeError where it refuses the kernel.
    """

    def __init__(self, ptx: bytes, name: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), ptx + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, name)

    def launch(self, *numbers: int, stream: int = 0) -> None:
        """Launch one thread on a stream, by its address; 0 is the default one. Its error shows at the next call that waits."""
        values = [ctypes.c_uint64(number) for number in numbers]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        one = ctypes.c_uint(1)
        self._call(
            "cuLaunchKernel",
            self._function,
            *(one, one, one, one, one, one),  # the grid and the block
            ctypes.c_uint(0),  # shared memory
            ctypes.c_void_p(stream),
            places,
            None,
        )

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result != _SUCCESS:
            raise RuntimeError(f"{name} returned {result}")
