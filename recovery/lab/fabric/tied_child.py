"""Runs a program that ends with its starter: ``python -I -S tied_child.py OUTPUT_BYTES_MAX PROGRAM ...``, as the leader of a process group.

Standard input is a pipe whose other end the starter holds. Its end, however the starter has died, is the end of the whole group, with
whatever the program has started. Standard library only.
"""

import ctypes
import os
import resource
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    bytes_max, words = int(sys.argv[1]), sys.argv[2:]
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    me, libc = os.getpid(), ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        become(words, me, libc)
    threading.Thread(target=end_with_starter, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(me, -code)
    os._exit(code)


def become(words: "list[str]", parent: int, libc: ctypes.CDLL) -> None:
    """Become the program, which the kernel kills if this module is killed."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores them, and exec would keep that
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        os.execv(words[0], words)  # noqa: S606 - a program of this user's own choice
    except OSError as error:
        os.write(2, f"cannot run {words[0]}: {error.strerror}\n".encode())
    os._exit(127)


def end_with_starter() -> None:
    while os.read(0, 64):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
