"""The memory of a pluggable transceiver: who made it, how warm it is, how much light there is.

Standards: SFF-8472 (SFP), SFF-8636 (QSFP+, QSFP28), CMIS 5 (QSFP-DD, OSFP, QSFP112); identifiers
           from SFF-8024. Offsets as in the standards, which ethtool's qsfp.h, cmis.h and sfpdiag.c
           repeat.
Layout:    the bytes that `agent.sources.network_driver.Ethtool.module_memory` returns:
           SFF-8472: address A0h (256), then address A2h (256)
           SFF-8636: lower memory (128), upper pages 00h, 01h, 02h, 03h (128 each)
           CMIS:     lower memory (128), upper pages 00h, 01h, 02h, and 11h of bank 0 (128 each)
           A module without a page has zeros there, or the bytes end before it.

What a module doesn't measure is None and never zero. Flags are latched in the module: each says
what has happened since it was last read.
"""

import math
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rankmend.errors import NoSourceError, SourceError

_PAGE: Final = 128
BYTES_MAX: Final = 5 * _PAGE
LANES_MAX: Final = 8


class Standard(Enum):
    SFF_8472 = "SFF-8472"
    SFF_8636 = "SFF-8636"
    CMIS = "CMIS"


# SFF-8024 table 4-1
STANDARD_BY_IDENTIFIER: Final = {
    0x03: Standard.SFF_8472,  # SFP, SFP+, SFP28
    0x0B: Standard.SFF_8472,  # DWDM-SFP
    0x0C: Standard.SFF_8636,  # QSFP
    0x0D: Standard.SFF_8636,  # QSFP+
    0x11: Standard.SFF_8636,  # QSFP28
    0x18: Standard.CMIS,  # QSFP-DD
    0x19: Standard.CMIS,  # OSFP
    0x1A: Standard.CMIS,  # SFP-DD
    0x1B: Standard.CMIS,  # DSFP
    0x1E: Standard.CMIS,  # QSFP+ or later with CMIS
    0x1F: Standard.CMIS,  # SFP-DD with CMIS
    0x20: Standard.CMIS,  # SFP+ and later with CMIS
}


