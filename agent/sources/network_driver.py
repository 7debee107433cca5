"""Reads a network driver through ethtool: its counters, their names, the transceiver's memory.

Source: linux/ethtool.h (SIOCETHTOOL) and Documentation/networking/ethtool-netlink.rst.
Rights: none for counters, pause, FEC and driver; CAP_NET_ADMIN for the transceiver's memory,
        which the root helper has.
Cost:   one ioctl a device for all its counters; their names are read once.
"""

import array
import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

from agent.sources.generic_netlink import GenericNetlink, attribute, parse_attributes
from detectors.formats.transceiver import STANDARD_BY_IDENTIFIER, Standard
from rankmend.errors import NoSourceError, SourceError

COUNTERS_MAX: Final = 20_000  # an mlx5 with 128 queues has about 6,000
MODULE_BYTES_MAX: Final = 640

# linux/ethtool.h
_SIOCETHTOOL: Final = 0x8946
_GET_DRIVER, _GET_STRINGS, _GET_STATISTICS = 0x03, 0x1B, 0x1D
_GET_MODULE_INFO, _GET_MODULE_MEMORY = 0x42, 0x43
_SET_OF_STATISTICS: Final = 1
_STRING_BYTES: Final = 32
_NAME_BYTES_MAX: Final = 15
# linux/ethtool_netlink.h
_LINK_STATE_GET, _PAUSE_GET, _FEC_GET, _MODULE_GET = 6, 21, 29, 31
_REQUEST_HEADER, _HEADER_NAME, _HEADER_FLAGS = 1, 2, 3
_FLAG_STATISTICS: Final = 4
_LINK_STATE: Final = 2
_PAUSE_STATISTICS, _PAUSE_SENT, _PAUSE_RECEIVED = 5, 2, 3
_FEC_STATISTICS, _FEC_CORRECTED, _FEC_UNCORRECTABLE = 5, 2, 3
_MODULE_OFFSET, _MODULE_LENGTH, _MODULE_PAGE = 2, 3, 4
_MODULE_BANK, _MODULE_I2C, _MODULE_DATA = 5, 6, 7
# the memory of a transceiver
_PAGE_BYTES: Final = 128
_UPPER: Final = 128
_I2C_IDENTITY, _I2C_DIAGNOSTICS = 0x50, 0x51
_PAGES_BY_STANDARD: Final[dict[Standard, tuple[int | None, ...]]] = {
    Standard.SFF_8636: (None, None, 0x03),
    Standard.CMIS: (0x01, 0x02, 0x11),
}
_ABSENT: Final = frozenset({errno.EOPNOTSUPP, errno.ENODEV, errno.ENXIO, errno.ENOTTY})


@dataclass(frozen=True, slots=True)
class DriverInfo:
    driver: str
    version: str
    firmware: str
    bus: str


@dataclass(frozen=True, slots=True)
class PauseFrames:
    received: int | None
    sent: int | None


@dataclass(frozen=True, slots=True)
class FecBlocks:
    """Blocks of forward error correction, over all lanes."""

    corrected: int | None
    uncorrectable: int | None


def parse_strings(data: bytes, count: int) -> tuple[str, ...]:
    """Return ``count`` names out of an array of fixed strings."""
    if count < 0 or len(data) < count * _STRING_BYTES:
        raise SourceError(f"{count} names do not fit in {len(data)} bytes")
    names = []
    for index in range(count):
        field = data[index * _STRING_BYTES : (index + 1) * _STRING_BYTES]
        names.append(field.partition(b"\0")[0].decode("ascii", "replace").strip())
    return tuple(names)


def parse_statistics(data: bytes, count: int) -> tuple[int, ...]:
    """Return ``count`` native 64-bit counters."""
    if count < 0 or len(data) < 8 * count:
        raise SourceError(f"{count} counters do not fit in {len(data)} bytes")
    return struct.unpack_from(f"={count}Q", data)


