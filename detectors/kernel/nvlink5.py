"""What an error of NVLink 5 (XIDs 144 to 150) says in its registers.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", sheet "Xid 144-150 Decode":
docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. The first register (IntrInfo) holds the
unit, which the message also names, and in bits 20 to 25 why a link went down; the second is the
error status. The rows themselves are table `nvlink5` of data/kernel_log.csv.
"""

from collections.abc import Iterator, Sequence
from typing import Final

XIDS: Final = range(144, 151)
ANY_STATUS: Final = "*"
_REASON_SHIFT: Final = 20
_REASON_BITS: Final = 0x3F
_V1_RXPIPE, _V1_MASK, _V1_RAISED = 0x0C2, 0x3FF, 1 << 10  # drivers before R575
_V2_RXPIPE, _V2_MASK, _V2_RAISED = 0x06, 0x7F, 1 << 7  # since R575


def nvlink5_reason(registers: Sequence[int]) -> int:
    """Return why a link went down; 0 for errors that have no such reason."""
    return (registers[0] >> _REASON_SHIFT) & _REASON_BITS if registers else 0


def nvlink5_codes(xid: int, unit: str, registers: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Return the codes of table `nvlink5` that fit, in the order in which to look them up.

    Each element is a set of codes that hold together: first the status as it is, then its bits one
    by one, then the unit whatever its status.
    """
    if not registers:
        return
    where = f"{xid} {unit} {nvlink5_reason(registers)}"
    status = registers[1] if len(registers) > 1 else 0
    if _is_raised(unit, registers[0]):
        yield (f"{where} {status:#x} promoted",)
    yield (f"{where} {status:#x}",)
    bits = [1 << bit for bit in range(32) if status >> bit & 1]
    if len(bits) > 1:
        yield tuple(f"{where} {bit:#x}" for bit in bits)
    yield (f"{where} {ANY_STATUS}",)


def _is_raised(unit: str, intr_info: int) -> bool:
    """Whether an error that is not fatal by itself was raised to a fatal one."""
    if unit != "RLW_RXPIPE":
        return False
    if intr_info & _V1_MASK == _V1_RXPIPE:
        return bool(intr_info & _V1_RAISED)
    return intr_info & _V2_MASK == _V2_RXPIPE and bool(intr_info & _V2_RAISED)