@dataclass(frozen=True, slots=True)
class Range:
    """The alarm limits of one quantity."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Lane:
    number: int  # from 1
    receive_watts: float | None
    transmit_watts: float | None
    bias_amperes: float | None
    is_receive_lost: bool | None


@dataclass(frozen=True, slots=True)
class Transceiver:
    standard: Standard
    vendor: str
    part: str
    revision: str
    serial: str
    temperature_celsius: float | None
    voltage_volts: float | None
    temperature_limits_celsius: Range | None
    receive_limits_watts: Range | None
    transmit_limits_watts: Range | None
    lanes: tuple[Lane, ...]  # empty for a copper cable


def parse_transceiver(memory: bytes) -> Transceiver:
    """Return what a transceiver says of itself.

    Raises NoSourceError where there is no module that speaks one of the standards, and
    SourceError where its memory ends too early.
    """
    if not memory or not any(memory[: 2 * _PAGE]) or set(memory[: 2 * _PAGE]) == {0xFF}:
        raise NoSourceError("no transceiver answers")  # an empty cage reads as zeros or ones
    standard = STANDARD_BY_IDENTIFIER.get(memory[0])
    if standard is None:
        raise NoSourceError(f"transceiver of an unknown kind, identifier {memory[0]:#04x}")
    if len(memory) < 2 * _PAGE:
        raise SourceError(f"{len(memory)} bytes of a {standard.value} module, expected 256 or more")
    memory = memory[:BYTES_MAX].ljust(BYTES_MAX, b"\0")
    if standard is Standard.SFF_8472:
        return _parse_sff_8472(memory)
    if standard is Standard.SFF_8636:
        return _parse_sff_8636(memory)
    return _parse_cmis(memory)


def _parse_sff_8472(memory: bytes) -> Transceiver:
    identity, diagnostics = memory[:256], memory[256:]
    kind = identity[92]
    is_measured = bool(kind & 0x40) and any(diagnostics)
    calibrate = _Calibration(diagnostics) if kind & 0x10 else None
    has_limits = is_measured and calibrate is None  # theirs would need the constants as well
    temperature_raw, volts_raw, bias_raw, transmit_raw = (
        _s16(diagnostics, 96),
        _u16(diagnostics, 98),
        _u16(diagnostics, 100),
        _u16(diagnostics, 102),
    )
    receive_raw: float = _u16(diagnostics, 104)
    if calibrate is not None:
        temperature_raw = calibrate.linear(84, temperature_raw)
        volts_raw = calibrate.linear(88, volts_raw)
        bias_raw = calibrate.linear(76, bias_raw)
        transmit_raw = calibrate.linear(80, transmit_raw)
        receive_raw = calibrate.receive(receive_raw)
    lane = Lane(
        1, _light(receive_raw), _light(transmit_raw), bias_raw * 2e-6, bool(diagnostics[110] & 2)
    )
    is_copper = bool(identity[8] & 0x0C)  # passive or active cable
    return Transceiver(
        standard=Standard.SFF_8472,
        vendor=_text(identity, 20, 16),
        part=_text(identity, 40, 16),
        revision=_text(identity, 56, 4),
        serial=_text(identity, 68, 16),
        temperature_celsius=temperature_raw / 256 if is_measured else None,
        voltage_volts=volts_raw * 1e-4 if is_measured else None,
        temperature_limits_celsius=_temperature_range(diagnostics, 0) if has_limits else None,
        receive_limits_watts=_light_range(diagnostics, 32) if has_limits else None,
        transmit_limits_watts=_light_range(diagnostics, 24) if has_limits else None,
        lanes=(lane,) if is_measured and not is_copper else (),
    )


class _Calibration:
    """The constants of an externally calibrated module, SFF-8472 section 9.3."""

    def __init__(self, diagnostics: bytes) -> None:
        self._data = diagnostics
        constants = struct.unpack_from(">5f", diagnostics, 56)  # Rx_PWR(4) first
        self._receive = tuple(value if math.isfinite(value) else 0.0 for value in constants)

    def linear(self, offset: int, raw: float) -> float:
        """Return slope times ``raw`` plus offset, from the constants at ``offset``."""
        return raw * _u16(self._data, offset) / 256 + _s16(self._data, offset + 2)

    def receive(self, raw: float) -> float:
        total = 0.0
        for constant in self._receive:
            total = total * raw + constant
        return max(0.0, total) if math.isfinite(total) else 0.0


def _parse_sff_8636(memory: bytes) -> Transceiver:
    volts = _u16(memory, 26) * 1e-4
    is_measured = volts > 0  # passive cables have no monitors and leave zeros
    is_copper = memory[147] >> 4 >= 0xA
    limits = memory[4 * _PAGE :]  # page 03h
    lanes = tuple(
        Lane(
            number=lane + 1,
            receive_watts=_light(_u16(memory, 34 + 2 * lane)),
            transmit_watts=_light(_u16(memory, 50 + 2 * lane)) if _sends_light(memory) else None,
            bias_amperes=_u16(memory, 42 + 2 * lane) * 2e-6,
            is_receive_lost=bool(memory[3] & 1 << lane),
        )
        for lane in range(4)
    )
    return Transceiver(
        standard=Standard.SFF_8636,
        vendor=_text(memory, 148, 16),
        part=_text(memory, 168, 16),
        revision=_text(memory, 184, 2),
        serial=_text(memory, 196, 16),
        temperature_celsius=_s16(memory, 22) / 256 if is_measured else None,
        voltage_volts=volts if is_measured else None,
        temperature_limits_celsius=_temperature_range(limits, 0) if is_measured else None,
        receive_limits_watts=_light_range(limits, 176 - _PAGE) if is_measured else None,
        transmit_limits_watts=_light_range(limits, 192 - _PAGE) if is_measured else None,
        lanes=lanes if is_measured and not is_copper else (),
    )


def _sends_light(memory: bytes) -> bool:
    """Return whether the module measures its transmitter: byte 220, bit 2."""
    return bool(memory[220] & 0x04) or any(memory[50:58])


def _parse_cmis(memory: bytes) -> Transceiver:
    is_flat = bool(memory[2] & 0x80)  # a cable: lower memory and page 00h only
    advertised, limits, lane_page = (
        memory[2 * _PAGE : 3 * _PAGE],
        memory[3 * _PAGE : 4 * _PAGE],
        memory[4 * _PAGE :],
    )
    monitors = 0 if is_flat else advertised[160 - _PAGE]
    bias_unit = 2e-6 * (1, 2, 4, 1)[monitors >> 3 & 3]
    volts = _u16(memory, 16) * 1e-4
    is_measured = not is_flat and volts > 0
    has_transmit, has_receive = bool(monitors & 2), bool(monitors & 4)
    is_copper = 0x0A <= memory[212] <= 0x0F
    lanes = tuple(
        Lane(
            number=lane + 1,
            receive_watts=_light(_u16(lane_page, 58 + 2 * lane)) if has_receive else None,
            transmit_watts=_light(_u16(lane_page, 26 + 2 * lane)) if has_transmit else None,
            bias_amperes=_u16(lane_page, 42 + 2 * lane) * bias_unit if monitors & 1 else None,
            is_receive_lost=bool(lane_page[147 - _PAGE] & 1 << lane),
        )
        for lane in range(_cmis_lanes(memory))
    )
    return Transceiver(
        standard=Standard.CMIS,
        vendor=_text(memory, 129, 16),
        part=_text(memory, 148, 16),
        revision=_text(memory, 164, 2),
        serial=_text(memory, 166, 16),
        temperature_celsius=_s16(memory, 14) / 256 if is_measured else None,
        voltage_volts=volts if is_measured else None,
        temperature_limits_celsius=_temperature_range(limits, 0) if is_measured else None,
        receive_limits_watts=_light_range(limits, 192 - _PAGE) if is_measured else None,
        transmit_limits_watts=_light_range(limits, 176 - _PAGE) if is_measured else None,
        lanes=lanes if is_measured and not is_copper and has_transmit | has_receive else (),
    )


def _cmis_lanes(memory: bytes) -> int:
    """Return how many media lanes the first application uses: byte 88, low half."""
    lanes = memory[88] & 0x0F
    return lanes if 1 <= lanes <= LANES_MAX else LANES_MAX


def _temperature_range(data: bytes, offset: int) -> Range | None:
    return _range(_s16(data, offset + 2) / 256, _s16(data, offset) / 256)


def _light_range(data: bytes, offset: int) -> Range | None:
    return _range(_light(_u16(data, offset + 2)), _light(_u16(data, offset)))


def _range(low: float, high: float) -> Range | None:
    return Range(low, high) if low < high else None  # zeros where the page is missing


def _light(raw: float) -> float:
    return raw * 1e-7  # units of 0.1 uW


def _u16(data: bytes, offset: int) -> float:
    return float(int.from_bytes(data[offset : offset + 2], "big"))


def _s16(data: bytes, offset: int) -> float:
    return float(int.from_bytes(data[offset : offset + 2], "big", signed=True))


def _text(data: bytes, offset: int, length: int) -> str:
    """Return a padded field; bytes that are no printable ASCII become spaces."""
    field = data[offset : offset + length]
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else " " for byte in field).strip()
