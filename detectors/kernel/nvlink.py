"""Decodes the registers of NVLink errors: XID 74 of Hopper, XIDs 144 to 150 of NVLink 5.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): resolution WORKFLOW_NVLINK_ERR for XID 74,
sheet "Xid 144-150 Decode" for NVLink 5.

XID 74 has seven registers, of which the first, third, fourth and fifth count. A bit that NVIDIA's
page does not name is a bug to report to NVIDIA, so it never lowers a finding.

The first register of an NVLink 5 error (IntrInfo) holds the unit, which the message also names, and
in bits 20 to 25 why a link went down; the second is the error status. The rows themselves are table
`nvlink5` of data/kernel_log.csv.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

ECC_MAX: Final = 2  # times on one link, before it is hardware

XIDS: Final = range(144, 151)
ANY_STATUS: Final = "*"
_REASON_SHIFT: Final = 20
_REASON_BITS: Final = 0x3F


class NvlinkError(Enum):
    """The class of an error, the mildest first; the worst of its bits decides."""

    IGNORABLE = "ignorable"
    THRESHOLD = "threshold"  # of corrected ECC errors: operation goes on
    SECONDARY = "secondary"  # follows another error, of this GPU or another
    REPEATED = "if-repeated"  # of no matter unless seen again
    ECC = "ecc"  # hardware, if seen more than twice on one link
    SIGNAL = "signal"  # marginal signal: connections
    CONNECTION = "connection"  # connections, then diagnostics
    OTHER = "other"  # bits that NVIDIA does not name, or names as a bug


IN_WORDS: Final = {
    NvlinkError.IGNORABLE: "only bits that can be ignored",
    NvlinkError.THRESHOLD: "a threshold of corrected ECC errors was exceeded, none was uncorrectable: operation goes on",
    NvlinkError.SECONDARY: "it follows another error as a rule; alone it is a bug to report",
    NvlinkError.REPEATED: "of no matter unless it is seen again",
    NvlinkError.ECC: "ECC or parity: hardware, if seen more than twice on one link",
    NvlinkError.SIGNAL: "a marginal signal: check the link's connections, then run field diagnostics",
    NvlinkError.CONNECTION: "check the link's connections and seat it anew; then run diagnostics",
    NvlinkError.OTHER: "bits that NVIDIA's workflow does not explain",
}


def _bits(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


# (register, counted from 0; bits; class)
_TABLE: Final = (
    (0, _bits(0, 23, 30), NvlinkError.IGNORABLE),
    (0, _bits(1, 20), NvlinkError.SECONDARY),
    (0, _bits(4, 5), NvlinkError.ECC),
    (0, _bits(8, 9, 12, 16, 17, 24, 28), NvlinkError.CONNECTION),
    (0, _bits(21, 22), NvlinkError.SIGNAL),
    (0, _bits(27, 29), NvlinkError.REPEATED),
    (2, _bits(0, 1, 2, 6), NvlinkError.ECC),
    (2, _bits(16, 17, 18, 19), NvlinkError.REPEATED),
    (3, _bits(16, 17, 18), NvlinkError.SECONDARY),
    (4, _bits(18, 19, 21, 22, 24, 25, 27, 28), NvlinkError.ECC),
    (4, _bits(20, 23, 26, 29), NvlinkError.THRESHOLD),
)
_RANK: Final = {kind: place for place, kind in enumerate(NvlinkError)}


def read_nvlink_error(registers: Sequence[int]) -> NvlinkError:
    """Return the class of an XID 74 by its registers; without any bit nothing is known."""
    found = []
    for number, value in enumerate(registers):
        left = value
        for register, bits, kind in _TABLE:
            if register == number and value & bits:
                found.append(kind)
                left &= ~bits
        if left:
            return NvlinkError.OTHER
    return max(found, key=_RANK.__getitem__, default=NvlinkError.OTHER)


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
