"""Reads `rdma res show qp -j` (iproute2), and computes the UDP source port that a RoCE v2 queue pair sends from. Pure."""

from dataclasses import dataclass
from typing import Final

import msgspec

from rankmend.errors import SourceError

ROCE_PORT: Final = 4791  # IBTA, annex A17
_PORT_MIN: Final = 0xC000  # include/rdma/ib_verbs.h: IB_ROCE_UDP_ENCAP_VALID_PORT_MIN
_NUMBERS_END: Final = 1 << 24
_LABEL_MASK: Final = 0xFFFFF  # IB_GRH_FLOWLABEL_MASK


@dataclass(frozen=True, slots=True)
class QueuePair:
    device: str
    own: int
    other: int
    program: str


class _Row(msgspec.Struct):
    ifname: str = ""
    lqpn: int = 0
    rqpn: int = 0
    type: str = ""
    state: str = ""
    comm: str = ""


def parse_qps(body: bytes) -> tuple[QueuePair, ...]:
    """Return the connected queue pairs that may send. Raises SourceError if it is no such output."""
    try:
        rows = msgspec.json.decode(body or b"[]", type=list[_Row])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SourceError(f"the output of rdma res show qp -j can't be read: {error}") from error
    return tuple(
        QueuePair(row.ifname, row.lqpn, row.rqpn, row.comm)
        for row in rows
        if row.type == "RC" and row.state == "RTS" and row.ifname
        and 0 < row.lqpn < _NUMBERS_END and 0 < row.rqpn < _NUMBERS_END
    )  # fmt: skip


def source_port(own: int, other: int, flow_label: int = 0) -> int:
    """Return the UDP source port, as drivers compute it: rdma_get_udp_sport of include/rdma/ib_verbs.h, Linux 5.7 and later.

    Without a flow label, which NCCL and UCX leave at 0, the numbers of the two queue pairs decide.
    """
    label = flow_label
    if not label:
        product = own * other & 0xFFFFFFFFFFFFFFFF
        product ^= product >> 20
        product ^= product >> 40
        label = product & _LABEL_MASK
    return (label & 0x3FFF) ^ ((label & 0xFC000) >> 14) | _PORT_MIN
