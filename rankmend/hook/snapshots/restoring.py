"""Gives a rank back the snapshot that the controller chose, without copying it.

The file is mapped copy-on-write: what the script writes into the tensors never reaches the snapshot.
Whatever doesn't fit raises ValueError with what is wrong: a file may be torn, or another's.
"""

import importlib
import mmap
import os
import stat
import sys

from rankmend.hook.snapshots import layout, lending, structure


def restore(folder, identity, choice, mesh=None):
    """Return the state of this attempt and step. Raises ValueError."""
    problems = []
    for number in range(layout.BUFFERS):
        path = os.path.join(folder, layout.file_name(identity.rank, number))
        try:
            found = _open(path, identity, choice)
        except FileNotFoundError:
            problems.append("%s is not there" % path)
            continue
        except (OSError, ValueError) as error:
            problems.append("%s: %s" % (path, error))
            continue
        header, memory = found
        try:
            state = _read(header, memory, mesh)
        except (OSError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise ValueError("%s: %s" % (path, error)) from error
        if layout.COMMIT.unpack_from(memory, layout.COMMIT_AT)[0] != header.sequence:
            raise ValueError("%s: it changed during the read" % path)
        return state
    raise ValueError("; ".join(problems))


def _open(path, identity, choice):
    """Return header and map of a file that holds the chosen snapshot. Raises OSError or ValueError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        data = os.pread(descriptor, layout.DATA_AT, 0)
        header = layout.parse(data, status.st_size)
        if (header.attempt, header.step) != choice:
            raise ValueError("it holds step %d of attempt %d" % (header.step, header.attempt))
        for name in ("job_id", "rank", "world_size"):
            if getattr(header, name) != getattr(identity, name):
                values = (name, getattr(header, name), getattr(identity, name))
                raise ValueError("its %s is %s, this rank's is %s" % values)
        if len(data) < layout.DATA_AT:
            raise ValueError("it is cut off at %d bytes" % len(data))
        if layout.COMMIT.unpack_from(data, layout.COMMIT_AT)[0] != header.sequence:
            raise ValueError("it is not whole: its rank died while it wrote")
        memory = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_COPY)
        lending.lend(status, memory)
        return header, memory
    finally:
        os.close(descriptor)


def _read(header, memory, mesh):
    begin, end = header.structure_at, header.structure_at + header.structure_size
    tree, rows, places = structure.read_document(memory[begin:end])
    data_end = header.data_at + header.data_size
    library = _Library()
    tensors = {}

    def check(at, size):
        if type(at) is not int or type(size) is not int or size < 0:
            raise ValueError("a malformed buffer")
        if not header.data_at <= at <= at + size <= data_end:
            raise ValueError("a buffer of %d bytes at %d: outside the data" % (size, at))

    def tensor(number):
        _check_index(number, rows)
        if number not in tensors:
            row = rows[number]
            if type(row) is not list or len(row) < 3:
                raise ValueError("a malformed tensor")
            name, at, size = row[:3]
            check(at, size)
            if at % layout.ALIGNMENT:
                raise ValueError("a buffer at %d" % at)
            tensors[number] = library.give_back(name, memory, at, size, row[3:], mesh)
        return tensors[number]

    def blob(number):
        _check_index(number, places)
        place = places[number]
        if type(place) is not list or len(place) != 2:
            raise ValueError("a malformed buffer")
        at, size = place
        check(at, size)
        return memory[at : at + size]

    return structure.decode(tree, tensor, blob, library.nodes())


def _check_index(number, table):
    if type(number) is not int or not 0 <= number < len(table):
        raise ValueError("a buffer with the number %.20r" % (number,))


class _Library:
    """torch and numpy, imported where a snapshot needs them."""

    def __init__(self):
        self._adapters = {}

    def give_back(self, name, memory, at, size, fields, mesh):
        if name in ("torch", "cuda"):
            return self._torch().give_back(memory, at, size, fields, mesh)
        if name == "numpy":
            return self._numpy().give_back(memory, at, size, fields)
        raise ValueError("a tensor of kind %.20r" % (name,))

    def nodes(self):
        def give(load, tag):
            return lambda body: load().nodes()[tag](body)  # noqa: PLW0108 (loads at the first use)

        nodes = {tag: give(self._torch, tag) for tag in ("Z", "y", "v")}
        return {"n": give(self._numpy, "n"), **nodes}

    def _torch(self):
        return self._adapter("torch", "tensors", "TorchTensors")

    def _numpy(self):
        return self._adapter("numpy", "arrays", "NumpyArrays")

    def _adapter(self, library, module, kind):
        if library not in self._adapters:
            if library not in sys.modules:
                try:
                    importlib.import_module(library)
                except Exception as error:
                    raise ValueError("it holds values of %s: %s" % (library, error)) from error
            own = importlib.import_module("rankmend.hook.snapshots." + module)
            self._adapters[library] = getattr(own, kind)(sys.modules[library])
        return self._adapters[library]
