"""Serves rendezvous stores in a separate process under the user's interpreter.

Started by path (`python store_host.py`) by the launcher, or forked by the node's fork server
(`rankmend.hook.forking`), with one end of a unix SOCK_SEQPACKET pair as stdin. One JSON object
a message, and a listening TCP socket beside it (SCM_RIGHTS) where one is served:

    -> {"do": "serve", "attempt": 3} + descriptor    <- {"serving": 3}
    -> {"do": "drop", "attempt": 3}                  <- {"dropped": 3}
                                                     <- {"failed": 3, "error": "..."}

The socket is bound and listening before this process has imported torch, so ranks may
connect at once: the kernel's backlog holds them. Of torch it needs the library alone, without the Python modules of the package: half
the memory and a third of the CPU time, in the seconds in which all ranks import (torch 2.13: 74 MiB of its own in place of 145, 0.5 CPU-s in
place of 2.3). That is not how torch means to be imported, so a child tries it first, up to a key in a store; where that fails, the package is imported. End of file, or the death of the launcher,
ends it. Standard library, Python 3.8 and the user's torch (2.0 and later) only.
"""

import array
import ctypes
import datetime
import importlib
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import time
import types

MESSAGE_BYTES_MAX = 4096
ERROR_CHARACTERS_MAX = 2000
STDERR_BYTES_MAX = 1 << 20  # torch warns about each broken connection; further output is lost
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CONNECT_S_MAX = 30  # the store's own client, over loopback; measured in milliseconds
TRY_S_MAX = (
    60.0  # the library from a cold network file system; whoever needs longer imports the package
)
TRY_PAUSE_S = 0.01
ANY_TO_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (read, not bound)


def main(is_forked=False):
    """Serve until the launcher closes its end; exit 1 when torch can't be used.

    ``is_forked``: by a server that should have torch. Without it this ends and says nothing, so that the
    launcher starts one by path, where the import runs in a process of its own.
    """
    _detach()
    if is_forked and "torch" not in sys.modules:
        return 1
    channel = socket.socket(fileno=0)
    try:
        version, store_class = _load_store()
        options = _store_options(version, store_class)
    except Exception as error:
        _send(channel, {"failed": None, "error": _describe(error)})
        return 1
    stores = {}
    while True:
        command, descriptors = _receive(channel)
        if command is None:
            return 0
        try:
            reply = _carry_out(command, descriptors, stores, store_class, options)
        except Exception as error:
            reply = {"failed": command.get("attempt"), "error": _describe(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if not _send(channel, reply):
            return 0


def _load_store():
    """Return torch's version and its class of stores."""
    if "torch" not in sys.modules and _can_load_library():
        return _load_library()
    import torch
    from torch.distributed import TCPStore

    return torch.__version__, TCPStore


def _load_library():
    """Return the same out of torch's library alone, under packages of its names that hold no module of theirs.

    The library looks for both packages by name (`torch/csrc/distributed/c10d/init.cpp`, `c10d_init`).
    """
    origin = importlib.util.find_spec("torch").origin
    folder = os.path.dirname(origin)
    for name, path in (
        ("torch", folder),
        ("torch.distributed", os.path.join(folder, "distributed")),
    ):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    importlib.import_module("torch._C")._c10d_init()
    version = importlib.import_module("torch.version").__version__
    return str(version), importlib.import_module("torch._C._distributed_c10d").TCPStore


def _can_load_library():
    """Return whether a child gets a key out of a store that it serves with the library alone; it may crash."""
    if importlib.util.find_spec("torch") is None:
        return False
    ours = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _die_with(ours)
            _try_library()
            code = 0
        finally:
            os._exit(code)  # what it says of its failure, the import of the package says, too
    until_s = time.monotonic() + TRY_S_MAX
    while time.monotonic() < until_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        time.sleep(TRY_PAUSE_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _try_library():
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the launcher's socket among them: orders are for the parent
        os.dup2(nothing, descriptor)
    version, store_class = _load_library()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, descriptor = listener.getsockname()[1], os.dup(listener.fileno())
    options = _store_options(version, store_class)
    store = store_class("127.0.0.1", port, master_listen_fd=descriptor, **options)
    store.set("rankmend", "served")
    if store.get("rankmend") != b"served":
        raise ValueError("the store has lost a key")


def _die_with(parent):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _detach():
    """Live exactly as long as the launcher, whatever signals the process tree gets."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A planned stop signals every process of the job; its last save may need the store.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STDERR_BYTES_MAX, STDERR_BYTES_MAX))
    # Run by path, Python puts this folder first, and its modules would hide others' of that name.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]


def _store_options(version, store_class):
    """Return the arguments that every store of this torch gets."""
    options = {
        "is_master": True,
        "wait_for_workers": False,
        "timeout": datetime.timedelta(seconds=CONNECT_S_MAX),
    }
    if "use_libuv" in (store_class.__init__.__doc__ or ""):
        # The libuv server takes a socket of ours from 2.5 on; clients of either kind fit both.
        major, minor = version.split(".")[:2]
        options["use_libuv"] = (int(major), int(minor)) >= (2, 5)
    return options


def _carry_out(command, descriptors, stores, store_class, options):
    attempt = command["attempt"]
    if command["do"] == "drop":
        stores.pop(attempt, None)  # ends its thread and closes the socket
        return {"dropped": attempt}
    if command["do"] != "serve" or len(descriptors) != 1:
        raise ValueError("not understood: %r with %d descriptors" % (command, len(descriptors)))
    with socket.socket(fileno=os.dup(descriptors[0])) as listener:
        host, port = listener.getsockname()[:2]
    stores[attempt] = store_class(
        ANY_TO_LOOPBACK.get(host, host),
        port,
        master_listen_fd=os.dup(descriptors[0]),  # the store owns this one and closes it
        **options,
    )
    return {"serving": attempt}


def _receive(channel):
    """Return the next command and the descriptors sent with it; None at the end."""
    ancillary_bytes_max = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    data, ancillary, _flags, _address = channel.recvmsg(MESSAGE_BYTES_MAX, ancillary_bytes_max)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return (json.loads(data.decode("ascii")) if data else None), list(descriptors)


def _send(channel, reply):
    try:
        channel.send(json.dumps(reply).encode("ascii"))
        return True
    except OSError:  # the launcher is gone
        return False


def _describe(error):
    return ("%s: %s" % (type(error).__name__, error))[:ERROR_CHARACTERS_MAX]


if __name__ == "__main__":
    os._exit(main())  # the library alone is not made to be taken down
