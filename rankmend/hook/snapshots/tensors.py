"""torch tensors in a snapshot. Only for a process that has imported torch.

A tensor on the CPU is copied at once, one on a CUDA device in the order of its stream
(`rankmend.hook.snapshots.accelerator`). Of a DTensor the local shard is kept, without any
collective. What comes back is always a plain tensor on the CPU (or a DTensor of such).
"""

import importlib
import sys

from rankmend.hook.snapshots import structure

CPU = "torch"
CUDA = "cuda"
_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
_DEVICE_CHARACTERS_MAX = 40
_KEY_LENGTH = 7  # see make_key


class TorchTensors:
    """Keeps and gives back tensors of the CPU, by this process's torch."""

    name = CPU

    def __init__(self, torch):
        self._torch = torch
        self._copy_all = getattr(torch, "_foreach_copy_", None)
        self._names = {getattr(torch, name): name for name in _SIZES if hasattr(torch, name)}

    def kinds(self, leaves):
        torch = self._torch
        keys, sources, addresses = leaves.keys, leaves.sources, leaves.addresses
        known, names = leaves.known, structure.leaf_names
        known_count = min(len(known), len(names))

        def make_key(tensor, parts):
            device = tensor.device
            name = CUDA if device.type == "cuda" else CPU
            key = (name, tensor.dtype, tensor.shape, tensor.stride(), device)
            return (*key, parts, tensor.get_device())

        def put(tensor):
            number = len(keys)
            try:
                key = known[number] if number < known_count else None
                if (
                    key is None
                    or len(key) != _KEY_LENGTH
                    or key[1] is not tensor.dtype
                    or key[2] != tensor.shape
                    or key[3] != tensor.stride()
                    or key[6] != tensor.get_device()
                    or key[5] is not None
                ):
                    key = make_key(tensor, None)
                address = tensor.data_ptr()
            except RuntimeError:  # sparse, or on no device
                raise structure.UnsupportedError(tensor, _describe(tensor)) from None
            if address:  # tied weights: kept once, and tied when they come back
                first = addresses.setdefault(address, number)
                if first != number and keys[first] == key:
                    return names[first]
            sources.append(tensor)
            keys.append(key)
            return names[number] if number < known_count else structure.name_leaf(number)

        def put_shard(tensor):
            local = tensor._local_tensor
            if type(local) is not torch.Tensor:  # a collective under way
                raise structure.UnsupportedError(tensor, "DTensor of %s" % type(local).__name__)
            parts = (tensor.shape, tensor.stride(), tensor.placements, tensor.device_mesh)
            leaves.wholes[len(keys)] = tensor
            return leaves.add(local, make_key(local, parts))

        kinds = {
            torch.Tensor: put,
            torch.nn.Parameter: put,
            torch.Size: lambda value: '{"Z":%s}' % list(value),
            torch.dtype: lambda value: '{"y":"%s"}' % str(value).rpartition(".")[2],
            torch.device: lambda value: '{"v":"%s"}' % value,
        }
        sharded = _dtensor_type()
        if sharded is not None:
            kinds[sharded] = put_shard
        return kinds

    def describe(self, key):
        _name, dtype, shape, stride, device, parts, _index = key
        name = self._names.get(dtype)
        if name is None:
            raise ValueError("tensor of dtype %s" % dtype)
        if device.type not in ("cpu", "cuda"):
            raise ValueError("tensor on the device %s" % device)
        shape = tuple(shape)
        if not is_dense(shape, stride):
            stride = make_stride(shape)
        size = _SIZES[name] * structure.count_elements(shape)
        own_stride = None if stride == make_stride(shape) else list(stride)
        row = [name, list(shape), own_stride, None if parts is None else describe_parts(*parts)]
        return size, row, (dtype, shape, stride)

    def view(self, memory, at, description):
        return self._view(memory, at, *description)

    def _view(self, memory, at, dtype, shape, stride):
        torch = self._torch
        elements = structure.count_elements(shape)
        if not elements:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(memory, dtype=dtype, count=elements, offset=at)
        return flat.as_strided(shape, stride)

    def copy(self, destinations, sources):
        # Not Tensor.copy_ in inference mode nor with gradients: the copies are nobody's leaves.
        with self._torch.no_grad():
            if self._copy_all is not None and sources:
                self._copy_all(destinations, sources)
                return
            for destination, source in zip(destinations, sources):  # noqa: B905 (Python 3.8)
                destination.copy_(source)

    def give_back(self, memory, at, size, fields, mesh):
        """Return a tensor in the memory, a DTensor where a mesh is given. Raises ValueError."""
        if len(fields) != 4 or fields[0] not in _SIZES:
            raise ValueError("a malformed tensor: %.80r" % (fields[:1],))
        name, shape = fields[0], structure.check_sizes(fields[1])
        stride = make_stride(shape) if fields[2] is None else structure.check_sizes(fields[2])
        if not is_dense(shape, stride):
            raise ValueError("a tensor of shape %s with strides %s" % (shape, stride))
        if size != _SIZES[name] * structure.count_elements(shape):
            raise ValueError("a tensor of %d bytes with shape %s" % (size, shape))
        dtype = getattr(self._torch, name, None)
        if dtype is None:
            raise ValueError("this PyTorch has no %s" % name)
        local = self._view(memory, at, dtype, shape, stride)
        if fields[3] is None or mesh is None:
            return local
        return join_parts(local, fields[3], mesh)

    def nodes(self):
        return {"Z": self._give_size, "y": self._give_dtype, "v": self._give_device}

    def _give_size(self, body):
        return self._torch.Size(structure.check_sizes(body))

    def _give_dtype(self, body):
        dtype = getattr(self._torch, body, None) if type(body) is str else None
        if type(dtype) is not self._torch.dtype:
            raise ValueError("torch's dtype %.40r" % (body,))
        return dtype

    def _give_device(self, body):
        try:
            if type(body) is not str or len(body) > _DEVICE_CHARACTERS_MAX:
                raise RuntimeError
            return self._torch.device(body)
        except RuntimeError:
            raise ValueError("torch's device %.40r" % (body,)) from None


