"""The devices that this node is remembered to have, on disk, so that they outlive restarts and boots.

One small file, replaced as a whole; it changes when a device comes, goes or boots, and so hardly ever.
A file of another machine, which an image brought along, counts for nothing.
A file that makes no sense is put aside under another name, and the node is learned anew.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec

from agent.sources.pci_topology import read_text
from detectors.node.inventory import DEVICES_MAX, DeviceMemory, KnownDevice
from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file

log = logging.getLogger(__name__)

BYTES_MAX: Final = 1_000_000  # 512 devices of 300 bytes
VERSION: Final = 1
MACHINE_ID_FILE: Final = Path("/etc/machine-id")  # machine-id(5): 32 hexadecimal digits
_MACHINE_ID_CHARS: Final = 32


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    known: tuple[KnownDevice, ...]
    memory_bytes_max: int = 0
    machine_id: str = ""  # from /etc/machine-id


class InventoryFile:
    def __init__(self, path: Path, machine_id_file: Path = MACHINE_ID_FILE) -> None:
        self._path = path
        self._machine_id = (read_text(machine_id_file) or "")[:_MACHINE_ID_CHARS]

    def load(self) -> DeviceMemory:
        """Return what is remembered: nothing at the first start, or of a broken file."""
        try:
            data = read_if_there(self._path, BYTES_MAX, StorageError)
            if data is None:
                return DeviceMemory()
            saved = msgspec.json.decode(data, type=_Saved)
            if saved.version != VERSION:
                raise StorageError(f"version {saved.version}, not {VERSION}")
        except (StorageError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("cannot read this node's device list; starting a new one", extra=fields)
            self._put_aside()
            return DeviceMemory()
        if saved.machine_id and self._machine_id and saved.machine_id != self._machine_id:
            log.warning(
                "discarded the device list of another machine", extra={"path": str(self._path)}
            )
            return DeviceMemory()
        return DeviceMemory(saved.known[:DEVICES_MAX], memory_bytes_max=saved.memory_bytes_max)

    def save(self, memory: DeviceMemory) -> None:
        """Replace the file as a whole, or raise StorageError: a crash leaves the old or the new one."""
        saved = _Saved(
            version=VERSION,
            known=memory.known,
            memory_bytes_max=memory.memory_bytes_max,
            machine_id=self._machine_id,
        )
        replace_file(self._path, msgspec.json.encode(saved), StorageError, mode=0o644)

    def _put_aside(self) -> None:
        try:
            self._path.replace(self._path.with_name(f"{self._path.name}.broken"))
        except OSError as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("cannot move a broken file aside", extra=fields)
