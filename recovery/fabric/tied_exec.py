"""Becomes another program that the kernel kills with its parent: ``python -I -S tied_exec.py PARENT_PID OUTPUT_BYTES_MAX PROGRAM ...``

Standard library only. The tie (prctl(2), PR_SET_PDEATHSIG) holds across exec, and so does the bound on what it may write to a file.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, bytes_max, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores them, and exec would keep that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(words[0], words)  # noqa: S606 - a program of this user's own choice
    except OSError as error:
        sys.exit(f"cannot run {words[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
