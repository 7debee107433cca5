"""Makes rank 0 join the launcher's store as the other ranks do.

PyTorch has rank 0 host the store at MASTER_PORT. Where the launcher's store listens there already, C++ lets
rank 0 become a client, and logs "The server socket ... has failed to bind" as an error at each start. Rank 0
is made a client from the beginning where, and only where, that store is seen to listen: a rank 0 whose
launcher's store has died still hosts, and so does one at any other address. docs/use/several-nodes.md.
"""

import errno
import os
import socket

from rankmend.hook.on_import import when_imported

_MODULE = "torch.distributed.rendezvous"
_CLIENT = 1  # any rank but 0: what PyTorch asks the rank for is whether it hosts


def watch():
    """Make this rank join the launcher's store, if the launcher hosts one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "true":
        return  # rank 0 hosts, or an older PyTorch asks for no socket at all
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if address and port.isdigit():
        when_imported(_MODULE, lambda module: _wrap(module, address, int(port)))


def _wrap(module, address, port):
    try:
        create = module._create_c10d_store

        def create_store(hostname, at_port, rank, *others, **named):
            is_ours = rank == 0 and (hostname, at_port) == (address, port)
            if is_ours and _is_taken(port):
                rank = _CLIENT
            return create(hostname, at_port, rank, *others, **named)  # rankmend passes this on

        module._create_c10d_store = create_store
    except Exception:  # rank 0 then finds out by itself, and PyTorch logs its error
        pass


def _is_taken(port):
    """Return whether a process listens on this local port; tested by a bind as in PyTorch."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False
