"""The metric families of `agent/collectors/nic.py`."""

from typing import Final

from agent.metrics import PORT_LABELS, Family, counter, gauge

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "nic_device_info",
        "",
        ("device", "pci_bus_id", "driver", "driver_version", "firmware", "model", "board"),
        "What an RDMA device is; always 1.",
    ),
    gauge(
        "nic_port_info",
        "",
        (*PORT_LABELS, "link_layer", "network_device"),
        "Link layer of an RDMA port, and the network device that belongs to it; always 1.",
    ),
    gauge(
        "nic_port_state_id",
        "",
        PORT_LABELS,
        "State of the port: 1 down, 2 init, 3 armed, 4 active, 5 active deferred.",
    ),
    gauge(
        "nic_port_physical_state_id",
        "",
        PORT_LABELS,
        "Physical state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
    ),
    gauge("nic_rate_bytes_per_second", "bytes per second", PORT_LABELS, "Rate of the link now."),
    gauge(
        "nic_rate_max_bytes_per_second",
        "bytes per second",
        PORT_LABELS,
        "Rate that the link ought to have: as configured, else the most that a port of this board has had here.",
    ),
    gauge(
        "nic_unreadable_files",
        "",
        PORT_LABELS,
        "Files of the port that could not be read in the last run; their values are missing.",
    ),
    gauge(
        "nic_saturated",
        "",
        (*PORT_LABELS, "counter"),
        "1 when a narrow counter stands at its end and counts no further; no series otherwise.",
    ),
    *(
        counter(f"nic_{name}", unit, PORT_LABELS, text)
        for name, unit, text in (
            ("symbol_errors", "", "Minor link errors on one or more lanes."),
            ("link_error_recoveries", "", "Link error recoveries that succeeded."),
            ("link_downed", "", "Link error recoveries that failed and took the link down."),
            ("receive_errors", "", "Packets received with an error."),
            ("receive_remote_physical_errors", "", "Packets received that were marked as bad."),
            ("receive_switch_relay_errors", "", "Packets that the switch could not forward."),
            ("transmit_discards", "", "Packets discarded: the port was down or congested."),
            ("transmit_constraint_errors", "", "Packets not sent because of partition or filter."),
            ("receive_constraint_errors", "", "Packets discarded because of partition or filter."),
            ("local_link_integrity_errors", "", "Times that local errors exceeded their limit."),
            ("excessive_buffer_overrun_errors", "", "Overruns of the input buffer."),
            ("vl15_drops", "", "Management packets dropped for lack of buffers."),
            ("transmit_wait_ticks", "", "Ticks during which there was data and none was sent."),
            ("transmit_bytes", "bytes", "Bytes sent on all lanes."),
            ("receive_bytes", "bytes", "Bytes received on all lanes."),
            ("transmit_packets", "", "Packets sent."),
            ("receive_packets", "", "Packets received, those with errors among them."),
            ("transmit_unicast_packets", "", "Unicast packets sent."),
            ("receive_unicast_packets", "", "Unicast packets received."),
            ("transmit_multicast_packets", "", "Multicast packets sent."),
            ("receive_multicast_packets", "", "Multicast packets received."),
        )
    ),
    counter(
        "nic_hardware",
        "",
        (*PORT_LABELS, "counter"),
        "Counters of the card under the driver's own names: ECN, CNP, retransmits, out of sequence; docs/reference/nic.md.",
    ),
    gauge(
        "nic_resources",
        "",
        (*PORT_LABELS, "counter"),
        "Objects in use on the card, by the driver's own names (active_, watermark_).",
    ),
)
