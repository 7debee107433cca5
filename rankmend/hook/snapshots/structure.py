"""Turns a state into JSON and buffers, and back. Pure: values in, values out.

A document holds the state's tree, whose leaves are plain values, and two tables: `tensors` and
`blobs` say where in the file the bytes of each lie. In the tree a list is a list; a JSON object
has exactly one key, which says what it stands for:

    m, d, c     dict: with text keys, with other keys, a Counter    t      tuple
    i, f        an int beyond 64 bits, a float that is no number    T      tensor or array
    b, S        bytes, long text                                    I, U   list, tuple of many ints

and whatever the modules for torch and numpy add. Nothing is pickled, and nothing read from a
document is evaluated: what is not exactly of this form is refused.
"""

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict

VERSION = 1
DEPTH_MAX = 100
TEXT_CHARACTERS_MAX = 1000  # longer text goes into a blob
INTS_MIN = 64  # of a list that goes into a blob
_INT_MAX = 2**63
_INT_DIGITS_MAX = 20
_BIG_INT_CHARACTERS_MAX = 1 << 16
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class UnsupportedError(Exception):
    """A value that can't be kept; never leaves the hook. ``what``: its type, for people."""

    def __init__(self, value, what):
        super().__init__(what)
        self.value = value
        self.what = what


class Leaves:
    """What a walk through a state has found beside plain values.

    ``sources[n]`` is what is copied for node T n, and ``keys[n]`` tells all that the place of its copy
    depends on. ``known``: the keys of the last walk, which save most of the time where they still fit.
    """

    __slots__ = ("addresses", "blobs", "keys", "known", "sources", "wholes")

    def __init__(self, known=()):
        self.sources = []
        self.keys = []
        self.blobs = []
        self.wholes = {}  # number -> what stands in the state, where that is not the source itself
        self.addresses = {}  # where a tensor's memory begins -> its number
        self.known = known

    def add(self, source, key):
        self.sources.append(source)
        self.keys.append(key)
        return name_leaf(len(self.keys) - 1)

    def value(self, number):
        return self.wholes.get(number, self.sources[number])


leaf_names = []  # type: ignore[var-annotated] # of text


def name_leaf(number):
    """Return the node of a tensor or array: the same object each time."""
    while len(leaf_names) <= number:
        leaf_names.append('{"T":%d}' % len(leaf_names))
    return leaf_names[number]


