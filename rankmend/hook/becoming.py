"""What a waiting process does to become a rank: the common part of standbys and the fork server.

Runs under the ranks' interpreter: standard library and Python 3.8 only.
"""

import array
import ctypes
import importlib.machinery
import io
import json
import os
import pkgutil
import runpy
import socket
import sys

from rankmend.hook import layout, own_frames

BODY_BYTES_MAX = 32 << 20
DESCRIPTORS_MAX = 5  # link, body, stdout, stderr, and stdin where the rank has one
ROOM_FOR_TITLE = "." * 4096  # an argument of a waiting process: the kernel shows no longer title
_PACKET_BYTES_MAX = 4096
_EX_OSERR = 71
_EX_NO_SCRIPT = 2  # as Python ends where it can't open its script


def take_channel():
    """Return the launcher's socket, and leave /dev/null in its place as standard input."""
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return channel


def receive(channel):
    """Return one packet of the launcher and its descriptors; an empty packet: the launcher is gone."""
    numbers = array.array("i")
    room = socket.CMSG_SPACE(DESCRIPTORS_MAX * numbers.itemsize)
    packet, control, _flags, _address = channel.recvmsg(
        _PACKET_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return packet, list(numbers)


def read_body(descriptor):
    """Return the program, environment, folder and processors of a rank, in texts as Python decodes them here."""
    body = json.loads(os.pread(descriptor, BODY_BYTES_MAX, 0).decode("ascii"))
    body["argv"] = [_decoded(item) for item in body["argv"]]
    body["env"] = {_decoded(name): _decoded(value) for name, value in body["env"].items()}
    body["cwd"] = _decoded(body["cwd"])
    return body


def _decoded(text):
    """Return the launcher's text as this process decodes its bytes: it may have another locale."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def take_standard(descriptors):
    """Make these stdout, stderr and, where there is a third, stdin; close the originals."""
    stdout, stderr, *stdin = descriptors
    for target, source in (
        ((0, *stdin), (1, stdout), (2, stderr)) if stdin else ((1, stdout), (2, stderr))
    ):
        os.dup2(source, target)
    for descriptor in descriptors:
        os.close(descriptor)


def renew_standard_objects():
    """Open sys.stdin, stdout and stderr anew, as ``python -u`` does for the present descriptors."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, "__%s__" % name)
        if old is None:  # closed at the start
            continue
        raw = io.FileIO(number, mode + "b", closefd=False)
        raw.name = "<%s>" % name
        inner = raw if mode == "w" else io.BufferedReader(raw)
        new = io.TextIOWrapper(inner, old.encoding, old.errors, "\n", False, True)
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, "__%s__" % name, new)


def bind(cpus):
    """Bind each thread that the framework has begun by now; later ones inherit it."""
    for thread in os.listdir("/proc/self/task") if cpus else ():
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:  # the thread has ended meanwhile
            pass


def take_environment(environment, imported=()):
    """Make this the process's environment.

    ``imported``: (name, before, after) of variables that imports have changed. A change is kept where
    the rank has the value that the import has met.
    """
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    for name, before, after in imported:
        if environment.get(name) != before:
            continue
        if after is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = after


def write_mark(attempt):
    """Write the attempt into the environment that /proc/PID/environ shows, or end this process.

    By its mark a process is found and stopped with its attempt: without it, better none.
    """
    if not _overwrite_mark(attempt):
        sys.stderr.write("rankmend: this process can't carry the mark of attempt %s\n" % attempt)
        os._exit(_EX_OSERR)


