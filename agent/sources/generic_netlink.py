"""Questions to a generic netlink family of the kernel: one request, one answer.

Source: Linux Documentation/userspace-api/netlink/intro.rst, linux/netlink.h, linux/genetlink.h.
"""

import errno
import os
import socket
import struct
from typing import Final

from rankmend.errors import NoSourceError, SourceError

TIMEOUT_S: Final = 2.0  # the kernel answers within the call that sends the request
ANSWER_BYTES_MAX: Final = 32_768
_MESSAGES_MAX: Final = 16  # per answer; we ask for one
_NETLINK_GENERIC: Final = 16
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_FAMILY_HEADER: Final = struct.Struct("=BBH")  # command, version, reserved
_REQUEST: Final = 1
_ERROR: Final = 2
_CONTROL_FAMILY, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF


def attribute(kind: int, payload: bytes, is_nested: bool = False) -> bytes:
    """Return one attribute, padded to four bytes."""
    kind |= _NESTED if is_nested else 0
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def parse_attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes by kind; of one that is repeated, the last."""
    attributes = {}
    offset = 0
    while len(data) - offset >= 4:
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4 or offset + length > len(data):
            raise SourceError(f"netlink attribute of {length} bytes with {len(data) - offset} left")
        attributes[kind & _TYPE_MASK] = data[offset + 4 : offset + length]
        offset += length + -length % 4
    return attributes


def parse_answer(data: bytes, sequence: int) -> bytes | None:
    """Return the payload of the answer to ``sequence`` in a datagram, or None if it has none.

    Raises OSError with the number that the kernel answered.
    """
    offset = 0
    for _message in range(_MESSAGES_MAX):
        if len(data) - offset < _HEADER.size:
            return None
        length, kind, _flags, of_sequence, _port = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            raise SourceError(f"netlink message of {length} bytes with {len(data) - offset} left")
        payload = data[offset + _HEADER.size : offset + length]
        offset += length + -length % 4
        if of_sequence != sequence:
            continue
        if kind != _ERROR:
            return payload[_FAMILY_HEADER.size :]
        if len(payload) < 4:
            raise SourceError(f"netlink error of {len(payload)} bytes")
        (number,) = struct.unpack_from("=i", payload)
        if not -4096 < number < 0:
            raise SourceError(f"netlink answered {number} where data was expected")
        raise OSError(-number, os.strerror(-number))
    return None


class GenericNetlink:
    """One socket, one family, one thread."""

    def __init__(self, family: str) -> None:
        self._sequence = 0
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC
            )
        except OSError as error:
            raise NoSourceError(f"no generic netlink: {error.strerror}") from error
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.bind((0, 0))
            name = attribute(_FAMILY_NAME, family.encode() + b"\0")
            reply = self._exchange(_CONTROL_FAMILY, _GET_FAMILY, name)
            self._family = struct.unpack("=H", reply[_FAMILY_ID])[0]
        except (OSError, KeyError, struct.error) as error:
            self._socket.close()
            raise NoSourceError(f"no netlink family {family}: {error}") from error
        except SourceError:
            self._socket.close()
            raise

    def ask(self, command: int, payload: bytes) -> dict[int, bytes]:
        """Return the attributes of the answer. Raises OSError or SourceError."""
        return self._exchange(self._family, command, payload)

    def close(self) -> None:
        self._socket.close()

    def _exchange(self, family: int, command: int, payload: bytes) -> dict[int, bytes]:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        body = _FAMILY_HEADER.pack(command, 1, 0) + payload
        header = _HEADER.pack(_HEADER.size + len(body), family, _REQUEST, self._sequence, 0)
        self._socket.send(header + body)
        for _datagram in range(_MESSAGES_MAX):  # answers to requests that timed out come first
            answer = parse_answer(self._socket.recv(ANSWER_BYTES_MAX), self._sequence)
            if answer is not None:
                return parse_attributes(answer)
        raise OSError(errno.EPROTO, "no answer among the messages received")