def _describe(tensor):
    return "tensor of layout %s on the device %s" % (tensor.layout, tensor.device)


def make_stride(shape):
    """Return the strides of a tensor whose last dimension varies fastest."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def is_dense(shape, stride):
    """Return whether a tensor's elements fill its memory, each place with one of them."""
    if len(shape) != len(stride):
        return False
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted(zip(stride, shape)):  # noqa: B905 (Python 3.8)
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


# DTensors -------------------------------------------------------------------------------------


# Where PyTorch has DTensor: since 2.5, before.
_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")


def _dtensor_type():
    for name in _MODULES:
        found = getattr(sys.modules.get(name), "DTensor", None)
        if found is not None:
            return found
    return None


def describe_parts(shape, stride, placements, mesh):
    """Return how a DTensor is cut, as plain values. Raises ValueError."""
    return {
        "shape": list(shape),
        "stride": list(stride),
        "placements": [_describe_placement(placement) for placement in placements],
        "mesh": describe_mesh(mesh),
    }


def _describe_placement(placement):
    kind = type(placement).__name__
    if kind == "Shard":
        return ["Shard", placement.dim]
    if kind == "Replicate":
        return ["Replicate"]
    if kind == "Partial" and placement.reduce_op in ("sum", "avg", "product", "max", "min"):
        return ["Partial", placement.reduce_op]
    raise ValueError("DTensor with the placement %s" % (placement,))


def describe_mesh(mesh):
    coordinate = mesh.get_coordinate()
    return {
        "names": list(mesh.mesh_dim_names or ()),
        "shape": list(mesh.shape),
        "coordinate": None if coordinate is None else list(coordinate),
    }


def join_parts(local, parts, mesh):
    """Return the DTensor of a local shard. Raises ValueError, with both meshes where they differ."""
    if type(parts) is not dict or set(parts) != {"shape", "stride", "placements", "mesh"}:
        raise ValueError("a malformed DTensor")
    retained = parts["mesh"]
    if type(retained) is not dict or type(retained.get("names")) is not list:
        raise ValueError("a malformed DTensor")
    names = tuple(retained["names"])
    mine = describe_mesh(mesh)
    if names and list(names) != mine["names"]:
        if not set(names) <= set(mine["names"]):
            raise ValueError("its mesh is %s, the script's is %s" % (retained, mine))
        mesh = mesh[names]
        mine = describe_mesh(mesh)
    if retained != mine:
        raise ValueError("its mesh is %s, the script's is %s" % (retained, mine))
    module = _load_dtensors()
    placements = [_make_placement(module, item) for item in parts["placements"]]
    shape = structure.check_sizes(parts["shape"])
    stride = structure.check_sizes(parts["stride"])
    return module.DTensor.from_local(
        local,
        mesh,
        placements,
        run_check=False,
        shape=sys.modules["torch"].Size(shape),
        stride=stride,
    )


def _load_dtensors():
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    raise ValueError("this PyTorch has no DTensor")


def _make_placement(module, description):
    if type(description) is not list or not description:
        raise ValueError("a malformed placement")
    kind, values = description[0], description[1:]
    if kind == "Shard" and len(values) == 1 and type(values[0]) is int:
        return module.Shard(values[0])
    if kind == "Replicate" and not values:
        return module.Replicate()
    if kind == "Partial" and len(values) == 1 and type(values[0]) is str:
        return module.Partial(values[0])
    raise ValueError("a malformed placement: %.80r" % (description,))
