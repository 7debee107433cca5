"""Breaks the CUDA context of this process: a kernel that writes to an address that nobody has.

A few lines of PTX, which the driver compiles: it takes no compiler, and only the driver's library.
"""

import ctypes

_SUCCESS = 0
_NOWHERE = 0x10  # no allocation begins this low
_PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry poke(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def write_to_nowhere() -> None:
    """Launch the kernel on the current context. The error shows at the next call that waits.

    Raises RuntimeError where the driver refuses the kernel.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call(driver.cuModuleLoadData, ctypes.byref(module), _PTX + b"\0")
    _call(driver.cuModuleGetFunction, ctypes.byref(function), module, b"poke")
    where = ctypes.c_uint64(_NOWHERE)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(where))
    one = ctypes.c_uint(1)
    _call(
        driver.cuLaunchKernel,
        function,
        *(one, one, one, one, one, one),
        ctypes.c_uint(0),
        None,
        arguments,
        None,
    )


def _call(function, *arguments) -> None:  # type: ignore[no-untyped-def]
    result = function(*arguments)
    if result != _SUCCESS:
        raise RuntimeError(f"{function.__name__} returned {result}")
