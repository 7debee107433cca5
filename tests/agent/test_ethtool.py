"""ethtool's structs and netlink messages: what the kernel sends, and what nobody should."""

import errno
import os
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.generic_netlink import GenericNetlink, attribute, parse_answer, parse_attributes
from agent.sources.network_driver import (
    COUNTERS_MAX,
    Ethtool,
    parse_driver_info,
    parse_statistics,
    parse_strings,
)
from detectors.formats.transceiver import parse_transceiver
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT
from tests.support.nics import cmis, sff_8472, sff_8636

pytestmark = pytest.mark.process


def driver_info(count: int) -> bytes:
    names = b"".join(
        text.encode().ljust(32, b"\0") for text in ("mlx5_core", "6.8.0", "28.41", "0000:1a:00.0")
    )
    return struct.pack("=I", 3) + names + bytes(32 + 12 + 4) + struct.pack("=4I", count, 0, 0, 0)


def test_driver_information_is_read() -> None:
    info, count = parse_driver_info(driver_info(412))

    assert (info.driver, info.version, info.firmware) == ("mlx5_core", "6.8.0", "28.41")
    assert info.bus == "0000:1a:00.0"
    assert count == 412


def test_driver_with_counters_beyond_all_reason_is_refused() -> None:
    assert parse_driver_info(driver_info(COUNTERS_MAX))[1] == COUNTERS_MAX
    with pytest.raises(SourceError, match="20001"):
        parse_driver_info(driver_info(COUNTERS_MAX + 1))


def test_names_end_at_their_zero_or_at_32_bytes() -> None:
    data = b"rx_prio3_pause\0garbage".ljust(32, b"\0") + b"x" * 32

    assert parse_strings(data, 2) == ("rx_prio3_pause", "x" * 32)


@pytest.mark.parametrize("count", [-1, 3])
def test_answer_that_is_too_short_is_refused(count: int) -> None:
    with pytest.raises(SourceError):
        parse_strings(bytes(64), count)
    with pytest.raises(SourceError):
        parse_statistics(bytes(16), count)


def test_attributes_are_read_back() -> None:
    data = attribute(1, b"abc") + attribute(2, attribute(3, b"\x07"), is_nested=True)

    assert parse_attributes(data)[1] == b"abc"
    assert parse_attributes(parse_attributes(data)[2]) == {3: b"\x07"}


@pytest.mark.parametrize("data", [b"\x03\0\1\0", b"\0\0\1\0", b"\xff\xff\1\0"])
def test_attribute_that_leaves_its_message_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="attribute"):
        parse_attributes(data)


def message(kind: int, sequence: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, sequence, 0) + payload


def test_answer_to_an_older_question_is_passed_over() -> None:
    late = message(30, 1, b"\1\1\0\0late")

    assert parse_answer(late, sequence=2) is None
    assert parse_answer(late + message(30, 2, b"\1\1\0\0new!"), sequence=2) == b"new!"


def test_error_of_the_kernel_is_raised_with_its_number() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)) as raised:
        parse_answer(message(2, 5, struct.pack("=i", -errno.EOPNOTSUPP) + bytes(16)), sequence=5)

    assert raised.value.errno == errno.EOPNOTSUPP


@PATIENT
@given(st.binary(max_size=400))
def test_no_answer_is_read_beyond_its_end(data: bytes) -> None:
    with suppress(SourceError, OSError):
        parse_answer(data, sequence=1)
    with suppress(SourceError):
        assert all(len(value) <= len(data) for value in parse_attributes(data).values())
    with suppress(SourceError):
        parse_driver_info(data)


@PATIENT
@given(st.dictionaries(st.integers(1, 0x3FFF), st.binary(max_size=60), max_size=8))
def test_every_attribute_survives_the_way(attributes: dict[int, bytes]) -> None:
    data = b"".join(attribute(kind, value) for kind, value in attributes.items())

    assert parse_attributes(data) == attributes


@pytest.fixture
def ethtool() -> Ethtool:
    return Ethtool()


def test_kernel_answers_by_netlink(ethtool: Ethtool) -> None:
    assert ethtool.is_link_up("lo") is True


def test_what_a_driver_lacks_is_absent(ethtool: Ethtool) -> None:
    for ask in (ethtool.statistics, ethtool.pause_frames, ethtool.fec_blocks):
        with pytest.raises(NoSourceError, match="lo"):
            ask("lo")


def test_device_that_is_not_there_is_absent(ethtool: Ethtool) -> None:
    with pytest.raises(NoSourceError, match="rm-none"):
        ethtool.driver_info("rm-none")
    with pytest.raises(NoSourceError, match="rm-none"):
        ethtool.is_link_up("rm-none")


@pytest.mark.parametrize("name", ["", "x" * 16, "a\0b"])
def test_what_can_be_no_name_is_not_asked_for(ethtool: Ethtool, name: str) -> None:
    with pytest.raises(SourceError, match="not a name"):
        ethtool.statistics(name)
    with pytest.raises(SourceError, match="not a name"):
        ethtool.is_link_up(name)


def test_family_that_the_kernel_lacks_is_absent() -> None:
    with pytest.raises(NoSourceError, match="rankmend-none"):
        GenericNetlink("rankmend-none")


class FakeModule(Ethtool):
    """Answers for the pages of one transceiver."""

    def __init__(self, memory: bytes, pages: dict[tuple[int, int, int], int]) -> None:
        super().__init__()
        self._memory = memory
        self._pages = pages  # (address, page, offset) to the place in the memory

    def _ask(
        self, device: str, command: int, payload: bytes = b"", flags: int = 0
    ) -> dict[int, bytes]:
        request = parse_attributes(payload)
        (offset,) = struct.unpack("=I", request[2])
        place = self._pages.get((request[6][0], request[4][0], offset))
        if place is None:
            raise SourceError("Invalid argument")
        return {7: self._memory[place : place + 128]}


_SFP = {(0x50, 0, 0): 0, (0x50, 0, 128): 128, (0x51, 0, 0): 256, (0x51, 0, 128): 384}
_QSFP = {(0x50, 0, 0): 0, (0x50, 0, 128): 128, (0x50, 3, 128): 512}
_OSFP = {
    (0x50, 0, 0): 0,
    (0x50, 0, 128): 128,
    (0x50, 1, 128): 256,
    (0x50, 2, 128): 384,
    (0x50, 0x11, 128): 512,
}


@pytest.mark.parametrize(
    ("memory", "pages"), [(sff_8472(), _SFP), (sff_8636(), _QSFP), (cmis(), _OSFP)]
)
def test_memory_of_every_standard_is_put_together_page_by_page(
    memory: bytes, pages: dict[tuple[int, int, int], int]
) -> None:
    read = FakeModule(memory, pages).module_memory("eth0")

    assert parse_transceiver(read) == parse_transceiver(memory)


def test_page_that_a_module_lacks_costs_only_its_values() -> None:
    pages = {place: at for place, at in _OSFP.items() if place[1] != 2}

    transceiver = parse_transceiver(FakeModule(cmis(), pages).module_memory("eth0"))

    assert transceiver.temperature_limits_celsius is None
    assert transceiver.lanes == parse_transceiver(cmis()).lanes


@pytest.mark.parametrize(("standard", "is_flat_byte"), [(cmis(), 0x80), (sff_8636(), 0x04)])
def test_flat_module_is_asked_for_its_two_pages_only(standard: bytes, is_flat_byte: int) -> None:
    memory = bytearray(standard)
    memory[2] = is_flat_byte

    assert len(FakeModule(bytes(memory), _OSFP | _QSFP).module_memory("eth0")) == 256