def parse_driver_info(data: bytes) -> tuple[DriverInfo, int]:
    """Return the driver and the number of its counters from a struct ethtool_drvinfo."""
    if len(data) < 196:
        raise SourceError(f"{len(data)} bytes of driver information, expected 196")
    driver, version, firmware, bus = parse_strings(data[4:], 4)
    (count,) = struct.unpack_from("=I", data, 180)
    if count > COUNTERS_MAX:
        raise SourceError(f"driver {driver} has {count} counters, at most {COUNTERS_MAX}")
    return DriverInfo(driver, version, firmware, bus), count


class Ethtool:
    """Asks drivers by ioctl, and by netlink for what has a netlink message. One thread only."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._netlink: GenericNetlink | None = None
        self._names: dict[str, tuple[str, ...]] = {}

    def close(self) -> None:
        self._socket.close()
        if self._netlink is not None:
            self._netlink.close()

    def driver_info(self, device: str) -> DriverInfo:
        return self._driver_info(device)[0]

    def statistics(self, device: str) -> dict[str, int]:
        """Return the driver's own counters by name (`ethtool -S`)."""
        _info, count = self._driver_info(device)
        if count == 0:
            raise NoSourceError(f"the driver of {device} has no counters")
        # The kernel writes as many as the driver has by now: room for queues added meanwhile.
        room = 2 * count + 1024
        names = self._names.get(device)
        if names is None or len(names) != count:
            request = struct.pack("=III", _GET_STRINGS, _SET_OF_STATISTICS, count)
            answer = self._ioctl(device, request, len(request) + room * _STRING_BYTES)
            (count,) = struct.unpack_from("=I", answer, 8)
            names = self._names[device] = parse_strings(answer[12:], min(count, room))
        request = struct.pack("=II", _GET_STATISTICS, len(names))
        answer = self._ioctl(device, request, len(request) + room * 8)
        (count,) = struct.unpack_from("=I", answer, 4)
        if count != len(names):
            del self._names[device]
            raise SourceError(f"{device} has {count} counters and {len(names)} names")
        return dict(zip(names, parse_statistics(answer[8:], count), strict=True))

    def forget(self, device: str) -> None:
        self._names.pop(device, None)

    def pause_frames(self, device: str) -> PauseFrames:
        """Return the counters of IEEE 802.3 annex 31B, the same for every driver."""
        counters = parse_attributes(
            self._ask(device, _PAUSE_GET, flags=_FLAG_STATISTICS).get(_PAUSE_STATISTICS, b"")
        )
        return PauseFrames(
            received=_first_counter(counters.get(_PAUSE_RECEIVED)),
            sent=_first_counter(counters.get(_PAUSE_SENT)),
        )

    def fec_blocks(self, device: str) -> FecBlocks:
        """Return the counters of IEEE 802.3 clause 30.5.1.1.17 and 18."""
        counters = parse_attributes(
            self._ask(device, _FEC_GET, flags=_FLAG_STATISTICS).get(_FEC_STATISTICS, b"")
        )
        return FecBlocks(
            corrected=_first_counter(counters.get(_FEC_CORRECTED)),
            uncorrectable=_first_counter(counters.get(_FEC_UNCORRECTABLE)),
        )

    def is_link_up(self, device: str) -> bool | None:
        state = self._ask(device, _LINK_STATE_GET).get(_LINK_STATE)
        return bool(state[0]) if state else None

    def module_memory(self, device: str) -> bytes:
        """Return the memory of a device's transceiver, laid out for `parse_transceiver`.

        Needs CAP_NET_ADMIN. Raises NoSourceError where there is no module or no way to read it.
        The bus to a module is slow: up to a second in all.
        """
        try:
            memory = self._page(device, 0x00) + self._page(device, 0x00, _UPPER)
        except NoSourceError:
            return self._module_memory_by_ioctl(device)
        standard = STANDARD_BY_IDENTIFIER.get(memory[0])
        if standard is Standard.SFF_8472:
            if memory[92] & 0x40:  # it has diagnostics
                for half in (0, _UPPER):
                    memory += self._page(device, 0x00, half, _I2C_DIAGNOSTICS)
            return memory
        is_flat = memory[2] & (0x80 if standard is Standard.CMIS else 0x04)
        if is_flat or standard is None:
            return memory
        for page in _PAGES_BY_STANDARD[standard]:
            memory += self._page_or_zeros(device, page)
        return memory

    def _page_or_zeros(self, device: str, page: int | None) -> bytes:
        if page is None:
            return bytes(_PAGE_BYTES)
        try:
            return self._page(device, page, _UPPER)
        except (NoSourceError, SourceError):  # a page that this module does not have
            return bytes(_PAGE_BYTES)

    def _page(self, device: str, page: int, offset: int = 0, address: int = _I2C_IDENTITY) -> bytes:
        request = b"".join(
            (
                attribute(_MODULE_OFFSET, struct.pack("=I", offset)),
                attribute(_MODULE_LENGTH, struct.pack("=I", _PAGE_BYTES)),
                attribute(_MODULE_PAGE, bytes([page])),
                attribute(_MODULE_BANK, b"\0"),
                attribute(_MODULE_I2C, bytes([address])),
            )
        )
        data = self._ask(device, _MODULE_GET, request).get(_MODULE_DATA, b"")
        if len(data) != _PAGE_BYTES:
            raise SourceError(f"{len(data)} bytes of page {page:#04x} of {device}, expected 128")
        return data

    def _module_memory_by_ioctl(self, device: str) -> bytes:
        """Return the memory as a kernel before 5.13 gives it: no page 11h of CMIS."""
        answer = self._ioctl(device, struct.pack("=I", _GET_MODULE_INFO), 44)
        (length,) = struct.unpack_from("=I", answer, 8)
        length = min(length, MODULE_BYTES_MAX)
        request = struct.pack("=IIII", _GET_MODULE_MEMORY, 0, 0, length)
        return self._ioctl(device, request, len(request) + length)[len(request) :]

    def _driver_info(self, device: str) -> tuple[DriverInfo, int]:
        return parse_driver_info(self._ioctl(device, struct.pack("=I", _GET_DRIVER), 196))

    def _ioctl(self, device: str, request: bytes, size: int) -> bytes:
        """Return what the kernel wrote over ``request`` in a buffer of ``size`` bytes."""
        buffer = array.array("B", request.ljust(size, b"\0"))
        address, _length = buffer.buffer_info()
        # struct ifreq: 16 bytes of name, a union of 24 that begins with the pointer
        interface = struct.pack("16sP16x", _name(device), address)
        try:
            fcntl.ioctl(self._socket.fileno(), _SIOCETHTOOL, interface)
        except OSError as error:
            raise _failure(device, error) from error
        return buffer.tobytes()

    def _ask(
        self, device: str, command: int, payload: bytes = b"", flags: int = 0
    ) -> dict[int, bytes]:
        header = attribute(_HEADER_NAME, _name(device) + b"\0")
        if flags:
            header += attribute(_HEADER_FLAGS, struct.pack("=I", flags))
        if self._netlink is None:
            self._netlink = GenericNetlink("ethtool")
        try:
            return self._netlink.ask(
                command, attribute(_REQUEST_HEADER, header, is_nested=True) + payload
            )
        except TimeoutError as error:
            raise SourceError(f"ethtool of {device} does not answer") from error
        except OSError as error:
            raise _failure(device, error) from error


def _name(device: str) -> bytes:
    name = os.fsencode(device)
    if not 1 <= len(name) <= _NAME_BYTES_MAX or b"\0" in name:
        raise SourceError(f"not a name of a network device: {device!r}")
    return name


def _failure(device: str, error: OSError) -> NoSourceError | SourceError:
    if error.errno == errno.EPERM:
        return NoSourceError(f"ethtool of {device}: needs CAP_NET_ADMIN")
    if error.errno in _ABSENT:
        return NoSourceError(f"ethtool of {device}: {error.strerror}")
    return SourceError(f"ethtool of {device}: {error.strerror}")


def _first_counter(data: bytes | None) -> int | None:
    """Return a 64-bit counter, or of an array its first element, which is the total."""
    return int(struct.unpack_from("=Q", data)[0]) if data and len(data) >= 8 else None
