"""Where each tensor of a state lies in a snapshot file: the same as long as the shapes stay the same. Pure."""

from rankmend.hook.snapshots import structure
from rankmend.hook.snapshots.layout import ALIGNMENT, DATA_AT


def align(at):
    """Return the first place from ``at`` on at which a buffer may begin."""
    return -(-at // ALIGNMENT) * ALIGNMENT


class BufferPlan:
    """The places of all tensors and arrays of one shape of state.

    ``groups``: for each adapter, which leaves are its own.
    """

    def __init__(self, leaves, adapters):
        """Raises `structure.UnsupportedError` for a tensor that can't be kept."""
        self.keys = leaves.keys
        self.places = []
        self.descriptions = []
        self.groups = {name: [] for name in adapters}
        rows = []
        at = DATA_AT
        for number, key in enumerate(leaves.keys):
            name = key[0]
            try:
                size, row, description = adapters[name].describe(key)
            except ValueError as error:
                raise structure.UnsupportedError(leaves.value(number), str(error)) from None
            rows.append([name, at, size, *row])
            self.places.append(at)
            self.descriptions.append(description)
            self.groups[name].append(number)
            at = align(at + size)
        self.end = at
        self.table_json = structure.to_json(rows)

    def fits(self, leaves):
        return self.keys == leaves.keys  # quick where they are the same objects


def place_blobs(at, blobs):
    """Return [place, size] of each, and where the next may begin."""
    places = []
    for blob in blobs:
        places.append([at, len(blob)])
        at = align(at + len(blob))
    return places, at
