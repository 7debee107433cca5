"""Breaks the CUDA context of this process: a kernel that writes to an address that nobody has."""

from bench.gpu.ptx_kernel import PtxKernel

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
    PtxKernel(_PTX, b"poke").launch(_NOWHERE)
