"""The version of CUDA, asked of NVML in a process that ends at once.

NVML loads libcuda for the answer and keeps it. The collector child lives for months; the memory of
a process that only asks is free again after some milliseconds.
"""

import os
import select
import signal
import time
from typing import Any, Final

# Without an attached GPU NVML opens in milliseconds; libcuda is 100 MB on a disk that may be cold or far away.
ANSWER_S_MAX: Final = 10
_REAP_S_MAX: Final = 1.0
_REAP_EACH_S: Final = 0.01
_DESCRIPTORS_MAX: Final = 65536
_BYTES_MAX: Final = 16


def ask_cuda_version(nvml: Any) -> str:
    """Return the newest version of CUDA that the driver supports, such as "13.0", or "" if unknown.

    ``nvml`` is the module pynvml, and not open in this process, since its state can't be used in a
    fork. Waits `ANSWER_S_MAX` seconds at most: a driver that hangs is the collector's to report.
    """
    answer, theirs = os.pipe()
    try:
        pid = os.fork()
    except OSError:  # the node is out of processes or memory: the GPUs are read all the same
        os.close(answer)
        os.close(theirs)
        return ""
    if pid == 0:
        try:
            _answer(nvml, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        is_ready, _, _ = select.select([answer], [], [], ANSWER_S_MAX)
        text = os.read(answer, _BYTES_MAX) if is_ready else b""
    finally:
        os.close(answer)
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    version = int(text) if text.isdigit() else 0
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def reap(pid: int) -> None:
    """Wait a moment for the end of a killed process. One that hangs in the driver, also on its way out, is left."""
    end_s = time.monotonic() + _REAP_S_MAX
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end_s:
        time.sleep(_REAP_EACH_S)


def _answer(nvml: Any, out: int) -> None:
    """Write the version as a number, such as 13000. Anything that fails ends the process without an answer."""
    # The agent sees its child's end by a connection that closes: this process must not keep it open.
    os.closerange(3, out)
    os.closerange(out + 1, _DESCRIPTORS_MAX)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGTERM})
    signal.alarm(ANSWER_S_MAX)  # also where nobody is left to kill it
    nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS | nvml.NVML_INIT_FLAG_NO_ATTACH)
    os.write(out, str(nvml.nvmlSystemGetCudaDriverVersion()).encode())
