"""Which snapshot files this process has lent to its script: mapped, and not to be changed in place.

The script's tensors see what the file holds until it writes to them, so as long as one of them
lives, a new snapshot goes into a file of its own.
"""

import weakref

_lent = {}  # type: ignore[var-annotated] # (device, inode) -> weak reference to the map


def lend(status, mapped):
    """Note that the file with this status is mapped for the script."""
    _lent[status.st_dev, status.st_ino] = weakref.ref(mapped)


def is_lent(status):
    reference = _lent.get((status.st_dev, status.st_ino))
    return reference is not None and reference() is not None
