"""safetensors files: u64 length, JSON header, then the tensors with no hole between them.

Source: huggingface/safetensors, README "Format". The format has no checksum, so a flipped bit
in a tensor can't be seen; a file that is cut off or whose header is damaged is found.
"""

import math
from typing import Final

import msgspec

from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.checkpoints.names import shown

LENGTH_BYTES: Final = 8
HEADER_BYTES_MAX: Final = 16 << 20  # the format allows 100 MB; a tensor takes about 100 bytes
_METADATA: Final = "__metadata__"
_BITS: Final = {
    "BOOL": 8,
    **dict.fromkeys(("U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Texts(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(default_factory=dict, name=_METADATA)


def looks_like_safetensors(head: bytes, size_bytes: int) -> bool:
    """Return whether the file begins with a possible length and the brace of a JSON object."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    fits = 2 <= length <= size_bytes - LENGTH_BYTES
    return fits and head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def check_safetensors(reader: FileReader) -> int:
    """Return the number of tensors, or raise when header and size do not fit each other."""
    length = int.from_bytes(reader.read(0, LENGTH_BYTES), "little")
    if length > HEADER_BYTES_MAX:
        raise DefectError(f"its header claims {length} bytes, more than {HEADER_BYTES_MAX}")
    tensors = _parse_header(reader.read(LENGTH_BYTES, length))
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, end = tensor.data_offsets
        if begin != at or end < begin or not _fits(tensor):
            raise DefectError(f"tensor {shown(name)} does not fit its place")
        at = end
    expected_bytes = LENGTH_BYTES + length + at
    if expected_bytes != reader.size_bytes:
        raise DefectError(
            f"truncated: {reader.size_bytes} bytes, but its header says {expected_bytes}"
        )
    return len(tensors)


def read_header(reader: FileReader) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the shape of each tensor, and the texts that the writer has added.

    Raises DefectError for a damaged header.
    """
    length = int.from_bytes(reader.read(0, LENGTH_BYTES), "little")
    if length > HEADER_BYTES_MAX:
        raise DefectError(f"its header claims {length} bytes, more than {HEADER_BYTES_MAX}")
    header = reader.read(LENGTH_BYTES, length)
    shapes = {
        name: tensor.shape
        for name, tensor in _parse_header(header).items()
        if min(tensor.shape, default=0) >= 0
    }
    try:
        texts = msgspec.json.decode(header, type=_Texts).metadata
    except (msgspec.MsgspecError, ValueError, RecursionError):
        texts = {}
    return shapes, texts


def step_in_metadata(texts: dict[str, str]) -> int | None:
    """Return the step that the writer has added, as kohya's scripts do (`ss_steps`)."""
    for key in ("global_step", "step", "iteration", "ss_steps"):
        text = texts.get(key, "")
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
    return None


def _parse_header(header: bytes) -> dict[str, _Tensor]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {
            name: msgspec.json.decode(body, type=_Tensor)
            for name, body in raw.items()
            if name != _METADATA
        }
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DefectError("its header is not safetensors JSON") from error


def _fits(tensor: _Tensor) -> bool:
    bits = _BITS.get(tensor.dtype)
    begin, end = tensor.data_offsets
    if bits is None:  # a newer type, whose size we don't know
        return True
    if len(tensor.shape) > 64 or min(tensor.shape, default=0) < 0:
        return False
    return math.prod(tensor.shape) * bits == (end - begin) * 8
