"""Configuration spaces of PCIe bridges, made register by register.

Form: PCI Express Base Specification; header type 1, a PCI Express capability at 0x40, then the extended ones from 0x100: AER,
ACS, Secondary PCI Express. Checked once against what lspci 3.9.0 reads from them (`lspci -F DUMP -vv`).
"""

import struct
from pathlib import Path

AER_ID, ACS_ID, SECONDARY_ID = 0x0001, 0x000D, 0x0019
ALL_REDIRECTS = (
    0x001D  # SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+, as Linux sets them with an IOMMU
)


def bridge_config(acs_control: int | None, size: int = 4096) -> bytes:
    """Return the space of a downstream port; None: it has no ACS. ``size``: 64 is what others than root get."""
    space = bytearray(4096)
    struct.pack_into("<HHHHI", space, 0, 0x1000, 0xC030, 0x0007, 0x0010, 0x06040000)
    space[0x0E] = 0x01  # a bridge
    space[0x34] = 0x40
    struct.pack_into("<BBH", space, 0x40, 0x10, 0, 0x0062)  # PCI Express 2, a downstream port
    capabilities = [(0x100, AER_ID, 2), (0x148, ACS_ID, 1), (0x160, SECONDARY_ID, 1)]
    if acs_control is None:
        del capabilities[1]
    following = [at for at, _id, _version in capabilities[1:]] + [0]
    for (at, identity, version), after in zip(capabilities, following, strict=True):
        struct.pack_into("<I", space, at, identity | version << 16 | after << 20)
    if acs_control is not None:
        struct.pack_into("<HH", space, 0x148 + 4, 0x005F, acs_control)
    return bytes(space[:size])


def set_config(sysfs: Path, address: str, config: bytes) -> None:
    """Put it where the kernel shows that of a device, making the bridge known where it is a folder only."""
    folder = next((sysfs / "devices").glob(f"**/{address}"))
    (folder / "config").write_bytes(config)
    known = sysfs / "bus" / "pci" / "devices" / address
    if not known.is_symlink():
        known.symlink_to(folder)
