"""One pre-flight check at a time on a node: two would each find it slow.

The lock is a name among the kernel's abstract sockets (unix(7)). It holds for all users, in one network namespace, and is gone
with its process, however that ends. No child keeps it: a load that hangs in the kernel doesn't keep later checks away.
"""

import errno
import hashlib
import socket
from types import TracebackType

from rankmend.errors import StorageError


class SoleCheck:
    """``with SoleCheck(node) as sole``: `is_first` tells whether no other check of this node runs."""

    def __init__(self, node: str) -> None:
        digest = hashlib.sha256(node.encode("utf-8", "surrogateescape")).hexdigest()
        self._name = f"\0rankmend-preflight-{digest[:32]}"
        self._socket = socket.socket(socket.AF_UNIX)
        self.is_first = False

    def __enter__(self) -> "SoleCheck":
        try:
            self._socket.bind(self._name)
            self.is_first = True
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                self._socket.close()
                text = f"cannot tell whether another check runs: {error.strerror}"
                raise StorageError(text) from error
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._socket.close()
