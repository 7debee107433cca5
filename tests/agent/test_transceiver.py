"""The memory of transceivers: exact values by standard, and memory that makes no sense."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.transceiver import TransceiverCollector
from detectors.formats.transceiver import (
    LANES_MAX,
    STANDARD_BY_IDENTIFIER,
    Lane,
    Range,
    Standard,
    parse_transceiver,
)
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, checked, values_of
from tests.support.nics import cmis, make_node, sff_8472, sff_8636


def test_sfp_is_read() -> None:
    sfp = parse_transceiver(sff_8472())

    assert sfp.standard is Standard.SFF_8472
    assert (sfp.vendor, sfp.part, sfp.serial) == ("Finisar", "FTLF8536P4BCL", "UVK0SQM")
    assert sfp.temperature_celsius == 40.5
    assert sfp.voltage_volts == pytest.approx(3.3)
    assert sfp.temperature_limits_celsius == Range(-5, 75)
    assert sfp.receive_limits_watts == Range(pytest.approx(50e-6), pytest.approx(2.2e-3))
    (lane,) = sfp.lanes
    assert lane.receive_watts == pytest.approx(0.5e-3)
    assert lane.transmit_watts == pytest.approx(0.9e-3)
    assert lane.bias_amperes == pytest.approx(7e-3)
    assert lane.is_receive_lost is True


def test_sfp_that_is_calibrated_outside_is_calculated() -> None:
    sfp = parse_transceiver(sff_8472(is_external=True))

    assert sfp.temperature_celsius == 42.5  # slope 1, offset 2 degrees
    assert sfp.lanes[0].receive_watts == pytest.approx((2 * 5_000 + 100) * 1e-7)
    assert sfp.temperature_limits_celsius is None


def test_sfp_without_diagnostics_measures_nothing() -> None:
    memory = bytearray(sff_8472()[:256])
    memory[92] = 0

    sfp = parse_transceiver(bytes(memory))

    assert (sfp.temperature_celsius, sfp.voltage_volts, sfp.lanes) == (None, None, ())


def test_qsfp_is_read() -> None:
    qsfp = parse_transceiver(sff_8636())

    assert (qsfp.vendor, qsfp.revision, qsfp.serial) == ("Mellanox", "B2", "MT2001FT05555")
    assert qsfp.temperature_celsius == -3.25
    assert qsfp.voltage_volts == pytest.approx(3.25)
    assert qsfp.temperature_limits_celsius == Range(-10, 80)
    assert qsfp.receive_limits_watts == Range(pytest.approx(40e-6), pytest.approx(3.4e-3))
    assert qsfp.transmit_limits_watts == Range(pytest.approx(70e-6), pytest.approx(3e-3))
    assert [lane.number for lane in qsfp.lanes] == [1, 2, 3, 4]
    assert qsfp.lanes[0] == Lane(
        1,
        receive_watts=pytest.approx(0.8e-3),
        transmit_watts=pytest.approx(0.7e-3),
        bias_amperes=pytest.approx(6e-3),
        is_receive_lost=False,
    )
    assert qsfp.lanes[2].receive_watts == pytest.approx(1e-7)
    assert [lane.is_receive_lost for lane in qsfp.lanes] == [False, False, True, False]


def test_copper_cable_has_a_name_and_no_light() -> None:
    cable = parse_transceiver(sff_8636(is_copper=True))

    assert cable.part == "MMA1B00-C100D"
    assert (cable.temperature_celsius, cable.voltage_volts, cable.lanes) == (None, None, ())


def test_osfp_is_read() -> None:
    osfp = parse_transceiver(cmis())

    assert osfp.standard is Standard.CMIS
    assert (osfp.vendor, osfp.part, osfp.revision) == ("NVIDIA", "MMS4X00-NM", "A3")
    assert osfp.temperature_celsius == 55.5
    assert osfp.temperature_limits_celsius == Range(-5, 75)
    assert osfp.receive_limits_watts == Range(pytest.approx(150e-6), pytest.approx(6e-3))
    assert osfp.transmit_limits_watts == Range(pytest.approx(200e-6), pytest.approx(5e-3))
    assert len(osfp.lanes) == 4  # towards the fibre; 8 lead to the host
    assert osfp.lanes[1] == Lane(
        2,
        receive_watts=0.0,
        transmit_watts=pytest.approx(1.01e-3),
        bias_amperes=pytest.approx(80.4e-3),  # the module counts in steps of 4 uA
        is_receive_lost=True,
    )


def test_flat_cmis_cable_measures_nothing() -> None:
    cable = parse_transceiver(cmis(is_flat=True))

    assert (cable.vendor, cable.temperature_celsius, cable.lanes) == ("NVIDIA", None, ())


def test_cmis_monitor_that_is_not_there_is_absent() -> None:
    memory = bytearray(cmis())
    memory[256 + 160 - 128] = 0x04  # receives only

    osfp = parse_transceiver(bytes(memory))

    assert osfp.lanes[0].transmit_watts is None
    assert osfp.lanes[0].bias_amperes is None
    assert osfp.lanes[0].receive_watts == pytest.approx(0.9e-3)


@pytest.mark.parametrize("memory", [b"", bytes(256), b"\xff" * 256, b"\x77" + bytes(255)])
def test_empty_cage_and_unknown_module_are_absent(memory: bytes) -> None:
    with pytest.raises(NoSourceError):
        parse_transceiver(memory)


def test_memory_that_ends_too_early_is_broken() -> None:
    with pytest.raises(SourceError, match="200 bytes"):
        parse_transceiver(cmis()[:200])


@PATIENT
@given(st.binary(max_size=700), st.sampled_from([None, *STANDARD_BY_IDENTIFIER]))
def test_any_memory_is_understood_or_refused(data: bytes, identifier: int | None) -> None:
    memory = data if identifier is None else bytes([identifier]) + data

    try:
        transceiver = parse_transceiver(memory)
    except (NoSourceError, SourceError):
        return
    assert len(transceiver.lanes) <= LANES_MAX
    assert transceiver.vendor.isprintable()
    for lane in transceiver.lanes:
        for value in (lane.receive_watts, lane.transmit_watts, lane.bias_amperes):
            assert value is None or (math.isfinite(value))
    if transceiver.temperature_celsius is not None:
        assert math.isfinite(transceiver.temperature_celsius)


def test_transceivers_are_shown(tmp_path: Path) -> None:
    sys = make_node(tmp_path)

    def read_memory(device: str) -> bytes:
        if device == "ens2np0":
            return cmis()
        if device == "eth0":
            raise SourceError("Input/output error")
        raise NoSourceError("not supported")

    values = values_of(checked(TransceiverCollector(sys, read_memory).collect()))

    assert values["transceiver_info{ens2np0,CMIS,NVIDIA,MMS4X00-NM,A3,MT2245FT01234}"] == 1
    assert values["transceiver_temperature_celsius{ens2np0}"] == 55.5
    assert values["transceiver_temperature_max_celsius{ens2np0}"] == 75
    assert values["transceiver_receive_power_watts{ens2np0,1}"] == pytest.approx(0.9e-3)
    assert values["transceiver_receive_power_min_watts{ens2np0}"] == pytest.approx(150e-6)
    assert values["transceiver_receive_lost{ens2np0,2}"] == 1
    assert values["transceiver_success{ens2np0}"] == 1
    assert values["transceiver_success{eth0}"] == 0
    assert not [name for name in values if "usb0" in name]


def test_node_whose_transceivers_may_not_be_read_says_why(tmp_path: Path) -> None:
    def read_memory(device: str) -> bytes:
        raise NoSourceError(f"ethtool of {device}: needs CAP_NET_ADMIN")

    with pytest.raises(NoSourceError, match="CAP_NET_ADMIN"):
        list(TransceiverCollector(make_node(tmp_path), read_memory).collect())


def test_way_to_the_transceivers_that_is_broken_is_not_blamed_on_each(tmp_path: Path) -> None:
    def read_memory(device: str) -> bytes:
        raise SourceError("cannot reach the root helper")

    with pytest.raises(SourceError, match="no transceiver can be read"):
        list(TransceiverCollector(make_node(tmp_path), read_memory).collect())
