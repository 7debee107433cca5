"""Pauses in the output of `ethtool -S`, by the names of several drivers."""

import pytest

from detectors.formats.pause_counters import PauseKind, parse_pauses

RECEIVED_3, SENT_3 = PauseKind("3", True), PauseKind("3", False)
MLX5 = """NIC statistics:
     rx_packets: 1000
     rx_prio3_bytes: 5
     rx_prio3_pause: 12
     rx_prio3_pause_duration: 900
     tx_prio3_pause: 7
     rx_prio3_pause_transition: 4
     tx_pause_ctrl_phy: 2
"""


def test_pauses_of_priorities_and_of_the_link_are_read_and_nothing_else() -> None:
    assert parse_pauses(MLX5) == {RECEIVED_3: 12, SENT_3: 7, PauseKind("", False): 2}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("rx_pause_prio_3: 12", RECEIVED_3),
        ("tx_pfc_ena_frames_pri3: 12", SENT_3),
        ("port.rx_priority_3_xoff: 12", RECEIVED_3),
        ("tx_priority_3_xoff.nic: 12", SENT_3),
        ("rx_pb_3_pxoff: 12", RECEIVED_3),
        ("mac_tx_pfc_pri3_pkt_num: 12", SENT_3),
        ("rx_flow_control_xoff: 12", PauseKind("", True)),
    ],
)
def test_each_drivers_names_are_known(line: str, kind: PauseKind) -> None:
    assert parse_pauses(f"NIC statistics:\n     {line}\n") == {kind: 12}


@pytest.mark.parametrize("text", ["", "no stats available\n", "     rx_prio3_pause: x\n", "\0"])
def test_what_is_no_counter_is_no_pause(text: str) -> None:
    assert parse_pauses(text) == {}