def encode(state, leaves, kinds):  # noqa: PLR0915 (one scope by intent: it is walked at each snapshot)
    """Return the state's tree, as JSON, and fill ``leaves``. Raises `UnsupportedError`.

    ``kinds``: for each further type a function that returns a node, as JSON.
    """
    around = set()  # ids of the containers that the walk is in
    blobs = leaves.blobs
    quote = json.encoder.encode_basestring_ascii

    def node(value):
        return handlers.get(type(value), refuse)(value)

    def refuse(value):
        raise UnsupportedError(value, type_name(value))

    def nothing(_value):
        return "null"

    def flag(value):
        return "true" if value else "false"

    def whole(value):
        if -_INT_MAX <= value < _INT_MAX:
            return repr(value)
        if value.bit_length() > 4 * (_BIG_INT_CHARACTERS_MAX - 3):
            raise UnsupportedError(value, "an int of %d bits" % value.bit_length())
        return '{"i":"%s"}' % hex(value)

    def real(value):
        return repr(value) if math.isfinite(value) else '{"f":"%r"}' % value

    def blob(tag, data):
        blobs.append(data)
        return '{"%s":%d}' % (tag, len(blobs) - 1)

    def text(value):
        if len(value) <= TEXT_CHARACTERS_MAX and (value.isascii() or _is_plain(value)):
            return quote(value)
        return blob("S", value.encode("utf-8", "surrogatepass"))

    def raw(value):
        return blob("b", value)

    def enter(value):
        if id(value) in around:
            raise UnsupportedError(value, "%s that contains itself" % type_name(value))
        if len(around) >= DEPTH_MAX:
            raise UnsupportedError(value, "%s below %d others" % (type_name(value), DEPTH_MAX))
        around.add(id(value))

    def items(value):
        enter(value)
        result = "[%s]" % ",".join([node(item) for item in value])
        around.discard(id(value))
        return result

    def ints(value):
        """Return a blob of 64-bit ints, or None for anything else."""
        if len(value) < INTS_MIN or type(value[0]) is not int or set(map(type, value)) != {int}:
            return None
        try:
            return struct.pack("<%dq" % len(value), *value)
        except struct.error:  # beyond 64 bits
            return None

    def sequence(value):
        packed = ints(value)
        return items(value) if packed is None else blob("I", packed)

    def group(value):
        packed = ints(value)
        return '{"t":%s}' % items(value) if packed is None else blob("U", packed)

    def mapping(value):
        enter(value)
        # The common case, and the fast one: names of parameters.
        if set(map(type, value)) <= {str} and "".join(value).isascii():
            pieces = [
                quote(key) + ":" + handlers.get(type(item), refuse)(item)
                for key, item in value.items()
            ]
            result = '{"m":{%s}}' % ",".join(pieces)
        else:
            result = '{"d":[%s]}' % ",".join(pairs(value))
        around.discard(id(value))
        return result

    def counter(value):
        enter(value)
        result = '{"c":[%s]}' % ",".join(pairs(value))
        around.discard(id(value))
        return result

    def pairs(value):
        result = []
        for key, item in value.items():
            result += (key_node(key), node(item))
        return result

    def key_node(key):
        if type(key) is tuple:
            return '{"t":[%s]}' % ",".join([key_node(part) for part in key])
        if type(key) not in key_types:
            raise UnsupportedError(key, "a key of type %s" % type_name(key))
        return handlers[type(key)](key)

    key_types = (str, int, float, bool, type(None))
    handlers = {
        type(None): nothing,
        bool: flag,
        int: whole,
        float: real,
        str: text,
        bytes: raw,
        list: sequence,
        tuple: group,
        dict: mapping,
        OrderedDict: mapping,
        defaultdict: mapping,
        Counter: counter,
    }
    handlers.update(kinds)
    try:
        return node(state)
    finally:
        handlers.clear()  # ends a cycle that would hold the script's tensors


def _is_plain(text):
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair: JSON would join two of them
        return False
    return True


def type_name(value):
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else "%s.%s" % (module, kind.__qualname__)


def find_path(state, target):
    """Return where in the state this very object stands, as a script would write it."""
    waiting = [(state, "state", 0)]
    while waiting:
        value, path, depth = waiting.pop()
        if value is target and depth:
            return path
        if depth > DEPTH_MAX:
            continue
        if isinstance(value, dict):
            for key, item in value.items():
                if key is target:
                    return "%s, at the key %.80r" % (path, key)
                waiting.append((item, "%s[%.80r]" % (path, key), depth + 1))
        elif type(value) in (list, tuple):
            waiting += [(entry, "%s[%d]" % (path, at), depth + 1) for at, entry in enumerate(value)]
    return "state"


def write_document(tree_json, tensors_json, blob_places):
    """Return the bytes of a document; ``tensors_json`` stays the same from snapshot to snapshot."""
    parts = (VERSION, tensors_json, to_json(blob_places), tree_json)
    return ('{"version":%d,"tensors":%s,"blobs":%s,"state":%s}' % parts).encode("ascii")


