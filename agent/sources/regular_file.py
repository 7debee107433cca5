"""Small files that other programs write: regular ones only, and no more of them than is sane.

A pipe would hold the reader up, and a link would let whoever may write into the folder show any file.
"""

import os
import stat
from pathlib import Path

from rankmend.errors import NoSourceError, SourceError

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_regular(path: Path, bytes_max: int) -> bytes:
    """Return a file's bytes, or raise NoSourceError where there is none, and SourceError."""
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoSourceError(f"no {path}") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError(f"{path} is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(bytes_max + 1)
    except OSError as error:  # a process that has ended since
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > bytes_max:
        raise SourceError(f"{path} has more than {bytes_max} bytes")
    return data
