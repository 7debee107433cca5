"""Which flows of running programs count, and what queue pairs say of their path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.fabric.collisions import NodeFlow, NodePair, flows_that_count, join_pairs
from detectors.formats.rdma_qps import QueuePair, parse_qps, source_port
from detectors.formats.ss_flows import parse_ss
from rankmend.errors import SourceError

# iproute2 6.1.0
SS = """0      0      10.0.0.2:40848 10.1.0.2:5001 users:(("python3",pid=2017,fd=4)) cubic wscale:10,10 rto:204 rtt:0.016/0.005 mss:1448 cwnd:13 bytes_sent:100000 bytes_acked:90001 segs_out:5
0      0      [::ffff:10.0.0.2]:22 [::ffff:10.9.0.1]:50022 cubic wscale:10,10 bytes_received:5
"""
QPS = b"""[{"ifindex":0,"ifname":"mlx5_0","port":1,"lqpn":1134,"rqpn":2091,"type":"RC","state":"RTS","rq-psn":1,"sq-psn":7,"path-mig-state":"MIGRATED","pid":77,"comm":"python3"},
{"ifindex":0,"ifname":"mlx5_0","port":1,"lqpn":1,"type":"GSI","state":"RTS","comm":"[ib_core]"}]"""


def test_ss_tells_what_each_connection_has_sent() -> None:
    first, second = parse_ss(SS)

    assert (first.address, first.port, first.peer, first.peer_port) == ("10.0.0.2", 40848, "10.1.0.2", 5001)  # fmt: skip
    assert (first.acked_bytes, first.program) == (90001, "python3")
    assert (second.address, second.acked_bytes, second.program) == ("10.0.0.2", 0, "")


@pytest.mark.parametrize(
    ("counts", "is_held_up"),
    [
        ("bytes_acked:90001 unacked:7 retrans:1/23 lost:3 rcv_space:14600 notsent:245760 minrtt:0.05", True),
        ("bytes_acked:90001 rcv_space:14600 notsent:245760 minrtt:0.05", False),  # its reader stands still
        ("bytes_acked:90001 unacked:1 rcv_space:14600 minrtt:0.05", False),  # a heartbeat on its way
    ],
)  # fmt: skip
def test_flow_is_held_up_by_its_path_while_data_is_in_flight_and_more_waits(
    counts: str, is_held_up: bool
) -> None:
    (flow,) = parse_ss(f"0      260240 10.0.0.2:40848 10.1.0.2:5001 cubic wscale:10,10 {counts}\n")

    assert flow.is_held_up == is_held_up


@given(st.text(max_size=300))
def test_any_text_of_ss_is_read_or_left(text: str) -> None:
    parse_ss(text)


def test_only_connected_queue_pairs_are_flows() -> None:
    assert parse_qps(QPS) == (QueuePair("mlx5_0", 1134, 2091, "python3"),)
    assert parse_qps(b"") == ()
    with pytest.raises(SourceError, match="rdma res show qp"):
        parse_qps(b"Failed")


def test_source_port_of_a_queue_pair_is_the_kernels() -> None:
    # By rdma_calc_flow_label and rdma_flow_label_to_udp_sport of include/rdma/ib_verbs.h, worked out by hand:
    # 1134 * 2091 = 0x242E7A, xor 0x2 (>> 20) = 0x242E78, & 0xFFFFF = 0x42E78; (0x2E78 ^ 0x10) | 0xC000
    assert source_port(1134, 2091) == 0xEE68
    assert source_port(2091, 1134) == 0xEE68, "both ends compute one port"
    assert source_port(5, 6, flow_label=0x40001) == 0xC000 | (1 ^ 0x10)


def test_ends_of_a_queue_pair_are_the_nodes_that_name_each_others_numbers() -> None:
    pairs = [
        NodePair(0, 0, 1134, 2091, "a"),
        NodePair(1, 0, 2091, 1134, "b"),
        NodePair(2, 0, 50, 60, "c"),  # its other end takes no part
    ]

    flows, unpaired = join_pairs(pairs, {(0, 0): "10.0.0.1", (1, 0): "10.0.0.2", (2, 0): "10.0.0.3"})  # fmt: skip

    assert [(one.node, one.target, one.address, one.source_port) for one in flows] == [
        (0, 1, "10.0.0.2", 0xEE68), (1, 0, "10.0.0.1", 0xEE68)
    ]  # fmt: skip
    assert unpaired == 1


def test_queue_pair_with_two_possible_ends_is_not_judged() -> None:
    pairs = [NodePair(0, 0, 7, 8, ""), NodePair(1, 0, 8, 7, ""), NodePair(2, 0, 8, 7, "")]

    assert join_pairs(pairs, {(node, 0): f"10.0.0.{node}" for node in range(3)}) == ((), 3)


def test_flow_far_below_the_fastest_does_not_count() -> None:
    fast, slow = (NodeFlow(0, 0, 4000, "10.0.0.1", 5, "tcp", "", rate, None) for rate in (1e9, 1e6))

    assert flows_that_count([fast, slow]) == (fast,)


def test_flow_that_its_path_starves_counts_at_any_rate() -> None:
    fast = NodeFlow(0, 0, 4000, "10.0.0.1", 5, "tcp", "", 1e9, None)
    starved = NodeFlow(1, 0, 4000, "10.0.0.1", 5, "tcp", "", 0.0, None, is_held_up=True)

    assert flows_that_count([fast, starved]) == (fast, starved)