def read_document(data):
    """Return tree, rows of tensors, places of blobs. Raises ValueError."""
    try:
        document = json.loads(bytes(data).decode("ascii"), parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise ValueError("the structure is not JSON: %s" % error) from None
    if type(document) is not dict or set(document) != {"version", "tensors", "blobs", "state"}:
        raise ValueError("the structure is malformed")
    if document["version"] != VERSION:
        raise ValueError("the structure has version %.20r" % (document["version"],))
    tensors, blobs = document["tensors"], document["blobs"]
    if type(tensors) is not list or type(blobs) is not list:
        raise ValueError("the structure is malformed")
    return document["state"], tensors, blobs


def _parse_int(text):
    if len(text) > _INT_DIGITS_MAX:
        raise ValueError("a number of %d digits" % len(text))
    return int(text)


to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def decode(tree, tensor, blob, others):
    """Return the state of a tree. Raises ValueError.

    ``tensor(n)`` and ``blob(n)`` return those of the tables; ``others`` has a function for each
    further kind of node.
    """

    def value_of(node, depth):
        kind = type(node)
        if kind is list:
            return items(node, depth)
        if kind is not dict:
            return node
        if len(node) != 1 or depth > DEPTH_MAX:
            raise ValueError("a malformed node")
        ((tag, body),) = node.items()
        handler = handlers.get(tag)
        if handler is None:
            raise ValueError("a node of kind %.20r" % (tag,))
        return handler(body, depth)

    def items(body, depth):
        if type(body) is not list or depth > DEPTH_MAX:
            raise ValueError("a malformed node")
        return [value_of(entry, depth + 1) for entry in body]

    def group(body, depth):
        return tuple(items(body, depth))

    def mapping(body, depth):
        if type(body) is not dict:
            raise ValueError("a malformed dict")
        return {key: value_of(item, depth + 1) for key, item in body.items()}

    def pairs(body, depth):
        if type(body) is not list or len(body) % 2:
            raise ValueError("a malformed dict")
        for key, item in zip(body[::2], body[1::2]):  # noqa: B905 (Python 3.8)
            yield key_of(key, depth + 1), value_of(item, depth + 1)

    def key_of(node, depth):
        if type(node) is dict and set(node) == {"t"} and type(node["t"]) is list:
            if depth > 2 * DEPTH_MAX:
                raise ValueError("a malformed key")
            return tuple(key_of(part, depth + 1) for part in node["t"])
        if type(node) is list or (type(node) is dict and not set(node) <= {"i", "f", "S"}):
            raise ValueError("a malformed key")
        return value_of(node, depth)

    def big(body, _depth):
        if type(body) is not str or len(body) > _BIG_INT_CHARACTERS_MAX:
            raise ValueError("a malformed number")
        return int(body, 16)

    def real(body, _depth):
        if type(body) is not str or body not in _NOT_FINITE:
            raise ValueError("a malformed number")
        return _NOT_FINITE[body]

    def ints(body):
        data = blob(body)
        if len(data) % 8:
            raise ValueError("a list of ints in %d bytes" % len(data))
        return struct.unpack("<%dq" % (len(data) // 8), data)

    handlers = {
        "m": mapping,
        "d": lambda body, depth: dict(pairs(body, depth)),
        "c": lambda body, depth: Counter(dict(pairs(body, depth))),
        "t": group,
        "i": big,
        "f": real,
        "b": lambda body, _depth: blob(body),
        "S": lambda body, _depth: blob(body).decode("utf-8", "surrogatepass"),
        "I": lambda body, _depth: list(ints(body)),
        "U": lambda body, _depth: ints(body),
        "T": lambda body, _depth: tensor(body),
    }
    for tag, function in others.items():
        handlers[tag] = lambda body, _depth, function=function: function(body)
    try:
        return value_of(tree, 0)
    finally:
        handlers.clear()  # ends a cycle that would hold the map


def check_sizes(values):
    """Return a shape (or strides) as a tuple. Raises ValueError."""
    if type(values) is not list or len(values) > 64:
        raise ValueError("a malformed shape")
    for value in values:
        if type(value) is not int or not 0 <= value < _INT_MAX:
            raise ValueError("a shape with %.40r" % (value,))
    return tuple(values)


def count_elements(shape):
    elements = 1
    for size in shape:
        elements *= size
    return elements
