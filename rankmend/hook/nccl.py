"""Which NCCL this rank has loaded, by the library's own word: that of a container, a Python environment or LD_PRELOAD, too.

`torch.cuda.nccl.version()` would be what PyTorch was compiled with. Only what is loaded is asked, and nothing is loaded for it.
RCCL has the same function. An older PyTorch has NCCL inside of its own library.
"""

import os

from rankmend.hook import layout
from rankmend.hook.own_errors import OWN_ERRORS

_LIBRARIES = (b"libnccl.so", b"librccl.so")  # and not libnccl-net.so, a plugin
_HAS_IT_INSIDE = b"libtorch_cuda"
_LOOKED_AT_MAX = 8
_GONE = b" (deleted)"  # a file that was replaced since: its name still finds what is loaded


def tell(writer):
    """Report the versions that this process has loaded by now. Never raises but for a signal handler of the script."""
    try:
        writer.tell_nccl(find_versions())
    except (*OWN_ERRORS, OSError, ImportError):
        pass


def find_versions():
    """Return the versions of NCCL in this process, as NCCL numbers them (22703), in ascending order."""
    libraries, others = {}, {}  # by path: in the order in which they lie, each once
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            path = line[line.find(b"/") :].rstrip(b"\n")
            name = path.rpartition(b"/")[2]
            if name.startswith(_LIBRARIES):
                libraries[path] = None
            elif name.startswith(_HAS_IT_INSIDE):
                others[path] = None
    found = {_version_of(path) for path in list(libraries or others)[:_LOOKED_AT_MAX]}
    return sorted(found - {0})[: layout.NCCL_MAX]


def _version_of(path):
    import ctypes  # PyTorch has imported it

    if path.endswith(_GONE):
        path = path[: -len(_GONE)]
    try:
        library = ctypes.CDLL(os.fsdecode(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        version = ctypes.c_int(0)
        code = library.ncclGetVersion(ctypes.byref(version))
    except (
        OSError,
        AttributeError,
        ValueError,
    ):  # not loaded by that name, or without the function
        return 0
    return version.value if code == 0 and 0 < version.value <= layout.NCCL_VERSION_MAX else 0
