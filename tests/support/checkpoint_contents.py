"""Contents of checkpoint files as torch.save, np.savez and safetensors shape them, made without these libraries.

The pickles list the same instructions as torch.save's: `tests/recovery/checkpoints/test_shape.py` compares them where
PyTorch is installed.
"""

import io
import json
import math
import struct
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """A tensor of float32, told by its sizes alone: its bytes are not written."""

    sizes: tuple[int, ...]


def pickled(value: Any) -> bytes:
    """Return the pickle of plain values and tensors, in protocol 2."""
    return b"\x80\x02" + _pickled(value) + b"."


def _pickled(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return _pickled_tensor(value)
    if isinstance(value, dict):
        items = b"".join(_pickled(key) + _pickled(item) for key, item in value.items())
        data = b"}(" + items + b"u"
    elif isinstance(value, list):
        data = b"](" + b"".join(map(_pickled, value)) + b"e"
    elif isinstance(value, tuple):
        data = b"(" + b"".join(map(_pickled, value)) + b"t"
    elif isinstance(value, str):
        text = value.encode()
        data = b"X" + struct.pack("<I", len(text)) + text
    elif isinstance(value, float):
        data = b"G" + struct.pack(">d", value)
    elif value is None or isinstance(value, bool):
        data = {None: b"N", True: b"\x88", False: b"\x89"}[value]
    else:
        data = b"J" + struct.pack("<i", value)
    return data


def _pickled_tensor(tensor: Tensor) -> bytes:
    sizes = tensor.sizes
    strides = tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))
    storage = _pickled("storage") + b"ctorch\nFloatStorage\n"
    storage = b"(" + storage + b"".join(map(_pickled, ("0", "cpu", math.prod(sizes)))) + b"tQ"
    places = b"".join(map(_pickled, (0, sizes, strides, False)))
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + places + hooks + b"tR"


def torch_file(content: Any) -> bytes:
    """Return a file in the layout of torch.save."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", pickled(content))
        file.writestr("archive/data/0", bytes(16))
        file.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def safetensors_file(sizes: dict[str, tuple[int, ...]], **texts: str) -> bytes:
    """Return a safetensors file of these tensors."""
    header: dict[str, object] = {"__metadata__": texts} if texts else {}
    at = 0
    for name, shape in sizes.items():
        end = at + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def npz_file(**arrays: Any) -> bytes:
    """Return a file of np.savez."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def weights(width: int = 16, layers: int = 2, prefix: str = "layers") -> dict[str, Tensor]:
    """Return what `model.state_dict()` of a small model looks like."""
    found = {}
    for layer in range(layers):
        found[f"{prefix}.{layer}.weight"] = Tensor((width, width))
        found[f"{prefix}.{layer}.bias"] = Tensor((width,))
    return found


def adam(model: dict[str, Tensor]) -> dict[str, Any]:
    """Return what `optimizer.state_dict()` of Adam looks like for this model."""
    state = {
        at: {"step": Tensor(()), "exp_avg": tensor, "exp_avg_sq": tensor}
        for at, tensor in enumerate(model.values())
    }
    groups = [{"lr": 0.001, "betas": (0.9, 0.999), "params": list(range(len(model)))}]
    return {"state": state, "param_groups": groups}
