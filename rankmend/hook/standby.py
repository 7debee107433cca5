"""A process that has imported the framework and waits to become a rank.

`rankmend run --standby torch` keeps one for each rank. When ranks are started again, a standby is
given the arguments, environment and output of a rank and runs the script in its own main module,
as Python would have: a restart then no longer waits for imports (on CPU they are nine tenths
of it). It has touched no device and opened no file of the job.

Runs under the ranks' interpreter: standard library and Python 3.8 only.
"""

import array
import ctypes
import importlib
import importlib.machinery
import json
import os
import socket
import sys

from rankmend.hook import layout

BODY_BYTES_MAX = 32 << 20
_DESCRIPTORS = 4  # body, stdout, stderr, and stdin where the rank has one


def main():
    """Import the named modules, wait for the command, and become a rank."""
    path, modules = sys.argv[1:3]
    for name in modules.split(","):
        importlib.import_module(name)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(path)
    numbers = array.array("i")
    room = socket.CMSG_SPACE(_DESCRIPTORS * numbers.itemsize)
    packet, control, _flags, _address = channel.recvmsg(16, room, socket.MSG_CMSG_CLOEXEC)
    if not packet:
        os._exit(0)  # no longer needed
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    body_fd, stdout, stderr = numbers[:3]
    body = json.loads(os.pread(body_fd, BODY_BYTES_MAX, 0).decode("ascii"))
    for target, source in enumerate((*numbers[3:], stdout, stderr), 4 - len(numbers)):
        os.dup2(source, target)
    for descriptor in numbers:
        os.close(descriptor)
    channel.close()
    _take_environment(body["env"])
    os.chdir(body["cwd"])
    _bind(body.get("cpus"))
    _watch_steps()
    run(body["argv"])


def _bind(cpus):
    """Bind each thread that the framework has begun by now; later ones inherit it."""
    for thread in os.listdir("/proc/self/task") if cpus else ():
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:  # the thread has ended meanwhile
            pass


def _take_environment(environment):
    mark = environment.get(layout.ENV_ATTEMPT, "")
    if not _overwrite_mark(mark):
        # By its mark a process is found and stopped with its attempt: without it, better none.
        sys.stderr.write("rankmend: this standby can't carry the mark of attempt %s\n" % mark)
        os._exit(71)  # EX_OSERR
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _overwrite_mark(attempt):
    """Write the attempt into the environment that /proc/PID/environ shows; return whether it fits.

    That memory was laid out by exec and is ours; a number of the same width replaces the old one.
    """
    name = layout.ENV_ATTEMPT.encode() + b"="
    pointers = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    index = 0
    while pointers[index] is not None:
        entry = pointers[index]
        if entry.startswith(name):
            value = attempt.encode().rjust(len(entry) - len(name), b"0")
            if len(value) != len(entry) - len(name) or not value.isdigit():
                return False
            address = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[index]
            ctypes.memmove(address + len(name), value, len(value))
            return True
        index += 1
    return False


def _watch_steps():
    """Do what sitecustomize does in a process that starts as a rank."""
    try:
        if os.environ.get(layout.ENV_AUTO) == "1":
            from rankmend.hook import torch_steps, torch_store

            torch_steps.watch()
            torch_store.watch()
        from rankmend.hook import stacks

        stacks.offer()
    except Exception:
        pass


def run(argv):
    """Run ``[python, -u, script, ...]`` or ``[python, -u, -m, module, ...]`` in this process."""
    _shorten_tracebacks()
    if argv[2] == "-m":
        import runpy

        sys.argv = argv[3:]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(argv[3])  # what python -m itself calls
        return
    script = argv[2]
    sys.argv = argv[2:]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    namespace = sys.modules["__main__"].__dict__
    builtins = namespace["__builtins__"]
    namespace.clear()
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    namespace.update(
        __name__="__main__",
        __builtins__=builtins,
        __file__=script,
        __doc__=None,
        __package__=None,
        __spec__=None,
        __loader__=loader,
        __cached__=None,
    )
    exec(code, namespace)  # noqa: S102 - the user's own script, as python runs it


def _shorten_tracebacks():
    """Remove our own frames from the script's tracebacks."""
    show = sys.excepthook

    def show_short(kind, value, trace):
        frame = trace
        while frame is not None:
            if frame.tb_frame.f_globals is globals():
                trace = frame.tb_next
            frame = frame.tb_next
        show(kind, value.with_traceback(trace), trace)

    sys.excepthook = show_short