def _overwrite_mark(attempt):
    """Write over the mark, and return whether it fits.

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


def show_as(argv):
    """Have `ps`, `pkill -f` and /proc/PID/cmdline show these arguments; never raise.

    The kernel shows the text up to its NUL, of a page at most, where the last byte of the arguments that exec laid
    out is not NUL (fs/proc/base.c, get_mm_cmdline). `ROOM_FOR_TITLE` is among these arguments.
    """
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # proc(5): arg_start, arg_end
        room = min(end - start, len(ROOM_FOR_TITLE)) - 2
        if start == 0 or room < len(ROOM_FOR_TITLE) - 2:
            return
        title = os.fsencode(" ".join(argv))[:room]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, len(title))
        ctypes.memset(end - 1, ord("."), 1)
    except Exception:  # the title is for people who list processes
        pass


def load():
    """Do for all forked ranks what `watch_steps` need not do in each; never raise."""
    try:
        from rankmend.hook import (  # noqa: F401
            new_modules,
            stacks,
            torch_rendezvous,
            torch_steps,
            torch_store,
            uncaught,
        )

        torch_steps.look_ahead()
        torch_rendezvous.look_ahead()
        new_modules.note()
    except Exception:  # what is missing each rank does by itself
        pass


def watch_steps():
    """Do what the hook does at the start of a rank: `rankmend` was imported before this was one."""
    try:
        import rankmend

        os.register_at_fork(after_in_child=rankmend._detach_child)
        if os.environ.get(layout.ENV_AUTO) == "1":
            from rankmend.hook import torch_rendezvous, torch_steps, torch_store, uncaught

            torch_steps.watch()
            torch_store.watch()
            torch_rendezvous.watch()
            uncaught.watch()
        from rankmend.hook import stacks

        stacks.offer()
        if os.environ.get(layout.ENV_DRILL_FILE):
            from rankmend.hook import drill

            drill.offer()
    except Exception:  # a rank that reports nothing trains as it would have
        pass


def run(argv):
    """Run ``[python, -u, script, ...]`` or ``[python, -u, -m, module, ...]`` in this process.

    A waiting process has no folder of a script first in ``sys.path`` (`WAITING_MAIN` of the launcher).
    """
    try:
        _run(argv)
    except SystemExit:
        raise
    except BaseException:
        own_frames.hide()
        raise


def _run(argv):
    if hasattr(sys, "orig_argv"):  # Python 3.10
        sys.orig_argv = list(argv)
    is_safe = getattr(sys.flags, "safe_path", False)  # then Python puts no folder first
    namespace = _emptied_main()
    if argv[2] == "-m":
        sys.argv = ["-m", *argv[4:]]
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(argv[3])  # what python -m itself calls
        return
    script = argv[2]
    sys.argv = argv[2:]
    file = os.path.abspath(script) if sys.version_info >= (3, 9) else script
    if pkgutil.get_importer(file) is not None:  # an archive with a __main__.py
        sys.path.insert(0, file)
        runpy._run_module_as_main("__main__", False)
        return
    if not is_safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    loader, code = _load(script, file)
    namespace.update(__file__=file, __loader__=loader, __cached__=None)
    exec(code, namespace)  # noqa: S102 - the user's own script, as python runs it


def _emptied_main():
    """Return the namespace of the main module, with nothing of ours left in it."""
    namespace = sys.modules["__main__"].__dict__
    retained = {
        name: namespace[name] for name in ("__builtins__", "__annotations__") if name in namespace
    }
    namespace.clear()
    namespace.update(
        retained,
        __name__="__main__",
        __doc__=None,
        __package__=None,
        __spec__=None,
        __loader__=importlib.machinery.BuiltinImporter,
    )
    return namespace


def _load(script, file):
    """Return the loader and the code of a script as it is now, or end as Python does without one."""
    try:
        if script.endswith(".pyc"):
            compiled = importlib.machinery.SourcelessFileLoader("__main__", file)
            return compiled, compiled.get_code("__main__")
        with open(script, "rb") as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
    except OSError as error:
        words = (sys.executable, file, error.errno, error.strerror)
        sys.stderr.write("%s: can't open file %r: [Errno %s] %s\n" % words)
        raise SystemExit(_EX_NO_SCRIPT) from None
    return importlib.machinery.SourceFileLoader("__main__", file), code
