"""Access Control Services of the PCIe bridges above GPUs and network cards.

Source: <root>/bus/pci/devices/<bridge>/config (Linux Documentation/ABI/testing/sysfs-bus-pci), of which the kernel gives
        64 bytes to anybody and the rest to root alone. Cost: one read of 4 kB a bridge; one that sleeps is woken for it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.sources.pci_topology import read_topology
from detectors.formats.pcie_acs import CONFIG_BYTES, parse_acs
from rankmend.errors import RootOnlyError, SourceError

BRIDGES_MAX: Final = 256  # a node of 8 GPUs and 16 NICs has some 50


@dataclass(frozen=True, slots=True)
class BridgeAcs:
    bridge: str  # its PCI address
    control: int | None = None  # the register; None: it has none, or can't be read
    error: str = ""  # why it can't be read
    is_root_only: bool = False  # this process may not read it


def list_bridges(sysfs_root: Path, excluded: Sequence[str] = ()) -> dict[str, bool]:
    """Return the bridges above GPUs and network cards, and whether each is a port of a switch, not of the root."""
    topology = read_topology(sysfs_root, excluded)
    chains = [device.ancestry for device in (*topology.gpus, *(nic.pci for nic in topology.nics))]
    found = {
        bridge: depth > 0 for chain in chains for depth, bridge in enumerate(chain[1:-1])
    }  # the first is the host bridge, the last the device
    return dict(sorted(found.items())[:BRIDGES_MAX])


def read_acs(sysfs_root: Path, bridges: Iterable[str]) -> Iterator[BridgeAcs]:
    """Return what each bridge's register says. A bridge that can't be read harms no other."""
    for bridge in bridges:
        try:
            yield BridgeAcs(bridge, parse_acs(_read(sysfs_root, bridge)))
        except SourceError as error:
            yield BridgeAcs(bridge, None, str(error), isinstance(error, RootOnlyError))


def encode_line(acs: BridgeAcs) -> str:
    return json.dumps({"bridge": acs.bridge, "control": acs.control, "error": acs.error})


def decode_lines(output: str) -> Iterator[BridgeAcs]:
    """Return what the root helper's program has printed, up to where it was cut off."""
    for line in output.splitlines()[:BRIDGES_MAX]:
        try:
            item = json.loads(line)
            bridge, control, text = item["bridge"], item["control"], item["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        is_control = control is None or (type(control) is int and 0 <= control <= 0xFFFF)
        if isinstance(bridge, str) and isinstance(text, str) and is_control:
            yield BridgeAcs(bridge, control, text)


def _read(sysfs_root: Path, bridge: str) -> bytes:
    path = sysfs_root / "bus" / "pci" / "devices" / bridge / "config"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.pread(descriptor, CONFIG_BYTES, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
