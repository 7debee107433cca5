"""numpy arrays and scalars in a snapshot. Only for a process that has imported numpy."""

from rankmend.hook.snapshots import structure

NAME = "numpy"
_KINDS = "biufcmMSU"  # not O (objects), V (structures, foreign types), T (text of any length)
_SCALAR_KINDS = "biufcmM"


class NumpyArrays:
    """Keeps and gives back arrays, by this process's numpy."""

    name = NAME

    def __init__(self, numpy):
        self._numpy = numpy

    def kinds(self, leaves):
        add = leaves.add

        def put(array):
            order = "F" if array.flags.fnc else "C"
            return add(array, (NAME, array.dtype, array.shape, order))

        def put_scalar(value):
            dtype = value.dtype
            if dtype.kind not in _SCALAR_KINDS:
                raise structure.UnsupportedError(value, structure.type_name(value))
            return '{"n":["%s","%s"]}' % (dtype.str, value.tobytes().hex())

        found = {self._numpy.ndarray: put, self._numpy.memmap: put}
        # All scalar types of numpy itself: of other packages' types dtype.str tells too little.
        found.update(dict.fromkeys(self._numpy.sctypeDict.values(), put_scalar))
        return found

    def describe(self, key):
        _name, dtype, shape, order = key
        if dtype.kind not in _KINDS or dtype.hasobject or dtype.fields or dtype.subdtype:
            raise ValueError("numpy.ndarray of dtype %s" % dtype)
        size = dtype.itemsize * structure.count_elements(shape)
        return size, [dtype.str, list(shape), order], (dtype, shape, order)

    def view(self, memory, at, description):
        dtype, shape, order = description
        if 0 in shape or not dtype.itemsize:
            return None
        return self._numpy.ndarray(shape, dtype, memory, at, order=order)

    def copy(self, destinations, sources):
        for destination, source in zip(destinations, sources):  # noqa: B905 (Python 3.8)
            if destination is not None:
                destination[...] = source

    def give_back(self, memory, at, size, fields):
        """Return an array in the memory. Raises ValueError."""
        if len(fields) != 3 or fields[2] not in ("C", "F"):
            raise ValueError("a malformed array")
        dtype, shape = self._dtype(fields[0], _KINDS), structure.check_sizes(fields[1])
        if size != dtype.itemsize * structure.count_elements(shape):
            raise ValueError("an array of %d bytes with shape %s" % (size, shape))
        if not size:
            return self._numpy.empty(shape, dtype, order=fields[2])
        return self._numpy.ndarray(shape, dtype, memory, at, order=fields[2])

    def nodes(self):
        return {"n": self._scalar}

    def _scalar(self, body):
        if type(body) is not list or len(body) != 2 or type(body[1]) is not str:
            raise ValueError("a malformed numpy scalar")
        dtype, data = self._dtype(body[0], _SCALAR_KINDS), bytes.fromhex(body[1])
        if len(data) != dtype.itemsize:
            raise ValueError("a numpy scalar of %d bytes" % len(data))
        return self._numpy.frombuffer(data, dtype)[0]

    def _dtype(self, text, kinds):
        try:
            if type(text) is not str or len(text) > 24 or text[1:2] not in tuple(kinds):
                raise TypeError
            dtype = self._numpy.dtype(text)
        except TypeError:
            raise ValueError("numpy's dtype %.40r" % (text,)) from None
        if dtype.kind not in kinds or dtype.str != text:
            raise ValueError("numpy's dtype %.40r" % (text,))
        return dtype
