"""Access Control Services of a PCI Express bridge, out of its configuration space. Pure.

Source: PCI Express Base Specification, "Access Control Services Extended Capability" (its registers are named in Linux
include/uapi/linux/pci_regs.h, PCI_ACS_CTRL; `lspci -vv` shows them as ACSCtl).

A port that redirects sends what one device writes to another below the same switch up to the root complex and back:
GPUDirect between GPUs, and between a GPU and a network card, is slow or, with some IOMMU settings, does not work.
"""

import struct
from enum import Flag
from typing import Final

from rankmend.errors import RootOnlyError, SourceError

CONFIG_BYTES: Final = 4096
_PLAIN_BYTES: Final = 256  # without the extended space, as old PCI bridges have it
_OPEN_BYTES: Final = 64  # what the kernel gives to anybody (pci_read_config)
_EXTENDED_AT: Final = 0x100
_ACS_ID: Final = 0x000D
_GONE: Final = 0xFFFFFFFF  # all reads of a device that is off the bus


class AcsControl(Flag):
    """Bits of the control register, with the names of lspci."""

    SOURCE_VALIDATION = 0x01
    TRANSLATION_BLOCKING = 0x02
    REQUEST_REDIRECT = 0x04
    COMPLETION_REDIRECT = 0x08
    UPSTREAM_FORWARDING = 0x10
    EGRESS_CONTROL = 0x20
    DIRECT_TRANSLATED = 0x40


# Translation blocking and the rest keep no device from another that may reach it.
REDIRECTS: Final = {
    AcsControl.REQUEST_REDIRECT: "ReqRedir",
    AcsControl.COMPLETION_REDIRECT: "CmpltRedir",
    AcsControl.UPSTREAM_FORWARDING: "UpstreamFwd",
}
OFF: Final = "off"


def parse_acs(config: bytes) -> int | None:
    """Return the control register, or None for a bridge without this capability; raise SourceError."""
    if len(config) == _OPEN_BYTES:
        raise RootOnlyError("64 bytes of configuration space: only root may read the rest")
    if len(config) < _PLAIN_BYTES:
        raise SourceError(f"the configuration space ends after {len(config)} bytes")
    at = _EXTENDED_AT
    seen: set[int] = set()
    while at and at + 8 <= len(config):
        if at in seen:
            raise SourceError(f"the extended capabilities go round at {at:#x}")
        seen.add(at)
        (header,) = struct.unpack_from("<I", config, at)
        if header == _GONE:
            raise SourceError("the bridge does not answer")
        if header & 0xFFFF == _ACS_ID:
            return int(struct.unpack_from("<H", config, at + 6)[0])
        following = header >> 20 & 0xFFC
        at = following if following >= _EXTENDED_AT else 0
    return None


def redirects_in_words(control: int | None) -> str:
    """Return which redirects are on, as lspci names them, or ``off``."""
    on = [name for bit, name in REDIRECTS.items() if control and control & bit.value]
    return " ".join(on) or OFF
