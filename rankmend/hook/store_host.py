"""Serves rendezvous stores in a separate process under the user's interpreter.

Started by path (`python store_host.py`) by the launcher, with one end of a unix
SOCK_SEQPACKET pair as stdin. One JSON object a message, and a listening TCP socket beside it
(SCM_RIGHTS) where one is served:

    -> {"do": "serve", "attempt": 3} + descriptor    <- {"serving": 3}
    -> {"do": "drop", "attempt": 3}                  <- {"dropped": 3}
                                                     <- {"failed": 3, "error": "..."}

The socket is bound and listening before this process has imported torch, so ranks may
connect at once: the kernel's backlog holds them. End of file, or the death of the launcher,
ends it. Standard library, Python 3.8 and the user's torch (2.0 and later) only.
"""

import array
import ctypes
import datetime
import json
import os
import resource
import signal
import socket
import sys

MESSAGE_BYTES_MAX = 4096
ERROR_CHARACTERS_MAX = 2000
STDERR_BYTES_MAX = 1 << 20  # torch warns about each broken connection; further output is lost
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CONNECT_S_MAX = 30  # the store's own client, over loopback; measured in milliseconds
ANY_TO_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (read, not bound)


def main():
    """Serve until the launcher closes its end; exit 1 when torch can't be used."""
    _detach()
    channel = socket.socket(fileno=0)
    try:
        import torch
        from torch.distributed import TCPStore

        options = _store_options(torch.__version__, TCPStore)
    except Exception as error:
        _send(channel, {"failed": None, "error": _describe(error)})
        return 1
    stores = {}
    while True:
        command, descriptors = _receive(channel)
        if command is None:
            return 0
        try:
            reply = _carry_out(command, descriptors, stores, TCPStore, options)
        except Exception as error:
            reply = {"failed": command.get("attempt"), "error": _describe(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if not _send(channel, reply):
            return 0


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
    sys.exit(main())
